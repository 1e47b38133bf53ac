//! The layer as its user sets it up.

use std::{any::type_name, fmt, ops::ControlFlow, sync::Arc, time::Duration};

use ::axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use tower_layer::Layer;

use super::{
    ClientIp, Headers, RateLimit, TrustedProxies, key::KeyExtractor, limiter::LayerLimiter,
    settings::Settings,
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limit, Limited},
};

/// A tower layer that limits how many requests of each key pass.
///
/// All clones, all services that they make and all connections count on the one limiter: a
/// [`RateLimiter`](crate::RateLimiter) or, for several processes together, the one of feature `redis`. What is
/// denied is answered by the layer, and doesn't reach the service;
/// all other answers get the fields of [`Headers`], too. Any service with HTTP requests will do, axum's
/// routers among them, and whatever the bodies of its answers are: here and there they are wrapped
/// ([`RateLimitBody`](crate::RateLimitBody)), so that a denial fits. So it goes along with tower-http's layers and with
/// tonic's services. The service's errors stay as they are.
///
/// # What a client is told
///
/// A denied request is answered by 429 (RFC 6585) with
/// - `Retry-After`, in seconds, rounded up; missing where the cost is above the quota, as no wait helps,
/// - the fields of [`Headers`],
/// - a body of `application/problem+json` (RFC 9457), such as
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
/// A client of gRPC (by its `content-type`) is answered by the status `RESOURCE_EXHAUSTED` in its place, with the same
/// fields.
///
/// # What a handler is told
///
/// `Extension<Standing>` is how the key of its request stands, after its charge, with the limit that has the least left.
///
/// # Where to put it
///
/// - Inside of CORS (a `CorsLayer` is added after it). Then preflights are answered before they are
///   counted, and a script may read a denial; its fields only where CORS exposes them. Where the layer has
///   to stand outside, let [`skip`](RateLimitLayer::skip) pass `OPTIONS`.
/// - Inside of what finds out who the user is, where the key is the user.
/// - Outside of what is costly: what reads the body, compresses, or asks a database.
/// - In axum, `Router::layer` also counts requests to paths that there are not; `Router::route_layer` only
///   those that a route takes.
///
/// Where there are two layers, one inside of the other, a request is charged to the outer one also where the
/// inner one denies it. Several limits in one limiter are charged together, or not at all.
///
/// # Cost
///
/// A check, which tells what is left, too, and the writing of the fields (not with [`Headers::None`]); a box for
/// the future only where a key is [extracted](RateLimitLayer::by), a request denied, or one may
/// [wait](RateLimitLayer::wait).
///
/// # Keys
///
/// A key that is a `String` of more than 256 bytes is counted by its first 256 and a hash of all of it: no
/// request can fill the memory by a long key, and two of them share no quota (but only the layer can name
/// them: a [`peek`](crate::RateLimiter::peek) at the whole key finds nothing). How long other keys get is up
/// to you. How many there are is bounded by [`max_keys`](crate::RateLimiterBuilder::max_keys).
///
/// # On Redis
///
/// A check is a round trip then, as is each request whose charge comes back, and a box for the future. While the
/// server fails, requests pass or not as the limiter's `OnError` says; those for which it has an error are
/// answered by 503, or 500 where no wait helps. The fields are missing where nobody knows what is left.
///
/// # Cancel safety
///
/// A request that is dropped before it was checked is not charged, after that it is.
///
/// # Examples
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
#[must_use = "a layer does nothing until it is put around a service"]
pub struct RateLimitLayer<K, S = DefaultHasher>(Arc<Settings<K, S>>);

impl<S> RateLimitLayer<(), S> {
    /// By what `E` extracts from a request, as it would for a handler: `RateLimitLayer::by::<ClientIp>(..)`.
    /// A request of which it extracts nothing gets its rejection for an answer.
    ///
    /// [`ClientIp`] is found with the [`TrustedProxies`] of an `Extension` layer outside of this one; without
    /// such it is the peer. [`by_ip`](RateLimitLayer::by_ip) needs no such layer.
    pub fn by<E>(limiter: impl Into<LayerLimiter<E, S>>) -> RateLimitLayer<E, S>
    where
        E: FromRequestParts<()> + 'static,
    {
        RateLimitLayer::with_key(limiter.into(), KeyExtractor::from_request())
    }
}

