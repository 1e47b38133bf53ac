//! Settings of a layer that determine the cost of a request, before and after its response.

use std::sync::Arc;

use ::axum::{
    http::{StatusCode, request::Parts},
    response::Response,
};

use super::RateLimitLayer;

impl<K, S> RateLimitLayer<K, S> {
    /// Sets the cost of a request, in units, if some of your requests are more expensive than others. A request of cost
    /// 0 passes. Defaults to 1.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::{Method, Request}, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A write costs as much as ten reads.
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(15));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned()))
    ///     .cost(|request| if request.method == Method::GET { 1 } else { 10 });
    /// let app = Router::new().route("/", get("hello").post("stored")).layer(layer);
    /// # let ask = |method: &str| {
    /// #     app.clone().oneshot(Request::builder().method(method).body(Body::empty()).unwrap())
    /// # };
    /// for (method, status) in [("POST", 200), ("POST", 429), ("GET", 200)] {
    ///     assert_eq!(ask(method).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.settings().cost = Some(Arc::new(cost));
        self
    }

    /// Sets for which response statuses a request is charged, for example only for failed logins. Defaults to all.
    ///
    /// Each request is charged before it reaches the service, and refunded if `charge_when` returns `false` for its
    /// response. So a quota also limits the number of concurrent requests, and a request may be denied by others in
    /// flight that are refunded a moment later; if that is not intended, use
    /// [`charge_failures`](RateLimitLayer::charge_failures). A request without a response, because the service failed
    /// or the client disconnected, stays charged. Otherwise a client could avoid each charge by disconnecting before
    /// the response.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::{Request, StatusCode}, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Requests that the database could not serve are not charged.
    /// let limiter: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1));
    /// let layer = RateLimitLayer::new(limiter, |_| Some("ada".to_owned()))
    ///     .charge_when(|status| !status.is_server_error());
    /// let app = Router::new()
    ///     .route("/", get("hello"))
    ///     .route("/broken", get(StatusCode::SERVICE_UNAVAILABLE))
    ///     .layer(layer);
    /// # let ask = |path| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
    /// for (path, status) in [("/broken", 503), ("/broken", 503), ("/", 200), ("/", 429)] {
    ///     assert_eq!(ask(path).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn charge_when(
        mut self,
        charge_when: impl Fn(StatusCode) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings().charge_when = Some(Arc::new(charge_when));
        self
    }

    /// Charges only failures, such as failed logins: the requests for whose responses `is_failure` returns `true`.
    /// Defaults to none; all requests are charged.
    ///
    /// A request is denied while the failures already charged fill the quota; `Retry-After` is then the time until one
    /// of them leaves the window. Requests in flight reserve nothing, unlike with
    /// [`charge_when`](RateLimitLayer::charge_when), so any number of successful requests may run at the same time. A
    /// failure counts from its response on, which already shows it in its own `RateLimit` field. A request that is
    /// dropped before its response costs nothing. The failures charged in a window are never more than the quota and
    /// the requests in flight.
    ///
    /// `is_failure` receives the response without its body. A failure costs as much as [`cost`](RateLimitLayer::cost)
    /// or [`charge_after`](RateLimitLayer::charge_after) return; `charge_when` and
    /// [`charge_sent`](RateLimitLayer::charge_sent) have no effect. With [`wait`](RateLimitLayer::wait), requests wait
    /// in no particular order, since they take nothing from each other;
    /// [`max_waiting`](crate::RateLimiterBuilder::max_waiting) counts them apart from other waiters of the key. On
    /// Redis, each request takes one round trip and each failure another two.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::{Request, StatusCode}, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let guesses = RateLimiter::<String>::builder().limit(Limit::per_minute(1)).build();
    /// let layer = RateLimitLayer::new(guesses, |_| Some("192.0.2.1".to_owned()))
    ///     .charge_failures(|response| response.status() == StatusCode::UNAUTHORIZED);
    /// let app = Router::new()
    ///     .route("/", get("hello"))
    ///     .route("/wrong", get(StatusCode::UNAUTHORIZED))
    ///     .layer(layer);
    /// # let ask = |path| app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
    /// for (path, status) in [("/", 200), ("/", 200), ("/wrong", 401), ("/", 429)] {
    ///     assert_eq!(ask(path).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn charge_failures(
        mut self,
        is_failure: impl Fn(&Response) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings().charge_failures = Some(Arc::new(is_failure));
        self
    }

    /// Refunds the part of [`cost`](RateLimitLayer::cost) that is above the result of
    /// [`charge_after`](RateLimitLayer::charge_after) or [`charge_sent`](RateLimitLayer::charge_sent). Defaults to no
    /// refund: the cost of a request is also its minimum.
    ///
    /// Set it if your `cost` is an estimate. Neither function should then return 0 for requests that caused work,
    /// because these requests are not limited at all. A response to `HEAD` has no body, for example, nor has one with
    /// status 304, and a client may disconnect before the body is sent.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A request may use up to 500 tokens; the response reports their number.
    /// let tokens: RateLimiter<String> = RateLimiter::new(Limit::per_minute(1_000));
    /// let layer = RateLimitLayer::new(tokens.clone(), |_| Some("ada".to_owned()))
    ///     .cost(|_| 500)
    ///     .charge_after(|response| {
    ///         let tokens = response.headers().get("x-tokens").and_then(|tokens| tokens.to_str().ok());
    ///         tokens.and_then(|tokens| tokens.parse().ok()).unwrap_or(500)
    ///     })
    ///     .refund_unused();
    /// let app = Router::new().route("/", get(async || ([("x-tokens", "120")], "hello"))).layer(layer);
    /// app.oneshot(Request::new(Body::empty())).await.unwrap();
    /// assert_eq!(tokens.peek("ada").await.remaining(), 880);
    /// # }
    /// ```
    pub fn refund_unused(mut self) -> Self {
        self.settings().refund_unused = true;
        self
    }

    /// Sets the total cost of a request by its response, for example the number of tokens that a model reports, the
    /// number of returned rows, or the `content-length`. `charge_after` receives the response without its body.
    /// Defaults to the initial charge, set by [`cost`](RateLimitLayer::cost), which is also the minimum unless
    /// [`refund_unused`](RateLimitLayer::refund_unused) is set.
    ///
    /// The difference is charged or refunded as by [`Permit::settle`](crate::Permit::settle): the excess over the quota
    /// becomes a debt, and requests are denied until the debt has left the window. With
    /// [`charge_when`](RateLimitLayer::charge_when), `charge_after` is called only for responses whose requests are
    /// charged.
    ///
    /// # Examples
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

    /// Sets the total cost of a request by the number of bytes of its response body. It is charged when the body has
    /// ended, or for the bytes read so far if the client disconnects. Defaults to the initial charge, which is also the
    /// minimum unless [`refund_unused`](RateLimitLayer::refund_unused) is set: a response to `HEAD` has no bytes.
    ///
    /// The difference is settled as for [`charge_after`](RateLimitLayer::charge_after). If both are set, the function
    /// of `charge_after` is not called. The header fields show the quota before the body is charged. On Redis, a
    /// background task settles the charge.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::{Router, body::{Body, to_bytes}, http::Request, routing::get};
    /// # use tower::ServiceExt;
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // In KiB, so that a `u32` counts up to 4 TiB.
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
}
