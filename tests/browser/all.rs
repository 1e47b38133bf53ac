//! Tests of the dashboard and of the page of the example `service` in a real browser: Debian's Chromium, headless.
//!
//! `FLEETING_BROWSER_SECONDS=600` checks for this time that the heap does not grow. `FLEETING_PICTURES=310` writes the
//! pictures of the README, after this number of seconds under load.

mod browser;
#[path = "../common/example.rs"]
mod example;
#[path = "../common/http.rs"]
mod http;
mod mounted;
mod page;
#[path = "../common/patience.rs"]
mod patience;
mod pictures;
mod proxy;
#[path = "../common/redis.rs"]
mod servers;
mod tabs;
mod trouble;
mod unknown;
