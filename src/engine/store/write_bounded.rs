//! What puts values into a store where entries make room for each other.
//!
//! Who leaves does so before the new one comes, under the same lock, so that nothing is seen above the bound where the
//! shard has enough to give.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use super::{
    Beside, Location, Store,
    bound::Bound,
    counters::bump,
    entry::{Cause, Entry},
    evict::{self, Gone},
    window::{self, Locked},
};
use crate::engine::clock::{Deadline, Now};

/// What [`Store::write_bounded`] may do where a live value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfLive {
    Replace,
    Leave,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Puts `value` at `key`; its deadline follows from that of the live value there, if any. Returns that value where
    /// it was replaced; or nothing at all where it was to be left.
    pub(super) fn write_bounded(
        &self,
        bound: &Bound<K, V>,
        key: K,
        value: V,
        now: &impl Now,
        deadline: impl FnOnce(Option<Deadline>) -> Deadline,
        if_live: IfLive,
    ) -> Option<Option<V>>
    where
        V: Clone,
    {
        // Before any lock: it is the user's.
        let weight = bound.weigh(&key, &value);
        let place @ Location { hash, index } = self.place(&key);
        self.free_dead(bound, u64::from(weight), now);
        let mut gone = Gone::new();
        let mut locked = self.write(place, |k, _| *k == key);
        let is_too_heavy = u64::from(weight) > bound.limit();
        let (mut replaced, mut kept) = (None, None);
        let found = window::find(locked.parts().0, hash, |k| *k == key);
        if let Some((bucket, Entry { deadline: old, .. })) = found {
            if now.is_dead(*old) {
                let (key, old) = self.take_out(&mut locked, bucket);
                self.depart(index, key, old, Cause::Expired, now, &mut gone);
            } else if if_live == IfLive::Leave {
                // Unlocked by hand: `key` and `value` are dropped at the end of this call.
                drop(locked);
                return None;
            } else {
                kept = Some((bucket, *old));
            }
        }
        let fresh = deadline(kept.map(|(_, deadline)| deadline));
        if let Some((bucket, deadline)) = kept {
            let (table, beside) = locked.parts();
            let (_, entry) = window::find(table, hash, |k| *k == key).expect("it was just found");
            // Cloned first: a clone that panics then changes nothing.
            let copy = || Entry::new(entry.value.clone(), deadline);
            let copy = self.journal.wants(Cause::Replaced).then(copy);
            let more = weight.saturating_sub(evict::weight(&beside.room, bucket));
            let stays =
                !is_too_heavy && (bound.excess_of(u64::from(more)) == 0 || !now.is_dead(fresh));
            if stays {
                let old = entry.replace(value, fresh);
                self.note(beside, index, bucket, fresh);
                self.replaced(index, copy, key, now, &mut gone);
                self.weigh_anew(bound, locked, place, bucket, weight, now, gone);
                return Some(Some(old.value));
            }
            let (kept_key, old) = self.take_out(&mut locked, bucket);
            self.replaced(index, copy, kept_key, now, &mut gone);
            replaced = Some(old.value);
        }
        let entry = Entry::new(value, fresh);
        let excess = bound.excess_of(u64::from(weight));
        let leaves_at_once = match () {
            () if is_too_heavy => Some(Cause::Evicted),
            // Nobody living makes room for the dead.
            () if excess > 0 && now.is_dead(entry.deadline) => Some(Cause::Expired),
            () => None,
        };
        if let Some(cause) = leaves_at_once {
            self.depart(index, key, entry, cause, now, &mut gone);
            drop(locked);
            gone.drop_all();
            return Some(replaced);
        }
        let freed = match excess {
            0 => 0,
            _ => self.evict(&mut locked, index, excess, None, now, &mut gone),
        };
        let bucket = self.insert(&mut locked, place, key, entry);
        let (table, beside) = locked.parts();
        let len = table.len();
        if let Some(room) = &mut beside.room {
            room.put(bucket, hash, weight, len);
        }
        let owed = bound.exchange(u64::from(weight), freed);
        self.pay(bound, locked, place, bucket, owed, now, gone);
        Some(replaced)
    }

    /// Calls `change` with the live value, under its shard's lock, and weighs it again there. A dead one is expired on
    /// the way.
    pub(super) fn change_bounded<Q, R>(
        &self,
        bound: &Bound<K, V>,
        key: &Q,
        now: &impl Now,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place @ Location { hash, index } = self.place(key);
        let mut locked = self.write(place, |k, _| k.borrow() == key);
        let (bucket, entry) = window::find(locked.parts().0, hash, |k| k.borrow() == key)?;
        if now.is_dead(entry.deadline) {
            self.expire_found(locked, index, bucket, now);
            return None;
        }
        let changed = change(&mut entry.value);
        let entry = window::entry_at(locked.parts().0, bucket);
        let (key, entry) = entry.expect("what was just found is there");
        let weight = bound.weigh(key, &entry.value);
        let mut gone = Gone::new();
        if u64::from(weight) > bound.limit() {
            let (key, entry) = self.take_out(&mut locked, bucket);
            self.depart(index, key, entry, Cause::Evicted, now, &mut gone);
            drop(locked);
            gone.drop_all();
        } else {
            self.weigh_anew(bound, locked, place, bucket, weight, now, gone);
        }
        Some(changed)
    }

    /// Counts, and records where somebody wants to hear of it, that a value was replaced.
    fn replaced(
        &self,
        shard: usize,
        copy: Option<Entry<V>>,
        key: K,
        now: &impl Now,
        gone: &mut Gone<K, V>,
    ) {
        match copy {
            Some(copy) => self.depart(shard, key, copy, Cause::Replaced, now, gone),
            None => {
                bump(&self.notes[shard].departures.replaced, 1);
                gone.keep_key(key);
            }
        }
    }

    /// What is in this bucket was written over.
    #[allow(clippy::too_many_arguments)]
    fn weigh_anew(
        &self,
        bound: &Bound<K, V>,
        mut locked: Locked<'_, K, V, Beside<K, V>>,
        place: Location,
        bucket: usize,
        weight: u32,
        now: &impl Now,
        gone: Gone<K, V>,
    ) {
        let mut owed = 0;
        if let Some(room) = &mut locked.parts().1.room {
            room.touch(bucket);
            if bound.has_weigher() {
                owed = bound.exchange(u64::from(weight), room.weigh(bucket, weight));
            }
        }
        self.pay(bound, locked, place, bucket, owed, now, gone);
    }

    /// Lets others leave for what was just written to this bucket, first of the same shard, and unlocks it.
    #[allow(clippy::too_many_arguments)]
    fn pay(
        &self,
        bound: &Bound<K, V>,
        mut locked: Locked<'_, K, V, Beside<K, V>>,
        place: Location,
        bucket: usize,
        mut owed: u64,
        now: &impl Now,
        mut gone: Gone<K, V>,
    ) {
        if owed > 0 && !bound.may_be_dead(now) {
            let spared = Some(bucket);
            let freed = self.evict(&mut locked, place.shard(), owed, spared, now, &mut gone);
            bound.free(freed);
            owed = owed.saturating_sub(freed);
        }
        drop(locked);
        if owed > 0 {
            self.free_dead(bound, 0, now);
            self.evict_elsewhere(bound, owed, place, now);
        }
        gone.drop_all();
    }
}
