//! Constructors of `RateLimitLayer`, by the source of its keys.

use std::{any::type_name, ops::ControlFlow, sync::Arc};

use ::axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    response::IntoResponse,
};

use super::{ClientIp, RateLimitLayer, TrustedProxies, key::KeyExtractor, limiter::LayerLimiter};

impl<S> RateLimitLayer<(), S> {
    /// Creates a layer that limits by the key that the extractor `E` takes from a request, as in a handler:
    /// `RateLimitLayer::by::<ClientIp>(..)`. If extraction fails, the request is answered by the rejection of `E`.
    ///
    /// [`ClientIp`] uses the [`TrustedProxies`] of an outer `Extension` layer, or of an outer
    /// [`by_ip`](RateLimitLayer::by_ip); without such a layer, it is the address of the peer.
    ///
    /// ```
    /// # use axum::{Router, routing::get};
    /// # use fleeting::{ClientIp, Limit, RateLimitLayer, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::new(Limit::per_minute(100));
    /// let app: Router = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(RateLimitLayer::by::<ClientIp>(limiter));
    /// # }
    /// ```
    #[doc(alias = "KeyExtractor")]
    pub fn by<E>(limiter: impl Into<LayerLimiter<E, S>>) -> RateLimitLayer<E, S>
    where
        E: FromRequestParts<()> + 'static,
    {
        RateLimitLayer::by_with_state(limiter, ())
    }

    /// Creates a layer that limits by the key that the extractor `E` takes from a request, with the state of the
    /// application. The extractor may be asynchronous, for example query a database that maps tokens to users.
    ///
    /// The extractor may add extensions to the request, for example its limits and cost;
    /// [`cost`](RateLimitLayer::cost), [`limits`](RateLimitLayer::limits) and the handler can read them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{convert::Infallible, sync::Arc};
    /// use axum::{Router, body::Body, extract::FromRequestParts, http::{Request, request::Parts}, routing::get};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// use tower::ServiceExt;
    ///
    /// #[derive(Clone)]
    /// struct App { /* a pool of connections */ }
    ///
    /// impl App {
    ///     async fn user_of(&self, _token: &str) -> (u64, Arc<[Limit]>) {
    ///         (7, [Limit::per_minute(600).named("paid")].into())
    ///     }
    /// }
    ///
    /// #[derive(Clone, PartialEq, Eq, Hash)]
    /// struct User(u64);
    ///
    /// type Plan = Arc<[Limit]>;
    ///
    /// impl FromRequestParts<App> for User {
    ///     type Rejection = Infallible;
    ///
    ///     async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
    ///         let token = parts.headers.get("x-token").and_then(|token| token.to_str().ok());
    ///         let (id, plan) = app.user_of(token.unwrap_or("")).await;
    ///         parts.extensions.insert::<Plan>(plan);
    ///         Ok(User(id))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let app = App {};
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(60)).build();
    /// let layer = RateLimitLayer::by_with_state::<User, _>(limiter, app.clone())
    ///     .limits(|request, _| request.extensions.get::<Plan>().cloned());
    /// let router = Router::new().route("/", get("hello")).layer(layer).with_state(app);
    /// # let answer = router.oneshot(Request::new(Body::empty())).await.unwrap();
    /// # assert_eq!(answer.headers()["ratelimit-policy"], r#""paid";q=600;w=60"#);
    /// # }
    /// ```
    pub fn by_with_state<E, A>(
        limiter: impl Into<LayerLimiter<E, S>>,
        state: A,
    ) -> RateLimitLayer<E, S>
    where
        E: FromRequestParts<A> + 'static,
        A: Send + Sync + 'static,
    {
        RateLimitLayer::with_key(limiter.into(), KeyExtractor::from_request(state))
    }

    /// Creates a layer that limits by the `T` that an outer layer has put into the extensions of the request, such as
    /// the user after authentication. A request without a `T` gets a 500 response, as with axum's `Extension`, because
    /// the layers are in the wrong order.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, body::Body, extract::Request, http, routing::get};
    /// use axum::{middleware::{Next, from_fn}, response::Response};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// use tower::ServiceExt;
    ///
    /// #[derive(Clone, PartialEq, Eq, Hash)]
    /// struct UserId(String);
    ///
    /// /// Identifies the user.
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
    ///     .layer(from_fn(authenticate)); // the outer layer, so it runs first
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
        let extract = move |parts: &Parts| match parts.extensions.get::<T>() {
            Some(key) => ControlFlow::Continue(Some(key.clone())),
            None => {
                let missing = format!(
                    "request extension {} is missing; add the layer that inserts it after this one",
                    type_name::<T>()
                );
                let answer = (StatusCode::INTERNAL_SERVER_ERROR, missing);
                ControlFlow::Break(answer.into_response())
            }
        };
        RateLimitLayer::with_key(limiter.into(), KeyExtractor::Function(Arc::new(extract)))
    }
}

impl<S> RateLimitLayer<ClientIp, S> {
    /// Creates a layer that limits by the client's address, behind the given trusted proxies. If your server is not
    /// behind a proxy, trust [none](TrustedProxies::none).
    ///
    /// The extractor [`ClientIp`] returns the same address in layers and handlers below this layer, also for requests
    /// that are not limited, unless an `Extension(TrustedProxies)` layer configures other proxies.
    ///
    /// The router must be served by `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise every request is
    /// answered by a 500 with a message that explains this.
    ///
    /// # Examples
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
    #[doc(alias = "PeerIpKeyExtractor")]
    #[doc(alias = "SmartIpKeyExtractor")]
    pub fn by_ip(limiter: impl Into<LayerLimiter<ClientIp, S>>, trusted: TrustedProxies) -> Self {
        let extract = move |parts: &mut Parts| match trusted.record_client(parts) {
            Ok(client) => ControlFlow::Continue(Some(client)),
            Err(rejection) => ControlFlow::Break(rejection.into_response()),
        };
        Self::with_key(limiter.into(), KeyExtractor::Recording(Arc::new(extract)))
    }
}

impl<K, S> RateLimitLayer<K, S> {
    /// Creates a layer that limits by the key that `key` returns for a request. A request for which `key` returns
    /// `None` is not limited.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Requests with an API key are limited by it, others are not limited here.
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// let layer = RateLimitLayer::new(limiter, |request| {
    ///     Some(request.headers.get("x-api-key")?.to_str().ok()?.to_owned())
    /// });
    /// let app = Router::new().route("/", get("hello")).layer(layer);
    /// # for status in [200, 200] {
    /// #     let answer = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    /// #     assert_eq!(answer.status(), status);
    /// # }
    /// # for status in [200, 429] {
    /// #     let request = Request::get("/").header("x-api-key", "7").body(Body::empty()).unwrap();
    /// #     assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status);
    /// # }
    /// # }
    /// ```
    #[doc(alias = "GlobalKeyExtractor")]
    #[doc(alias = "KeyExtractor")]
    pub fn new(
        limiter: impl Into<LayerLimiter<K, S>>,
        key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let extract = move |parts: &Parts| ControlFlow::Continue(key(parts));
        Self::with_key(limiter.into(), KeyExtractor::Function(Arc::new(extract)))
    }
}
