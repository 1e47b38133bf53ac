//! Rate limits for axum, and for every tower service that speaks HTTP.

mod admission;
mod body;
mod client_ip;
mod forwarded;
mod headers;
mod key;
mod layer;
mod limiter;
mod response;
mod retry_after;
mod sent;
mod service;
mod settings;

pub use self::{
    body::RateLimitBody,
    client_ip::{BadNetwork, ClientIp, ClientIpRejection, TrustedProxies},
    headers::Headers,
    layer::RateLimitLayer,
    limiter::LayerLimiter,
    service::{RateLimit, RateLimitFuture},
};
