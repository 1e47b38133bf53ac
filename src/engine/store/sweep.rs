//! Looking for what is dead, window by window.

use std::hash::{BuildHasher, Hash};

use super::{
    Cause, Departure, Entry, Store, bump,
    window::{self, WINDOW},
};
use crate::engine::{clock::Tick, sync::atomic::Ordering::Relaxed};

/// What a pass still has to look at in one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPass {
    pub(crate) shard: usize,
    /// Buckets; `None` until the first window knows how many there are.
    left: Option<usize>,
}

/// What one window saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowReport {
    pub(crate) looked_at: usize,
    pub(crate) expired: usize,
    /// Something dead stays because there was no room for it.
    pub(crate) held_back: bool,
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// A look at `share` of a shard, to be taken window by window.
    pub(crate) fn visit(shard: usize) -> ShardPass {
        ShardPass { shard, left: None }
    }

    /// Looks at the next window of a visit and takes out what is dead, at most `room`: to the journal
    /// where somebody wants to hear of it, else to `dead`.
    ///
    /// `None` where the shard is locked and `wait` is false. [`ShardPass::is_done`] tells the end.
    pub(crate) fn sweep_window(
        &self,
        visit: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: Tick,
        room: usize,
        wait: bool,
        dead: &mut Vec<Departure<K, V>>,
    ) -> Option<WindowReport> {
        let lock = &self.map.shards()[visit.shard];
        let mut table = if wait { lock.write() } else { lock.try_write()? };
        let shard = &self.shards[visit.shard];
        if table.is_empty() {
            visit.left = Some(0);
            return Some(WindowReport::default());
        }
        let buckets = table.buckets();
        // After a move an entry may lie behind the cursor and not have been looked at: the whole shard is, once, so
        // that the bound on staleness holds for it too.
        if shard.moved.load(Relaxed) {
            shard.moved.store(false, Relaxed);
            shard.cursor.store(0, Relaxed);
            visit.left = Some(buckets);
        }
        let mut left = visit.left.unwrap_or_else(|| share(buckets).min(buckets));
        let mut start = shard.cursor.load(Relaxed);
        while left > 0
            && let Some(end) = shard.zones.pass_over(buckets, start, now)
        {
            left = left.saturating_sub(end - start);
            start = end % buckets;
        }
        // A window ends where the next begins, so that none lies in two zones.
        let end = buckets.min(start + left).min(start - start % WINDOW + WINDOW);
        let before = dead.len();
        let mut soonest = u64::MAX;
        let leaves = |entry: &Entry<V>| {
            let is_dead = entry.deadline.is_dead(now);
            soonest = if is_dead { soonest } else { soonest.min(entry.deadline.order()) };
            is_dead
        };
        let taken = |key, entry: Entry<V>| dead.push(entry.depart(key, Cause::Expired, now));
        let (looked_at, stop) = window::take(&mut table, start..end, room, leaves, taken);
        // Where nothing was looked at, nothing was learnt.
        if start < end {
            shard.zones.learn(buckets, start, soonest, stop == end);
        }
        let expired = dead.len() - before;
        shard.cursor.store(stop % buckets, Relaxed);
        visit.left = Some(left - (stop - start));
        // Under the lock, so that nobody can write a new value to one of these keys and be told of first.
        self.journal.record_all(visit.shard, Cause::Expired, dead);
        bump(&shard.counters.expired, expired as u64);
        self.give_room(expired);
        drop(table);
        Some(WindowReport { looked_at, expired, held_back: stop < end })
    }
}

impl ShardPass {
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0)
    }
}
