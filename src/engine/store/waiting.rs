//! Asking: for a load, a turn, a value that comes or leaves; and how the writes of a shard answer.

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
    /// The live value, or a place among those who wait for it to be loaded, which has to be [left](Self::leave_load).
    pub(crate) fn lookup_or_join<Q>(
        &self,
        location @ Location { hash, index }: Location,
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
        if let Some((_, entry)) = found.filter(|(_, entry)| !now.is_dead(entry.deadline())) {
            return LoadLookup::Live(entry.value.clone());
        }
        debug_assert_eq!(index, location.shard());
        let waiters = locked.parts().1.waiters_mut();
        let Joined { shared, is_first } =
            waiters.loads.join(hash, key, owned, Flight::is_finished, Flight::new);
        if is_first {
            return LoadLookup::Leader(shared);
        }
        let write_version = shared.write_version();
        LoadLookup::Follower(shared, write_version)
    }

    /// Leads a load that nobody waits for, unless there is one, or has been since somebody saw a value that dies at
    /// `seen`.
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
        Some(waiters.loads.join(hash, key, owned, |_| true, Flight::new).shared)
    }

    pub(crate) fn leave_load(&self, location: Location, flight: &Arc<Flight<V>>) {
        self.leave(location, |waiters| waiters.loads.leave(location.hash(), flight));
    }

    /// A place in the line of those who change the value of a key, which has to be [left](Self::leave_turn).
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

    /// A place among those who wait for a value of a key, which has to be [left](Self::leave_comers).
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

    /// A place among those who wait for the live value of a key to leave, which has to be [left](Self::leave_leavers).
    /// None where there is no live value.
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
        if now.is_dead(entry.deadline()) {
            return None;
        }
        let (table, state) = locked.parts();
        let owned = || {
            let found = window::entry_at(table, bucket);
            found.expect("what was just found is there").0.clone()
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

    /// Whether anybody waits, or loads, anywhere.
    #[cfg(all(test, shuttle))]
    pub(crate) fn has_waiters(&self) -> bool {
        (0..self.shard_count()).any(|index| self.shards.read(index).state().waiters.is_some())
    }
}

impl<K, V> ShardState<K, V> {
    /// A write to a key wins over what is being loaded for it.
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

    /// As [`bump_write_version`](Self::overtake), where the hash has to be worked out.
    #[inline]
    pub(super) fn bump_write_version_of(&self, hash: impl FnOnce() -> u64, key: &K)
    where
        K: Eq,
    {
        if self.waiters.is_some() {
            self.bump_write_version(hash(), key);
        }
    }

    /// A write to all keys.
    pub(super) fn bump_all_write_versions(&self) {
        if let Some(waiters) = &self.waiters {
            waiters.loads.each(Flight::bump_write_version);
        }
    }

    /// Those who wait for a value of a key of this hash, to be told after the lock.
    #[inline]
    pub(super) fn insert_waiters(&self, hash: u64) -> Option<Arc<Notify>> {
        self.waiters.as_ref()?.insert_waiters.find(hash, &()).cloned()
    }

    /// Whether somebody waits for this key's value to leave.
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