impl<S> RateLimitLayer<(), S> {
    /// By the `T` that an outer layer has put into the extensions of the request: the user, after authentication. A
    /// request without one is answered by a 500, as of axum's `Extension`: the layers are in the wrong order.
    ///
    /// ```
    /// use axum::{Router, body::Body, extract::Request, http, middleware::{Next, from_fn}, response::Response, routing::get};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// use tower::ServiceExt;
    ///
    /// #[derive(Clone, PartialEq, Eq, Hash)]
    /// struct UserId(String);
    ///
    /// /// Finds out who the user is.
    /// async fn authenticate(mut request: Request, next: Next) -> Response {
    ///     let token = request.headers().get("x-token").and_then(|token| token.to_str().ok());
    ///     let user = UserId(token.unwrap_or("nobody").to_owned());
    ///     request.extensions_mut().insert(user);
    ///     next.run(request).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    /// let app = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(RateLimitLayer::by_extension::<UserId>(limiter))
    ///     .layer(from_fn(authenticate)); // added after it, so it comes first
    /// # let ask = |token| {
    /// #     let request = http::Request::get("/").header("x-token", token);
    /// #     app.clone().oneshot(request.body(Body::empty()).unwrap())
    /// # };
    /// # assert_eq!(ask("ada").await.unwrap().status(), 200);
    /// # assert_eq!(ask("ada").await.unwrap().status(), 429);
    /// # assert_eq!(ask("grace").await.unwrap().status(), 200);
    /// # }
    /// ```
    pub fn by_extension<T>(limiter: impl Into<LayerLimiter<T, S>>) -> RateLimitLayer<T, S>
    where
        T: Clone + Send + Sync + 'static,
    {
        let find = move |parts: &Parts| match parts.extensions.get::<T>() {
            Some(key) => ControlFlow::Continue(Some(key.clone())),
            None => {
                let missing = format!("the request has no extension {}", type_name::<T>());
                let answer = (StatusCode::INTERNAL_SERVER_ERROR, missing);
                ControlFlow::Break(answer.into_response())
            }
        };
        RateLimitLayer::with_key(limiter.into(), KeyExtractor::Function(Arc::new(find)))
    }
}

impl<S> RateLimitLayer<ClientIp, S> {
    /// By the client's address, behind the proxies that are trusted.
    ///
    /// The router must be served by `into_make_service_with_connect_info::<SocketAddr>()`; else each request
    /// is answered by a 500 that says so.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use axum::{Router, body::Body, extract::connect_info::MockConnectInfo, http::Request, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    /// let trusted = TrustedProxies::new(["10.0.0.0/8"])?;
    /// let app = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(RateLimitLayer::by_ip(limiter, trusted));
    /// # let app = app.layer(MockConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1337))));
    /// # let ask = |client| {
    /// #     let request = Request::get("/").header("x-forwarded-for", client);
    /// #     app.clone().oneshot(request.body(Body::empty()).unwrap())
    /// # };
    /// # assert_eq!(ask("192.0.2.1").await?.status(), 200);
    /// # assert_eq!(ask("203.0.113.9, 192.0.2.1").await?.status(), 429);
    /// # assert_eq!(ask("192.0.2.2").await?.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_ip(limiter: impl Into<LayerLimiter<ClientIp, S>>, trusted: TrustedProxies) -> Self {
        let find = move |parts: &Parts| match trusted.client_of(parts) {
            Ok(client) => ControlFlow::Continue(Some(client)),
            Err(rejection) => ControlFlow::Break(rejection.into_response()),
        };
        Self::with_key(limiter.into(), KeyExtractor::Function(Arc::new(find)))
    }
}

impl<K, S> RateLimitLayer<K, S> {
    /// By what `key` makes of a request. One for which it makes `None` is not limited.
    pub fn new(
        limiter: impl Into<LayerLimiter<K, S>>,
        key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let find = move |parts: &Parts| ControlFlow::Continue(key(parts));
        Self::with_key(limiter.into(), KeyExtractor::Function(Arc::new(find)))
    }

