//! Admission of a request: its check, and the correction of its charge and the fields of its response afterwards.
//!
//! All requests take these steps. If the key comes from a function and the limiter is in memory, no step has to wait,
//! so such a layer needs no boxed future.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    ops::ControlFlow,
    slice,
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "redis")]
use ::axum::response::IntoResponse;
use ::axum::{
    body::Body,
    http::{Extensions, HeaderMap, Response as HttpResponse, request::Parts},
    response::Response,
};
use tokio::time::Instant;

#[cfg(feature = "redis")]
use super::limiter::RedisBackend;
use super::{
    Headers,
    body_meter::BodyMeter,
    decision::RateLimitDecision,
    headers::{Field, Partition, Policy},
    key::{ExtractedKey, Extractor, KeyExtractor},
    limiter::{Backend, Correction, Decision, LayerPermit},
    limits_lookup::LimitsLookup,
    response::{forbid_storing, grpc_denial, is_grpc, problem},
    retry_after::{RetryAfter, jittered},
    settings::{Limits, Settings},
};
use crate::rate_limit::{Limit, Limited, PerLimit, RateLimiter, Remaining, Standing};

/// Next step of a request.
pub(super) enum Step<K, S> {
    /// Extract the key.
    Extract(Extractor<K>),
    /// Look up the limits of the key.
    LookUp(K, u32, Arc<LimitsLookup<K>>),
    /// Wait until the request passes, up to a maximum.
    Wait(Check<K>, RateLimiter<K, S>, Duration),
    /// Ask the limiter on Redis.
    #[cfg(feature = "redis")]
    Ask(Check<K>, Arc<RedisBackend<K>>),
    Decided(Verdict<K>),
}

/// Admission of a request, or the response that denies it.
pub(super) type Verdict<K> = ControlFlow<Response, Admission<K>>;

/// Charge of an admitted request; `None` if it is not limited, or if the decision is unknown.
pub(super) type Admission<K> = Option<Charged<K>>;

pub(super) struct Charged<K> {
    limits: Option<Arc<[Limit]>>,
    remaining: PerLimit<Remaining>,
    /// Partition key of the fields.
    partition: Option<Box<str>>,
    /// Present if the response may change the charge. Boxed, because the future that contains it is moved.
    correctable: Option<Box<Correctable<K>>>,
}

pub(super) struct Correctable<K> {
    key: K,
    permit: LayerPermit,
    /// Cost of the request, which it may exceed.
    cost: u32,
}

/// Request that is limited, and not charged yet.
pub(super) struct Check<K> {
    key: K,
    cost: u32,
    /// Limits of the request; `None` for the limiter's own, which may change while the request waits.
    plan: Option<Arc<[Limit]>>,
    /// The limiter's own limits when the request arrived, if `set_limits` had changed them.
    changed: Option<Arc<[Limit]>>,
    partition: Option<Box<str>>,
}

