//! Registration of waiters for loads, turns, inserts and departures, and the effect of writes on them.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{Location, Store};
use crate::engine::{
    clock::{Deadline, Now},
    waiters::{DepartureWaiters, LoadLookup, Turn, Waiters, flight::Flight, wait_map::Joined},
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns the live value, or joins the flight that loads it. A member must [leave](Self::leave_load) the flight.
    pub(crate) fn lookup_or_join<Q>(
        &self,
        location @ Location { hash, .. }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        now: &impl Now,
    ) -> LoadLookup<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.purge_if_tag_removed(location, key, now);
        let mut locked = self.lock_entry(location, key);
        let found = locked.find_shared(hash, key);
        if let Some((_, entry)) = found.filter(|(_, entry)| !now.is_expired(entry.deadline())) {
            return LoadLookup::Live(entry.value.clone());
        }
        let tags = found.and_then(|(bucket, _)| locked.current_tags(bucket));
        let waiters = locked.waiters_mut();
        let Joined { shared, is_first } =
            waiters.loads.join(hash, key, owned, Flight::is_finished, || Flight::new(tags));
        if is_first {
            return LoadLookup::Leader(shared);
        }
        let write_version = shared.write_version();
        LoadLookup::Follower(shared, write_version)
    }

    /// Starts a flight for a background refresh, which no caller waits for. Returns `None` if a load is under way, or
    /// if a value with a later deadline than `seen` was written in the meantime.
    pub(crate) fn lead<Q>(
        &self,
        location @ Location { hash, .. }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        seen: Deadline,
    ) -> Option<Arc<Flight<V>>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_entry(location, key);
        let found = locked.find_shared(hash, key);
        if found.is_some_and(|(_, entry)| entry.deadline().is_later_than(seen)) {
            return None;
        }
        let tags = found.and_then(|(bucket, _)| locked.current_tags(bucket));
        let waiters = locked.waiters_mut();
        let is_running = |load: &Arc<Flight<V>>| !load.is_finished() && !load.end_leaderless();
        if waiters.loads.find(hash, key).is_some_and(is_running) {
            return None;
        }
        let flight = || Flight::of_refresh(tags);
        Some(waiters.loads.join(hash, key, owned, |_| true, flight).shared)
    }

    /// Ends a flight whose background refresh makes no progress, and returns whether one leads it. The next caller
    /// starts a new flight, and the refresh cannot store its value any more.
    pub(crate) fn end_stalled_refresh(&self, location: Location, flight: &Flight<V>) -> bool {
        let locked = self.lock_shard(location.shard());
        let has_ended = flight.end_refresh();
        drop(locked);
        if has_ended {
            flight.wake_waiters();
        }
        has_ended
    }

    pub(crate) fn leave_load(&self, location: Location, flight: &Arc<Flight<V>>) {
        self.leave(location, |waiters| waiters.loads.leave(location.hash(), flight));
    }

    /// Joins the callers that change the value of a key one at a time. A member must [leave](Self::leave_turn).
    pub(crate) fn take_turn<Q>(
        &self,
        location: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
    ) -> Arc<Turn>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_shard(location.shard());
        let waiters = locked.waiters_mut();
        waiters.turns.join(location.hash(), key, owned, |_| false, Turn::default).shared
    }

    pub(crate) fn leave_turn(&self, location: Location, turn: &Arc<Turn>) {
        self.leave(location, |waiters| waiters.turns.leave(location.hash(), turn));
    }

    /// Joins the tasks that wait for a value of a key. A member must [leave](Self::leave_insert_waiters).
    pub(crate) fn await_value(&self, location: Location) -> Arc<Notify> {
        let mut locked = self.lock_shard(location.shard());
        let waiters = locked.waiters_mut();
        waiters.insert_waiters.join(location.hash(), &(), || (), |_| false, Notify::new).shared
    }

    pub(crate) fn leave_insert_waiters(&self, location: Location, insert_waiters: &Arc<Notify>) {
        self.leave(location, |waiters| {
            waiters.insert_waiters.leave(location.hash(), insert_waiters);
            None
        });
    }

    /// Joins the tasks that wait for the removal of a key's live value. A member must
    /// [leave](Self::leave_departure_waiters). Returns `None` if there is no live value.
    pub(crate) fn await_departure<Q>(
        &self,
        location @ Location { hash, .. }: Location,
        key: &Q,
        now: &impl Now,
    ) -> Option<Arc<DepartureWaiters<K, V>>>
    where
        Q: Equivalent<K> + ?Sized,
        K: Clone,
    {
        self.purge_if_tag_removed(location, key, now);
        let mut locked = self.lock_entry(location, key);
        let (bucket, entry) = locked.find_shared(hash, key)?;
        if now.is_expired(entry.deadline()) {
            return None;
        }
        Some(locked.await_departure(hash, key, bucket))
    }

    pub(crate) fn leave_departure_waiters(
        &self,
        location: Location,
        waiters: &Arc<DepartureWaiters<K, V>>,
    ) {
        self.leave(location, |all| all.departure_waiters.leave(location.hash(), waiters));
    }

    fn leave(&self, location: Location, leave: impl FnOnce(&mut Waiters<K, V>) -> Option<K>) {
        let mut locked = self.lock_shard(location.shard());
        let left = locked.leave_waiters(leave);
        drop(locked);
        // After the unlock: the key's `Drop` is user code.
        drop(left);
    }

    /// Returns whether any task waits for any key.
    #[cfg(all(test, shuttle))]
    pub(crate) fn has_waiters(&self) -> bool {
        (0..self.shard_count()).any(|index| self.shards.read(index).has_waiters())
    }
}
