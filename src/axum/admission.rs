//! What becomes of a request: whether it passes and what it is charged, and what its answer is told and given back.
//!
//! All requests go this one way, step by step. Where the key is a function's and the limiter is in memory, no step
//! waits, so that such a layer needs no box for a future.

use std::{
    hash::{BuildHasher, Hash},
    ops::ControlFlow,
    sync::Arc,
};

#[cfg(feature = "redis")]
use ::axum::response::IntoResponse;
use ::axum::{
    http::{HeaderMap, StatusCode, request::Parts},
    response::Response,
};

#[cfg(feature = "redis")]
use super::limiter::RedisBackend;
use super::{
    Headers,
    headers::{Field, Policy},
    key::{ExtractedKey, Extractor, KeyExtractor},
    limiter::{Backend, Decision, LayerPermit},
    response::problem,
    retry_after::RetryAfter,
    settings::Settings,
};
use crate::rate_limit::{Limit, Limited, PerLimit, Remaining};

/// How far a request has come.
pub(super) enum Step<K> {
    /// Its key is still to be extracted.
    Extract(Extractor<K>),
    /// Redis is still to be asked.
    #[cfg(feature = "redis")]
    Ask(Check<K>, Arc<RedisBackend<K>>),
    Decided(Verdict<K>),
}

/// Whether a request passes, or the answer to it.
pub(super) type Verdict<K> = ControlFlow<Response, Admission<K>>;

/// What a request that passes was charged; `None` where it is not limited, or nobody knows.
pub(super) type Admission<K> = Option<Charged<K>>;

pub(super) struct Charged<K> {
    limits: Option<Arc<[Limit]>>,
    remaining: PerLimit<Remaining>,
    /// What may come back, where the answer decides on that. In a box, as the future is moved about.
    refundable: Option<Box<(K, LayerPermit)>>,
}

/// A request that is limited, and not charged yet.
pub(super) struct Check<K> {
    key: K,
    cost: u32,
    limits: Option<Arc<[Limit]>>,
}