impl<K, S> Settings<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Charges a request as far as possible without waiting; [`continue_with`](Settings::continue_with) does the rest.
    #[inline]
    pub(super) fn admit(&self, parts: &mut Parts) -> Step<K, S> {
        // Before the key is extracted: a health check may have none.
        if !self.enabled || self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            if let KeyExtractor::Recording(key) = &self.key {
                let _ = key(parts);
            }
            return Step::Decided(ControlFlow::Continue(None));
        }
        match &self.key {
            KeyExtractor::Function(key) => self.check(key(parts), parts),
            KeyExtractor::Recording(key) => self.check(key(parts), parts),
            KeyExtractor::FromRequest(extract) => Step::Extract(extract.clone()),
        }
    }

    pub(super) async fn continue_with(
        &self,
        mut step: Step<K, S>,
        parts: &mut Parts,
    ) -> Verdict<K> {
        loop {
            step = match step {
                Step::Extract(extract) => self.check(extract(parts).await, parts),
                Step::LookUp(key, cost, lookup) => {
                    let limits = lookup.get(key.clone()).await;
                    self.check_by(key, cost, limits, parts)
                }
                Step::Wait(check, limiter, max_wait) => {
                    let (plan, start) = (check.plan.as_deref(), Instant::now());
                    let (key, cost) = (&check.key, check.cost);
                    let (decided, remaining, has_waited) = if self.charge_failures.is_some() {
                        let wait = limiter.probe_within(key, cost, plan, max_wait);
                        let ((decided, remaining), has_waited) = wait.await;
                        (decided, remaining, has_waited)
                    } else {
                        limiter.wait(key, cost, plan, max_wait).await
                    };
                    let permit = decided.map(LayerPermit::Memory);
                    let waited = has_waited.then(|| start.elapsed());
                    return self.conclude(check, Decision { permit, remaining, waited }, parts);
                }
                #[cfg(feature = "redis")]
                Step::Ask(check, redis) => {
                    let (plan, max_wait) = (check.plan.as_deref(), self.max_wait());
                    let probes = self.charge_failures.is_some();
                    match redis.decide(&check.key, check.cost, plan, max_wait, probes).await {
                        Ok(decision) => return self.conclude(check, decision, parts),
                        // Shadow mode denies nothing, also if the limiter fails.
                        Err(_) if self.shadow => return ControlFlow::Continue(None),
                        Err(error) => return ControlFlow::Break(error.into_response()),
                    }
                }
                Step::Decided(verdict) => return verdict,
            }
        }
    }

    /// Charges a request by its key, if the limits are known and the limiter decides immediately.
    #[inline]
    fn check(&self, key: ExtractedKey<K>, parts: &Parts) -> Step<K, S> {
        let key = match key {
            ControlFlow::Continue(Some(key)) => key,
            ControlFlow::Continue(None) => return Step::Decided(ControlFlow::Continue(None)),
            ControlFlow::Break(_) if self.shadow => {
                tracing::debug!("shadow layer admitted a request without a key");
                return Step::Decided(ControlFlow::Continue(None));
            }
            ControlFlow::Break(rejection) => return Step::Decided(ControlFlow::Break(rejection)),
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let limits = match &self.limits {
            Limits::Own => None,
            Limits::Function(limits) => limits(parts, &key),
            Limits::LookUp(lookup) => return Step::LookUp(key, cost, lookup.clone()),
        };
        self.check_by(key, cost, limits, parts)
    }

    /// Charges a request by the given limits, or by the limiter's own if there are none.
    #[inline]
    fn check_by(&self, key: K, cost: u32, plan: Option<Arc<[Limit]>>, parts: &Parts) -> Step<K, S> {
        // `conclude` compares it with the limits after the decision, and so detects a change in between.
        let changed = if plan.is_none() { self.limiter.changed_limits() } else { None };
        let partition = self.partition_key.as_ref().and_then(|partition_key| partition_key(&key));
        // The key is shortened last: the user's functions get the whole key.
        let check = Check { key: self.limiter.bounded(key), cost, plan, changed, partition };
        match self.limiter.backend() {
            Backend::Memory(limiter) => {
                if let Some(max_wait) = self.max_wait() {
                    return Step::Wait(check, limiter.clone(), max_wait);
                }
                let plan = check.plan.as_deref();
                let (decided, remaining) = match self.charge_failures {
                    None => limiter.decide(&check.key, check.cost, plan),
                    Some(_) => limiter.probe(&check.key, check.cost, plan),
                };
                let permit = decided.map(LayerPermit::Memory);
                let decision = Decision { permit, remaining, waited: None };
                Step::Decided(self.conclude(check, decision, parts))
            }
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => Step::Ask(check, redis.clone()),
        }
    }

    /// Adds the `Standing` of the request's key, by the limit that has the least left, to the extensions for the inner
    /// service.
    #[inline]
    pub(super) fn insert_standing(&self, admission: &Admission<K>, extensions: &mut Extensions) {
        let Some(Charged { limits, remaining, .. }) = admission else { return };
        // `None` if the request has no plan, and `set_limits` was never called.
        let limits = limits.as_deref().unwrap_or(&self.own_limits);
        let least = limits.iter().zip(&**remaining).min_by_key(|(_, left)| left.units);
        if let Some((limit, left)) = least {
            let more_at = left.more_at.map(|at| self.limiter.instant(at));
            extensions.insert(Standing { limit: limit.clone(), remaining: left.units, more_at });
        }
    }

    /// Converts a limiter's decision. Inlined, because the decision is large and would be copied.
    #[inline(always)]
    fn conclude(&self, check: Check<K>, decision: Decision, parts: &Parts) -> Verdict<K> {
        let Check { key, cost, plan, changed, partition } = check;
        let Decision { permit, mut remaining, waited } = decision;
        let limits = plan.or_else(|| {
            let present = self.limiter.changed_limits();
            // By address: both are alive, so equal addresses are the same limits.
            if present.as_ref().map(Arc::as_ptr) != changed.as_ref().map(Arc::as_ptr) {
                // It is unknown which of the two sets of limits decided. The fields combine limits and remaining units,
                // so both have to be of the present set.
                remaining = self.remaining_now(&key, present.as_deref());
            }
            present
        });
        match permit {
            Ok(permit) => {
                let allowed = RateLimitDecision::Allowed;
                self.report_decision(waited.map_or(allowed, RateLimitDecision::Waited), parts);
                let may_correct = self.charge_when.is_some()
                    || self.charge_failures.is_some()
                    || self.charge_after.is_some()
                    || self.charge_sent.is_some();
                let correctable = may_correct.then(|| Box::new(Correctable { key, permit, cost }));
                ControlFlow::Continue(Some(Charged { limits, remaining, partition, correctable }))
            }
            Err(limited) if self.shadow => {
                self.limiter.count_shadowed();
                self.report_decision(RateLimitDecision::Shadowed(&limited), parts);
                tracing::debug!(
                    cost,
                    limit = %limited.limit(),
                    "shadow layer admitted a request that would be denied"
                );
                ControlFlow::Continue(None)
            }
            Err(limited) => {
                self.report_decision(RateLimitDecision::Denied(&limited), parts);
                let field_args = (limits.as_deref(), partition.as_deref());
                ControlFlow::Break(self.denial(&limited, field_args, &remaining, parts))
            }
        }
    }

    /// Returns the remaining quota of each limit; empty if only Redis knows it.
    #[cold]
    fn remaining_now(&self, key: &K, limits: Option<&[Limit]>) -> PerLimit<Remaining> {
        match self.limiter.backend() {
            Backend::Memory(limiter) => limiter.remaining(key, limits),
            #[cfg(feature = "redis")]
            Backend::Redis(_) => PerLimit::Many([].into()),
        }
    }

    #[inline]
    fn report_decision(&self, decision: RateLimitDecision<'_>, parts: &Parts) {
        if let Some(on_decision) = &self.on_decision {
            on_decision(decision, parts);
        }
    }

    /// Corrects a charge on Redis by the head of the response, before `settle`.
    #[cfg(feature = "redis")]
    pub(super) async fn correct_on_redis<R>(
        &self,
        mut admission: Admission<K>,
        response: &mut HttpResponse<R>,
    ) -> Admission<K> {
        if let Backend::Redis(redis) = self.limiter.backend()
            && let Some(Charged { limits, remaining, correctable, .. }) = &mut admission
            && let Some(Correctable { cost, .. }) = correctable.as_deref()
            && let Some(correction) = self.correction(response, *cost)
            // Taken last: without a correction by the head, the permit stays for the meter of the body.
            && let Some(correctable) = correctable.take()
            && let Correctable { key, permit: LayerPermit::Redis(permit), .. } = *correctable
        {
            *remaining = redis.correct(permit, correction, &key, limits.as_deref()).await;
        }
        admission
    }

    /// Corrects the charge by the head of the response, and writes the fields with the quota that remains then.
    ///
    /// Returns the meter of the response body, if its bytes are to be charged.
    #[inline]
    pub(super) fn settle<R>(
        &self,
        admission: Admission<K>,
        response: &mut HttpResponse<R>,
    ) -> Option<Box<BodyMeter>> {
        let Charged { limits, mut remaining, partition, correctable } = admission?;
        let mut meter = None;
        if let Some(correctable) = correctable {
            let Correctable { key, permit, cost } = *correctable;
            match (permit, self.limiter.backend()) {
                (LayerPermit::Memory(permit), Backend::Memory(limiter)) => {
                    match self.correction(response, cost) {
                        Some(Correction::Refund) => permit.refund_now(),
                        Some(Correction::Settle(actual)) => permit.settle_now(actual),
                        Some(Correction::Charge(actual)) => {
                            limiter.charge_anyway(&key, actual, limits.as_deref());
                        }
                        None => meter = self.meter(LayerPermit::Memory(permit), cost),
                    }
                    if meter.is_none() {
                        remaining = limiter.remaining(&key, limits.as_deref());
                    }
                }
                // `correct_on_redis` has made the corrections by the head.
                #[cfg(feature = "redis")]
                (permit, _) => meter = self.meter(permit, cost),
            }
        }
        if self.shadow {
            return meter;
        }
        // Removed, so that the next outer layer does not rewrite the fields again.
        if let Some(limited) = response.extensions_mut().remove::<Limited>() {
            self.rewrite_fields(&limited, response.headers_mut());
        }
        let field_args = (limits.as_deref(), partition.as_deref());
        self.write_headers(field_args, &remaining, None, response.headers_mut());
        meter
    }

    /// Returns the change of the charge that the head of a response demands, if any.
    fn correction<R>(&self, response: &mut HttpResponse<R>, cost: u32) -> Option<Correction> {
        if let Some(is_failure) = &self.charge_failures {
            return with_head(response, |head| {
                let actual = || self.charge_after.as_ref().map_or(cost, |actual| actual(head));
                is_failure(head).then(|| Correction::Charge(self.at_least(cost, actual())))
            });
        }
        if self.charge_when.as_ref().is_some_and(|charge_when| !charge_when(response.status())) {
            return Some(Correction::Refund);
        }
        let charge_after = self.charge_after.as_ref().filter(|_| self.charge_sent.is_none())?;
        let actual = with_head(response, |head| charge_after(head));
        Some(Correction::Settle(self.at_least(cost, actual)))
    }

    /// Returns the cost by a response: not below that of the request, unless unused cost is refunded.
    fn at_least(&self, cost: u32, actual: u32) -> u32 {
        if self.refund_unused { actual } else { actual.max(cost) }
    }

    /// Returns a meter of the response body, if its bytes are to be charged.
    fn meter(&self, permit: LayerPermit, cost: u32) -> Option<Box<BodyMeter>> {
        // Failures are charged by their heads, and all other requests are free.
        let charge_sent = self.charge_sent.as_ref().filter(|_| self.charge_failures.is_none())?;
        let least = if self.refund_unused { 0 } else { cost };
        Some(Box::new(BodyMeter::new(permit, charge_sent.clone(), least)))
    }

    /// Returns how long a request may wait. Shadow mode delays nothing.
    fn max_wait(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.shadow)
    }

    /// Rewrites the fields of a handler's own denial in the style of this layer.
    fn rewrite_fields(&self, limited: &Limited, headers: &mut HeaderMap) {
        // The response of `Limited` already has these.
        if self.headers == Headers::Draft11 {
            return;
        }
        let retry_after = RetryAfter::of(limited);
        let policy = Policy::of(slice::from_ref(retry_after.limit));
        let field = Field::denied(limited, &retry_after);
        // The handler's limiter may be another one, with other keys: so no partition key.
        let partition = Partition { policy: &policy, key: None };
        self.headers.replace(partition, field.into_iter(), headers);
    }

    fn denial(
        &self,
        limited: &Limited,
        field_args: (Option<&[Limit]>, Option<&str>),
        remaining: &[Remaining],
        parts: &Parts,
    ) -> Response {
        // Before `on_limited`, so that its response and the fields agree.
        let limited = &*jittered(limited, self.retry_jitter);
        let retry_after = RetryAfter::of(limited);
        let mut response = match &self.on_limited {
            Some(on_limited) => on_limited(limited, parts),
            None if is_grpc(parts) => grpc_denial(&retry_after, parts),
            None => problem(limited, &retry_after),
        };
        // The fields are final, so an outer layer must not rewrite them.
        response.extensions_mut().remove::<Limited>();
        // A `Retry-After` that `on_limited` has set stays.
        retry_after.write(response.headers_mut());
        forbid_storing(response.headers_mut());
        self.write_headers(field_args, remaining, Some(&retry_after), response.headers_mut());
        response
    }

    /// Writes the fields with the remaining quota, if it is known, and with the partition key.
    fn write_headers(
        &self,
        (limits, key): (Option<&[Limit]>, Option<&str>),
        remaining: &[Remaining],
        denied: Option<&RetryAfter<'_>>,
        headers: &mut HeaderMap,
    ) {
        if self.headers == Headers::None || remaining.is_empty() {
            return;
        }
        let now = self.limiter.lazy_now();
        let plan = limits.map(Policy::of);
        let partition = Partition { policy: plan.as_ref().unwrap_or(&self.policy), key };
        let limits = limits.unwrap_or(&self.own_limits);
        let fields = limits.iter().zip(remaining).map(|(limit, left)| Field::of(limit, left, &now));
        match denied {
            None => self.headers.add(partition, fields, headers),
            Some(retry_after) => {
                let fields = fields.map(|field| field.after(retry_after));
                // `on_limited` may have copied fields of another response, which are of another time.
                self.headers.replace(partition, fields, headers);
            }
        }
    }
}

/// Calls `f` with a response of the same head. Its body is missing, since it may be of any type.
fn with_head<R, T>(response: &mut HttpResponse<R>, f: impl FnOnce(&Response) -> T) -> T {
    let mut head = Response::new(Body::empty());
    *head.status_mut() = response.status();
    *head.version_mut() = response.version();
    // Swapped in and out, since clones of the maps would cost allocations in each response.
    mem::swap(head.headers_mut(), response.headers_mut());
    mem::swap(head.extensions_mut(), response.extensions_mut());
    let result = f(&head);
    mem::swap(head.headers_mut(), response.headers_mut());
    mem::swap(head.extensions_mut(), response.extensions_mut());
    result
}
