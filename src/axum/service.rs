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
use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tower_service::Service;

use super::{
    Headers,
    denial::Denial,
    headers::{Field, Policy},
    key::{Found, KeyOf, bounded},
    layer::Settings,
};
use crate::{DefaultHasher, Limit, Permit};

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
        // What takes longer: a key to be extracted, a denial.
        Boxed { future: BoxFuture<'static, Result<HttpResponse<R>, E>> },
    }
}

/// A request that passes, and what was charged for it.
struct Charged<K> {
    key: K,
    limits: Option<Arc<[Limit]>>,
    permit: Permit,
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
        let settings = self.settings.clone();
        let answer = match &self.settings.key {
            KeyOf::Request(find) => match settings.admit(find(&parts), &parts) {
                ControlFlow::Continue(charged) => {
                    let inner = self.inner.call(Request::from_parts(parts, body));
                    Answer::Passed { inner, settings, charged }
                }
                ControlFlow::Break(answer) => {
                    Answer::Boxed { future: Box::pin(async { Ok(made_here(answer).await) }) }
                }
            },
            KeyOf::Extractor(extract) => {
                let extract = *extract;
                // The one that is ready is called, and its clone is asked again.
                let clone = self.inner.clone();
                let mut inner = mem::replace(&mut self.inner, clone);
                let future = Box::pin(async move {
                    let found = extract(&mut parts).await;
                    let charged = match settings.admit(found, &parts) {
                        ControlFlow::Continue(charged) => charged,
                        ControlFlow::Break(answer) => return Ok(made_here(answer).await),
                    };
                    let mut response = inner.call(Request::from_parts(parts, body)).await?;
                    settings.settle(charged, response.status(), response.headers_mut());
                    Ok(response)
                });
                Answer::Boxed { future }
            }
        };
        RateLimited { answer }
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
    fn admit(&self, found: Found<K>, parts: &Parts) -> ControlFlow<Response, Option<Charged<K>>> {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return ControlFlow::Continue(None);
        }
        let Some(key) = found? else { return ControlFlow::Continue(None) };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let limits = self.limits.as_ref().and_then(|limits| limits(parts, &key));
        let key = bounded(key);
        match self.limiter.decide(&key, cost, limits.as_deref()) {
            Ok(permit) => ControlFlow::Continue(Some(Charged { key, limits, permit })),
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
                self.tell(&key, limits.as_deref(), Some(&denial), answer.headers_mut());
                ControlFlow::Break(answer)
            }
        }
    }

    /// Now that the answer is known.
    fn settle(&self, charged: Option<Charged<K>>, status: StatusCode, headers: &mut HeaderMap) {
        let Some(Charged { key, limits, permit }) = charged else { return };
        if self.charge_when.as_ref().is_some_and(|charge_when| !charge_when(status)) {
            permit.refund_now();
        }
        if !self.shadow {
            self.tell(&key, limits.as_deref(), None, headers);
        }
    }

    /// Writes the fields that tell of `key`'s limits.
    fn tell(
        &self,
        key: &K,
        limits: Option<&[Limit]>,
        denial: Option<&Denial<'_>>,
        headers: &mut HeaderMap,
    ) {
        if self.headers == Headers::None {
            return;
        }
        let state = self.limiter.state(key, limits);
        let plan = limits.map(Policy::of);
        let policy = plan.as_ref().unwrap_or(&self.policy);
        let mut fields: SmallVec<[_; 2]> = state.standings().iter().map(Field::of).collect();
        match denial {
            None => self.headers.add(policy, &fields, headers),
            Some(denial) => {
                fields.iter_mut().for_each(|field| field.deny(denial));
                self.headers.replace(policy, &fields, headers);
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