impl<K, S> Settings<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Charges a request, as far as nothing has to be waited for; [`go_on`](Settings::go_on) does the rest.
    #[inline]
    pub(super) fn admit(&self, parts: &Parts) -> Step<K> {
        match &self.key {
            KeyExtractor::Function(key) => self.check(key(parts), parts),
            KeyExtractor::FromRequest(extract) => Step::Extract(*extract),
        }
    }

    pub(super) async fn go_on(&self, mut step: Step<K>, parts: &mut Parts) -> Verdict<K> {
        loop {
            step = match step {
                Step::Extract(extract) => self.check(extract(parts).await, parts),
                #[cfg(feature = "redis")]
                Step::Ask(check, redis) => {
                    let limits = check.limits.as_deref();
                    match redis.decide(&check.key, check.cost, limits).await {
                        Ok(decision) => return self.conclude(check, decision, parts),
                        Err(_) if self.shadow => return ControlFlow::Continue(None),
                        Err(error) => return ControlFlow::Break(error.into_response()),
                    }
                }
                Step::Decided(verdict) => return verdict,
            }
        }
    }

    /// Charges a request by its key where the limiter decides at once.
    #[inline]
    fn check(&self, key: ExtractedKey<K>, parts: &Parts) -> Step<K> {
        // A request that is skipped passes also where its key's rejection would be the answer.
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return Step::Decided(ControlFlow::Continue(None));
        }
        let key = match key {
            ControlFlow::Continue(Some(key)) => key,
            ControlFlow::Continue(None) => return Step::Decided(ControlFlow::Continue(None)),
            ControlFlow::Break(rejection) => return Step::Decided(ControlFlow::Break(rejection)),
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let limits = self.limits.as_ref().and_then(|limits| limits(parts, &key));
        // Last, as the functions of the layer's user are asked with the whole key.
        let check = Check { key: self.limiter.bounded(key), cost, limits };
        match self.limiter.backend() {
            Backend::Memory(limiter) => {
                let limits = check.limits.as_deref();
                let (decided, remaining) = limiter.decide(&check.key, check.cost, limits);
                let decision = (decided.map(LayerPermit::Memory), remaining);
                Step::Decided(self.conclude(check, decision, parts))
            }
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => Step::Ask(check, redis.clone()),
        }
    }

    /// What a limiter's decision means for a request. Inlined, as it is large and moved about else.
    #[inline(always)]
    fn conclude(&self, check: Check<K>, decision: Decision, parts: &Parts) -> Verdict<K> {
        let Check { key, cost, limits } = check;
        let (decided, remaining) = decision;
        match decided {
            Ok(permit) => {
                let refundable = self.charge_when.is_some().then(|| Box::new((key, permit)));
                ControlFlow::Continue(Some(Charged { limits, remaining, refundable }))
            }
            Err(limited) if self.shadow => {
                tracing::debug!(cost, limit = %limited.limit(), "a request would be denied");
                ControlFlow::Continue(None)
            }
            Err(limited) => {
                ControlFlow::Break(self.denial(&limited, limits.as_deref(), &remaining, parts))
            }
        }
    }

    /// Takes back from Redis what an answer of this status is not charged for, before it is settled.
    #[cfg(feature = "redis")]
    pub(super) async fn refund_on_redis(
        &self,
        mut admission: Admission<K>,
        status: StatusCode,
    ) -> Admission<K> {
        if let Backend::Redis(redis) = self.limiter.backend()
            && let Some(Charged { limits, remaining, refundable }) = &mut admission
            && let Some(refundable) = refundable.take()
            && self.comes_back(status)
            && let (key, LayerPermit::Redis(permit)) = *refundable
        {
            *remaining = redis.refund(permit, &key, limits.as_deref()).await;
        }
        admission
    }

    /// Now that the status of the answer is known: what it is not charged for comes back, and its fields tell what is
    /// left then.
    #[inline]
    pub(super) fn settle(
        &self,
        admission: Admission<K>,
        status: StatusCode,
        headers: &mut HeaderMap,
    ) {
        let Some(Charged { limits, mut remaining, refundable }) = admission else { return };
        if let Some(refundable) = refundable
            && let Backend::Memory(limiter) = self.limiter.backend()
            && self.comes_back(status)
            && let (key, LayerPermit::Memory(permit)) = *refundable
        {
            permit.refund_now();
            remaining = limiter.remaining(&key, limits.as_deref());
        }
        if !self.shadow {
            self.write_headers(limits.as_deref(), &remaining, None, headers);
        }
    }

    /// Whether what an answer of this status was charged is taken back.
    fn comes_back(&self, status: StatusCode) -> bool {
        self.charge_when.as_ref().is_some_and(|charge_when| !charge_when(status))
    }

    fn denial(
        &self,
        limited: &Limited,
        limits: Option<&[Limit]>,
        remaining: &[Remaining],
        parts: &Parts,
    ) -> Response {
        let retry_after = RetryAfter::of(limited);
        let mut response = match &self.on_limited {
            Some(on_limited) => on_limited(limited, parts),
            None => problem(&retry_after),
        };
        // An answer of `on_limited` keeps its own, if it has one.
        retry_after.write(response.headers_mut());
        self.write_headers(limits, remaining, Some(&retry_after), response.headers_mut());
        response
    }

    /// Writes the fields that tell what is left of the limits, if anybody knows.
    fn write_headers(
        &self,
        limits: Option<&[Limit]>,
        remaining: &[Remaining],
        denied: Option<&RetryAfter<'_>>,
        headers: &mut HeaderMap,
    ) {
        if self.headers == Headers::None || remaining.is_empty() {
            return;
        }
        let now = self.limiter.lazy_now();
        let plan = limits.map(Policy::of);
        let policy = plan.as_ref().unwrap_or(&self.policy);
        let limits = limits.unwrap_or(self.limiter.limits());
        let fields = limits.iter().zip(remaining).map(|(limit, left)| Field::of(limit, left, &now));
        match denied {
            None => self.headers.add(policy, fields, headers),
            Some(retry_after) => {
                let fields = fields.map(|field| field.after(retry_after));
                // What `on_limited` may have taken from another answer tells of another moment.
                self.headers.replace(policy, fields, headers);
            }
        }
    }
}
