//! Service of a layer, and the future of its responses, which is not boxed if no step has to wait. The decision about a
//! request is made in `admission.rs`.

use std::{
    fmt,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    ops::ControlFlow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::axum::{
    body::to_bytes,
    http::{Request, Response as HttpResponse},
    response::Response,
};
use futures_core::future::BoxFuture;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    admission::{Admission, RequestStep},
    body::RateLimitBody,
    settings::Settings,
};
use crate::engine::hasher::DefaultHasher;

/// Service that a [`RateLimitLayer`](super::RateLimitLayer) puts around yours.
pub struct RateLimit<Inner, K, S = DefaultHasher> {
    inner: Inner,
    settings: Arc<Settings<K, S>>,
}

pin_project! {
    /// Future of a response: the inner service's, or the layer's own.
    pub struct RateLimitFuture<F, K, S, R, E> {
        #[pin]
        answer: Answer<F, K, S, R, E>,
    }
}

pin_project! {
    #[project = AnswerProjection]
    enum Answer<F, K, S, R, E> {
        // The request passed immediately; `inner` answers it.
        Passed { #[pin] inner: F, settings: Arc<Settings<K, S>>, admission: Admission<K> },
        // The step has to wait: for a key extractor, a limiter, or the body of a denial.
        Boxed { future: BoxFuture<'static, Result<HttpResponse<RateLimitBody<R>>, E>> },
    }
}

impl<Inner, K, S> RateLimit<Inner, K, S> {
    pub(super) fn new(inner: Inner, settings: Arc<Settings<K, S>>) -> Self {
        Self { inner, settings }
    }
}

impl<Inner, K, S, B, R> Service<Request<B>> for RateLimit<Inner, K, S>
where
    Inner: Service<Request<B>, Response = HttpResponse<R>> + Clone + Send + 'static,
    Inner::Future: Send,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = HttpResponse<RateLimitBody<R>>;
    type Error = Inner::Error;
    type Future = RateLimitFuture<Inner::Future, K, S, R, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let settings = self.settings.clone();
        // The decision is made in `call`, because `poll_ready` has no request.
        let step = match settings.admit(&mut parts) {
            RequestStep::Decided(ControlFlow::Continue(admission)) => {
                settings.insert_standing(&admission, &mut parts.extensions);
                // This very service, not a clone: `poll_ready` has reserved its capacity.
                let inner = self.inner.call(Request::from_parts(parts, body));
                return RateLimitFuture { answer: Answer::Passed { inner, settings, admission } };
            }
            RequestStep::Decided(ControlFlow::Break(response)) => {
                // Also by a denied request: the inner service is not called for it.
                self.give_back();
                return RateLimitFuture::boxed(async { Ok(own_response(response).await) });
            }
            step => step,
        };
        let mut inner = self.give_back();
        RateLimitFuture::boxed(async move {
            let admission = match settings.continue_with(step, &mut parts).await {
                ControlFlow::Continue(admission) => admission,
                ControlFlow::Break(response) => return Ok(own_response(response).await),
            };
            settings.insert_standing(&admission, &mut parts.extensions);
            // The clone is not ready yet. A request that fails or is dropped from here on stays charged.
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            #[cfg(feature = "redis")]
            let admission = settings.correct_on_redis(admission, &mut response).await;
            let meter = settings.settle(admission, &mut response);
            Ok(response.map(|body| RateLimitBody::passed(body, meter)))
        })
    }
}

impl<Inner: Clone, K, S> RateLimit<Inner, K, S> {
    /// Gives up the capacity that `poll_ready` reserved in the inner service (such as a permit of a
    /// `ConcurrencyLimit`), by replacing the service with a clone, since it is not called now. A denied request would
    /// otherwise hold the permit until the next request of its connection, or its end. A request that waits would
    /// withhold it from those that need not wait. Returns another clone, which has to be polled for readiness again.
    fn give_back(&mut self) -> Inner {
        let clone = self.inner.clone();
        self.inner = clone.clone();
        clone
    }
}

impl<F, K, S, R, E> RateLimitFuture<F, K, S, R, E> {
    fn boxed(
        future: impl Future<Output = Result<HttpResponse<RateLimitBody<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { answer: Answer::Boxed { future: Box::pin(future) } }
    }
}

