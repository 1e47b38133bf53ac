//! Admission of a request: its check, and the response to a denial. `settlement` follows the response to an admitted
//! one.
//!
//! All requests take these steps. If the key comes from a function and the limiter is in memory, no step has to wait,
//! so such a layer needs no boxed future.

use std::{
    hash::{BuildHasher, Hash},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "redis")]
use ::axum::response::IntoResponse;
use ::axum::{
    http::{Extensions, HeaderMap, request::Parts},
    response::Response,
};
use tokio::time::Instant;

#[cfg(feature = "redis")]
use super::limiter::RedisBackend;
use super::{
    Headers,
    decision::RateLimitDecision,
    headers::{LimitFields, Partition, PolicyFields, remove_fields},
    key::{ExtractedKey, Extractor, KeyExtractor},
    limiter::{Backend, BackendDecision, LayerPermit},
    limits_lookup::LimitsLookup,
    response::{forbid_storing, grpc_denial, is_grpc, problem},
    retry_after::{RetryAfter, jittered},
    settings::{Limits, Settings},
};
use crate::rate_limit::{Limit, Limited, PerLimit, RateLimiter, Remaining, Standing};

/// Next step of a request.
pub(super) enum RequestStep<K, S> {
    /// Extract the key.
    Extract(Extractor<K>),
    /// Look up the limits of the key.
    LookUp(K, u32, Arc<LimitsLookup<K>>),
    /// Wait until the request passes, up to a maximum.
    Wait(PendingCheck<K>, RateLimiter<K, S>, Duration),
    /// Ask the limiter on Redis.
    #[cfg(feature = "redis")]
    Ask(PendingCheck<K>, Arc<RedisBackend<K>>),
    Decided(Verdict<K>),
}

/// Admission of a request, or the response that denies it.
pub(super) type Verdict<K> = ControlFlow<Response, Admission<K>>;

/// Charge of an admitted request; `None` if it is not limited, or if the decision is unknown.
pub(super) type Admission<K> = Option<ChargedRequest<K>>;

pub(super) struct ChargedRequest<K> {
    pub(super) limits: Option<Arc<[Limit]>>,
    pub(super) remaining: PerLimit<Remaining>,
    /// Partition key of the fields.
    pub(super) partition: Option<Box<str>>,
    /// Present if the response may change the charge. Boxed, because the future that contains it is moved.
    pub(super) correctable: Option<Box<Correctable<K>>>,
}

pub(super) struct Correctable<K> {
    pub(super) key: K,
    pub(super) permit: LayerPermit,
    /// Cost of the request, which it may exceed.
    pub(super) cost: u32,
}

