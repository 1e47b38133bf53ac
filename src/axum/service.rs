use std::{
    fmt,
    hash::{BuildHasher, Hash},
    mem,
    ops::ControlFlow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::axum::{
    body::{Bytes, to_bytes},
    http::{HeaderMap, Request, Response as HttpResponse, StatusCode, request::Parts},
    response::Response,
};
use futures_core::future::BoxFuture;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    Headers,
    headers::{Field, Policy},
    key::{Found, KeyOf},
    layer::Settings,
    limiter::LayerPermit,
    response::Denial,
};
use crate::{
    engine::hasher::DefaultHasher,
    rate_limit::{Limit, Limited, PerLimit, RateLimiter, Remaining},
};

/// A service within a [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<Inner, K, S = DefaultHasher> {
    inner: Inner,
    settings: Arc<Settings<K, S>>,
}

pin_project! {
    /// An answer on its way: the service's, or the layer's own.
    pub struct RateLimited<F, K, S, R, E> {
        #[pin]
        answer: Answer<F, K, S, R, E>,
    }
}

pin_project! {
    #[project = AnswerProjection]
    enum Answer<F, K, S, R, E> {
        // The request passed.
        Passed { #[pin] inner: F, settings: Arc<Settings<K, S>>, charged: Option<Charged<K>> },
        // What takes longer: a key to be extracted, a limiter to be asked, a denial.
        Boxed { future: BoxFuture<'static, Result<HttpResponse<R>, E>> },
    }
}

/// A request that passes, and was charged.
struct Charged<K> {
    limits: Option<Arc<[Limit]>>,
    left: PerLimit<Remaining>,
    /// What may come back, where the answer decides on that. In a box, as the future is moved about.
    tentative: Option<Box<(K, LayerPermit)>>,
}

/// A request that is limited.
struct Ask<K> {
    key: K,
    cost: u32,
    limits: Option<Arc<[Limit]>>,
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
    R: From<Bytes> + Send + 'static,
{
    type Response = HttpResponse<R>;
    type Error = Inner::Error;
    type Future = RateLimited<Inner::Future, K, S, R, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        match (&self.settings.key, self.settings.limiter.in_memory()) {
            (KeyOf::Request(find), Some(limiter)) => {
                match self.settings.admit(limiter, find(&parts), &parts) {
                    ControlFlow::Continue(charged) => {
                        let inner = self.inner.call(Request::from_parts(parts, body));
                        let settings = self.settings.clone();
                        RateLimited { answer: Answer::Passed { inner, settings, charged } }
                    }
                    ControlFlow::Break(answer) => {
                        RateLimited::boxed(async { Ok(made_here(answer).await) })
                    }
                }
            }
            _ => {
                let settings = self.settings.clone();
                // The one that is ready is called, and its clone is asked again.
                let clone = self.inner.clone();
                let mut inner = mem::replace(&mut self.inner, clone);
                RateLimited::boxed(async move {
                    let found = settings.key.find(&mut parts).await;
                    let charged = match settings.admit_later(found, &parts).await {
                        ControlFlow::Continue(charged) => charged,
                        ControlFlow::Break(answer) => return Ok(made_here(answer).await),
                    };
                    let mut response = inner.call(Request::from_parts(parts, body)).await?;
                    let status = response.status();
                    settings.settle_later(charged, status, response.headers_mut()).await;
                    Ok(response)
                })
            }
        }
    }
}

impl<F, K, S, R, E> RateLimited<F, K, S, R, E> {
    fn boxed(future: impl Future<Output = Result<HttpResponse<R>, E>> + Send + 'static) -> Self {
        Self { answer: Answer::Boxed { future: Box::pin(future) } }
    }
}

impl<F, K, S, R, E> Future for RateLimited<F, K, S, R, E>
where
    F: Future<Output = Result<HttpResponse<R>, E>>,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    type Output = Result<HttpResponse<R>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().answer.project() {
            AnswerProjection::Boxed { future } => future.as_mut().poll(cx),
            AnswerProjection::Passed { inner, settings, charged } => {
                let mut response = ready!(inner.poll(cx))?;
                settings.settle(charged.take(), response.status(), response.headers_mut());
                Poll::Ready(Ok(response))
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

impl<K, S> Settings<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Charges a request: what was charged, if anything, or the answer to one that does not pass.
    fn admit(
        &self,
        limiter: &RateLimiter<K, S>,
        found: Found<K>,
        parts: &Parts,
    ) -> ControlFlow<Response, Option<Charged<K>>> {
        let Some(ask) = self.ask(found, parts)? else { return ControlFlow::Continue(None) };
        let (decided, left) = limiter.decide(&ask.key, ask.cost, ask.limits.as_deref());
        self.answer(ask, decided.map(LayerPermit::Memory), left, parts)
    }

    /// As [`admit`](Settings::admit), by any limiter.
    async fn admit_later(
        &self,
        found: Found<K>,
        parts: &Parts,
    ) -> ControlFlow<Response, Option<Charged<K>>> {
        let Some(ask) = self.ask(found, parts)? else { return ControlFlow::Continue(None) };
        match self.limiter.decide(&ask.key, ask.cost, ask.limits.as_deref()).await {
            Ok((decided, left)) => self.answer(ask, decided, left, parts),
            Err(_) if self.shadow => ControlFlow::Continue(None),
            Err(answer) => ControlFlow::Break(answer),
        }
    }

    /// What is to be charged for a request, if anything, or the answer to one that can't be.
    #[inline]
    fn ask(&self, found: Found<K>, parts: &Parts) -> ControlFlow<Response, Option<Ask<K>>> {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return ControlFlow::Continue(None);
        }
        let Some(key) = found? else { return ControlFlow::Continue(None) };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let limits = self.limits.as_ref().and_then(|limits| limits(parts, &key));
        ControlFlow::Continue(Some(Ask { key: self.limiter.bounded(key), cost, limits }))
    }

    #[inline]
    fn answer(
        &self,
        Ask { key, cost, limits }: Ask<K>,
        decided: Result<LayerPermit, Limited>,
        left: PerLimit<Remaining>,
        parts: &Parts,
    ) -> ControlFlow<Response, Option<Charged<K>>> {
        match decided {
            Ok(permit) => {
                let tentative = self.charge_when.is_some().then(|| Box::new((key, permit)));
                ControlFlow::Continue(Some(Charged { limits, left, tentative }))
            }
            Err(limited) if self.shadow => {
                tracing::debug!(cost, limit = %limited.limit(), "a request would be denied");
                ControlFlow::Continue(None)
            }
            Err(limited) => {
                let denial = Denial::of(&limited);
                let mut answer = match &self.on_limited {
                    Some(on_limited) => on_limited(&limited, parts),
                    None => denial.problem(),
                };
                denial.retry_after(answer.headers_mut());
                self.tell(limits.as_deref(), &left, Some(&denial), answer.headers_mut());
                ControlFlow::Break(answer)
            }
        }
    }

    /// Now that the answer is known, to a request that a limiter in memory let pass.
    fn settle(&self, charged: Option<Charged<K>>, status: StatusCode, headers: &mut HeaderMap) {
        let Some(Charged { limits, mut left, tentative }) = charged else { return };
        if let (Some(tentative), Some(limiter)) = (tentative, self.limiter.in_memory())
            && self.comes_back(status)
        {
            let (key, permit) = *tentative;
            permit.refund_now();
            left = limiter.remaining(&key, limits.as_deref());
        }
        if !self.shadow {
            self.tell(limits.as_deref(), &left, None, headers);
        }
    }

    /// As [`settle`](Settings::settle), by any limiter.
    async fn settle_later(
        &self,
        charged: Option<Charged<K>>,
        status: StatusCode,
        headers: &mut HeaderMap,
    ) {
        let Some(Charged { limits, mut left, tentative }) = charged else { return };
        if let Some(tentative) = tentative
            && self.comes_back(status)
        {
            let (key, permit) = *tentative;
            left = self.limiter.take_back(permit, &key, limits.as_deref()).await;
        }
        if !self.shadow {
            self.tell(limits.as_deref(), &left, None, headers);
        }
    }

    /// Whether what such an answer was charged is taken back.
    fn comes_back(&self, status: StatusCode) -> bool {
        self.charge_when.as_ref().is_some_and(|charge_when| !charge_when(status))
    }

    /// Writes the fields that tell what is left of the limits, if anybody knows.
    fn tell(
        &self,
        limits: Option<&[Limit]>,
        left: &[Remaining],
        denial: Option<&Denial<'_>>,
        headers: &mut HeaderMap,
    ) {
        if self.headers == Headers::None || left.is_empty() {
            return;
        }
        let now = self.limiter.lazy_now();
        let plan = limits.map(Policy::of);
        let policy = plan.as_ref().unwrap_or(&self.policy);
        let limits = limits.unwrap_or(self.limiter.limits());
        let fields = limits.iter().zip(left).map(|(limit, left)| Field::of(limit, left, &now));
        match denial {
            None => self.headers.add(policy, fields, headers),
            Some(denial) => {
                let fields = fields.map(|field| field.after(denial));
                self.headers.replace(policy, fields, headers);
            }
        }
    }
}

/// An answer of the layer's own, with the body that the service's answers have.
async fn made_here<R: From<Bytes>>(answer: Response) -> HttpResponse<R> {
    let (parts, body) = answer.into_parts();
    // A body that breaks off could not be sent, either.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    HttpResponse::from_parts(parts, body.into())
}
