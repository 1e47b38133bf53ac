//! Rate limits for axum, and for every tower service that speaks HTTP.

mod admission;
mod body;
mod body_meter;
mod charging;
mod client_ip;
mod constructors;
mod decision;
mod forwarded;
mod headers;
mod key;
mod layer;
mod limiter;
mod limits_lookup;
mod limits_settings;
mod response;
mod retry_after;
mod retry_info;
mod service;
mod settings;
mod settlement;
mod trusted_proxies;

pub use self::{
    body::RateLimitBody,
    client_ip::{ClientIp, ClientIpRejection},
    decision::RateLimitDecision,
    headers::Headers,
    layer::RateLimitLayer,
    limiter::LayerLimiter,
    service::{RateLimit, RateLimitFuture},
    trusted_proxies::{BadNetwork, TrustedProxies},
};
