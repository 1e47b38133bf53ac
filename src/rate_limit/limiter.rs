//! A limiter of one way to count: a check finds its key's entry, and charges it under the shard's lock.
//!
//! What of it is inlined is what a check of a known key runs through; all else is kept out of its way by `#[cold]` and
//! `#[inline(never)]`.

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash},
    num::NonZeroU64,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use super::{
    Limit, Limited, Permit, Window,
    algorithm::{Algorithm, Rule},
    check::Check,
    denial_log::DenialLog,
    key_state::{Admitted, Denied, KeyState},
    overflow::{Overflow, make_room},
    per_limit::PerLimit,
    refund::{Refund, Registration},
    stats::{CheckCounts, LimiterStats},
    waiting::Waiting,
};
use crate::engine::{
    clock::{Deadline, Now},
    coop,
    state::SharedState,
    store::{Cause, Entry, Location, Vacant},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

pub(crate) struct Limiter<K, A, S> {
    pub(super) shared: Arc<SharedState<K, KeyState<A>, S>>,
    window: Window,
    pub(super) limits: Box<[Limit]>,
    /// The limits as the window counts them.
    pub(super) rules: Box<[Rule]>,
    /// What costs more never passes. 0 where there are no limits.
    least_quota: u32,
    pub(super) overflow: Overflow<A>,
    pub(super) waiting: Waiting<K, S>,
    /// Beside the store's shards, one each; written under the shard's lock.
    counts: Box<[CheckCounts]>,
    refunds: AtomicU64,
    /// Begins at 1: 0 is the id of what keys beyond the bound share.
    next_state: AtomicU64,
    denial_log: DenialLog,
    registration: Registration,
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        shared: Arc<SharedState<K, KeyState<A>, S>>,
        window: Window,
        limits: Vec<Limit>,
        hasher: S,
    ) -> Arc<Self> {
        // The registry holds it weakly: who drops the last handle ends it, whatever permits are still about.
        Arc::new_cyclic(|limiter: &Weak<Self>| Self {
            window,
            rules: limits.iter().map(|limit| Rule::new(limit, window)).collect(),
            least_quota: least_quota(&limits),
            overflow: Overflow::new(limits.len()),
            limits: limits.into(),
            waiting: Waiting::new(hasher),
            counts: (0..shared.store.shard_count()).map(|_| CheckCounts::default()).collect(),
            shared,
            refunds: AtomicU64::new(0),
            next_state: AtomicU64::new(1),
            denial_log: DenialLog::default(),
            registration: Registration::new(limiter.clone()),
        })
    }

    /// Charges `cost` to `key` by the limiter's own limits, or tells when to come again.
    #[inline(always)]
    pub(super) fn poll_check<Q>(
        &self,
        cx: &mut Context<'_>,
        key: &Q,
        cost: u32,
    ) -> Poll<Result<Permit, Limited>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        ready!(coop::poll_proceed(cx));
        // Hashed once: the place also says whose counts these are.
        let place = self.shared.store.place(key);
        if cost == 0 || cost > self.least_quota {
            return Poll::Ready(self.decide_by_cost(place, &self.limits, cost));
        }
        let check = Check { place, rules: &self.rules, cost, now: self.shared.clock.lazy_now() };
        Poll::Ready(self.check_by(check, key, &self.limits, &mut |_, _| {}))
    }

    /// Charges `cost` to `key`, by the limiter's own limits where no others are given, or tells when to come
    /// again.
    pub(super) fn decide<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.decide_by(key, limits, cost, &mut |_, _| {})
    }

    pub(super) fn reset<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // Permits of the state go with it: one that is refunded later finds another id.
        self.shared.store.remove(key, &self.shared.clock, Cause::Removed).is_some()
    }

    pub(super) fn stats(&self) -> LimiterStats {
        let mut stats = LimiterStats {
            keys: self.shared.store.len(),
            overflowed: self.overflow.counts.checks(),
            refunded: self.refunds.load(Relaxed),
            ..LimiterStats::default()
        };
        for counts in self.counts.iter().chain([&self.overflow.counts]) {
            stats.add(counts);
        }
        stats
    }

    #[inline(never)]
    pub(super) fn decide_by<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let place = self.shared.store.place(key);
        let plan = limits.map(|limits| self.rules_of(limits));
        let rules = plan.as_deref().unwrap_or(&self.rules);
        let limits = limits.unwrap_or(&self.limits);
        if cost == 0 || cost > least_quota(limits) {
            return self.decide_by_cost(place, limits, cost);
        }
        let check = Check { place, rules, cost, now: self.shared.clock.lazy_now() };
        self.check_by(check, key, limits, inspect)
    }

    /// For a cost that is not 0, and above no quota. Calls `inspect` with what the key has in use then, under
    /// its shard's lock.
    #[inline(always)]
    fn check_by<Q>(
        &self,
        check: Check<'_>,
        key: &Q,
        limits: &[Limit],
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let charge = |entry: &mut Entry<_>| self.charge(entry, &check, inspect);
        let charged = match self.shared.store.change_any(check.place, key, charge) {
            Ok(charged) => charged,
            Err(vacant) => self.charge_new(vacant, key, &check, inspect),
        };
        match charged {
            Ok((state, admitted)) => Ok(Permit {
                limiter: self.registration.id(),
                hash: check.place.hash(),
                // None for 0, which is what keys beyond the bound share.
                state: NonZeroU64::new(state),
                charges: admitted.charges,
                remaining: admitted.remaining as u32,
            }),
            Err(denied) => {
                // After the lock: a subscriber may take its time, and stats look at all shards.
                if self.denial_log.is_due(check.now.at_least()) {
                    let limit = &limits[denied.limit];
                    self.denial_log.write(self.shared.name(), self.stats().denied, limit);
                }
                Err(self.limited_from(denied, limits, check.cost))
            }
        }
    }

    /// Charges the limits of a key, under its shard's lock. Returns which state was charged.
    #[inline(always)]
    fn charge(
        &self,
        entry: &mut Entry<KeyState<A>>,
        check: &Check<'_>,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<(u64, Admitted), Denied> {
        // The deadline after the charge, which moves when all is idle.
        let charged = entry.value.charge(check.rules, &check.now, check.cost);
        if let Some(idle) = entry.value.idle_from(check.rules).map(Deadline::from)
            && idle.is_later_than(entry.deadline)
        {
            // Only ever later, as the store demands: a key of which charges were taken back leaves a little late.
            entry.deadline = idle;
        }
        // Still under the lock: it adds by a load and a store, which an atomic addition would be slower than.
        self.counts[check.place.shard()].count(charged.is_err());
        inspect(&entry.value, check);
        charged.map(|admitted| (entry.value.id, admitted))
    }

    /// Charges the limits of a key that is not known yet.
    #[cold]
    #[inline(never)]
    fn charge_new<'a, Q>(
        &'a self,
        mut vacant: Vacant<'a, K, KeyState<A>>,
        key: &Q,
        check: &Check<'_>,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<(u64, Admitted), Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let store = &self.shared.store;
        if store.is_full() {
            // It holds the shard's lock, and to make room takes several, one after the other.
            drop(vacant);
            if !make_room(&self.shared, check.place) {
                return self.overflow.charge(check, inspect);
            }
            // Unlocked meanwhile: another call may have put the key.
            let charge = |entry: &mut Entry<_>| self.charge(entry, check, inspect);
            vacant = match store.change_any(check.place, key, charge) {
                Ok(charged) => return charged,
                Err(vacant) => vacant,
            };
        }
        // Charged before it is put: no other call finds an entry of which nothing is in use, and no sweep takes it.
        let fresh = || {
            let mut state = self.overflow.first_state(check);
            // Atomic, as other shards make states at the same time.
            state.id = self.next_state.fetch_add(1, Relaxed);
            let mut entry = Entry::new(state, check.now.at_least().into());
            let charged = self.charge(&mut entry, check, inspect);
            (entry, charged)
        };
        // Full again, where others were faster.
        let charged = store.put_fresh(vacant, || key.to_owned(), fresh);
        // Its sweeper may rest.
        self.shared.publisher.flush();
        charged.unwrap_or_else(|| self.overflow.charge(check, inspect))
    }

    /// What costs nothing, or more than a quota.
    #[cold]
    fn decide_by_cost(
        &self,
        place: Location,
        limits: &[Limit],
        cost: u32,
    ) -> Result<Permit, Limited> {
        match limits.iter().find(|limit| limit.quota() < cost) {
            Some(limit) => Err(Limited { limit: limit.clone(), cost, ready: None }),
            None => Ok(Permit {
                limiter: self.registration.id(),
                hash: place.hash(),
                state: None,
                charges: PerLimit::Many([].into()),
                remaining: u32::MAX,
            }),
        }
    }

    #[inline]
    pub(super) fn limited_from(&self, denied: Denied, limits: &[Limit], cost: u32) -> Limited {
        let ready = Some(self.shared.clock.lazy_instant(denied.ready));
        Limited { limit: limits[denied.limit].clone(), cost, ready }
    }

    pub(super) fn rules_of(&self, limits: &[Limit]) -> PerLimit<Rule> {
        limits.iter().map(|limit| Rule::new(limit, self.window)).collect()
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

impl<K, A, S> Refund for Limiter<K, A, S>
where
    K: Hash + Eq + Send + Sync,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync,
{
    fn refund(&self, permit: &Permit) {
        let now = self.shared.clock.lazy_now();
        let refund = |state: &mut KeyState<A>| {
            state.refund(&permit.charges, &now);
            self.refunds.fetch_add(1, Relaxed);
        };
        match permit.state {
            None => refund(&mut self.overflow.lock()),
            // By hash and id: another key of the same hash has another id, as has the key after a reset.
            Some(id) => {
                let is_it = |state: &KeyState<A>| state.id == id.get();
                let place = self.shared.store.place_of(permit.hash);
                self.shared.store.change_where(place, is_it, refund);
            }
        }
    }
}

impl<K, A, S> fmt::Debug for Limiter<K, A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.shared.name())
            .field("window", &self.window)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// 0 where there are no limits: then nothing is counted.
fn least_quota(limits: &[Limit]) -> u32 {
    limits.iter().map(Limit::quota).min().unwrap_or(0)
}
