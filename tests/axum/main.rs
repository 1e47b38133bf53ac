//! What feature `axum` adds: the layer, the answers, and who a request is from.

#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/http.rs"]
mod http;
#[path = "../common/log.rs"]
mod log;

mod app;
mod asking;
mod client_ip;
mod costs;
mod dashboard;
mod fields;
mod quotas;
mod services;
mod settings;