    /// How many units a request costs. One that costs 0 passes. Defaults to 1.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.settings().cost = Some(Arc::new(cost));
        self
    }

    /// Which requests are not limited: health checks, preflights. Asked before the key is looked for. Defaults to
    /// none.
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings().skip = Some(Arc::new(skip));
        self
    }

    /// Which limits a request is held to, for plans and tiers; `None` for the limiter's own. Defaults to
    /// those for all. As in [`check_with`](crate::RateLimiter::check_with), a key whose plan changes keeps what
    /// it has in use.
    ///
    /// Where a database knows the plan, ask it in a layer further out, which may wait: see
    /// [the guide](crate::guide::rate_limits).
    pub fn limits(
        mut self,
        limits: impl Fn(&Parts, &K) -> Option<Arc<[Limit]>> + Send + Sync + 'static,
    ) -> Self {
        self.settings().limits = Some(Arc::new(limits));
        self
    }

    /// Counts, but denies nothing, delays nothing and tells clients nothing: to try limits out. What would have been
    /// denied is a debug event of tracing, and counts in [`stats`](crate::RateLimiter::stats); what has no key passes
    /// uncounted. Defaults to off.
    pub fn shadow(mut self) -> Self {
        self.settings().shadow = true;
        self
    }

    /// The answer to a request that is denied. Defaults to what [`Limited`] is as a response.
    ///
    /// Its body is read to the end before it is sent. The layer adds `Retry-After` where it has none, and the
    /// fields of [`headers`](RateLimitLayer::headers).
    pub fn on_limited<A: IntoResponse>(
        mut self,
        answer: impl Fn(&Limited, &Parts) -> A + Send + Sync + 'static,
    ) -> Self {
        let answer = move |limited: &Limited, parts: &Parts| answer(limited, parts).into_response();
        self.settings().on_limited = Some(Arc::new(answer));
        self
    }

    /// Which answers are charged for, by their status: failed logins alone, or successes. Defaults to all.
    ///
    /// Each request is charged before it goes on, and what it was charged comes back where `charge_when` says
    /// no to its answer. So a quota also bounds how many may be under way at a time. A request that is never
    /// answered, as the service failed or the client hung up, stays charged: else hanging up just in time
    /// would make every try free.
    pub fn charge_when(
        mut self,
        charge_when: impl Fn(StatusCode) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings().charge_when = Some(Arc::new(charge_when));
        self
    }

    /// What a request has cost in all, now that the head of its answer is known: the tokens that a model says it took,
    /// the rows, the `content-length`. Of the answer it sees all but the body. Defaults to what the request was
    /// charged before, by [`cost`](RateLimitLayer::cost).
    ///
    /// The difference is charged or given back as by [`Permit::settle`](crate::Permit::settle): what is beyond the
    /// quota is a debt, and denies what comes next. With [`charge_when`](RateLimitLayer::charge_when), answers that are
    /// not charged are not asked about.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let tokens = RateLimiter::<String>::builder().limit(Limit::per_minute(1_000)).build();
    /// let layer = RateLimitLayer::new(tokens.clone(), |_| Some("all".to_owned())).charge_after(|response| {
    ///     let tokens = response.headers().get("x-tokens").and_then(|tokens| tokens.to_str().ok());
    ///     tokens.and_then(|tokens| tokens.parse().ok()).unwrap_or(1)
    /// });
    /// let app = Router::new().route("/", get(async || ([("x-tokens", "1200")], "once upon a time"))).layer(layer);
    /// # let ask = || app.clone().oneshot(Request::new(Body::empty()));
    /// assert_eq!(ask().await.unwrap().status(), 200);
    /// assert_eq!(ask().await.unwrap().status(), 429);
    /// # }
    /// ```
    pub fn charge_after(
        mut self,
        charge_after: impl Fn(&Response) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.settings().charge_after = Some(Arc::new(charge_after));
        self
    }

    /// What a request has cost in all, by the bytes of its answer's body, once that has ended: to its end or, where the
    /// client hung up, as far as it was taken. Defaults to what the request was charged before.
    ///
    /// As [`charge_after`](RateLimitLayer::charge_after), of whose function the answer is not asked then; the fields tell
    /// what was left before the body. On Redis a task settles it.
    ///
    /// ```
    /// # use axum::{Router, body::{Body, to_bytes}, http::Request, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // In KiB, so that it counts up to 4 TiB.
    /// let kib = RateLimiter::<String>::builder().limit(Limit::per_hour(1_000).named("kib")).build();
    /// let layer = RateLimitLayer::new(kib.clone(), |_| Some("all".to_owned()))
    ///     .charge_sent(|bytes| u32::try_from(bytes.div_ceil(1_024)).unwrap_or(u32::MAX));
    /// let app = Router::new().route("/", get(async || vec![0; 300 * 1_024])).layer(layer);
    /// # let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
    /// # assert_eq!(kib.peek("all").await.remaining(), 999);
    /// # to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    /// # assert_eq!(kib.peek("all").await.remaining(), 700);
    /// # }
    /// ```
    pub fn charge_sent(mut self, charge_sent: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        self.settings().charge_sent = Some(Arc::new(charge_sent));
        self
    }

    /// How long a request may wait until it passes, in the order in which those of its key came, before it is denied
    /// (nginx' `burst`). Denied at once is what can't pass in time, as far as that is clear from what is in use and what
    /// those before it wait for: so no more wait for a key than may pass. A client that goes away leaves the line.
    /// Defaults to not at all.
    pub fn wait(mut self, max: Duration) -> Self {
        self.settings().wait = Some(max);
        self
    }

    /// Which fields tell clients of their limits. Defaults to [`Headers::Draft11`].
    ///
    /// Where a layer further in has set some, the draft's get more members; its legacy ones stay.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.settings().headers = headers;
        self
    }

    fn with_key(limiter: LayerLimiter<K, S>, key: KeyExtractor<K>) -> Self {
        Self(Arc::new(Settings::new(limiter, key)))
    }

    /// Its own, also where clones of it were made before.
    fn settings(&mut self) -> &mut Settings<K, S> {
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
