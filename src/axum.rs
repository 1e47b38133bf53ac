//! Rate limits for axum, and for every tower service that speaks HTTP.

mod admission;
mod client_ip;
mod headers;
mod key;
mod layer;
mod limiter;
mod response;
mod retry_after;
mod service;
mod settings;

pub use self::{
    client_ip::{BadNetwork, ClientIp, ClientIpRejection, TrustedProxies},
    headers::Headers,
    layer::RateLimitLayer,
    service::{RateLimit, RateLimited},
};
