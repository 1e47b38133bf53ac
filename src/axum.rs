//! Rate limits for axum, and for every tower service that speaks HTTP.

mod admission;
mod body;
mod body_meter;
mod client_ip;
mod constructors;
mod decision;
mod forwarded;
mod headers;
mod key;
mod layer;
mod limiter;
mod limits_lookup;
mod response;
mod retry_after;
mod retry_info;
mod service;
mod settings;

pub use self::{
    body::RateLimitBody,
    client_ip::{BadNetwork, ClientIp, ClientIpRejection, TrustedProxies},
    decision::RateLimitDecision,
    headers::Headers,
    layer::RateLimitLayer,
    limiter::LayerLimiter,
    service::{RateLimit, RateLimitFuture},
};
