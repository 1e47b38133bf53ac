//! Untracked keys, which have no entry: keys beyond [`max_keys`](super::RateLimiterBuilder::max_keys), which share one
//! window, and keys that were swept before one of their calls was settled. The usage of each is known by the hash of
//! the key, and moves to its entry when it gets one. So no key evades its limit, and no other key pays for it.
//!
//! The lock here is sometimes taken under a shard's lock, so no shard may be locked under it.

use std::{collections::HashMap, mem, sync::PoisonError};

use super::{
    algorithm::{Algorithm, Back, LimitParams},
    charges::Charges,
    check_args::Check,
    key_state::{Admitted, Denied, KeyState},
    stats::CheckCounts,
    usage::Usage,
};
use crate::engine::{
    clock::{LazyNow, Now, Tick},
    hasher::DefaultHasher,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Minimum number of untracked keys whose own usage is known, even if `max_keys` is smaller.
const MIN_KNOWN: usize = 1_024;

pub(super) struct UntrackedKeys<A> {
    states: Mutex<States<A>>,
    /// Tick until which anything here is in use. Outside the lock, which every new key would otherwise have to take,
    /// even if there never was an untracked key.
    until: AtomicU64,
    has_idle: AtomicBool,
    pub(super) counts: CheckCounts,
}

struct States<A> {
    /// Common usage of all keys beyond the bound. Its number is 0, which no key's state has.
    shared: KeyState<A>,
    /// Usage by key, in two generations. The old one becomes idle as a whole when nothing of it is in use.
    young: Generation<A>,
    old: Generation<A>,
    /// Old generations that are to be dropped outside of all locks.
    idle: Vec<Generation<A>>,
    max_known: usize,
    /// Tick until which new keys share the window because the usage of further keys could not be recorded.
    crowded_until: u64,
}

struct Generation<A> {
    by_hash: HashMap<u64, KeyState<A>, DefaultHasher>,
    /// Tick until which anything of the generation is in use.
    until: u64,
}

impl<A: Algorithm> UntrackedKeys<A> {
    pub(super) fn new(params: &[LimitParams], max_keys: usize) -> Self {
        let states = States {
            shared: KeyState::new(0, params),
            young: Generation::default(),
            old: Generation::default(),
            idle: Vec::new(),
            max_known: max_keys.max(MIN_KNOWN),
            crowded_until: 0,
        };
        Self {
            states: Mutex::new(states),
            until: AtomicU64::new(0),
            has_idle: AtomicBool::new(false),
            counts: CheckCounts::default(),
        }
    }

    /// Charges a key beyond the bound. Returns the number of the state that was charged.
    #[cold]
    pub(super) fn charge(&self, check: &Check<'_>) -> Result<(u64, Admitted), Denied> {
        let Check { by, now, cost, place, .. } = check;
        let (params, hash) = (by.params, place.hash());
        self.with_states(now, |states| {
            self.extend(states.adopt(hash, params, now));
            states.shared.adopt(params, now);
            self.extend(states.shared.idle_from());
            // Both are asked before one is charged: the key's own usage, which it would otherwise evade here, and the
            // common one.
            let fits =
                states.usage(hash, true, params, |usage| usage.ensure_fits(params, now, *cost));
            let charged = fits.and_then(|()| {
                let admitted = states.shared.charge(params, now, *cost)?;
                self.extend(states.shared.idle_from());
                self.extend(states.charge_own(hash, params, now, *cost, true));
                Ok(admitted)
            });
            check.count(charged.as_ref().err().map(Denied::longest), &self.counts);
            states.usage(hash, true, params, |usage| {
                check.observe(usage);
                let admitted = charged?;
                let remaining = usage.remaining(params, now);
                let least = remaining.iter().map(|remaining| remaining.units).min();
                let remaining = least.map_or(admitted.remaining, u64::from);
                Ok((states.shared.id, Admitted { remaining, ..admitted }))
            })
        })
    }

    /// Charges a debt to a key without an entry; `shares` if the call was charged to the shared window.
    pub(super) fn add_debt(
        &self,
        hash: u64,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
        shares: bool,
    ) {
        self.with_states(now, |states| {
            if shares {
                states.shared.charge_anyway(params, now, cost);
                self.extend(states.shared.idle_from());
            }
            self.extend(states.charge_own(hash, params, now, cost, shares));
        });
    }

    pub(super) fn refund(
        &self,
        charges: &Charges,
        charged_by: &[LimitParams],
        back: Back,
        now: &LazyNow<'_>,
    ) {
        // The key's own record keeps the charge, at the key's expense: its marks are not those of the permit.
        self.with_states(now, |states| states.shared.refund(charges, charged_by, back, now));
    }

    /// Keeps the usage for as long as other limits say.
    pub(super) fn convert(&self, params: &[LimitParams], now: &LazyNow<'_>) {
        if !self.any_in_use(now) {
            return;
        }
        self.with_states(now, |states| {
            let convert = |state: &mut KeyState<A>| {
                state.convert(params, now);
                let until = state.idle_from();
                self.extend(until);
                until.map_or(0, Tick::nanoseconds)
            };
            let until = convert(&mut states.shared);
            if states.is_crowded(now) {
                states.crowded_until = states.crowded_until.max(until);
            }
            for generation in [&mut states.young, &mut states.old] {
                let until = generation.by_hash.values_mut().map(convert).max();
                generation.until = generation.until.max(until.unwrap_or(0));
            }
        });
    }

    /// Returns `true` if too many keys came recently, so that new keys share the window even below the bound.
    pub(super) fn is_crowded(&self, now: &LazyNow<'_>) -> bool {
        self.any_in_use(now) && self.with_states(now, |states| states.is_crowded(now))
    }

    /// Returns the usage of a key that may get an entry; [`take`](UntrackedKeys::take) removes it once it has.
    pub(super) fn get(&self, hash: u64, now: &LazyNow<'_>) -> Option<KeyState<A>> {
        if self.any_in_use(now) {
            self.with_states(now, |states| states.known(hash).cloned())
        } else {
            None
        }
    }

    /// Makes the limits of a denied check known, so that the usage of its key counts for as long as they say.
    pub(super) fn adopt(&self, hash: u64, params: &[LimitParams], now: &LazyNow<'_>) {
        if self.any_in_use(now) {
            self.with_states(now, |states| self.extend(states.adopt(hash, params, now)));
        }
    }

    /// Removes the record of a key.
    pub(super) fn take(&self, hash: u64, now: &LazyNow<'_>) -> Option<KeyState<A>> {
        if !self.any_in_use(now) {
            return None;
        }
        self.with_states(now, |States { young, old, .. }| {
            young.by_hash.remove(&hash).or_else(|| old.by_hash.remove(&hash))
        })
    }

    /// Calls `inspect` with the usage that a check of a key without an entry would find.
    pub(super) fn inspect<R>(
        &self,
        hash: u64,
        is_full: bool,
        (params, now): (&[LimitParams], &LazyNow<'_>),
        inspect: impl FnOnce(&Usage<'_, A>) -> R,
    ) -> R {
        if !is_full && !self.any_in_use(now) {
            return inspect(&Usage::of(&KeyState::new(0, params)));
        }
        self.with_states(now, |states| {
            let shares = is_full || states.is_crowded(now);
            states.usage(hash, shares, params, inspect)
        })
    }

    /// Drops the records of which nothing is in use. Called without a shard's lock, since there may be many.
    #[inline]
    pub(super) fn drop_idle(&self) {
        if self.has_idle.load(Relaxed) {
            self.drop_idle_generations();
        }
    }

    #[cold]
    fn drop_idle_generations(&self) {
        let idle = {
            let mut states = self.lock();
            self.has_idle.store(false, Relaxed);
            mem::take(&mut states.idle)
        };
        drop(idle);
    }

    /// Returns `true` if anything here is in use, and otherwise makes all records idle.
    #[inline]
    fn any_in_use(&self, now: &LazyNow<'_>) -> bool {
        let until = self.until.load(Relaxed);
        if !now.has_reached(Tick::from_nanoseconds(until)) {
            return true;
        }
        // Fails if a concurrent charge has extended it; then the records are in use. `Relaxed` suffices: the records
        // themselves are read under the lock.
        if until > 0 && self.until.compare_exchange(until, 0, Relaxed, Relaxed).is_ok() {
            // Twice: each call makes the old generation idle and the young one old.
            self.with_states(now, |_| {});
            self.with_states(now, |_| {});
        }
        false
    }

    fn extend(&self, until: Option<Tick>) {
        self.until.fetch_max(until.map_or(0, Tick::nanoseconds), Relaxed);
    }

    fn with_states<R>(&self, now: &LazyNow<'_>, f: impl FnOnce(&mut States<A>) -> R) -> R {
        let mut states = self.lock();
        if now.has_reached(Tick::from_nanoseconds(states.old.until)) {
            let young = mem::take(&mut states.young);
            let idle = mem::replace(&mut states.old, young);
            if !idle.by_hash.is_empty() {
                states.idle.push(idle);
                self.has_idle.store(true, Relaxed);
            }
        }
        f(&mut states)
    }

    fn lock(&self) -> MutexGuard<'_, States<A>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Algorithm> States<A> {
    fn known(&self, hash: u64) -> Option<&KeyState<A>> {
        self.young.by_hash.get(&hash).or_else(|| self.old.by_hash.get(&hash))
    }

    /// Calls `f` with the usage of a key; with the shared one, too, if `shares`.
    fn usage<R>(
        &self,
        hash: u64,
        shares: bool,
        params: &[LimitParams],
        f: impl FnOnce(&Usage<'_, A>) -> R,
    ) -> R {
        let shared = shares.then_some(&self.shared);
        match (self.known(hash), shared) {
            (Some(own), shared) => f(&Usage { own, shared }),
            (None, Some(shared)) => f(&Usage::of(shared)),
            (None, None) => f(&Usage::of(&KeyState::new(0, params))),
        }
    }

    fn is_crowded(&self, now: &LazyNow<'_>) -> bool {
        !now.has_reached(Tick::from_nanoseconds(self.crowded_until))
    }

    /// Makes limits known to the record of a key. Returns the tick until which it is in use.
    fn adopt(&mut self, hash: u64, params: &[LimitParams], now: &LazyNow<'_>) -> Option<Tick> {
        let mut until = None;
        for generation in [&mut self.young, &mut self.old] {
            if let Some(own) = generation.by_hash.get_mut(&hash) {
                own.adopt(params, now);
                let idle_from = own.idle_from();
                generation.until = generation.until.max(idle_from.map_or(0, Tick::nanoseconds));
                until = until.max(idle_from);
            }
        }
        until
    }

    /// Charges the record of a key, or the shared window if there are too many records. Returns the tick until which it
    /// is in use.
    fn charge_own(
        &mut self,
        hash: u64,
        params: &[LimitParams],
        now: &LazyNow<'_>,
        cost: u32,
        has_shared: bool,
    ) -> Option<Tick> {
        let Self { shared, young, old, .. } = self;
        // To the young generation, since its usage will last beyond that of the old one, which is dropped as a whole.
        if let Some(state) = old.by_hash.remove(&hash) {
            young.by_hash.insert(hash, state);
        }
        let is_full = young.by_hash.len() + old.by_hash.len() >= self.max_known;
        if is_full && !young.by_hash.contains_key(&hash) {
            // A debt that cannot be recorded for its key is charged to all, rather than lost. If the call was charged
            // to the window, the debt has been, too.
            if !has_shared {
                shared.charge_anyway(params, now, cost);
            }
            let until = shared.idle_from();
            let ticks = until.map_or(0, Tick::nanoseconds);
            self.crowded_until = self.crowded_until.max(ticks);
            return until;
        }
        let state = young.by_hash.entry(hash).or_insert_with(|| KeyState::new(0, params));
        state.charge_anyway(params, now, cost);
        let until = state.idle_from();
        young.until = young.until.max(until.map_or(0, Tick::nanoseconds));
        until
    }
}

impl<A> Default for Generation<A> {
    fn default() -> Self {
        Self { by_hash: HashMap::default(), until: 0 }
    }
}
