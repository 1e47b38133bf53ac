//! What is read of a key without a charge: what is left of its limits, and how long a call would have to wait.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use super::{
    Limit, Limited, Standing, State,
    algorithm::{Algorithm, Remaining},
    key_state::{Denied, KeyState},
    limiter::Limiter,
};
use crate::engine::clock::Now;

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn peek<Q>(&self, key: &Q, limits: Option<&[Limit]>) -> State
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let limits = limits.unwrap_or(&self.limits);
        let rules = self.rules_of(limits);
        let now = self.shared.clock.lazy_now();
        let (denied, remaining) = self.inspect(key, |state| {
            (state.room(&rules, &now, 1).err(), state.remaining(&rules, &now))
        });
        let standing = |(remaining, limit): (&Remaining, &Limit)| Standing {
            limit: limit.clone(),
            remaining: remaining.units,
            more_at: remaining.more_at.map(|at| self.shared.clock.instant(at)),
        };
        State {
            standings: remaining.iter().zip(limits).map(standing).collect(),
            ready: denied.map(|denied| self.shared.clock.instant(denied.ready)),
        }
    }

    /// What a check of one unit would be told now, if it were told to wait.
    pub(super) fn limited<Q>(&self, key: &Q) -> Limited
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.shared.clock.lazy_now();
        let denied = self.inspect(key, |state| state.room(&self.rules, &now, 1).err());
        let denied = denied.unwrap_or_else(|| Denied { limit: 0, ready: now.tick() });
        self.limited_from(denied, &self.limits, 1)
    }

    /// Calls `inspect` with what `key` has in use, under its shard's lock.
    pub(super) fn inspect<Q, R>(&self, key: &Q, inspect: impl FnOnce(&KeyState<A>) -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let store = &self.shared.store;
        store.inspect(store.place(key), key, |entry| match entry {
            Some(entry) => inspect(&entry.value),
            // As a check would begin: with what keys beyond the bound have in use.
            None => inspect(&self.overflow.lock()),
        })
    }
}
