//! The layer as its user sets it up.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use ::axum::{
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use tower_layer::Layer;

use super::{
    Headers, RateLimit,
    decision::RateLimitDecision,
    headers::byte_sequence,
    key::{KeyExtractor, MAX_KEY_BYTES},
    limiter::LayerLimiter,
    limits_lookup::LimitsLookup,
    settings::{Limits, Settings},
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
/// routers among them, and whatever the bodies of its answers are, if only their data can be made of `Bytes`: they are
/// wrapped ([`RateLimitBody`](crate::RateLimitBody)), so that a denial fits. So it goes along with tower-http's layers and
/// with tonic's services. The service's errors stay as they are.
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
/// the future only where a key is [extracted](RateLimitLayer::by), or its limits are [looked
/// up](RateLimitLayer::limits_by_key), where a request is denied, or one may [wait](RateLimitLayer::wait).
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

impl<K, S> RateLimitLayer<K, S> {
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
    /// Where a database knows the plan: [`limits_by_key`](RateLimitLayer::limits_by_key), or an extractor with
    /// [state](RateLimitLayer::by_with_state).
    pub fn limits(
        mut self,
        limits: impl Fn(&Parts, &K) -> Option<Arc<[Limit]>> + Send + Sync + 'static,
    ) -> Self {
        self.settings().limits = Limits::Function(Arc::new(limits));
        self
    }

    /// As [`limits`](RateLimitLayer::limits), which it takes the place of, by a look-up of the key that may wait; what
    /// it said holds for `ttl` and, where many keys come, for 100,000 of them. There is one look-up of a key at a time,
    /// for all who wait for it. Each request takes a box for its future.
    ///
    /// `None` is kept as well: so a key that nobody knows is not looked up each time.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, as it makes a [`Cache`](crate::Cache).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use tower::ServiceExt;
    ///
    /// async fn plan_of(_user: String) -> Option<Arc<[Limit]>> {
    ///     // Asks a database, once a minute for each user.
    ///     Some([Limit::per_minute(600).named("paid")].into())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(60)).build();
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned()))
    ///     .limits_by_key(Duration::from_secs(60), plan_of);
    /// # let app = Router::<()>::new().route("/", get("hello")).layer(layer);
    /// # let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
    /// # assert_eq!(answer.headers()["ratelimit-policy"], r#""paid";q=600;w=60"#);
    /// # }
    /// ```
    pub fn limits_by_key<F>(
        mut self,
        ttl: Duration,
        look_up: impl Fn(K) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<Arc<[Limit]>>> + Send + 'static,
        K: Hash + Eq + Clone + Send + Sync + 'static,
    {
        self.settings().limits = Limits::LookUp(Arc::new(LimitsLookup::new(ttl, look_up)));
        self
    }

    /// Counts, but denies nothing, delays nothing and tells clients nothing: to try limits out. What would have been
    /// denied is a debug event of tracing, and counts in [`stats`](crate::RateLimiter::stats); what has no key passes
    /// uncounted. Defaults to off.
    pub fn shadow(mut self) -> Self {
        self.settings().shadow = true;
        self
    }

    /// Is told of each decision: to count by route, by plan, by limit. It runs within the request, so let it be quick.
    /// Of requests that are skipped, have no key, or that nobody could decide there is none. Defaults to nothing.
    ///
    /// The limiter itself counts, too: [`stats`](crate::RateLimiter::stats) and, for each limit,
    /// [`denials`](crate::RateLimiter::denials).
    pub fn on_decision(
        mut self,
        on_decision: impl Fn(RateLimitDecision<'_>, &Parts) + Send + Sync + 'static,
    ) -> Self {
        self.settings().on_decision = Some(Arc::new(on_decision));
        self
    }

    /// What the fields of the draft tell of a request's key, as the partition of the quota that it is counted in
    /// (`pk=:YWRh:`): so a client with several accounts knows which one it has used up. Let it be short, as what has more
    /// than 256 bytes is left out, and no secret: a user's number, not its token. Defaults to nothing.
    pub fn partition_key<B: AsRef<[u8]>>(
        mut self,
        partition_key: impl Fn(&K) -> B + Send + Sync + 'static,
    ) -> Self {
        let partition_key = move |key: &K| {
            let partition = partition_key(key);
            // Longer fields are refused by clients, and with them the answer.
            let is_short = partition.as_ref().len() <= MAX_KEY_BYTES;
            is_short.then(|| byte_sequence(partition.as_ref()))
        };
        self.settings().partition_key = Some(Arc::new(partition_key));
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
    /// those before it wait for, so no more wait for a key than may pass; and who comes where as many wait as
    /// [may](crate::RateLimiterBuilder::max_waiting). [`jitter`](crate::RateLimiterBuilder::jitter) counts, too. A client that goes away leaves the line.
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

    pub(super) fn with_key(limiter: LayerLimiter<K, S>, key: KeyExtractor<K>) -> Self {
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
