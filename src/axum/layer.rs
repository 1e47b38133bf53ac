//! `RateLimitLayer` and its settings.

use std::{fmt, sync::Arc, time::Duration};

use ::axum::{http::request::Parts, response::IntoResponse};
use tower_layer::Layer;

use super::{
    Headers, RateLimit, decision::RateLimitDecision, headers::byte_sequence, key::KeyExtractor,
    limiter::LayerLimiter, settings::Settings,
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limited, MAX_KEY_BYTES},
};

/// A tower layer that limits the requests of each client, user or token, in axum and any other HTTP service.
///
/// ```
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use fleeting::{Limit, RateLimitLayer, RateLimiter};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter = RateLimiter::<String>::builder().limit(Limit::per_minute(1).named("minute")).build();
/// let by_token = RateLimitLayer::new(limiter, |request| {
///     Some(request.headers.get("x-token")?.to_str().ok()?.to_owned())
/// });
/// let app = Router::new().route("/", get("hello")).layer(by_token);
/// let ask = |token| {
///     app.clone().oneshot(Request::get("/").header("x-token", token).body(Body::empty()).unwrap())
/// };
///
/// let first = ask("ada").await.unwrap();
/// assert_eq!(first.headers()["ratelimit-policy"], r#""minute";q=1;w=60"#);
/// assert_eq!(first.headers()["ratelimit"], r#""minute";r=0;t=60"#);
/// assert_eq!(ask("ada").await.unwrap().status(), 429);
/// assert_eq!(ask("grace").await.unwrap().status(), 200);
/// # }
/// ```
///
/// Choose the constructor by your key: [`by_ip`](RateLimitLayer::by_ip) for the address of the client,
/// [`by_extension`](RateLimitLayer::by_extension) for the user that your own layer has authenticated,
/// [`by`](RateLimitLayer::by) for any extractor, and [`new`](RateLimitLayer::new) for a function of the request.
///
/// Responses to limited requests get the fields of [`Headers`], except in [shadow mode](RateLimitLayer::shadow). The
/// layer answers a denied request itself; your service does not see it.
///
/// # Services and limiters
///
/// All clones of the layer, all services that it creates and all connections share one limiter: a
/// [`RateLimiter`](crate::RateLimiter), or a `redis::RateLimiter` that is shared between processes.
///
/// The layer fits any service of HTTP requests: axum's routers, services inside tower-http's layers, and tonic's
/// services. Response bodies are wrapped in [`RateLimitBody`](crate::RateLimitBody), so that the layer can answer with
/// a body of its own. The `Data` type of the body must implement `From<Bytes>`. Errors of the service are passed
/// through unchanged.
///
/// # Denied requests
///
/// A denied request is answered by 429 (RFC 6585) with
/// - `Retry-After`, in seconds, rounded up; absent if the cost exceeds the quota, because the request can never pass,
/// - `Cache-Control: no-store`, so that no cache serves the denial of one client to others,
/// - the fields of [`Headers`],
/// - a body of type `application/problem+json` (RFC 9457), such as
///
/// ```json
/// {
///   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
///   "title": "Request cannot be satisfied as assigned quota has been exceeded",
///   "status": 429,
///   "violated-policies": ["burst"],
///   "retry_after_ms": 412
/// }
/// ```
///
/// A gRPC call is answered by the status `RESOURCE_EXHAUSTED` instead, with the same fields, and with a
/// `google.rpc.RetryInfo` in its details. A gRPC call is a POST whose
/// `content-type` is `application/grpc` or `application/grpc-web`, alone or with a message format (`+proto`) or a
/// parameter (`;`).
///
/// # In handlers
///
/// Your handler can extract `Extension<Standing>`: the remaining quota of the key after this request was charged. If
/// there are several limits, it describes the one with the fewest units left.
///
/// Requests that the layer passes without a known quota have no `Standing`: requests that are
/// [skipped](RateLimitLayer::skip) or have no key, requests that only shadow mode admits, and requests whose quota a
/// limiter on Redis does not report. For these, `Extension<Standing>` answers 500; extract
/// `Option<Extension<Standing>>` if they may occur.
///
/// # Order of layers
///
/// - Put this layer inside CORS (add the `CorsLayer` after it), so that preflight requests are answered before they are
///   counted, and scripts can read the response to a denied request. Scripts can read its header fields only if CORS
///   exposes them. If this layer has to be outside, let [`skip`](RateLimitLayer::skip) pass `OPTIONS`.
/// - Put it inside your layer that authenticates the user, if the key is the user.
/// - Put it outside of everything costly: layers that read the body, compress, or query your database.
/// - In axum, `Router::layer` also counts requests to unknown paths; `Router::route_layer` counts only requests that
///   match a route.
///
/// If two of these layers are nested, a request is charged to the outer one even if the inner one denies it. Several
/// limits in one limiter are charged together, or not at all.
///
/// # Cost
///
/// The layer adds one check per request, which also returns the remaining quota, and writes the header fields (except
/// with [`Headers::None`]). The future is boxed only if an [extractor](RateLimitLayer::by) determines the key, its
/// limits are [looked up](RateLimitLayer::limits_by_key), the request is denied, or it may
/// [wait](RateLimitLayer::wait).
///
/// # Keys
///
/// A `String` key of more than 256 bytes is counted by its first 256 bytes and a hash of the whole key. So no request
/// can fill memory with a long key, and two long keys share no quota. The limiter stores the shortened key, so
/// [`RateLimiter::peek`](crate::RateLimiter::peek) with the original key finds nothing. The length of keys of other
/// types is not limited: that includes a struct around a `String`, as your extractor for [`by`](RateLimitLayer::by) or
/// [`by_extension`](RateLimitLayer::by_extension) may return. Reject or shorten a long text from the request there.
/// The number of keys is limited by [`max_keys`](crate::RateLimiterBuilder::max_keys).
///
/// # With Redis
///
/// Each check is one round trip. A correction by the head of the response
/// ([`charge_when`](RateLimitLayer::charge_when), [`charge_failures`](RateLimitLayer::charge_failures),
/// [`charge_after`](RateLimitLayer::charge_after)) takes up to two more: one changes the charge, and one reads the
/// remaining quota. A correction by [`charge_sent`](RateLimitLayer::charge_sent) takes one, in a background task.
///
/// The future is always boxed. While the server fails, the limiter's `OnError` decides whether requests pass. If the
/// check returns an error, the response is 503 for a temporary error, otherwise 500; in shadow mode, the request
/// passes. The fields are absent if the remaining quota is unknown.
///
/// # Cancel safety
///
/// A request that is dropped before it is checked is not charged. A request that is dropped after the check is not
/// refunded.
#[doc(alias = "GovernorLayer")]
#[doc(alias = "GovernorConfigBuilder")]
#[doc(alias = "tower_governor")]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct RateLimitLayer<K, S = DefaultHasher>(Arc<Settings<K, S>>);

