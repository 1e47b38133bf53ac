//! What puts values into a store where entries make room for each other.
//!
//! Who leaves does so before the new one comes, under the same lock, so that nothing is seen above the bound where the
//! shard has enough to give.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{
    Beside, Location, Store,
    bound::Bound,
    counters::bump,
    entry::{Cause, Entry},
    evict::Gone,
    tags::TagSet,
    window::{self, Locked},
    write::{Decision, Written, tell},
};
use crate::engine::clock::{Deadline, Now};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// See [`Store::decide`].
    pub(super) fn decide_bounded(
        &self,
        bound: &Bound<K, V>,
        key: K,
        weight: Option<u32>,
        tags: Option<TagSet>,
        now: &impl Now,
        decide: impl FnOnce(Option<(&V, Deadline)>) -> Decision<V>,
    ) -> Written<V>
    where
        V: Clone,
    {
        let place @ Location { hash, index } = self.place(&key);
        self.free_dead(bound, u64::from(weight.unwrap_or(1)), now);
        self.let_removed_leave(place, &key, now);
        // Out here, so that it is dropped after the lock where something of the user's panics.
        let (value, own);
        let (mut gone, mut replaced) = (Gone::new(), None);
        let mut locked = self.write(place, |k, _| *k == key);
        let mut kept = None;
        let (table, beside) = locked.parts();
        let found = window::find(table, hash, |k| *k == key);
        let (mut dead, mut live) = (None, None);
        if let Some((bucket, entry)) = found {
            if now.is_dead(entry.deadline()) {
                dead = Some(bucket);
            } else {
                kept = Some((bucket, entry.deadline()));
                let own = beside.kept.own(bucket);
                live = Some((&entry.value, own.unwrap_or_else(|| entry.deadline())));
            }
        }
        match decide(live) {
            Decision::Put(new, until) => (value, own) = (new, until),
            Decision::Remove => {
                beside.overtake(hash, &key);
                let Some(bucket) = dead.or(kept.map(|(bucket, _)| bucket)) else {
                    // Unlocked by hand: `key` is dropped at the end of this call.
                    drop(locked);
                    return Written::Left;
                };
                let removed = self.remove_found(locked, index, bucket, now, Cause::Removed);
                return Written::Removed(removed);
            }
            Decision::Leave => {
                drop(locked);
                return Written::Left;
            }
        }
        let weight = weight.unwrap_or_else(|| bound.weigh(&key, &value));
        let is_too_heavy = u64::from(weight) > bound.limit();
        beside.overtake(hash, &key);
        let comers = beside.comers(hash);
        if let Some(bucket) = dead {
            let (key, old) = self.take_out(&mut locked, bucket);
            self.depart(&mut locked, key, old, Cause::Expired, now, &mut gone);
        }
        let fresh = self.until(own, now);
        if let Some((bucket, deadline)) = kept {
            let (table, beside) = locked.parts();
            let (_, entry) = window::find(table, hash, |k| *k == key).expect("it was just found");
            // Cloned first: a clone that panics then changes nothing.
            let copy = || Entry::new(entry.value.clone(), deadline);
            let hears = self.journal.wants(Cause::Replaced) || beside.has_leavers(hash, &key);
            let copy = hears.then(copy);
            let more = weight.saturating_sub(beside.kept.weight(bucket));
            let stays =
                !is_too_heavy && (bound.excess_of(u64::from(more)) == 0 || !now.is_dead(fresh));
            if stays {
                let old = entry.replace(value, fresh);
                self.note(beside, index, bucket, fresh);
                self.written(beside, bucket, own, tags);
                self.replaced(&mut locked, copy, key, now, &mut gone);
                self.weigh_anew(bound, locked, place, bucket, weight, now, gone);
                tell(comers);
                return Written::Put { replaced: Some(old.value), stays: true };
            }
            let (kept_key, old) = self.take_out(&mut locked, bucket);
            self.replaced(&mut locked, copy, kept_key, now, &mut gone);
            replaced = Some(old.value);
        }
        let entry = Entry::new(value, fresh);
        let excess = bound.excess_of(u64::from(weight));
        let leaves_at_once = match () {
            () if is_too_heavy => Some(Cause::Evicted),
            // Nobody living makes room for the dead.
            () if excess > 0 && now.is_dead(entry.deadline()) => Some(Cause::Expired),
            () => None,
        };
        if let Some(cause) = leaves_at_once {
            self.depart(&mut locked, key, entry, cause, now, &mut gone);
            drop(locked);
            gone.drop_all();
            return Written::Put { replaced, stays: false };
        }
        let freed = match excess {
            0 => 0,
            // They leave first: see `pay`.
            _ if bound.may_be_dead(now) => 0,
            _ => self.evict(&mut locked, index, excess, None, now, &mut gone),
        };
        let bucket = self.insert(&mut locked, place, key, entry);
        let (table, beside) = locked.parts();
        let len = table.len();
        if let Some(room) = &mut beside.kept.room {
            room.put(bucket, hash, weight, len);
        }
        self.written(beside, bucket, own, tags);
        let owed = bound.exchange(u64::from(weight), freed);
        self.pay(bound, locked, place, bucket, owed, now, gone);
        tell(comers);
        Written::Put { replaced, stays: true }
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
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let place @ Location { hash, index } = self.place(key);
        self.let_removed_leave(place, key, now);
        let mut locked = self.write(place, |k, _| key.equivalent(k));
        let (table, beside) = locked.parts();
        let (bucket, entry) = window::find(table, hash, |k| key.equivalent(k))?;
        if now.is_dead(entry.deadline()) {
            if self.is_over(entry.deadline(), now) {
                self.expire_found(locked, index, bucket, now);
            }
            return None;
        }
        beside.overtake(hash, key);
        let changed = change(&mut entry.value);
        let entry = window::entry_at(locked.parts().0, bucket);
        let (key, entry) = entry.expect("what was just found is there");
        let weight = bound.weigh(key, &entry.value);
        let mut gone = Gone::new();
        if u64::from(weight) > bound.limit() {
            let (key, entry) = self.take_out(&mut locked, bucket);
            self.depart(&mut locked, key, entry, Cause::Evicted, now, &mut gone);
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
        locked: &mut Locked<'_, K, V, Beside<K, V>>,
        copy: Option<Entry<V>>,
        key: K,
        now: &impl Now,
        gone: &mut Gone<K, V>,
    ) {
        match copy {
            Some(copy) => self.depart(locked, key, copy, Cause::Replaced, now, gone),
            None => {
                bump(&self.notes[locked.index()].departures.replaced, 1);
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
        if let Some(room) = &mut locked.parts().1.kept.room {
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
