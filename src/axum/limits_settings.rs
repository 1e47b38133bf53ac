//! Settings of a layer that determine the limits of a request, for plans and tiers.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use ::axum::http::request::Parts;

use super::{RateLimitLayer, limits_lookup::LimitsLookup, settings::Limits};
use crate::rate_limit::Limit;

impl<K, S> RateLimitLayer<K, S> {
    /// Sets the limits of a request, for plans and tiers; `None` means the limiter's own. Defaults to the limiter's own
    /// for all requests. As in [`check_with`](crate::RateLimiter::check_with), a key whose limits change keeps its
    /// usage: a request by one limit counts by the others, too.
    ///
    /// So limits by route that should be independent of each other need a key that contains the route.
    ///
    /// ```
    /// use std::{net::SocketAddr, sync::Arc};
    /// use axum::extract::ConnectInfo;
    /// use fleeting::{ClientIp, Limit, RateLimitLayer, RateLimiter, TrustedProxies};
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let logins: Arc<[Limit]> = [Limit::per_hour(5).named("logins")].into();
    /// // The key is the client, and whether it logs in.
    /// let limiter = RateLimiter::<(ClientIp, bool)>::new(Limit::per_second(100));
    /// let trusted = TrustedProxies::none();
    /// let layer = RateLimitLayer::new(limiter, move |request| {
    ///     let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
    ///     let client = trusted.client_ip(peer.ip(), &request.headers);
    ///     Some((client, request.uri.path() == "/login"))
    /// })
    /// .limits(move |_, (_, is_login)| is_login.then(|| logins.clone()));
    /// # let app = Router::<()>::new().route("/login", get("hello")).route("/", get("hello")).layer(layer);
    /// # let ask = async |path: &str| {
    /// #     let mut request = Request::get(path).body(Body::empty()).unwrap();
    /// #     request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1337))));
    /// #     app.clone().oneshot(request).await.unwrap().status().as_u16()
    /// # };
    /// # for status in [200, 200, 200, 200, 200, 429] {
    /// #     assert_eq!((ask("/").await, ask("/login").await), (200, status));
    /// # }
    /// # }
    /// ```
    ///
    /// If the plan is in a database, use [`limits_by_key`](RateLimitLayer::limits_by_key) or an extractor with
    /// [state](RateLimitLayer::by_with_state).
    pub fn limits(
        mut self,
        limits: impl Fn(&Parts, &K) -> Option<Arc<[Limit]>> + Send + Sync + 'static,
    ) -> Self {
        self.settings().limits = Limits::Function(Arc::new(limits));
        self
    }

    /// Sets an async lookup of a key's limits, which replaces [`limits`](RateLimitLayer::limits). `None` means the
    /// limiter's own. A lookup that may fail is set by [`try_limits_by_key`](RateLimitLayer::try_limits_by_key).
    ///
    /// Results, including `None`, are cached for `ttl` and for up to 100,000 keys. Concurrent requests of a key share
    /// one lookup. The future of each request is boxed.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, because it creates a [`Cache`](crate::Cache).
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
    ///     // Queries a database, once a minute for each user.
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

    /// Sets an async lookup of a key's limits that may fail, as [`limits_by_key`](RateLimitLayer::limits_by_key).
    ///
    /// If it fails, the last limits of the key apply for up to an hour after their `ttl`, and otherwise the limiter's
    /// own. The failure is logged at WARN, at most once per second, and not cached: a later request looks the limits up
    /// again.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, because it creates a [`Cache`](crate::Cache).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{io, sync::Arc, time::Duration};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// async fn plan_of(_user: String) -> io::Result<Option<Arc<[Limit]>>> {
    ///     Err(io::Error::other("the database is down"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(60)).build();
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned()))
    ///     .try_limits_by_key(Duration::from_secs(60), plan_of);
    /// # let _: RateLimitLayer<String> = layer;
    /// # }
    /// ```
    pub fn try_limits_by_key<F, E>(
        mut self,
        ttl: Duration,
        look_up: impl Fn(K) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<Arc<[Limit]>>, E>> + Send + 'static,
        E: fmt::Debug,
        K: Hash + Eq + Clone + Send + Sync + 'static,
    {
        self.settings().limits = Limits::LookUp(Arc::new(LimitsLookup::fallible(ttl, look_up)));
        self
    }
}
