//! Rate limits for axum, and for every tower service that speaks HTTP. Feature `axum`.
//!
//! - In a handler: [`Limited`](crate::Limited) is a response, so `limiter.check(&user).await?` is all there is to it.
//! - Around routes or a whole service: [`RateLimitLayer`].
//! - By where a request comes from: [`ClientIp`], behind proxies with [`TrustedProxies`].
//!
//! # What a client is told
//!
//! A denied request is answered by 429 (RFC 6585) with
//! - `Retry-After`, in seconds, rounded up; missing where the cost is above the quota, as no wait helps,
//! - the fields of [`Headers`],
//! - a body of `application/problem+json` (RFC 9457), such as
//!
//! ```json
//! {
//!   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
//!   "title": "Request cannot be satisfied as assigned quota has been exceeded",
//!   "status": 429,
//!   "violated-policies": ["burst"],
//!   "retry_after_ms": 412
//! }
//! ```
//!
//! # Examples
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, body::Body, extract::Path, http::Request, routing::get};
//! use fleeting::{Limit, Limited, RateLimiter};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! let limiter = RateLimiter::<String>::builder().limit(Limit::per_second(1).named("burst")).build();
//! let hello = async move |Path(user): Path<String>| -> Result<String, Limited> {
//!     limiter.check(&user).await?;
//!     Ok(format!("hello {user}"))
//! };
//! let app = Router::new().route("/{user}", get(hello));
//! let ask = |path: &str| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
//!
//! assert_eq!(ask("/ada").await.unwrap().status(), 200);
//! let limited = ask("/ada").await.unwrap();
//! assert_eq!(limited.status(), 429);
//! assert_eq!(limited.headers()["retry-after"], "1");
//! assert_eq!(limited.headers()["ratelimit"], r#""burst";r=0;t=1"#);
//! assert_eq!(ask("/grace").await.unwrap().status(), 200);
//! # }
//! ```

mod client_ip;
mod denial;
mod headers;
mod key;
mod layer;
mod service;

pub use self::{
    client_ip::{BadNetwork, ClientIp, ClientIpRejection, TrustedProxies},
    headers::Headers,
    layer::RateLimitLayer,
    service::RateLimit,
};