impl<F, K, S, R, E> Future for RateLimitFuture<F, K, S, R, E>
where
    F: Future<Output = Result<HttpResponse<R>, E>>,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    type Output = Result<HttpResponse<RateLimitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().answer.project() {
            AnswerProjection::Boxed { future } => future.as_mut().poll(cx),
            AnswerProjection::Passed { inner, settings, admission } => {
                let mut response = ready!(inner.poll(cx))?;
                let meter = settings.settle(admission.take(), &mut response);
                Poll::Ready(Ok(response.map(|body| RateLimitBody::passed(body, meter))))
            }
        }
    }
}

impl<Inner: Clone, K, S> Clone for RateLimit<Inner, K, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone() }
    }
}

impl<Inner: fmt::Debug, K, S> fmt::Debug for RateLimit<Inner, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.settings.limiter)
            .finish()
    }
}

/// Converts a response of the layer itself.
async fn own_response<R>(answer: Response) -> HttpResponse<RateLimitBody<R>> {
    let (parts, body) = answer.into_parts();
    // A body that fails could not be sent either, so an empty one takes its place.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    HttpResponse::from_parts(parts, RateLimitBody::own(body))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{Ready, ready},
        mem,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::Duration,
    };

    use ::axum::{
        body::Body,
        http::{Method, StatusCode, request::Parts},
    };

    use super::{super::key::KeyExtractor, *};
    use crate::rate_limit::{Limit, RateLimiter};

    /// Service that reserves a place in `poll_ready`, as tower's `ConcurrencyLimit` does.
    #[derive(Default)]
    struct Places {
        taken: Arc<AtomicUsize>,
        has_one: bool,
    }

    impl Places {
        fn give_back(&mut self) {
            if mem::take(&mut self.has_one) {
                self.taken.fetch_sub(1, Relaxed);
            }
        }
    }

    impl Clone for Places {
        fn clone(&self) -> Self {
            Self { taken: self.taken.clone(), has_one: false }
        }
    }

    impl Drop for Places {
        fn drop(&mut self) {
            self.give_back();
        }
    }

    impl Service<Request<Body>> for Places {
        type Response = Response;
        type Error = Infallible;
        type Future = Ready<Result<Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            if !mem::replace(&mut self.has_one, true) {
                self.taken.fetch_add(1, Relaxed);
            }
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            assert!(self.has_one, "`call` without `poll_ready`");
            self.give_back();
            ready(Ok(Response::default()))
        }
    }

    async fn assert_denied_requests_hold_no_place(key: KeyExtractor<Method>) {
        let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
        let places = Places::default();
        let settings = Settings::new(limiter.into(), key);
        let mut service = RateLimit::new(places.clone(), Arc::new(settings));
        for (status, times) in [(StatusCode::OK, 1), (StatusCode::TOO_MANY_REQUESTS, 3)] {
            for _ in 0..times {
                poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
                assert_eq!(places.taken.load(Relaxed), 1);
                let response = service.call(Request::new(Body::empty())).await.unwrap();
                assert_eq!(response.status(), status);
                assert_eq!(places.taken.load(Relaxed), 0, "after {status}");
            }
        }
    }

    #[tokio::test]
    async fn denied_request_gives_back_the_capacity_that_poll_ready_reserved() {
        let at_once = |parts: &Parts| ControlFlow::Continue(Some(parts.method.clone()));
        assert_denied_requests_hold_no_place(KeyExtractor::Function(Arc::new(at_once))).await;
        assert_denied_requests_hold_no_place(KeyExtractor::from_request(())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_request_holds_no_capacity_of_the_inner_service() {
        let limiter = RateLimiter::<Method>::builder().limit(Limit::per_second(1)).build();
        let places = Places::default();
        let mut settings = Settings::new(limiter.into(), KeyExtractor::from_request(()));
        settings.wait = Some(Duration::from_secs(60));
        let mut service = RateLimit::new(places.clone(), Arc::new(settings));
        for waits in [false, true, true] {
            poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
            let mut answer = tokio_test::task::spawn(service.call(Request::<Body>::default()));
            assert_eq!(answer.poll().is_pending(), waits);
            assert_eq!(places.taken.load(Relaxed), 0, "the waiting request holds a place");
            if waits {
                assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
            }
            assert_eq!(places.taken.load(Relaxed), 0);
        }
    }
}
