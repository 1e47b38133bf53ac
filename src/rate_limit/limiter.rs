//! A limiter of one way to count: a check finds its key's entry, and charges it under the shard's lock.
//!
//! What of it is inlined is what a check of a known key runs through; all else is kept out of its way by `#[cold]` and
//! `#[inline(never)]`.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    num::NonZeroU64,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use equivalent::Equivalent;

#[cfg(feature = "dashboard")]
use super::top_denied::TopDenied;
use super::{
    Limit, Limited, Permit, Window,
    algorithm::{Algorithm, LimitParams},
    check_args::Check,
    denial_log::DenialLog,
    idle_evictor::IdleEvictor,
    key_state::{Admitted, Denied, Exceeded, KeyState, move_deadline},
    limit_set::{CurrentLimits, LimitSet, least_quota, params_of},
    limited::Several,
    per_limit::PerLimit,
    settle::Registration,
    stats::CheckCounts,
    untracked_keys::UntrackedKeys,
    waiting::{WaitSettings, Waiting},
};
use crate::engine::{
    clock::{Now, Tick},
    coop,
    state::SharedState,
    store::{Cause, Entry, Location, VacantEntry},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    to_key::ToKey,
};

pub(crate) struct Limiter<K, A, S> {
    pub(super) shared: Arc<SharedState<K, KeyState<A>, S>>,
    pub(super) window: Window,
    pub(super) limit_set: CurrentLimits,
    pub(super) untracked: UntrackedKeys<A>,
    idle_evictor: IdleEvictor,
    pub(super) waiting: Waiting<K, S>,
    /// Beside the store's shards, one each; written under the shard's lock.
    pub(super) counts: Box<[CheckCounts]>,
    pub(super) wait: WaitSettings,
    pub(super) refunds: AtomicU64,
    /// Who waited, and passed.
    pub(super) waited: AtomicU64,
    /// Who was denied, and let pass by a layer.
    pub(super) shadowed: AtomicU64,
    /// Who waited and did not pass, by no check.
    pub(super) denied_waiters: CheckCounts,
    /// Begins at 1: 0 is the id of what keys beyond the bound share.
    next_state: AtomicU64,
    denial_log: DenialLog,
    #[cfg(feature = "dashboard")]
    pub(super) top_denied: TopDenied<K>,
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
        max_keys: usize,
        wait: WaitSettings,
        hasher: S,
        #[cfg(feature = "dashboard")] top_denied: TopDenied<K>,
    ) -> Arc<Self> {
        // The registry holds it weakly: who drops the last handle ends it, whatever permits are still about.
        Arc::new_cyclic(|limiter: &Weak<Self>| Self {
            window,
            untracked: UntrackedKeys::new(limits.len(), max_keys),
            idle_evictor: IdleEvictor::default(),
            limit_set: CurrentLimits::new(LimitSet::new(limits.into(), window)),
            waiting: Waiting::new(hasher),
            counts: (0..shared.store.shard_count()).map(|_| CheckCounts::default()).collect(),
            shared,
            wait,
            refunds: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            shadowed: AtomicU64::new(0),
            denied_waiters: CheckCounts::default(),
            next_state: AtomicU64::new(1),
            denial_log: DenialLog::default(),
            #[cfg(feature = "dashboard")]
            top_denied,
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
        Q: ToKey<K> + ?Sized,
    {
        ready!(coop::poll_proceed(cx));
        let Some(limit_set) = self.limit_set.unchanged() else {
            return Poll::Ready(self.decide(key, None, cost));
        };
        // Hashed once: the place also says whose counts these are.
        let place = self.shared.store.place(key);
        if cost == 0 || cost > limit_set.least_quota {
            return Poll::Ready(self.decide_by_cost(place, &limit_set.limits, cost));
        }
        let now = self.shared.clock.lazy_now();
        let check = Check { place, params: &limit_set.params, cost, now, waits: false };
        Poll::Ready(self.check_by(check, key, &limit_set.limits, &mut |_, _| {}))
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
        Q: ToKey<K> + ?Sized,
    {
        self.decide_by(key, limits, cost, false, &mut |_, _| {})
    }

    pub(super) fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // Permits of the state go with it: one that is refunded later finds another id.
        let forgot = store.remove(key, clock, Cause::Removed).is_some();
        self.untracked.take(store.place(key).hash(), &clock.lazy_now()).is_some() || forgot
    }

    /// To the dashboard and, now and then, to the log. Under no lock: a subscriber may take its time, and stats look at
    /// all shards.
    #[inline]
    pub(super) fn report_denial<Q>(&self, place: Location, key: &Q, now: Tick, limit: &Limit)
    where
        Q: ToKey<K> + ?Sized,
    {
        #[cfg(feature = "dashboard")]
        self.top_denied.note(place.hash(), now, || key.to_key());
        #[cfg(not(feature = "dashboard"))]
        let _ = (place, key);
        if self.denial_log.is_due(now) {
            self.denial_log.write(self.shared.name(), self.stats().denied, limit);
        }
    }

    #[inline(never)]
    pub(super) fn decide_by<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        waits: bool,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        let place = self.shared.store.place(key);
        let decided = self.with_limits(limits, |limits, params| {
            if cost == 0 || cost > least_quota(limits) {
                return self.decide_by_cost(place, limits, cost);
            }
            let check = Check { place, params, cost, now: self.shared.clock.lazy_now(), waits };
            self.check_by(check, key, limits, inspect)
        });
        decided.map(|permit| Permit {
            limit_set: limits.map(|limits| Box::new(params_of(limits, self.window))),
            ..permit
        })
    }

    /// With these limits or, where there are none, with the limiter's own.
    pub(super) fn with_limits<R>(
        &self,
        limits: Option<&[Limit]>,
        what: impl FnOnce(&[Limit], &[LimitParams]) -> R,
    ) -> R {
        if let Some(limits) = limits {
            return what(limits, &params_of(limits, self.window));
        }
        match self.limit_set.unchanged() {
            Some(limit_set) => what(&limit_set.limits, &limit_set.params),
            None => {
                let limit_set =
                    self.limit_set.changed().expect("it is the first one, or has changed");
                what(&limit_set.limits, &limit_set.params)
            }
        }
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
        Q: ToKey<K> + ?Sized,
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
                limit_set: None,
                remaining: admitted.remaining as u32,
                cost: check.cost,
            }),
            Err(denied) => {
                if !check.waits {
                    let limit = &limits[denied.longest()];
                    self.report_denial(check.place, key, check.now.at_least(), limit);
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
        let charged = entry.value.charge(check.params, &check.now, check.cost);
        move_deadline(entry, check.params);
        // Still under the lock: it adds by a load and a store, which an atomic addition would be slower than.
        let denied = charged.as_ref().err().map(Denied::longest);
        check.count(denied, &self.counts[check.place.shard()]);
        inspect(&entry.value, check);
        charged.map(|admitted| (entry.value.id, admitted))
    }

    /// Charges the limits of a key that is not known yet.
    #[cold]
    #[inline(never)]
    fn charge_new<'a, Q>(
        &'a self,
        mut vacant: VacantEntry<'a, K, KeyState<A>>,
        key: &Q,
        check: &Check<'_>,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<(u64, Admitted), Denied>
    where
        Q: ToKey<K> + ?Sized,
    {
        let store = &self.shared.store;
        let Check { place, params, cost, now, .. } = check;
        if store.is_full() {
            // It holds the shard's lock, and to make room takes several, one after the other.
            drop(vacant);
            if !self.idle_evictor.make(&self.shared, *place, now) {
                return self.untracked.charge(check, inspect);
            }
            // Unlocked meanwhile: another call may have put the key.
            let charge = |entry: &mut Entry<_>| self.charge(entry, check, inspect);
            vacant = match store.change_any(*place, key, charge) {
                Ok(charged) => return charged,
                Err(vacant) => vacant,
            };
        }
        if self.untracked.are_crowded(now) {
            drop(vacant);
            return self.untracked.charge(check, inspect);
        }
        let counts = &self.counts[place.shard()];
        let known = self.untracked.get(place.hash(), now);
        let mut state = known.unwrap_or_else(|| KeyState::new(0, params.len()));
        // Charged before it is put: no other call finds an entry of which nothing is in use, and no sweep takes it.
        let admitted = match state.charge(params, now, *cost) {
            Ok(admitted) => admitted,
            Err(denied) => {
                check.count(Some(denied.longest()), counts);
                inspect(&state, check);
                // Who is denied needs no entry: it is known as well as before.
                drop(vacant);
                return Err(denied);
            }
        };
        let fresh = || {
            // Under the shard's lock, as for who asks about the key it is either in here or there.
            self.untracked.take(place.hash(), now);
            // Atomic, as other shards make states at the same time.
            state.id = self.next_state.fetch_add(1, Relaxed);
            check.count(None, counts);
            inspect(&state, check);
            let id = state.id;
            let mut entry = Entry::new(state, now.at_least().into());
            move_deadline(&mut entry, params);
            (entry, (id, admitted))
        };
        let charged = store.put_fresh(vacant, || key.to_key(), fresh);
        // Its sweeper may rest.
        self.shared.publisher.flush();
        // Full again, where others were faster.
        charged.map_or_else(|| self.untracked.charge(check, inspect), Ok)
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
            Some(limit) => {
                let exceeded = limits.iter().filter(|limit| limit.quota() < cost);
                Err(Limited::new(limit.clone(), cost, None, Several::of(exceeded)))
            }
            None => Ok(Permit {
                limiter: self.registration.id(),
                hash: place.hash(),
                state: None,
                charges: PerLimit::Many([].into()),
                limit_set: None,
                remaining: u32::MAX,
                cost,
            }),
        }
    }

    #[inline]
    pub(super) fn limited_from(&self, denied: Denied, limits: &[Limit], cost: u32) -> Limited {
        let ready = Some(self.shared.clock.lazy_instant(denied.ready));
        // Mostly it is one alone. Found before the denial is made, which else would be made in memory, and copied.
        let several = if denied.limits.are_several() { named(denied.limits, limits) } else { None };
        Limited::new(limits[denied.longest()].clone(), cost, ready, several)
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn limits(&self) -> Arc<[Limit]> {
        self.limit_set.limits()
    }
}

impl<K, A, S> fmt::Debug for Limiter<K, A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.shared.name())
            .field("window", &self.window)
            .field("limits", &self.limits())
            .finish_non_exhaustive()
    }
}

#[cold]
fn named(exceeded: Exceeded, limits: &[Limit]) -> Option<Box<Several>> {
    let exceeded = limits.iter().enumerate().filter(|(limit, _)| exceeded.contains(*limit));
    Several::of(exceeded.map(|(_, limit)| limit))
}
