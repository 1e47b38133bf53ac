//! Changes of live entries in place: their values, which may become too heavy, or only their deadlines.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

use equivalent::Equivalent;

use super::{Location, Store};
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::Cause,
    shard::{Shard, remove::DropQueue},
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns a clone of the live value and sets its deadline. Expires the entry if its deadline has passed.
    pub(crate) fn get_ex<Q>(
        &self,
        key: &Q,
        now: &impl Now,
        deadline: impl FnOnce(&V) -> Deadline,
    ) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        // In this order: if the clone or `deadline` panics, no value has to be dropped under the lock.
        let found = self.update(key, now, |value: &V, _| {
            let deadline = deadline(value);
            (value.clone(), Some(deadline))
        });
        self.reads.count(found.is_some());
        found
    }

    /// Calls `change` with the live value under its shard's lock, and then the weigher if there is one. Counts as a
    /// write. Expires the entry if its deadline has passed.
    ///
    /// If `change` panics, the value stays as it left it, and its weight counts. If the weigher panics, the weight is
    /// unknown, and the entry is removed.
    pub(crate) fn change<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location = self.locate(key);
        let (mut locked, bucket) = self.lock_live(location, key, now)?;
        locked.bump_write_version(location.hash, key);
        let entry = locked.entry_at_mut(bucket);
        let changed = catch_unwind(AssertUnwindSafe(|| change(&mut entry.value)));
        let weighed = self.weigh_changed(locked, (location, bucket), now);
        match changed.and_then(|changed| weighed.map(|()| changed)) {
            Ok(changed) => Some(changed),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Calls `change` with the live value and its hard deadline, under its shard's lock. `change` may return a new
    /// deadline, but not change the value's weight. Does not count as a write, but a new deadline is also that of a
    /// value that is being loaded. Expires the entry if its deadline has passed.
    #[inline]
    pub(crate) fn update<Q, R>(
        &self,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&V, Deadline) -> (R, Option<Deadline>),
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let location = self.locate(key);
        let (mut locked, bucket) = self.lock_live(location, key, now)?;
        let (_, entry) = locked.entry_at(bucket).expect("the found bucket is full");
        let (changed, deadline) = change(&entry.value, locked.hard_deadline(bucket, entry));
        locked.touch(bucket);
        // Without a new deadline the old one stays: in contrast to a read, an update does not extend an idle deadline.
        if let Some(deadline) = deadline {
            let deadline = locked.note_expiry(bucket, deadline, now);
            locked.set_deadlines(bucket, self.deadline_after_write(deadline, now), deadline);
            if let Some(flight) = locked.flight(location.hash, key) {
                flight.set_deadline(deadline);
            }
        }
        Some(changed)
    }

    /// Locks the shard of a key with a live value, and returns its bucket. Expires the entry if its deadline has
    /// passed.
    #[inline]
    fn lock_live<Q>(
        &self,
        location: Location,
        key: &Q,
        now: &impl Now,
    ) -> Option<(Shard<'_, K, V, S>, usize)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let locked = self.lock_key(location, key, now);
        let (bucket, entry) = locked.find_shared(location.hash, key)?;
        let deadline = entry.deadline();
        if !now.is_expired(deadline) {
            return Some((locked, bucket));
        }
        if self.is_past_stale_window(deadline, now) {
            self.expire_found(locked, bucket, now);
        }
        None
    }

    /// Records the weight of a value that was changed in place, evicts as much as it grew beyond the bound, and unlocks
    /// the shard. Returns the panic of the weigher, if it panics.
    fn weigh_changed(
        &self,
        mut locked: Shard<'_, K, V, S>,
        changed @ (_, bucket): (Location, usize),
        now: &impl Now,
    ) -> thread::Result<()> {
        let Some(room) = self.make_room() else { return Ok(()) };
        let (key, entry) = locked.entry_at(bucket).expect("the found bucket is full");
        let weight = catch_unwind(AssertUnwindSafe(|| room.bound.weigh(key, &entry.value)));
        let mut drop_queue = DropQueue::new();
        match weight {
            Ok(weight) if !room.bound.is_too_heavy(weight) => {
                let to_evict = locked.update_weight(bucket, weight);
                room.after_write(locked, changed, to_evict, now, &mut drop_queue);
            }
            _ => {
                locked.remove(bucket, Cause::Evicted, now, &mut drop_queue);
                drop(locked);
            }
        }
        drop_queue.drop_all();
        weight.map(drop)
    }
}
