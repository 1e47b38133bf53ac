//! Settings that a layer shares with its services.

use std::{sync::Arc, time::Duration};

use ::axum::{
    http::{StatusCode, request::Parts},
    response::Response,
};

use super::{
    Headers,
    body_meter::SentCostFn,
    decision::RateLimitDecision,
    headers::PolicyFields,
    key::{KeyExtractor, RequestFn},
    limiter::LayerLimiter,
    limits_lookup::{LimitsLookup, LimitsOverride},
};
use crate::rate_limit::{Limit, Limited};

pub(super) struct Settings<K, S> {
    pub(super) limiter: LayerLimiter<K, S>,
    pub(super) key: KeyExtractor<K>,
    pub(super) skip: Option<RequestFn<bool>>,
    pub(super) cost: Option<RequestFn<u32>>,
    pub(super) limits: Limits<K>,
    pub(super) charge_when: Option<Arc<dyn Fn(StatusCode) -> bool + Send + Sync>>,
    pub(super) charge_failures: Option<FailureFn>,
    pub(super) charge_after: Option<CostFn>,
    pub(super) charge_sent: Option<SentCostFn>,
    /// Allows a cost by the response that is below the initial one.
    pub(super) refund_unused: bool,
    /// Maximum wait of a request; `None` if requests do not wait.
    pub(super) wait: Option<Duration>,
    /// Maximum random addition to the wait that denied clients are told.
    pub(super) retry_jitter: Duration,
    pub(super) on_limited: Option<ResponseFn>,
    pub(super) on_decision: Option<DecisionFn>,
    pub(super) partition_key: Option<PartitionFn<K>>,
    pub(super) shadow: bool,
    pub(super) enabled: bool,
    pub(super) headers: Headers,
    /// The limiter's own limits when the layer was built. Later ones are passed with each request.
    pub(super) own_limits: Arc<[Limit]>,
    pub(super) policy: PolicyFields,
}

/// Source of a request's limits.
pub(super) enum Limits<K> {
    /// The limiter's own limits.
    Own,
    Function(LimitsFn<K>),
    LookUp(Arc<LimitsLookup<K>>),
}

type LimitsFn<K> = Arc<dyn Fn(&Parts, &K) -> LimitsOverride + Send + Sync>;

type FailureFn = Arc<dyn Fn(&Response) -> bool + Send + Sync>;

type CostFn = Arc<dyn Fn(&Response) -> u32 + Send + Sync>;

type DecisionFn = Arc<dyn Fn(RateLimitDecision<'_>, &Parts) + Send + Sync>;

/// Returns the partition key in the syntax of a field.
type PartitionFn<K> = Arc<dyn Fn(&K) -> Option<Box<str>> + Send + Sync>;

type ResponseFn = Arc<dyn Fn(&Limited, &Parts) -> Response + Send + Sync>;

impl<K, S> Settings<K, S> {
    pub(super) fn new(limiter: LayerLimiter<K, S>, key: KeyExtractor<K>) -> Self {
        let own_limits = limiter.limits();
        Self {
            // Built once: most responses are under these limits, and copy its finished parts.
            policy: PolicyFields::of(&own_limits),
            own_limits,
            limiter,
            key,
            skip: None,
            cost: None,
            limits: Limits::Own,
            charge_when: None,
            charge_failures: None,
            charge_after: None,
            charge_sent: None,
            refund_unused: false,
            wait: None,
            retry_jitter: Duration::ZERO,
            on_limited: None,
            on_decision: None,
            partition_key: None,
            shadow: false,
            enabled: true,
            headers: Headers::default(),
        }
    }
}

impl<K, S> Clone for Settings<K, S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            skip: self.skip.clone(),
            cost: self.cost.clone(),
            limits: self.limits.clone(),
            charge_when: self.charge_when.clone(),
            charge_failures: self.charge_failures.clone(),
            charge_after: self.charge_after.clone(),
            charge_sent: self.charge_sent.clone(),
            refund_unused: self.refund_unused,
            wait: self.wait,
            retry_jitter: self.retry_jitter,
            on_limited: self.on_limited.clone(),
            on_decision: self.on_decision.clone(),
            partition_key: self.partition_key.clone(),
            shadow: self.shadow,
            enabled: self.enabled,
            headers: self.headers,
            own_limits: self.own_limits.clone(),
            policy: self.policy.clone(),
        }
    }
}

impl<K> Clone for Limits<K> {
    fn clone(&self) -> Self {
        match self {
            Limits::Own => Limits::Own,
            Limits::Function(limits) => Limits::Function(limits.clone()),
            Limits::LookUp(lookup) => Limits::LookUp(lookup.clone()),
        }
    }
}