impl<K, S> RateLimitLayer<K, S> {
    /// Sets which requests are not limited, such as health checks and preflights. `skip` returns `true` for them, and
    /// is called before the key is extracted. By default, no request is skipped.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::{Method, Request}, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("all".to_owned()))
    ///     .skip(|request| request.uri.path() == "/health" || request.method == Method::OPTIONS);
    /// let app = Router::new().route("/", get("hello")).route("/health", get("ok")).layer(layer);
    /// # let ask = |path| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
    /// for (path, status) in [("/health", 200), ("/health", 200), ("/", 200), ("/", 429)] {
    ///     assert_eq!(ask(path).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    #[doc(alias = "methods")]
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings().skip = Some(Arc::new(skip));
        self
    }

    /// Enables or disables the layer. A disabled layer passes all requests unchanged: it extracts no key, charges
    /// nothing and adds no fields. Defaults to enabled.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let has_limits = false; // from the configuration
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    /// let layer = RateLimitLayer::new(limiter, |_| Some("all".to_owned())).enabled(has_limits);
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// for _ in 0..5 {
    /// #     let ask = || app.clone().oneshot(Request::new(Body::empty()));
    ///     assert_eq!(ask().await.unwrap().status(), 200);
    /// }
    /// # }
    /// ```
    ///
    /// Use it if your configuration decides whether there are limits. `tower::util::option_layer` does not fit an axum
    /// router here, because the layer changes the type of the response body.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings().enabled = enabled;
        self
    }

    /// Enables shadow mode (a dry run), to try your limits out: requests are counted, but not denied or delayed, and
    /// responses get no fields.
    ///
    /// Requests that would be denied are logged at DEBUG and counted in [`stats`](crate::RateLimiter::stats). Requests
    /// without a key pass uncounted. Defaults to off.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Would this limit hurt? Count for a week before you enforce it.
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// let layer = RateLimitLayer::new(limiter.clone(), |_| Some("ada".to_owned())).shadow();
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// # let ask = || app.clone().oneshot(Request::new(Body::empty()));
    /// for _request in 0..3 {
    ///     assert_eq!(ask().await.unwrap().status(), 200);
    /// }
    /// assert_eq!(limiter.stats().shadowed, 2);
    /// # }
    /// ```
    pub fn shadow(mut self) -> Self {
        self.settings().shadow = true;
        self
    }

    /// Sets a function that is called for each decision, for example to count by route, plan or limit. It runs within
    /// the request, so it should be fast.
    ///
    /// It is not called for requests that are skipped, have no key, or could not be decided because the limiter failed.
    /// Defaults to none.
    ///
    /// The limiter itself counts as well: see [`stats`](crate::RateLimiter::stats) and, by limit,
    /// [`denials`](crate::RateLimiter::denials).
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitDecision, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1).named("minute"));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned())).on_decision(|decision, request| {
    ///     if let RateLimitDecision::Denied(limited) = decision {
    ///         println!("{} denied by {:?}", request.uri.path(), limited.limit().name());
    ///     }
    /// });
    /// let app: Router = Router::new().route("/", get("hello")).layer(layer);
    /// # for status in [200, 429] {
    /// #     let answer = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    /// #     assert_eq!(answer.status(), status);
    /// # }
    /// # }
    /// ```
    pub fn on_decision(
        mut self,
        on_decision: impl Fn(RateLimitDecision<'_>, &Parts) + Send + Sync + 'static,
    ) -> Self {
        self.settings().on_decision = Some(Arc::new(on_decision));
        self
    }

    /// Sets the partition key (`pk=:YWRh:`) in the fields of [`Headers::Draft11`], which reports to the client the
    /// account or key to which a quota belongs. A client with several accounts can then see which one is exhausted.
    ///
    /// It should be short and must not be a secret: for example, use the number of a user and not a token. A partition
    /// key of more than 256 bytes is omitted. Defaults to none.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<u64> = RateLimiter::new(Limit::per_minute(9).named("minute"));
    /// let layer = RateLimitLayer::new(limiter, |_| Some(7)).partition_key(|user| user.to_string());
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
    /// assert_eq!(answer.headers()["ratelimit"], r#""minute";r=8;t=60;pk=:Nw==:"#); // "7" in Base64
    /// # }
    /// ```
    pub fn partition_key<B: AsRef<[u8]>>(
        mut self,
        partition_key: impl Fn(&K) -> B + Send + Sync + 'static,
    ) -> Self {
        let partition_key = move |key: &K| {
            let partition = partition_key(key);
            // Clients may reject a response with longer fields.
            let is_short = partition.as_ref().len() <= MAX_KEY_BYTES;
            is_short.then(|| byte_sequence(partition.as_ref()))
        };
        self.settings().partition_key = Some(Arc::new(partition_key));
        self
    }

    /// Sets the response to a denied request. Defaults to the response of [`Limited`].
    ///
    /// ```
    /// # use axum::{Router, body::{Body, to_bytes}, http::{Request, StatusCode}, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    /// let layer = RateLimitLayer::new(limiter, |_| Some("all".to_owned())).on_limited(|limited, request| {
    ///     let advice = match limited.ready_at() {
    ///         Some(_) => format!("try again in {} s", limited.retry_after().as_secs_f64().ceil().max(1.0)),
    ///         None => "too large".to_owned(),
    ///     };
    ///     (StatusCode::TOO_MANY_REQUESTS, format!("{}: {advice}", request.uri.path()))
    /// });
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// # let ask = || app.clone().oneshot(Request::new(Body::empty()));
    /// assert_eq!(ask().await.unwrap().status(), 200);
    /// let denied = ask().await.unwrap();
    /// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"60".parse().unwrap()));
    /// # let body = to_bytes(denied.into_body(), usize::MAX).await.unwrap();
    /// # assert_eq!(&body[..], b"/: try again in 60 s");
    /// # }
    /// ```
    ///
    /// The status is that of the response, so set it: a plain text has 200. The body is read to the end before it is
    /// sent. The layer adds `Retry-After` and `Cache-Control: no-store` if they are absent, and the fields of
    /// [`headers`](RateLimitLayer::headers). `Retry-After` has whole seconds, rounded up, and at least 1; round
    /// [`Limited::retry_after`] in the same way if the body mentions it. It is absent if the
    /// [cost](RateLimitLayer::cost) is above the quota: then no wait helps, and [`Limited::ready_at`] is `None`.
    ///
    /// It is called for denials only. A request that the key's extractor rejects is answered by that rejection.
    #[doc(alias = "error_handler")]
    pub fn on_limited<A: IntoResponse>(
        mut self,
        answer: impl Fn(&Limited, &Parts) -> A + Send + Sync + 'static,
    ) -> Self {
        let answer = move |limited: &Limited, parts: &Parts| answer(limited, parts).into_response();
        self.settings().on_limited = Some(Arc::new(answer));
        self
    }

    /// Sets the maximum wait of a request before it is denied (`burst` of nginx). Requests of one key are admitted in
    /// the order in which they arrived. Defaults to no wait.
    ///
    /// A request is denied without waiting (with Redis, after one round trip) if it cannot be admitted in time, given
    /// the current usage and the requests ahead of it, or if [`max_waiting`](crate::RateLimiterBuilder::max_waiting)
    /// requests already wait for its key. The units of the requests ahead are counted one by one, as
    /// [`until_ready_within`](crate::RateLimiter::until_ready_within) explains: behind requests of several units, a
    /// request may wait for the maximum and then be denied, but none is denied at once that could pass in time.
    /// [`jitter`](crate::RateLimiterBuilder::jitter) applies as well. All requests of a key wait in one queue, also if
    /// they are under different [limits](RateLimitLayer::limits): one that waits for a small plan delays those behind
    /// it. Of the requests ahead, only those right before a request and under the same limits count for the time at
    /// which it can be admitted.
    ///
    /// If the server notices that the client of a waiting request has disconnected, the request is removed from the
    /// queue. With HTTP/1.1, hyper does not notice it while the body of the request is unread, or while another request
    /// is pipelined behind it: such a request stays in the queue, and is charged. Set `max_waiting`, so that a client
    /// cannot fill its queue with these.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tokio::time::Instant;
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A burst is delayed by up to two seconds instead of denied.
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_second(1));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned())).wait(Duration::from_secs(2));
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// # let ask = || app.clone().oneshot(Request::new(Body::empty()));
    /// let start = Instant::now();
    /// for _request in 0..3 {
    ///     assert_eq!(ask().await.unwrap().status(), 200);
    /// }
    /// assert_eq!(start.elapsed().as_secs(), 2);
    /// # }
    /// ```
    pub fn wait(mut self, max: Duration) -> Self {
        self.settings().wait = Some(max);
        self
    }

    /// Sets the maximum random addition to the wait that a denied response reports in `Retry-After`, the body and the
    /// `RateLimit` field. Defaults to zero.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("all".to_owned()))
    ///     .retry_jitter(Duration::from_secs(30));
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// # let ask = || app.clone().oneshot(Request::new(Body::empty()));
    /// ask().await.unwrap();
    /// let denied = ask().await.unwrap();
    /// let seconds: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    /// assert!((60..=90).contains(&seconds));
    /// # }
    /// ```
    ///
    /// Without it, all clients that are denied by one limit return at the same second, and most are denied again.
    /// [`on_limited`](RateLimitLayer::on_limited) receives a [`Limited`] that includes the same addition, so its
    /// response agrees with the fields; [`on_decision`](RateLimitLayer::on_decision) receives one without it.
    ///
    /// # Panics
    ///
    /// Panics if `jitter` is longer than a day.
    pub fn retry_jitter(mut self, jitter: Duration) -> Self {
        assert!(
            jitter <= Duration::from_secs(86_400),
            "retry_jitter must be at most a day, got {jitter:?}"
        );
        self.settings().retry_jitter = jitter;
        self
    }

    /// Sets the rate limit fields of responses. Defaults to [`Headers::Draft11`].
    ///
    /// If an inner layer has already set fields, this layer appends its limits to `RateLimit` and `RateLimit-Policy`,
    /// and leaves the `X-RateLimit` fields unchanged.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Headers, Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(10));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned())).headers(Headers::Legacy);
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
    /// assert_eq!(answer.headers()["x-ratelimit-remaining"], "9");
    /// # }
    /// ```
    pub fn headers(mut self, headers: Headers) -> Self {
        self.settings().headers = headers;
        self
    }

    pub(super) fn with_key(limiter: LayerLimiter<K, S>, key: KeyExtractor<K>) -> Self {
        Self(Arc::new(Settings::new(limiter, key)))
    }

    /// Settings that this layer alone has, even if it was cloned before.
    pub(super) fn settings(&mut self) -> &mut Settings<K, S> {
        Arc::make_mut(&mut self.0)
    }
}

impl<K, S> Clone for RateLimitLayer<K, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, S> fmt::Debug for RateLimitLayer<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.0.limiter).finish()
    }
}

impl<Inner, K, S> Layer<Inner> for RateLimitLayer<K, S> {
    type Service = RateLimit<Inner, K, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        RateLimit::new(inner, self.0.clone())
    }
}
