//! One change under the lock of a shard: which scores are dead in it, what it tells of, and what is dropped
//! once the lock is open again.

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

/// One change, under a lock.
pub(super) struct Change<'a, K, V, T> {
    /// Read once, under the lock: what is dead for one part of a change is dead for all of it.
    pub(super) now: Tick,
    pub(super) ttl: Duration,
    pub(super) shard: usize,
    pub(super) journal: &'a Journal<K, V>,
    pub(super) garbage: &'a mut Garbage<K, V, T>,
    /// How many members' time was over.
    #[cfg(feature = "metrics")]
    pub(super) expired: u64,
}

/// What a change has no more use for. The caller makes it before the lock and drops it after, as the drop of
/// keys and members is the user's code: it may call the set, or panic.
pub(super) struct Garbage<K, V, T> {
    /// Members of which nobody wants to hear.
    pub(super) members: Drained<Tick, T>,
    /// Events that were recorded and that nobody took over.
    pub(super) departures: Vec<Departure<K, V>>,
    /// Keys of sets that are gone, and clones of keys for events that are still to be recorded.
    pub(super) keys: Vec<K>,
}

/// The key of a set, and how it is told in the events of its members: `&K` in `ExpiringSets`, and
/// [`Unkeyed`] in an `ExpiringSet`.
pub(super) trait SetKey<T>: Copy {
    /// Of the events.
    type Key;
    type Value;

    /// Clones what `count` events need. That is the user's code, and may panic.
    fn clone_for_events(self, count: usize, keys: &mut Vec<Self::Key>);

    /// The key and the value of one event, of a member and what was cloned. Calls nothing of the user's.
    fn event(keys: &mut Vec<Self::Key>, member: T) -> (Self::Key, Self::Value);
}

/// Of a set that has no key: the members are the keys of its events.
#[derive(Clone, Copy)]
pub(super) struct Unkeyed;

impl<K, V, T> Change<'_, K, V, T> {
    /// Whether what has this score is dead.
    #[inline]
    pub(super) fn is_dead(&self, score: Tick) -> bool {
        score.after(self.ttl).is_dead(self.now)
    }

    #[inline]
    #[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
    pub(super) fn count_expired(&mut self, members: usize) {
        #[cfg(feature = "metrics")]
        {
            self.expired += members as u64;
        }
    }

    /// Makes ready to record `count` departures; `None` where nobody wants to hear of their cause.
    ///
    /// Apart from [`record`](Self::record), as clones may panic: first comes this, then the members are taken
    /// out, and from then on nothing panics that would let a departure go untold.
    #[inline]
    pub(super) fn prepare<S>(&mut self, count: usize, cause: Cause, set_key: S) -> Option<Cause>
    where
        S: SetKey<T, Key = K, Value = V>,
    {
        let wanted = self.journal.has_subscriber(cause).then_some(cause)?;
        set_key.clone_for_events(count, &mut self.garbage.keys);
        Some(wanted)
    }

    /// Records departures, for which it was made ready.
    pub(super) fn record<S>(
        &mut self,
        cause: Cause,
        departed: impl IntoIterator<Item = (Deadline, T)>,
    ) where
        S: SetKey<T, Key = K, Value = V>,
    {
        let departure = |(deadline, member)| {
            let (key, value) = S::event(&mut self.garbage.keys, member);
            Departure { key, value, cause, deadline, at: self.now, waiters: None }
        };
        let mut departures = departed.into_iter().map(departure).collect();
        self.journal.record_all(self.shard, cause, &mut departures);
        // The journal leaves them here where the last subscriber has gone since `prepare`.
        self.garbage.departures.append(&mut departures);
    }
}

impl<K, V, T> Garbage<K, V, T> {
    pub(super) fn new() -> Self {
        Self { members: Drained::default(), departures: Vec::new(), keys: Vec::new() }
    }

    /// Drops all, one by one; tells how many panicked.
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
        (keys.pop().expect("there is one for each event"), member)
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
