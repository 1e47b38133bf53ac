//! Registration of waiters: one caller leads the load or refresh of a key, and others wait. Also of waiters for turns,
//! inserts and departures; and the tags that a load takes over from the value that it replaces.

use std::{
    hash::{BuildHasher, Hash},
    ops::ControlFlow,
    sync::Arc,
};

use equivalent::Equivalent;
use tokio::sync::Notify;

use super::{Location, Store};
use crate::engine::{
    clock::{Deadline, Now},
    shard::{Shard, entry::Entry, tags::TagSet},
    waiters::{
        DepartureWaiters, FlightMember, KeyTurn, Waiters,
        flight::{Flight, Preceding},
        wait_map::JoinedWait,
    },
};

/// Value that a caller saw when it decided to refresh it in the background.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// A live value. One with a later hard deadline has been renewed since.
    Live { hard_deadline: Deadline },
    /// An expired value within its stale window. A live one has been written since.
    Stale,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Joins the flight of a key; or returns its live value, unless `loads_live`. A member must
    /// [leave](Self::leave_load) the flight.
    pub(crate) fn join_load<Q>(
        &self,
        location @ Location { hash, .. }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        loads_live: bool,
        now: &impl Now,
    ) -> ControlFlow<V, FlightMember<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.unless_live(location, key, loads_live, now, |locked, replaced_tags| {
            let loads = &mut locked.waiters_mut().loads;
            let JoinedWait { shared: flight, is_first } =
                loads.join(hash, key, owned, Flight::is_finished, || Flight::new(replaced_tags));
            let preceding = if is_first {
                Preceding::default()
            } else {
                flight.note_expiry(now);
                flight.preceding(self.tagged_loads.removals())
            };
            FlightMember { flight, is_leader: is_first, preceding }
        })
    }

    /// Starts the load of a member that has taken the lead of its flight; or returns the live value, unless
    /// `loads_live`.
    pub(crate) fn restart_load<Q>(
        &self,
        location: Location,
        key: &Q,
        flight: &Flight<V>,
        loads_live: bool,
        now: &impl Now,
    ) -> ControlFlow<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        let restart = |_: &mut Shard<'_, K, V, S>, replaced_tags| flight.restart(replaced_tags);
        self.unless_live(location, key, loads_live, now, restart)
    }

    /// Starts a flight for a background refresh, which no caller waits for. Returns `None` if a load is under way, or
    /// if the value is no longer the one that was `seen`.
    pub(crate) fn lead_refresh<Q>(
        &self,
        location @ Location { hash, .. }: Location,
        key: &Q,
        owned: impl FnOnce() -> K,
        seen: Seen,
        now: &impl Now,
    ) -> Option<FlightMember<V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_entry(location, key);
        let found = locked.find_shared(hash, key);
        let is_renewed = found.is_some_and(|(bucket, entry)| match seen {
            Seen::Live { hard_deadline } => {
                locked.hard_deadline(bucket, entry).is_later_than(hard_deadline)
            }
            Seen::Stale => !now.is_expired(entry.deadline()),
        });
        if is_renewed {
            return None;
        }
        let replaced_tags = self.replaced_tags(&locked, found, now);
        let loads = &mut locked.waiters_mut().loads;
        let is_running = |load: &Arc<Flight<V>>| !load.is_finished() && !load.end_leaderless();
        if loads.find(hash, key).is_some_and(is_running) {
            return None;
        }
        let flight = || Flight::of_refresh(replaced_tags);
        let flight = loads.join(hash, key, owned, |_| true, flight).shared;
        Some(FlightMember { flight, is_leader: true, preceding: Preceding::default() })
    }

    /// Calls `load` under the lock of the key's shard, with the tags of the value that is replaced; or returns the live
    /// value, unless `loads_live`.
    fn unless_live<Q, R>(
        &self,
        location: Location,
        key: &Q,
        loads_live: bool,
        now: &impl Now,
        load: impl FnOnce(&mut Shard<'_, K, V, S>, Option<TagSet>) -> R,
    ) -> ControlFlow<V, R>
    where
        Q: Equivalent<K> + ?Sized,
        V: Clone,
    {
        let mut locked = self.lock_key(location, key, now);
        let found = locked.find_shared(location.hash, key);
        if let Some((_, entry)) = found
            && !loads_live
            && !now.is_expired(entry.deadline())
        {
            return ControlFlow::Break(entry.value.clone());
        }
        let replaced_tags = self.replaced_tags(&locked, found, now);
        ControlFlow::Continue(load(&mut locked, replaced_tags))
    }

    /// Returns the tags of an entry that a load replaces: one that is live or within its stale window.
    fn replaced_tags(
        &self,
        locked: &Shard<'_, K, V, S>,
        found: Option<(usize, &Entry<V>)>,
        now: &impl Now,
    ) -> Option<TagSet> {
        let is_replaced = |entry: &Entry<V>| !self.is_past_stale_window(entry.deadline(), now);
        let (bucket, _) = found.filter(|(_, entry)| is_replaced(entry))?;
        locked.current_tags(bucket)
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

    /// Returns whether a write or the removal of a tag takes precedence over the load of a flight.
    ///
    /// Writes are counted under the lock taken here. So a write that this call does not see finds all that its caller
    /// has stored before.
    pub(crate) fn is_superseded(&self, location: Location, flight: &Flight<V>) -> bool {
        let _locked = self.lock_shard(location.shard());
        flight.is_superseded()
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
    ) -> Arc<KeyTurn>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let mut locked = self.lock_shard(location.shard());
        let waiters = locked.waiters_mut();
        waiters.turns.join(location.hash(), key, owned, |_| false, KeyTurn::default).shared
    }

    pub(crate) fn leave_turn(&self, location: Location, turn: &Arc<KeyTurn>) {
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
        let mut locked = self.lock_key(location, key, now);
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
