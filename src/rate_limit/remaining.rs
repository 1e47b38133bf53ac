//! What a layer tells clients of: a decision together with what it left of each limit.

use std::hash::{BuildHasher, Hash};

use super::{
    Limit, Limited, Permit,
    algorithm::{Algorithm, Remaining},
    check::Check,
    key_state::KeyState,
    limiter::Limiter,
    per_limit::PerLimit,
};
use crate::engine::clock::LazyNow;

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// As [`decide`](Limiter::decide), and tells what it left of each limit.
    pub(super) fn decide_with_remaining(
        &self,
        key: &K,
        limits: Option<&[Limit]>,
        cost: u32,
    ) -> (Result<Permit, Limited>, PerLimit<Remaining>) {
        let mut remaining = None;
        // Under the same lock as the charge, so that no other call comes in between.
        let mut inspect = |state: &KeyState<A>, check: &Check<'_>| {
            remaining = Some(state.remaining(check.rules, &check.now));
        };
        let decided = self.decide_by(key, limits, cost, &mut inspect);
        // Where the cost alone decided, nothing was inspected.
        (decided, remaining.unwrap_or_else(|| self.remaining(key, limits)))
    }

    /// What is left of each limit.
    pub(super) fn remaining(&self, key: &K, limits: Option<&[Limit]>) -> PerLimit<Remaining> {
        let rules = self.rules_of(limits.unwrap_or(&self.limits));
        let now = self.shared.clock.lazy_now();
        self.inspect(key, |state| state.remaining(&rules, &now))
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        self.shared.clock.lazy_now()
    }
}
