//! Tests of feature `axum`: the layer, its responses, and the client's address.

#[path = "../common/cancel.rs"]
mod cancel;
#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/http.rs"]
mod http;
#[path = "../common/layer_crossings.rs"]
mod layer_crossings;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/vouched.rs"]
mod vouched;

mod app;
mod asking;
mod cancellation;
mod client_ip;
mod costs;
mod crossings;
mod dashboard;
mod denials;
mod failures;
mod fields;
mod quotas;
mod services;
mod settings;