/// Request that is limited, and not charged yet.
pub(super) struct PendingCheck<K> {
    key: K,
    cost: u32,
    /// Limits of the request; `None` for the limiter's own, which may change while the request waits.
    limits_override: Option<Arc<[Limit]>>,
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
    pub(super) fn admit(&self, parts: &mut Parts) -> RequestStep<K, S> {
        // Before the key is extracted: a health check may have none.
        if !self.enabled || self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            if let KeyExtractor::Recording(key) = &self.key {
                let _ = key(parts);
            }
            return RequestStep::Decided(ControlFlow::Continue(None));
        }
        match &self.key {
            KeyExtractor::Function(key) => self.check(key(parts), parts),
            KeyExtractor::Recording(key) => self.check(key(parts), parts),
            KeyExtractor::FromRequest(extract) => RequestStep::Extract(extract.clone()),
        }
    }

    pub(super) async fn continue_with(
        &self,
        mut step: RequestStep<K, S>,
        parts: &mut Parts,
    ) -> Verdict<K> {
        loop {
            step = match step {
                RequestStep::Extract(extract) => self.check(extract(parts).await, parts),
                RequestStep::LookUp(key, cost, lookup) => {
                    let limits = lookup.get(key.clone()).await;
                    self.check_by(key, cost, limits, parts)
                }
                RequestStep::Wait(check, limiter, max_wait) => {
                    let (limits_override, start) =
                        (check.limits_override.as_deref(), Instant::now());
                    let (key, cost) = (&check.key, check.cost);
                    let (decided, remaining, has_waited) = if self.charge_failures.is_some() {
                        let wait = limiter.probe_within(key, cost, limits_override, max_wait);
                        let ((decided, remaining), has_waited) = wait.await;
                        (decided, remaining, has_waited)
                    } else {
                        limiter.wait(key, cost, limits_override, max_wait).await
                    };
                    let permit = decided.map(LayerPermit::Memory);
                    let waited = has_waited.then(|| start.elapsed());
                    return self.conclude(
                        check,
                        BackendDecision { permit, remaining, waited },
                        parts,
                    );
                }
                #[cfg(feature = "redis")]
                RequestStep::Ask(check, redis) => {
                    let (limits_override, max_wait) =
                        (check.limits_override.as_deref(), self.max_wait());
                    let probes = self.charge_failures.is_some();
                    match redis
                        .decide(&check.key, check.cost, limits_override, max_wait, probes)
                        .await
                    {
                        Ok(decision) => return self.conclude(check, decision, parts),
                        // Shadow mode denies nothing, also if the limiter fails.
                        Err(_) if self.shadow => return ControlFlow::Continue(None),
                        Err(error) => return ControlFlow::Break(error.into_response()),
                    }
                }
                RequestStep::Decided(verdict) => return verdict,
            }
        }
    }

    /// Charges a request by its key, if the limits are known and the limiter decides immediately.
    #[inline]
    fn check(&self, key: ExtractedKey<K>, parts: &Parts) -> RequestStep<K, S> {
        let key = match key {
            ControlFlow::Continue(Some(key)) => key,
            ControlFlow::Continue(None) => {
                return RequestStep::Decided(ControlFlow::Continue(None));
            }
            ControlFlow::Break(_) if self.shadow => {
                tracing::debug!("shadow layer admitted a request without a key");
                return RequestStep::Decided(ControlFlow::Continue(None));
            }
            ControlFlow::Break(rejection) => {
                return RequestStep::Decided(ControlFlow::Break(rejection));
            }
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let limits = match &self.limits {
            Limits::Own => None,
            Limits::Function(limits) => limits(parts, &key),
            Limits::LookUp(lookup) => return RequestStep::LookUp(key, cost, lookup.clone()),
        };
        self.check_by(key, cost, limits, parts)
    }

    /// Charges a request by the given limits, or by the limiter's own if there are none.
    #[inline]
    fn check_by(
        &self,
        key: K,
        cost: u32,
        limits_override: Option<Arc<[Limit]>>,
        parts: &Parts,
    ) -> RequestStep<K, S> {
        // `conclude` compares it with the limits after the decision, and so detects a change in between.
        let changed = if limits_override.is_none() { self.limiter.changed_limits() } else { None };
        let partition = self.partition_key.as_ref().and_then(|partition_key| partition_key(&key));
        // The key is shortened last: the user's functions get the whole key.
        let check = PendingCheck {
            key: self.limiter.bounded(key),
            cost,
            limits_override,
            changed,
            partition,
        };
        match self.limiter.backend() {
            Backend::Memory(limiter) => {
                if let Some(max_wait) = self.max_wait() {
                    return RequestStep::Wait(check, limiter.clone(), max_wait);
                }
                let limits_override = check.limits_override.as_deref();
                let (decided, remaining) = match self.charge_failures {
                    None => limiter.decide(&check.key, check.cost, limits_override),
                    Some(_) => limiter.probe(&check.key, check.cost, limits_override),
                };
                let permit = decided.map(LayerPermit::Memory);
                let decision = BackendDecision { permit, remaining, waited: None };
                RequestStep::Decided(self.conclude(check, decision, parts))
            }
            #[cfg(feature = "redis")]
            Backend::Redis(redis) => RequestStep::Ask(check, redis.clone()),
        }
    }

    /// Adds the `Standing` of the request's key, by the limit that has the least left, to the extensions for the inner
    /// service.
    #[inline]
    pub(super) fn insert_standing(&self, admission: &Admission<K>, extensions: &mut Extensions) {
        let Some(ChargedRequest { limits, remaining, .. }) = admission else { return };
        // `None` if the request has no limits of its own, and `set_limits` was never called.
        let limits = limits.as_deref().unwrap_or(&self.own_limits);
        let least = limits.iter().zip(&**remaining).min_by_key(|(_, left)| left.units);
        if let Some((limit, left)) = least {
            let more_at = left.more_at.map(|at| self.limiter.instant(at));
            extensions.insert(Standing { limit: limit.clone(), remaining: left.units, more_at });
        }
    }

    /// Converts a limiter's decision. Inlined, because the decision is large and would be copied.
    #[inline(always)]
    fn conclude(
        &self,
        check: PendingCheck<K>,
        decision: BackendDecision,
        parts: &Parts,
    ) -> Verdict<K> {
        let PendingCheck { key, cost, limits_override, changed, partition } = check;
        let BackendDecision { permit, mut remaining, waited } = decision;
        let limits = limits_override.or_else(|| {
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
                ControlFlow::Continue(Some(ChargedRequest {
                    limits,
                    remaining,
                    partition,
                    correctable,
                }))
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

    /// Returns how long a request may wait. Shadow mode delays nothing.
    fn max_wait(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.shadow)
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
        if self.headers == Headers::None {
            // `on_limited` may have copied the response of `Limited`.
            remove_fields(response.headers_mut());
        }
        self.write_headers(field_args, remaining, Some(&retry_after), response.headers_mut());
        response
    }

    /// Writes the fields with the remaining quota, if it is known, and with the partition key.
    pub(super) fn write_headers(
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
        let policy = limits.map(PolicyFields::of);
        let partition = Partition { policy: policy.as_ref().unwrap_or(&self.policy), key };
        let limits = limits.unwrap_or(&self.own_limits);
        let fields =
            limits.iter().zip(remaining).map(|(limit, left)| LimitFields::of(limit, left, &now));
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
