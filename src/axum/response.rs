//! What a denial is as a response, and an error of a limiter on Redis.

use ::axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

#[cfg(feature = "redis")]
use super::retry_after;
use super::{
    Headers,
    headers::{Field, Policy, policy_name},
    retry_after::RetryAfter,
};
use crate::rate_limit::Limited;
#[cfg(feature = "redis")]
use crate::redis;

/// 429, with `Retry-After`, the fields of [`Headers::Draft11`] for the limit that denied, and a body that
/// [`RateLimitLayer`](crate::RateLimitLayer) shows.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use axum::{Router, body::Body, extract::Path, http::Request, routing::get};
/// use fleeting::{Limit, Limited, RateLimiter};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter = RateLimiter::<String>::builder().limit(Limit::per_second(1).named("burst")).build();
/// let hello = async move |Path(user): Path<String>| -> Result<String, Limited> {
///     limiter.check(&user).await?;
///     Ok(format!("hello {user}"))
/// };
/// let app = Router::new().route("/{user}", get(hello));
/// let ask = |path: &str| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
///
/// assert_eq!(ask("/ada").await.unwrap().status(), 200);
/// let limited = ask("/ada").await.unwrap();
/// assert_eq!(limited.status(), 429);
/// assert_eq!(limited.headers()["retry-after"], "1");
/// assert_eq!(limited.headers()["ratelimit"], r#""burst";r=0;t=1"#);
/// assert_eq!(ask("/grace").await.unwrap().status(), 200);
/// # }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for Limited {
    fn into_response(self) -> Response {
        let retry_after = RetryAfter::of(&self);
        let mut response = problem(&retry_after);
        let policy = Policy::of(std::slice::from_ref(retry_after.limit));
        let fields = std::iter::once_with(|| Field::denied(&retry_after));
        Headers::Draft11.replace(&policy, fields, response.headers_mut());
        response
    }
}

/// A limit that has no room is answered as [`Limited`] is, by a 429; what may be otherwise in a moment by a 503
/// with `Retry-After`, and all else by a 500. Of these two, nothing tells why.
///
/// # Examples
///
/// ```no_run
/// use axum::{extract::Path, Router, routing::get};
/// use fleeting::{Limit, redis::{Client, Error, RateLimiter}};
///
/// # #[tokio::main] async fn main() -> Result<(), Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let limiter = RateLimiter::<String>::builder(&client, "api").limit(Limit::per_second(5)).build()?;
/// let hello = async move |Path(user): Path<String>| -> Result<String, Error> {
///     limiter.check(&user).await?;
///     Ok(format!("hello {user}"))
/// };
/// let app: Router = Router::new().route("/{user}", get(hello));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(all(feature = "axum", feature = "redis"))))]
impl IntoResponse for redis::Error {
    fn into_response(self) -> Response {
        match self {
            redis::Error::Limited(limited) => limited.into_response(),
            error if error.is_temporary() => {
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, retry_after::UNKNOWN)])
                    .into_response()
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// The answer to a denied request, without fields that tell of limits.
pub(super) fn problem(denied: &RetryAfter<'_>) -> Response {
    let mut body = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": StatusCode::TOO_MANY_REQUESTS.as_u16(),
        "violated-policies": [policy_name(denied.limit)],
    });
    if let Some(milliseconds) = denied.milliseconds() {
        body["retry_after_ms"] = milliseconds.into();
    }
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    let mut response =
        (StatusCode::TOO_MANY_REQUESTS, content_type, body.to_string()).into_response();
    denied.write(response.headers_mut());
    response
}
