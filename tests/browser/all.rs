//! The page of the example `service`, and with it the dashboard, in a real browser: Debian's Chromium, without a window.
//!
//! Longer: `FLEETING_BROWSER_SECONDS=600` looks for so long whether the heap grows. `FLEETING_PICTURES=310` writes
//! the pictures of the README, after so many seconds of some load.

mod browser;
#[path = "../common/example.rs"]
mod example;
#[path = "../common/http.rs"]
mod http;
mod mounted;
mod page;
mod pictures;
mod proxy;
mod tabs;
mod trouble;
