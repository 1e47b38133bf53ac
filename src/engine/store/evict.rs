//! Making room: who leaves so that what is written is within the bound.
//!
//! 1. Who needs room first lets what is dead leave, in whichever shard: [`Store::free_dead`].
//! 2. Then the living leave, of the shard that is written to and under its lock; those of other shards only where that
//!    has too few. No two shards are locked at once.

use std::hash::{BuildHasher, Hash};

use super::{
    Location, ShardState, Store,
    bound::{self, Bound, Weigher},
    counters::bump,
    entry::{Cause, Departure, Entry},
    eviction_state::EvictionState,
    policy::Policy,
    window::{self, ShardWriteGuard, WINDOW},
};
use crate::engine::{
    clock::Now,
    panics,
    sync::atomic::{
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

/// How many entries leave under one lock at most, beyond a share of the shard.
const MAX_EVICTIONS_PER_LOCK: usize = 32;

/// What has left, to be dropped after the lock. Mostly that is one entry, and nothing is allocated.
pub(super) struct DropQueue<K, V> {
    first: Option<(K, V)>,
    more: Vec<(K, V)>,
    /// The caller's, of an entry that was there.
    key: Option<K>,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// What is in it never weighs more than `limit`; entries leave for others. The same seed and the same calls lead
    /// to the same evictions.
    pub(crate) fn evicting(
        mut self,
        limit: u64,
        weigher: Option<Weigher<K, V>>,
        mut seed: impl FnMut() -> u64,
    ) -> Self {
        let first = Policy::new(seed());
        for index in 0..self.shard_count() {
            let policy = first.for_another_shard(seed());
            let mut locked = self.shards.write(index);
            let (table, state) = locked.parts();
            let eviction = EvictionState::new(policy, weigher.is_some(), table.buckets());
            state.side_tables.eviction = Some(Box::new(eviction));
        }
        self.bound = Some(Box::new(Bound::new(limit, weigher, true)));
        self
    }

    /// What all entries weigh: each 1, where no weigher says otherwise.
    pub(crate) fn weight(&self) -> u64 {
        match &self.bound {
            Some(bound) => bound.used(),
            None => self.len() as u64,
        }
    }

    /// What a new entry weighs, where entries make room for each other.
    #[inline]
    pub(crate) fn weigh(&self, key: &K, value: &V) -> Option<u32> {
        self.evicting_bound().map(|bound| bound.weigh(key, value))
    }

    /// Whether a weigher says what entries weigh, where they make room for each other.
    pub(crate) fn has_weigher(&self) -> Option<bool> {
        self.evicting_bound().map(Bound::has_weigher)
    }

    /// From now on no more than `limit`; who calls this has to [`evict_some`](Self::evict_some).
    pub(crate) fn set_limit(&self, limit: u64) {
        if let Some(bound) = &self.bound {
            bound.set_limit(limit);
        }
    }

    /// Lets some of what is too much leave, in the next shard. Tells how much there then is too much.
    pub(crate) fn evict_some(&self, now: &impl Now) -> u64 {
        let Some(bound) = &self.bound else { return 0 };
        self.expire_to_fit(bound, 0, now);
        let excess = bound.excess();
        if excess > 0 {
            let index = bound.next_shard(self.shard_count());
            let mut drop_queue = DropQueue::new();
            let mut locked = self.shards.write(index);
            bound.release(self.evict(&mut locked, index, excess, None, now, &mut drop_queue));
            drop(locked);
            drop_queue.drop_all();
        }
        bound.excess()
    }

    /// The bound within which entries make room for each other, if there is one.
    #[inline]
    pub(super) fn evicting_bound(&self) -> Option<&Bound<K, V>> {
        self.bound.as_deref().filter(|bound| bound.evicts)
    }

    /// Lets what is dead leave, where `weight` more would be too much: window by window of any shard, as long as it is
    /// too much. What it costs was put off when windows came to be looked at too early, one look for each such write.
    pub(super) fn expire_to_fit(&self, bound: &Bound<K, V>, weight: u64, now: &impl Now) {
        while bound.used().saturating_add(weight) > bound.limit() && bound.may_have_expired(now) {
            bound.earliest_expiry.store(u64::MAX, Relaxed);
            // Either we see what a writer notes, or it sees that this is to be sooner.
            fence(SeqCst);
            let mut earliest = u64::MAX;
            for shard in 0..self.shard_count() {
                let found = match self.is_due(shard, now) {
                    true => self.expire_window(bound, shard, now),
                    false => Some(self.meta[shard].earliest_expiry.load(Relaxed)),
                };
                // What is behind it was not looked at.
                earliest = earliest.min(found.unwrap_or(0));
                if found.is_none() {
                    break;
                }
            }
            bound.earliest_expiry.fetch_min(earliest, SeqCst);
        }
    }

    /// Lets the dead of one window leave. Where the shard holds none, tells before when nothing in it dies: exactly,
    /// as what its index says may have come while the deadline has not.
    fn expire_window(&self, bound: &Bound<K, V>, shard: usize, now: &impl Now) -> Option<u64> {
        let mut expired = Vec::new();
        let mut locked = self.shards.write(shard);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, shard);
            drop(locked);
            drop(emptied);
            return None;
        }
        let now = now.tick();
        let (table, ShardState { index, side_tables, waiters, .. }) = locked.parts();
        let buckets = table.buckets();
        let (mut freed, mut next, mut removed) = (0, 0, 0);
        index.rebase(self.stale_cutoff(now));
        let mut nothing_before = index.next_moment(now);
        while expired.is_empty() && next < buckets {
            let Some(start) = index.next_due(next, buckets, now) else { break };
            let taken = |bucket, key, entry: Entry<V>| {
                // By a tag, while it lived.
                let is_removed = side_tables.is_removed(bucket, entry.deadline());
                removed += u64::from(is_removed);
                freed += side_tables.departed(bucket);
                let cause = if is_removed { Cause::Removed } else { Cause::Expired };
                let mut departure = entry.depart(key, cause, now);
                if let Some(waiters) = waiters {
                    departure.waiters = waiters
                        .take_departure_waiters(&departure.key, |key| self.hash_or_zero(key));
                }
                expired.push(departure);
            };
            let window = start..buckets.min(start + WINDOW);
            next = window.end;
            let (_, _, earliest) = window::take_expired(table, window, usize::MAX, now, taken);
            index.set_window(start, earliest);
            nothing_before = nothing_before.min(earliest.order());
        }
        let found = !expired.is_empty();
        self.meta[shard].earliest_expiry.store(index.recompute_earliest().order(), Relaxed);
        let departures = &self.meta[shard].departures;
        bump(&departures.expired, expired.len() as u64 - removed);
        bump(&departures.removed, removed);
        match removed {
            0 => self.journal.record_all(shard, Cause::Expired, &mut expired),
            _ => self.journal.record_subscribed(shard, &mut expired),
        }
        bound.release(freed);
        drop(locked);
        panics::drop_all(expired);
        (!found).then_some(nothing_before)
    }

    /// Whether something in this shard may be dead.
    #[inline]
    fn is_due(&self, shard: usize, now: &impl Now) -> bool {
        bound::is_due(self.meta[shard].earliest_expiry.load(Relaxed), now)
    }

    /// Lets entries of a locked shard leave until they make room for `wanted`, or a share of it has left. Tells for how
    /// much there is room.
    pub(super) fn evict(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        shard: usize,
        weight_to_free: u64,
        exempt: Option<usize>,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        let (mut freed, mut count) = (0, 0);
        let max_evictions = MAX_EVICTIONS_PER_LOCK.min(1 + locked.len() / 8);
        while freed < weight_to_free && count < max_evictions {
            let (may_have_expired, may_have_tag_removals) =
                (self.is_due(shard, now), self.has_tag_removals());
            let (table, state) = locked.parts();
            let Some((eviction, tags)) = state.side_tables.eviction_and_tags() else { break };
            // Nobody finds it any more.
            let is_unreadable = |bucket| {
                window::entry_at(table, bucket).is_some_and(|(_, entry)| {
                    let deadline = entry.deadline();
                    may_have_expired && now.is_dead(deadline)
                        || may_have_tag_removals
                            && tags.is_some_and(|tags| tags.is_removed(bucket, deadline))
                })
            };
            let Some(bucket) = eviction.choose_victim(
                exempt,
                may_have_expired || may_have_tag_removals,
                is_unreadable,
            ) else {
                if state.old.is_none() {
                    break;
                }
                // Who could leave has not come to this table yet.
                let (_, emptied) = self.move_windows(locked, shard);
                debug_assert!(emptied.is_none_or(|table| table.is_empty()), "all have moved");
                continue;
            };
            let len = table.len();
            let (key, entry) = window::take_at(table, bucket);
            let is_dead = may_have_expired && now.is_dead(entry.deadline());
            let is_removed =
                may_have_tag_removals && state.side_tables.is_removed(bucket, entry.deadline());
            freed += match is_dead || is_removed {
                true => state.side_tables.departed(bucket),
                false => state.side_tables.evicted(bucket, self.hash_or_zero(&key), len - 1),
            };
            let cause = match () {
                () if is_removed => Cause::Removed,
                () if is_dead => Cause::Expired,
                () => Cause::Evicted,
            };
            self.depart(locked, key, entry, cause, now, drop_queue);
            // The dead weigh nothing, at times, and are in nobody's way.
            count += usize::from(!is_dead && !is_removed);
        }
        freed
    }

    /// Lets entries of any shard leave until they make room for `to_evict`, or nothing is too much any more; never that of
    /// the key at `exempt`, which was just written.
    #[cold]
    pub(super) fn evict_from_any_shard(
        &self,
        bound: &Bound<K, V>,
        mut to_evict: u64,
        exempt: Location,
        now: &impl Now,
    ) {
        let shards = self.shard_count();
        let first = bound.next_shard(shards);
        // Those that are locked come in the next round. In the end all is empty, or others make the room that they owe.
        let mut blocks = false;
        loop {
            let mut found = false;
            for step in 0..shards {
                if to_evict == 0 || bound.excess() == 0 {
                    return;
                }
                let index = (first + step) % shards;
                let locked = match blocks {
                    true => Some(self.shards.write(index)),
                    false => self.shards.try_write(index),
                };
                let Some(mut locked) = locked else { continue };
                let exempt = match index == exempt.shard() {
                    true => {
                        let matches =
                            |key: &K, _: &Entry<V>| self.hash_or_zero(key) == exempt.hash();
                        let found = window::find_where(locked.parts().0, exempt.hash(), matches);
                        found.map(|(bucket, _)| bucket)
                    }
                    false => None,
                };
                let mut drop_queue = DropQueue::new();
                let freed = self.evict(&mut locked, index, to_evict, exempt, now, &mut drop_queue);
                bound.release(freed);
                drop(locked);
                drop_queue.drop_all();
                to_evict = to_evict.saturating_sub(freed);
                found |= freed > 0;
            }
            if blocks && !found {
                return;
            }
            blocks = !found;
        }
    }

    /// Counts and records that an entry has left its shard, which is locked.
    pub(super) fn depart(
        &self,
        locked: &mut ShardWriteGuard<'_, K, V, ShardState<K, V>>,
        key: K,
        entry: Entry<V>,
        cause: Cause,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) {
        let shard = locked.index();
        let departures = &self.meta[shard].departures;
        let count = match cause {
            Cause::Expired => &departures.expired,
            Cause::Evicted => &departures.evicted,
            Cause::Removed => &departures.removed,
            Cause::Replaced => &departures.replaced,
        };
        bump(count, 1);
        // Not where nobody wants to hear of it: the time would have to be asked.
        match self.journal.has_subscriber(cause) || locked.state().waiters.is_some() {
            true => {
                let mut departure = entry.depart(key, cause, now.tick());
                self.attach_waiters(locked.parts().1, &mut departure);
                drop_queue.push_departure(self.journal.record(shard, departure));
            }
            false => drop_queue.push(key, entry.value),
        }
    }
}

impl<K, V> DropQueue<K, V> {
    pub(super) fn new() -> Self {
        Self { first: None, more: Vec::new(), key: None }
    }

    /// Room for so many, made before the lock.
    pub(super) fn reserve(&mut self, count: usize) {
        self.more.reserve(count.saturating_sub(1));
    }

    pub(super) fn push(&mut self, key: K, value: V) {
        match self.first {
            None => self.first = Some((key, value)),
            Some(_) => self.more.push((key, value)),
        }
    }

    pub(super) fn push_departure(&mut self, departure: Option<Departure<K, V>>) {
        if let Some(Departure { key, value, .. }) = departure {
            self.push(key, value);
        }
    }

    pub(super) fn push_key(&mut self, key: K) {
        self.key = Some(key);
    }

    /// One by one: what panics of one that made room is no business of who needed it.
    pub(super) fn drop_all(mut self) {
        self.drop_entries();
        drop(self.key);
    }

    /// As [`drop_all`](Self::drop_all), of what has an entry; what comes then finds its room.
    pub(super) fn drop_entries(&mut self) {
        panics::drop_all(self.first.take());
        panics::drop_all(self.more.drain(..));
    }
}
