//! What a layer and its services share: which requests are limited and how, and what clients are told.

use std::sync::Arc;

use ::axum::{
    http::{StatusCode, request::Parts},
    response::Response,
};

use super::{
    Headers,
    headers::Policy,
    key::{KeyExtractor, RequestFn},
    limiter::LayerLimiter,
};
use crate::rate_limit::{Limit, Limited};

pub(super) struct Settings<K, S> {
    pub(super) limiter: LayerLimiter<K, S>,
    pub(super) key: KeyExtractor<K>,
    pub(super) skip: Option<RequestFn<bool>>,
    pub(super) cost: Option<RequestFn<u32>>,
    pub(super) limits: Option<LimitsFn<K>>,
    pub(super) charge_when: Option<Arc<dyn Fn(StatusCode) -> bool + Send + Sync>>,
    pub(super) on_limited: Option<ResponseFn>,
    pub(super) shadow: bool,
    pub(super) headers: Headers,
    /// Of the limiter's own limits.
    pub(super) policy: Policy,
}

type LimitsFn<K> = Arc<dyn Fn(&Parts, &K) -> Option<Arc<[Limit]>> + Send + Sync>;

type ResponseFn = Arc<dyn Fn(&Limited, &Parts) -> Response + Send + Sync>;

impl<K, S> Settings<K, S> {
    pub(super) fn new(limiter: LayerLimiter<K, S>, key: KeyExtractor<K>) -> Self {
        Self {
            policy: Policy::of(limiter.limits()),
            limiter,
            key,
            skip: None,
            cost: None,
            limits: None,
            charge_when: None,
            on_limited: None,
            shadow: false,
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
            on_limited: self.on_limited.clone(),
            shadow: self.shadow,
            headers: self.headers,
            policy: self.policy.clone(),
        }
    }
}
