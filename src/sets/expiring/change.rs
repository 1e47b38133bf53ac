//! A change to a shard under its lock: the time by which members are expired, the journal for events, and the values to
//! drop after the lock is released.

use std::{iter::repeat_with, time::Duration};

use crate::{
    engine::{
        clock::{Deadline, Tick},
        event::Cause,
        panics::drop_all,
        store::{Departure, Journal},
    },
    sets::scores::Drained,
};

/// A change to a shard under its lock.
pub(super) struct Change<'a, K, V, T> {
    /// Read once, under the lock, so that every step of a change agrees on which members are expired.
    pub(super) now: Tick,
    pub(super) ttl: Duration,
    pub(super) shard: usize,
    pub(super) journal: &'a Journal<K, V>,
    pub(super) drop_queue: &'a mut UnusedValues<K, V, T>,
    /// Number of expired members that this change removed.
    #[cfg(feature = "metrics")]
    pub(super) expired: u64,
}

/// Values that a change removed or did not use. It is created before the lock is taken and dropped after unlock: `Drop`
/// of keys and members is user code, which may call the set or panic.
pub(super) struct UnusedValues<K, V, T> {
    /// Members removed for a cause without subscribers.
    pub(super) members: Drained<Tick, T>,
    /// Departures that the journal did not accept.
    pub(super) departures: Vec<Departure<K, V>>,
    /// Keys of removed sets, and clones of keys for events that are not recorded yet.
    pub(super) keys: Vec<K>,
}

/// Key of a set, and the form in which it appears in the events of its members: `&K` in `ExpiringSets`, [`Unkeyed`] in
/// an `ExpiringSet`.
pub(super) trait SetKey<T>: Copy {
    /// Key type of the events.
    type Key;
    type Value;

    /// Clones the key for `count` events. `Clone` is user code and may panic.
    fn clone_for_events(self, count: usize, keys: &mut Vec<Self::Key>);

    /// Returns the key and the value of one event, made from a cloned key and the member. Calls no user code.
    fn event(keys: &mut Vec<Self::Key>, member: T) -> (Self::Key, Self::Value);
}

/// Marker of a set without a key: the members are the keys of its events.
#[derive(Clone, Copy)]
pub(super) struct Unkeyed;

impl<K, V, T> Change<'_, K, V, T> {
    /// Returns whether a member with this score is expired.
    #[inline]
    pub(super) fn is_expired(&self, score: Tick) -> bool {
        score.after(self.ttl).is_expired(self.now)
    }

    #[inline]
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(super) fn count_expired(&mut self, members: usize) {
        #[cfg(feature = "metrics")]
        {
            self.expired += members as u64;
        }
    }

    /// Prepares the recording of `count` departures. Returns `None` if their cause has no subscriber.
    ///
    /// This is a separate step from [`record`](Self::record) because cloning a key may panic. All clones are made
    /// before the members are removed; after that, nothing panics, so that no removal is left without its event.
    #[inline]
    pub(super) fn prepare_departures<S>(
        &mut self,
        count: usize,
        cause: Cause,
        set_key: S,
    ) -> Option<Cause>
    where
        S: SetKey<T, Key = K, Value = V>,
    {
        let event_cause = self.journal.has_subscriber(cause).then_some(cause)?;
        // Into the drop queue, so that keys that are not used, for example after a panic, are dropped after unlock.
        set_key.clone_for_events(count, &mut self.drop_queue.keys);
        Some(event_cause)
    }

    /// Records departures that were prepared by [`prepare_departures`](Self::prepare_departures).
    pub(super) fn record<S>(
        &mut self,
        cause: Cause,
        departed: impl IntoIterator<Item = (Deadline, T)>,
    ) where
        S: SetKey<T, Key = K, Value = V>,
    {
        let departure = |(deadline, member)| {
            let (key, value) = S::event(&mut self.drop_queue.keys, member);
            Departure { key, value, cause, deadline, at: self.now, waiters: None }
        };
        let mut departures = departed.into_iter().map(departure).collect();
        self.journal.record_all(self.shard, cause, &mut departures);
        // The journal leaves them in `departures` if the last subscriber has unsubscribed since `prepare_departures`.
        self.drop_queue.departures.append(&mut departures);
    }
}

impl<K, V, T> UnusedValues<K, V, T> {
    pub(super) fn new() -> Self {
        Self { members: Drained::default(), departures: Vec::new(), keys: Vec::new() }
    }

    /// Drops the values one by one and returns the number of drops that panicked.
    #[inline]
    pub(super) fn drop_all(self) -> usize {
        self.members.drop_all() + drop_all(self.departures) + drop_all(self.keys)
    }
}

impl<K: Clone, T> SetKey<T> for &K {
    type Key = K;
    type Value = T;

    fn clone_for_events(self, count: usize, keys: &mut Vec<K>) {
        keys.extend(repeat_with(|| self.clone()).take(count));
    }

    fn event(keys: &mut Vec<K>, member: T) -> (K, T) {
        (keys.pop().expect("one key was cloned per event"), member)
    }
}

impl<T> SetKey<T> for Unkeyed {
    type Key = T;
    type Value = ();

    #[inline]
    fn clone_for_events(self, _: usize, _: &mut Vec<T>) {}

    #[inline]
    fn event(_: &mut Vec<T>, member: T) -> (T, ()) {
        (member, ())
    }
}
