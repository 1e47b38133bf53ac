//! Asking: for a load, a turn, a value that comes or leaves; and how the writes of a shard answer.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{
    Beside, Location, Store,
    departure_signal::Farewell,
    flight::Flight,
    wait_map::Joined,
    waiters::{Asked, Leavers, Sought, Turn},
    window,
};
use crate::engine::clock::{Deadline, Now};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// The live value, or a place among those who wait for it to be loaded, which has to be [left](Self::leave_load).
    pub(crate) fn seek<Q>(
        &self,
        place @ Location { hash, index }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        now: &impl Now,
    ) -> Sought<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.let_removed_leave(place, key, now);
        let mut locked = self.write(place, |k, _| key.equivalent(k));
        let found = window::find(locked.parts().0, hash, |k| key.equivalent(k));
        if let Some((_, entry)) = found.filter(|(_, entry)| !now.is_dead(entry.deadline())) {
            return Sought::Live(entry.value.clone());
        }
        debug_assert_eq!(index, place.shard());
        let asked = locked.parts().1.asked();
        let Joined { shared, is_first } =
            asked.loads.join(hash, key, owned, Flight::is_over, Flight::new);
        if is_first {
            return Sought::Leads(shared);
        }
        let overtakes = shared.overtakes();
        Sought::Follows(shared, overtakes)
    }

    /// Leads a load that nobody waits for, unless there is one, or has been since somebody saw a value that dies at
    /// `seen`.
    pub(crate) fn lead<Q>(
        &self,
        place @ Location { hash, .. }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        seen: Deadline,
    ) -> Option<Arc<Flight<V>>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.write(place, |k, _| key.equivalent(k));
        let found = window::find(locked.parts().0, hash, |k| key.equivalent(k));
        if found.is_some_and(|(_, entry)| entry.deadline().is_later_than(seen)) {
            return None;
        }
        let asked = locked.parts().1.asked();
        if asked.loads.find(hash, key).is_some_and(|load| !load.is_over()) {
            return None;
        }
        Some(asked.loads.join(hash, key, owned, |_| true, Flight::new).shared)
    }

    pub(crate) fn leave_load(&self, place: Location, flight: &Arc<Flight<V>>) {
        self.leave(place, |asked| asked.loads.leave(place.hash(), flight));
    }

    /// A place in the line of those who change the value of a key, which has to be [left](Self::leave_turn).
    pub(crate) fn take_turn<Q>(
        &self,
        place: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
    ) -> Arc<Turn>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.shards.write(place.shard());
        let asked = locked.parts().1.asked();
        asked.turns.join(place.hash(), key, owned, |_| false, Turn::default).shared
    }

    pub(crate) fn leave_turn(&self, place: Location, turn: &Arc<Turn>) {
        self.leave(place, |asked| asked.turns.leave(place.hash(), turn));
    }

    /// A place among those who wait for a value of a key, which has to be [left](Self::leave_comers).
    pub(crate) fn await_value(&self, place: Location) -> Arc<Notify> {
        let mut locked = self.shards.write(place.shard());
        let asked = locked.parts().1.asked();
        asked.comers.join(place.hash(), &(), || (), |_| false, Notify::new).shared
    }

    pub(crate) fn leave_comers(&self, place: Location, comers: &Arc<Notify>) {
        self.leave(place, |asked| {
            asked.comers.leave(place.hash(), comers);
            None
        });
    }

    /// A place among those who wait for the live value of a key to leave, which has to be [left](Self::leave_leavers).
    /// None where there is no live value.
    pub(crate) fn await_departure<Q>(
        &self,
        place @ Location { hash, .. }: Location,
        key: &Q,
        now: &impl Now,
    ) -> Option<Arc<Leavers<K, V>>>
    where
        Q: Equivalent<K> + ?Sized,
        K: Clone,
    {
        self.let_removed_leave(place, key, now);
        let mut locked = self.write(place, |k, _| key.equivalent(k));
        let (bucket, entry) = window::find(locked.parts().0, hash, |k| key.equivalent(k))?;
        if now.is_dead(entry.deadline()) {
            return None;
        }
        let (table, beside) = locked.parts();
        let owned = || {
            let found = window::entry_at(table, bucket);
            found.expect("what was just found is there").0.clone()
        };
        Some(beside.asked().leavers.join(hash, key, owned, |_| false, Farewell::new).shared)
    }

    pub(crate) fn leave_leavers(&self, place: Location, farewell: &Arc<Leavers<K, V>>) {
        self.leave(place, |asked| asked.leavers.leave(place.hash(), farewell));
    }

    fn leave(&self, place: Location, leave: impl FnOnce(&mut Asked<K, V>) -> Option<K>) {
        let mut locked = self.shards.write(place.shard());
        let beside = locked.parts().1;
        let Some(asked) = &mut beside.asked else { return };
        let key = leave(asked);
        let emptied = beside.asked.take_if(|asked| asked.is_empty());
        drop(locked);
        drop((key, emptied));
    }

    /// Whether anybody waits, or loads, anywhere.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_asked(&self) -> bool {
        (0..self.shard_count()).any(|index| self.shards.read(index).beside().asked.is_some())
    }
}

impl<K, V> Beside<K, V> {
    /// A write to a key wins over what is being loaded for it.
    #[inline]
    pub(super) fn overtake<Q>(&self, hash: u64, key: &Q)
    where
        Q: Equivalent<K> + ?Sized,
    {
        if let Some(asked) = &self.asked
            && let Some(load) = asked.loads.find(hash, key)
        {
            load.overtake();
        }
    }

    /// As [`overtake`](Self::overtake), where the hash has to be worked out.
    #[inline]
    pub(super) fn overtake_any(&self, hash: impl FnOnce() -> u64, key: &K)
    where
        K: Eq,
    {
        if self.asked.is_some() {
            self.overtake(hash(), key);
        }
    }

    /// A write to all keys.
    pub(super) fn overtake_all(&self) {
        if let Some(asked) = &self.asked {
            asked.loads.each(Flight::overtake);
        }
    }

    /// Those who wait for a value of a key of this hash, to be told after the lock.
    #[inline]
    pub(super) fn comers(&self, hash: u64) -> Option<Arc<Notify>> {
        self.asked.as_ref()?.comers.find(hash, &()).cloned()
    }

    /// Whether somebody waits for this key's value to leave.
    #[inline]
    pub(super) fn has_leavers(&self, hash: u64, key: &K) -> bool
    where
        K: Eq,
    {
        let found = self.asked.as_ref().and_then(|asked| asked.leavers.find(hash, key));
        found.is_some()
    }

    fn asked(&mut self) -> &mut Asked<K, V> {
        self.asked.get_or_insert_with(|| Box::new(Asked::new()))
    }
}
