//! Limiter of one window algorithm: a check finds the entry of its key and charges it under the shard's lock.
//!
//! The path of a check of a known key is inlined. Everything else is kept out of it by `#[cold]` and
//! `#[inline(never)]`.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    num::NonZeroU64,
    sync::{Arc, Weak},
};

use equivalent::Equivalent;

#[cfg(feature = "dashboard")]
use super::top_denied::{TopDenied, shown_hash};
use super::{
    Limit, Limited, Permit, Window,
    algorithm::{Algorithm, Remaining},
    charges::Charges,
    check_args::{Caller, Check, Observed},
    denial_log::DenialLog,
    idle_evictor::IdleEvictor,
    key_state::{Admitted, Denied, Exceeded, KeyState, move_deadline},
    limit_set::{CallLimits, CurrentLimits, LimitSet, least_quota, params_of},
    limited::Several,
    permit::Origin,
    settle::LimiterEntry,
    stats::CheckCounts,
    untracked_keys::UntrackedKeys,
    usage::Usage,
    waiting::{WaitSettings, Waiting},
};
use crate::engine::{
    clock::{Now, Tick},
    shared_state::SharedState,
    store::{Cause, Entry, Location, VacantEntry},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    to_key::ToKey,
};

pub(crate) struct Limiter<K, A, S> {
    pub(super) shared: Arc<SharedState<K, KeyState<A>, S>>,
    pub(super) window: Window,
    pub(super) current_limits: CurrentLimits,
    pub(super) untracked: UntrackedKeys<A>,
    idle_evictor: IdleEvictor,
    pub(super) waiting: Waiting<K, S>,
    /// Waiters that charge nothing when they pass. Apart from the others, whose order they must not delay.
    #[cfg(feature = "axum")]
    pub(super) probing: Waiting<K, S>,
    /// Counters of each shard of the store, written under that shard's lock.
    pub(super) counts: Box<[CheckCounts]>,
    pub(super) wait: WaitSettings,
    pub(super) refunds: AtomicU64,
    /// Number of calls that waited and passed.
    pub(super) waited: AtomicU64,
    /// Number of denied requests that a layer in shadow mode admitted.
    pub(super) shadowed: AtomicU64,
    /// Denials of calls that waited, or would have to wait too long.
    pub(super) denied_waiters: CheckCounts,
    /// Number of the next state. Begins at 1: 0 is the state that keys beyond the bound share.
    next_state: AtomicU64,
    denial_log: DenialLog,
    #[cfg(feature = "dashboard")]
    pub(super) top_denied: TopDenied<K>,
    registration: LimiterEntry,
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
        let limit_set = LimitSet::new(limits.into(), window);
        // The registry holds the limiter weakly: dropping the last handle ends it, even if permits remain.
        Arc::new_cyclic(|limiter: &Weak<Self>| Self {
            window,
            untracked: UntrackedKeys::new(&limit_set.params, max_keys),
            idle_evictor: IdleEvictor::default(),
            current_limits: CurrentLimits::new(limit_set),
            #[cfg(feature = "axum")]
            probing: Waiting::new(hasher.clone()),
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
            registration: LimiterEntry::new(limiter.clone()),
        })
    }

    /// Charges `cost` to `key` by the limiter's own limits, or returns the denial.
    #[inline(always)]
    pub(super) fn check_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        match self.current_limits.unchanged() {
            Some(limit_set) if !limit_set.as_call_limits().decides(cost) => {
                self.run_check(key, limit_set.as_call_limits(), cost, Caller::Final, None)
            }
            _ => self.decide(key, None, cost, Caller::Final, None),
        }
    }

    /// Charges `cost` to `key` by the given limits, or by the limiter's own if there are none; or returns the denial.
    #[inline(never)]
    pub(super) fn decide<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        caller: Caller<'_>,
        observed: Option<&Observed>,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        let decided = self.with_limits(limits, |by| {
            if by.decides(cost) {
                self.probe_by(key, by, cost).0
            } else {
                self.run_check(key, by, cost, caller, observed)
            }
        });
        decided.map(|permit| permit.with_override(limits, self.window))
    }

    pub(super) fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // The state's number is not used again, so a permit that is refunded later changes nothing.
        let had_entry = store.remove(key, clock, Cause::Removed).is_some();
        let hash = store.locate(key).hash();
        // The call comes first: `||` would skip it after an entry, and both records have to be removed.
        let had_any = self.untracked.take(hash, &clock.lazy_now()).is_some() || had_entry;
        self.wake_waiters(hash);
        had_any
    }

    /// Wakes the waiters of the key with this hash, after usage of the key was released.
    pub(super) fn wake_waiters(&self, hash: u64) {
        self.waiting.wake(hash);
        #[cfg(feature = "axum")]
        self.probing.wake(hash);
    }

    /// Wakes the waiters of all keys.
    pub(super) fn wake_all_waiters(&self) {
        self.waiting.wake_all();
        #[cfg(feature = "axum")]
        self.probing.wake_all();
    }

    /// Reports a denial to the dashboard and, at most once per second, to the log. Called without a lock: a tracing
    /// subscriber may be slow, and `stats` reads all shards.
    #[inline]
    pub(super) fn report_denial<Q>(&self, place: Location, key: &Q, now: Tick, limit: &Limit)
    where
        Q: ToKey<K> + ?Sized,
    {
        #[cfg(feature = "dashboard")]
        self.top_denied.note(place.hash(), now, || shown_hash(key), || key.to_key());
        #[cfg(not(feature = "dashboard"))]
        let _ = (place, key);
        if self.denial_log.is_due(now) {
            self.denial_log.write(self.shared.name(), self.stats().denied, limit);
        }
    }

    /// Calls `f` with the given limits, or with the limiter's own if there are none.
    pub(super) fn with_limits<R>(
        &self,
        limits: Option<&[Limit]>,
        f: impl FnOnce(CallLimits<'_>) -> R,
    ) -> R {
        if let Some(limits) = limits {
            let (params, least_quota) = (&params_of(limits, self.window), least_quota(limits));
            return f(CallLimits { limits, params, least_quota, number: 0 });
        }
        match self.current_limits.unchanged() {
            Some(limit_set) => f(limit_set.as_call_limits()),
            None => {
                let limit_set =
                    self.current_limits.changed().expect("limits are either unchanged or replaced");
                f(limit_set.as_call_limits())
            }
        }
    }

    /// Decides a check whose cost is neither 0 nor above a quota.
    #[inline(always)]
    fn run_check<Q>(
        &self,
        key: &Q,
        by: CallLimits<'_>,
        cost: u32,
        caller: Caller<'_>,
        observed: Option<&Observed>,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        // Hashed once: the location also selects the counters.
        let place = self.shared.store.locate(key);
        let check = Check { place, by, cost, now: self.shared.clock.lazy_now(), caller, observed };
        let charge = |entry: &mut Entry<_>| self.charge(entry, &check);
        let charged = match self.shared.store.change_any(place, key, charge) {
            Ok(charged) => charged,
            Err(vacant) => {
                let charged = self.charge_new(vacant, key, &check);
                // Without the shard's lock. Wakes the sweeper if it sleeps beyond the deadline of the new entry.
                self.shared.publisher.flush();
                self.untracked.drop_idle();
                charged
            }
        };
        match charged {
            Ok((state, admitted)) => Ok(Permit {
                origin: Origin::new(self.registration.id(), by.number),
                hash: place.hash(),
                // `None` for 0, the state that keys beyond the bound share.
                state: NonZeroU64::new(state),
                charges: admitted.charges,
                params: None,
                remaining: admitted.remaining as u32,
                cost,
            }),
            Err(denied) => {
                if check.is_final() {
                    // In range: the parameters, whose index it is, are in the order of the limits.
                    let limit = &by.limits[denied.longest()];
                    self.report_denial(place, key, check.now.at_least(), limit);
                }
                Err(self.limited_from(denied, by.limits, cost))
            }
        }
    }

    /// Charges the limits of a key, under its shard's lock. Returns the number of the state that was charged.
    #[inline(always)]
    fn charge(
        &self,
        entry: &mut Entry<KeyState<A>>,
        check: &Check<'_>,
    ) -> Result<(u64, Admitted), Denied> {
        let charged = entry.value.charge(check.by.params, &check.now, check.cost);
        // Even if the check was denied: by the limits of this call, the usage may count for longer than by the last
        // ones.
        move_deadline(entry);
        // Still under the lock, so that it adds by a load and a store, which is faster than an atomic addition.
        let denied = charged.as_ref().err().map(Denied::longest);
        check.count(denied, &self.counts[check.place.shard()]);
        check.observe(&Usage::of(&entry.value));
        charged.map(|admitted| (entry.value.id, admitted))
    }

    /// Charges the limits of a key without an entry, and inserts its entry if there is room.
    #[cold]
    #[inline(never)]
    fn charge_new<'a, Q>(
        &'a self,
        mut vacant: VacantEntry<'a, K, KeyState<A>, S>,
        key: &Q,
        check: &Check<'_>,
    ) -> Result<(u64, Admitted), Denied>
    where
        Q: ToKey<K> + ?Sized,
    {
        let store = &self.shared.store;
        let Check { place, by, cost, now, .. } = check;
        if store.is_full() && self.idle_evictor.is_due(now) {
            // Releases the shard's lock: the search takes the locks of several shards, one after the other.
            drop(vacant);
            self.idle_evictor.evict_idle(&self.shared, *place, now);
            // Another call may have inserted the key while the shard was unlocked.
            let charge = |entry: &mut Entry<_>| self.charge(entry, check);
            vacant = match store.change_any(*place, key, charge) {
                Ok(charged) => return charged,
                Err(vacant) => vacant,
            };
        }
        // From here on under the shard's lock, so that concurrent calls find the key's usage in exactly one place.
        if store.is_full() || self.untracked.is_crowded(now) {
            return self.untracked.charge(check);
        }
        let counts = &self.counts[place.shard()];
        let known = self.untracked.get(place.hash(), now);
        let mut state = known.unwrap_or_else(|| KeyState::new(0, by.params));
        // Charged before it is inserted. An entry without usage would be idle, and a sweep could remove it.
        let admitted = match state.charge(by.params, now, *cost) {
            Ok(admitted) => admitted,
            Err(denied) => {
                check.count(Some(denied.longest()), counts);
                check.observe(&Usage::of(&state));
                // A denied call needs no entry: its key is known as an untracked one.
                self.untracked.adopt(place.hash(), by.params, now);
                return Err(denied);
            }
        };
        let fresh = || {
            self.untracked.take(place.hash(), now);
            // Atomic, since other shards create states concurrently.
            state.id = self.next_state.fetch_add(1, Relaxed);
            check.count(None, counts);
            check.observe(&Usage::of(&state));
            let id = state.id;
            let mut entry = Entry::new(state, now.at_least().into());
            move_deadline(&mut entry);
            (entry, (id, admitted))
        };
        match store.put_fresh(vacant, || key.to_key(), fresh) {
            Ok(charged) => Ok(charged),
            // Calls for keys of other shards have filled the store.
            Err(_locked) => self.untracked.charge(check),
        }
    }

    /// Returns the denial of a cost above a quota.
    pub(super) fn never(&self, limits: &[Limit], cost: u32, remaining: &[Remaining]) -> Limited {
        let exceeded = || limits.iter().zip(remaining).filter(|(limit, _)| limit.quota() < cost);
        let (limit, left) = exceeded().next().expect("the cost is above a quota");
        let more_at = left.more_at.map(|at| self.shared.clock.lazy_instant(at));
        let several = Several::of(exceeded().map(|(limit, _)| limit));
        Limited::new(limit.clone(), cost, more_at, several).with_remaining(left.units)
    }

    /// Returns a permit that charged nothing.
    pub(super) fn free_permit(&self, place: Location, remaining: u32) -> Permit {
        Permit {
            origin: Origin::new(self.registration.id(), 0),
            hash: place.hash(),
            state: None,
            charges: Charges::None,
            params: None,
            remaining,
            cost: 0,
        }
    }

    #[inline]
    pub(super) fn limited_from(&self, denied: Denied, limits: &[Limit], cost: u32) -> Limited {
        let ready = Some(self.shared.clock.lazy_instant(denied.ready));
        // Rarely several. Computed before `Limited` is built; otherwise the compiler builds it in memory and copies it.
        let several =
            if denied.limits.are_several() { exceeded_limits(denied.limits, limits) } else { None };
        let limit = limits[denied.longest()].clone();
        Limited::new(limit, cost, ready, several).with_remaining(denied.remaining)
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn limits(&self) -> Arc<[Limit]> {
        self.current_limits.limits()
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
fn exceeded_limits(exceeded: Exceeded, limits: &[Limit]) -> Option<Box<Several>> {
    let exceeded = limits.iter().enumerate().filter(|(limit, _)| exceeded.contains(*limit));
    Several::of(exceeded.map(|(_, limit)| limit))
}
