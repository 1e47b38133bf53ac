//! Responses for a denial, and for an error of a limiter on Redis.

use ::axum::{
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::json;

#[cfg(feature = "redis")]
use super::retry_after;
use super::{
    Headers,
    headers::{LimitFields, Partition, PolicyFields, byte_sequence, policy_name},
    retry_after::RetryAfter,
    retry_info::status_details,
};
use crate::rate_limit::Limited;
#[cfg(feature = "redis")]
use crate::redis;

const GRPC: &str = "application/grpc";

/// 429, with `Retry-After`, `Cache-Control: no-store`, the fields of [`Headers::Draft11`] for the limit that denied the
/// call, and the body described at [`RateLimitLayer`](crate::RateLimitLayer). The denial is also an extension of the
/// response, so that an outer layer can replace the fields by those of its own [`Headers`].
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
        let mut response = problem(&self, &retry_after);
        let policy = PolicyFields::of(std::slice::from_ref(retry_after.limit));
        let fields = LimitFields::denied(&self, &retry_after).into_iter();
        let partition = Partition { policy: &policy, key: None };
        Headers::Draft11.replace(partition, fields, response.headers_mut());
        response.extensions_mut().insert(self);
        response
    }
}

/// A denial becomes the response of [`Limited`] (429), a temporary error 503 with `Retry-After` and
/// `Cache-Control: no-store`, and any other error 500. The last two do not disclose the cause.
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
                let retry_after = [(header::RETRY_AFTER, retry_after::UNKNOWN)];
                let mut response = (StatusCode::SERVICE_UNAVAILABLE, retry_after).into_response();
                forbid_storing(response.headers_mut());
                response
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Builds the response to a denied request, without rate limit fields.
pub(super) fn problem(limited: &Limited, denied: &RetryAfter<'_>) -> Response {
    let violated: Vec<_> = limited.exceeded().iter().map(policy_name).collect();
    let mut body = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": StatusCode::TOO_MANY_REQUESTS.as_u16(),
        "violated-policies": violated,
    });
    if let Some(milliseconds) = denied.milliseconds() {
        body["retry_after_ms"] = milliseconds.into();
    }
    // RFC 9457; the problem type in the body is the one registered at IANA for exhausted quotas.
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    let mut response =
        (StatusCode::TOO_MANY_REQUESTS, content_type, body.to_string()).into_response();
    denied.write(response.headers_mut());
    forbid_storing(response.headers_mut());
    response
}

/// Writes `Cache-Control: no-store`, unless the field is present. A cache would otherwise serve the denial of one
/// client to all: some store any 200, which a gRPC denial is, or are configured to store errors.
pub(super) fn forbid_storing(headers: &mut HeaderMap) {
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Returns `true` for a gRPC call, whose client expects a gRPC status: a POST whose content type is `application/grpc`
/// or one of its variants. Any other client would take the denial, which has HTTP status 200, for a success.
pub(super) fn is_grpc(request: &Parts) -> bool {
    let content_type = request.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    request.method == Method::POST && content_type.is_some_and(is_grpc_type)
}

fn is_grpc_type(content_type: &[u8]) -> bool {
    let Some(mut rest) = content_type.strip_prefix(GRPC.as_bytes()) else { return false };
    if let Some(web) = rest.strip_prefix(b"-web") {
        rest = web.strip_prefix(b"-text").unwrap_or(web);
    }
    // The message format or a parameter may follow.
    matches!(rest, [] | [b'+' | b';', ..])
}

/// Builds the response to a denied gRPC call: the status is in the headers, and there is no body.
pub(super) fn grpc_denial(denied: &RetryAfter<'_>, request: &Parts) -> Response {
    const RESOURCE_EXHAUSTED: u8 = 8;

    let message = format!("the quota of {} is exceeded", policy_name(denied.limit));
    // The same type as the request's, which may be `application/grpc-web`.
    let content_type = request.headers.get(header::CONTENT_TYPE).cloned();
    let headers = [
        (header::CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(GRPC))),
        (HeaderName::from_static("grpc-status"), HeaderValue::from(u16::from(RESOURCE_EXHAUSTED))),
        // The name is printable ASCII, of which gRPC requires only the percent sign to be escaped.
        (
            HeaderName::from_static("grpc-message"),
            HeaderValue::try_from(message.replace('%', "%25"))
                .expect("the name is printable ASCII"),
        ),
    ];
    // With HTTP status 200: gRPC clients read the error from `grpc-status`.
    let mut response = headers.into_response();
    if let Some(wait) = denied.wait() {
        let details = byte_sequence(&status_details(RESOURCE_EXHAUSTED.into(), &message, wait));
        let details = HeaderValue::try_from(details.trim_matches([':', '=']));
        let details = details.expect("Base64 is printable ASCII");
        response.headers_mut().insert("grpc-status-details-bin", details);
    }
    denied.write(response.headers_mut());
    forbid_storing(response.headers_mut());
    response
}
