//! Registration of waiters for loads, turns, inserts and departures, and the effect of writes on them.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{
    Location, ShardState, Store,
    departure_signal::DepartureSignal,
    flight::Flight,
    wait_map::Joined,
    waiters::{DepartureWaiters, LoadLookup, Turn, Waiters},
    window,
};
use crate::engine::clock::{Deadline, Now};

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
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let found = window::find(locked.parts().0, hash, |k| key.equivalent(k));
        if let Some((_, entry)) = found.filter(|(_, entry)| !now.is_expired(entry.deadline())) {
            return LoadLookup::Live(entry.value.clone());
        }
        let waiters = locked.parts().1.waiters_mut();
        let Joined { shared, is_first } =
            waiters.loads.join(hash, key, owned, Flight::is_finished, Flight::new);
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
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let found = window::find(locked.parts().0, hash, |k| key.equivalent(k));
        if found.is_some_and(|(_, entry)| entry.deadline().is_later_than(seen)) {
            return None;
        }
        let waiters = locked.parts().1.waiters_mut();
        if waiters.loads.find(hash, key).is_some_and(|load| !load.is_finished()) {
            return None;
        }
        Some(waiters.loads.join(hash, key, owned, |_| true, Flight::of_refresh).shared)
    }

    /// Ends a flight whose background refresh makes no progress, and returns whether one leads it. The next caller
    /// starts a new flight, and the refresh cannot store its value any more.
    pub(crate) fn end_stalled_refresh(&self, location: Location, flight: &Flight<V>) -> bool {
        let locked = self.shards.write(location.shard());
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
        let mut locked = self.shards.write(location.shard());
        let waiters = locked.parts().1.waiters_mut();
        waiters.turns.join(location.hash(), key, owned, |_| false, Turn::default).shared
    }

    pub(crate) fn leave_turn(&self, location: Location, turn: &Arc<Turn>) {
        self.leave(location, |waiters| waiters.turns.leave(location.hash(), turn));
    }

    /// Joins the tasks that wait for a value of a key. A member must [leave](Self::leave_insert_waiters).
    pub(crate) fn await_value(&self, location: Location) -> Arc<Notify> {
        let mut locked = self.shards.write(location.shard());
        let waiters = locked.parts().1.waiters_mut();
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
        let mut locked = self.write(location, |k, _| key.equivalent(k));
        let (bucket, entry) = window::find(locked.parts().0, hash, |k| key.equivalent(k))?;
        if now.is_expired(entry.deadline()) {
            return None;
        }
        let (table, state) = locked.parts();
        let owned = || {
            let found = window::entry_at(table, bucket);
            found.expect("the bucket that was just found is full").0.clone()
        };
        Some(
            state
                .waiters_mut()
                .departure_waiters
                .join(hash, key, owned, |_| false, DepartureSignal::new)
                .shared,
        )
    }

    pub(crate) fn leave_departure_waiters(
        &self,
        location: Location,
        waiters: &Arc<DepartureWaiters<K, V>>,
    ) {
        self.leave(location, |all| all.departure_waiters.leave(location.hash(), waiters));
    }

    fn leave(&self, location: Location, leave: impl FnOnce(&mut Waiters<K, V>) -> Option<K>) {
        let mut locked = self.shards.write(location.shard());
        let state = locked.parts().1;
        let Some(waiters) = &mut state.waiters else { return };
        let key = leave(waiters);
        let emptied = state.waiters.take_if(|waiters| waiters.is_empty());
        drop(locked);
        drop((key, emptied));
    }

    /// Returns whether any task waits for any key.
    #[cfg(all(test, shuttle))]
    pub(crate) fn has_waiters(&self) -> bool {
        (0..self.shard_count()).any(|index| self.shards.read(index).state().waiters.is_some())
    }
}

impl<K, V> ShardState<K, V> {
    /// Increments the write version of a key's flight, so that a load that began earlier is not stored.
    #[inline]
    pub(super) fn bump_write_version<Q>(&self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(waiters) = &self.waiters
            && let Some(load) = waiters.loads.find(hash, key)
        {
            load.bump_write_version();
        }
    }

    /// As [`bump_write_version`](Self::bump_write_version), but computes the hash only if the shard has waiters.
    #[inline]
    pub(super) fn bump_write_version_of(&self, hash: impl FnOnce() -> u64, key: &K)
    where
        K: Eq,
    {
        if self.waiters.is_some() {
            self.bump_write_version(hash(), key);
        }
    }

    /// Increments the write version of every flight of the shard.
    pub(super) fn bump_all_write_versions(&self) {
        if let Some(waiters) = &self.waiters {
            waiters.loads.each(Flight::bump_write_version);
        }
    }

    /// Returns the insert waiters for this hash, to be notified after the unlock.
    #[inline]
    pub(super) fn insert_waiters(&self, hash: u64) -> Option<Arc<Notify>> {
        self.waiters.as_ref()?.insert_waiters.find(hash, &()).cloned()
    }

    /// Returns whether any task waits for the removal of this key's value.
    #[inline]
    pub(super) fn has_departure_waiters(&self, hash: u64, key: &K) -> bool
    where
        K: Eq,
    {
        let found =
            self.waiters.as_ref().and_then(|waiters| waiters.departure_waiters.find(hash, key));
        found.is_some()
    }

    fn waiters_mut(&mut self) -> &mut Waiters<K, V> {
        self.waiters.get_or_insert_with(|| Box::new(Waiters::new()))
    }
}
