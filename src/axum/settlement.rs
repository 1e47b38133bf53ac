//! Settlement of an admitted request: the correction of its charge by its response, and the fields of the response.

use std::{
    hash::{BuildHasher, Hash},
    mem, slice,
};

use ::axum::{
    body::Body,
    http::{HeaderMap, Response as HttpResponse},
    response::Response,
};

use super::{
    Headers,
    admission::{Admission, ChargedRequest, Correctable},
    body_meter::BodyMeter,
    headers::{LimitFields, Partition, PolicyFields},
    limiter::{Backend, Correction, LayerPermit},
    retry_after::RetryAfter,
    settings::Settings,
};
use crate::rate_limit::Limited;

impl<K, S> Settings<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Corrects a charge on Redis by the head of the response, before `settle`.
    #[cfg(feature = "redis")]
    pub(super) async fn correct_on_redis<R>(
        &self,
        mut admission: Admission<K>,
        response: &mut HttpResponse<R>,
    ) -> Admission<K> {
        if let Backend::Redis(redis) = self.limiter.backend()
            && let Some(ChargedRequest { limits, remaining, correctable, .. }) = &mut admission
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
        let ChargedRequest { mut limits, mut remaining, partition, correctable } = admission?;
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
                        // The first `set_limits` may have come after the admission.
                        limits = limits.or_else(|| limiter.changed_limits());
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

    /// Rewrites the fields of a handler's own denial in the style of this layer.
    fn rewrite_fields(&self, limited: &Limited, headers: &mut HeaderMap) {
        // The response of `Limited` already has these.
        if self.headers == Headers::Draft11 {
            return;
        }
        let retry_after = RetryAfter::of(limited);
        let policy = PolicyFields::of(slice::from_ref(retry_after.limit));
        let field = LimitFields::denied(limited, &retry_after);
        // The handler's limiter may be another one, with other keys: so no partition key.
        let partition = Partition { policy: &policy, key: None };
        self.headers.replace(partition, field.into_iter(), headers);
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
