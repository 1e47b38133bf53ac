use std::time::Duration;

use ::axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    Headers,
    headers::{Field, Policy, policy_name, whole_seconds},
};
use crate::rate_limit::{Limit, Limited};

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
        let denial = Denial::of(&self);
        let mut response = denial.problem();
        let policy = Policy::of(std::slice::from_ref(denial.limit));
        let fields = std::iter::once_with(|| Field::denied(&denial));
        Headers::Draft11.replace(&policy, fields, response.headers_mut());
        response
    }
}

/// A denial at one moment, so that all that tells of it agrees.
pub(super) struct Denial<'a> {
    pub(super) limit: &'a Limit,
    /// `None` where no wait helps.
    pub(super) wait: Option<Duration>,
}

impl<'a> Denial<'a> {
    pub(super) fn of(limited: &'a Limited) -> Self {
        let wait = limited.ready_at().map(|_| limited.retry_after());
        Self { limit: limited.limit(), wait }
    }

    /// The answer, without fields that tell of limits.
    pub(super) fn problem(&self) -> Response {
        let mut body = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": StatusCode::TOO_MANY_REQUESTS.as_u16(),
            "violated-policies": [policy_name(self.limit)],
        });
        if let Some(wait) = self.wait {
            let milliseconds = wait.as_nanos().div_ceil(1_000_000).max(1);
            body["retry_after_ms"] = u64::try_from(milliseconds).unwrap_or(u64::MAX).into();
        }
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response =
            (StatusCode::TOO_MANY_REQUESTS, content_type, body.to_string()).into_response();
        self.retry_after(response.headers_mut());
        response
    }

    /// Says when to come again, unless that is said already.
    pub(super) fn retry_after(&self, headers: &mut HeaderMap) {
        if let Some(wait) = self.wait {
            headers.entry(header::RETRY_AFTER).or_insert_with(|| whole_seconds(wait).into());
        }
    }
}
