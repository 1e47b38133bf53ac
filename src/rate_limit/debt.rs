//! Correction of a charge, under the lock: part of it is given back, or more is charged, even as a debt, and by which
//! limits.

use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::Ordering::Relaxed,
};

use super::{
    Permit,
    algorithm::{Algorithm, Back, LimitParams},
    key_state::{KeyState, move_deadline},
    limiter::Limiter,
    settle::Settle,
};
use crate::engine::{clock::Now, store::Entry};

impl<K, A, S> Settle for Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    fn refund(&self, permit: &Permit) {
        if self.give_back(permit, Back { units: permit.cost, stay: 0 }) {
            self.refunds.fetch_add(1, Relaxed);
        }
    }

    fn settle(&self, permit: &Permit, actual: u32) {
        if let Some(units) = permit.cost.checked_sub(actual) {
            self.give_back(permit, Back { units, stay: actual });
            return;
        }
        let more = actual - permit.cost;
        match &permit.params {
            Some(params) => self.add_debt(permit, params, more),
            // The current limits, since `set_limits` may have replaced those of the check.
            None => self.with_limits(None, |by| self.add_debt(permit, by.params, more)),
        }
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Takes charges back. Returns `true` if the state that was charged still exists.
    fn give_back(&self, permit: &Permit, back: Back) -> bool {
        let found = match &permit.params {
            Some(params) => self.give_back_by(permit, params, back),
            // Those of the check, even if `set_limits` has replaced them: they identify what was charged.
            None => self.current_limits.with_replaced(permit.origin.limits(), |params| {
                self.give_back_by(permit, params, back)
            }),
        };
        // Wakes the sweeper if it sleeps beyond the moved deadline of an idle key.
        self.shared.publisher.flush();
        // After the change, so that a waiter finds it.
        match permit.state {
            // The keys beyond the bound share the charged quota.
            None if !permit.charges.is_none() => self.wake_all_waiters(),
            _ => self.wake_waiters(permit.hash),
        }
        found
    }

    fn give_back_by(&self, permit: &Permit, charged_by: &[LimitParams], back: Back) -> bool {
        let now = self.shared.clock.lazy_now();
        let Some(id) = permit.state else {
            self.untracked.refund(&permit.charges, charged_by, back, &now);
            return true;
        };
        // By hash and state number: another key of the same hash has another number, and so has the key after a reset.
        let is_it = |_: &K, state: &KeyState<A>| state.id == id.get();
        let place = self.shared.store.locate_hash(permit.hash);
        self.shared.store.change_where(place, is_it, |entry| {
            let Some(entry) = entry else { return false };
            entry.value.refund(&permit.charges, charged_by, back, &now);
            // Otherwise the key would take a place among `max_keys` for the rest of its window.
            if entry.value.is_idle(&now) {
                entry.set_deadline(now.tick().into());
            }
            true
        })
    }

    /// Charges the cost of a call beyond its permit. A permit contains the hash of its key, not the key.
    fn add_debt(&self, permit: &Permit, params: &[LimitParams], cost: u32) {
        if params.is_empty() {
            return;
        }
        let (store, hash) = (&self.shared.store, permit.hash);
        let now = self.shared.clock.lazy_now();
        let place = store.locate_hash(hash);
        let is_it = |key: &K, _: &KeyState<A>| store.locate(key).hash() == hash;
        let charge = |entry: &mut Entry<KeyState<A>>| {
            entry.value.charge_anyway(params, &now, cost);
            move_deadline(entry);
        };
        // By state number first: with a bad hasher, several keys may have the same hash.
        let was_charged =
            |_: &K, state: &KeyState<A>| permit.state.is_some_and(|id| state.id == id.get());
        if store.change_where(place, was_charged, |entry| entry.map(charge)).is_some() {
            return;
        }
        store.change_where(place, is_it, |entry| match entry {
            Some(entry) => charge(entry),
            // Under the shard's lock, under which a check creates the key's entry from this record.
            None => {
                // A permit of cost 0 has no state either, but was not charged to the shared window.
                let has_shared = permit.state.is_none() && !permit.charges.is_none();
                self.untracked.add_debt(hash, params, &now, cost, has_shared);
            }
        });
        self.untracked.drop_idle();
    }
}
