//! Looking for what is dead, window by window.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{
    Beside, Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    window::{self, Locked, WINDOW},
};
use crate::engine::{
    clock::{Deadline, Now},
    sync::atomic::Ordering::Relaxed,
};

/// How many windows are looked at under one lock: about 1 µs.
const WINDOWS_AT_ONCE: usize = 4;

/// What a pass still has to look at in one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPass {
    pub(crate) shard: usize,
    /// Buckets; `None` until the first look knows how many there are.
    left: Option<usize>,
}

/// What may be done where the shard is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Nothing: come back later.
    None,
    /// To try again for so long, and keep those out who come to read.
    Spin(Duration),
    /// To wait, as a writer does.
    Wait,
}

/// What one look saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowReport {
    pub(crate) looked_at: usize,
    pub(crate) expired: usize,
    /// To another table: nothing was looked at yet.
    pub(crate) moved: usize,
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

    /// Looks at the next windows of a visit in which something may be dead, and takes out what is, at most `room`: to
    /// the journal where somebody wants to hear of it, else to `dead`.
    ///
    /// `None` where the shard is locked, and stays so for longer than there is `patience`. [`ShardPass::is_done`]
    /// tells the end.
    pub(crate) fn sweep_windows(
        &self,
        visit: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: &impl Now,
        room: usize,
        patience: Patience,
        dead: &mut Vec<Departure<K, V>>,
    ) -> Option<WindowReport> {
        let shard = visit.shard;
        let locked = self.lock(shard, patience)?;
        self.shards.set_long(shard, true);
        let report = self.sweep_locked(locked, visit, share, now, room, dead);
        self.shards.set_long(shard, false);
        Some(report)
    }

    fn sweep_locked(
        &self,
        mut locked: Locked<'_, K, V, Beside<K, V>>,
        visit: &mut ShardPass,
        share: impl Fn(usize) -> usize,
        now: &impl Now,
        room: usize,
        dead: &mut Vec<Departure<K, V>>,
    ) -> WindowReport {
        if locked.beside().old.is_some() {
            let (moved, emptied) = self.move_some(&mut locked, visit.shard);
            drop(locked);
            drop(emptied);
            return WindowReport { moved, ..WindowReport::default() };
        }
        // Read under the lock, so that the stamps of a key never go back.
        let now = now.tick();
        let over = self.over_at(now);
        let (table, Beside { index, kept, asked, cursor, moved, .. }) = locked.parts();
        let buckets = table.buckets();
        if table.is_empty() {
            visit.left = Some(0);
            index.clear();
            self.notes[visit.shard].soonest.store(Deadline::PERSISTENT.order(), Relaxed);
            return WindowReport::default();
        }
        // After a move an entry may lie behind the cursor and not have been looked at: the whole shard is, once, so
        // that the bound on staleness holds for it too.
        if *moved {
            *moved = false;
            *cursor = 0;
            visit.left = Some(buckets);
        }
        // Whole windows, of the table as it is now.
        let left = visit.left.unwrap_or_else(|| share(buckets));
        let mut left = left.next_multiple_of(WINDOW).min(buckets);
        let mut report = WindowReport::default();
        let before = dead.len();
        index.rebase(over);
        let (mut windows, mut freed) = (0, 0);
        while left > 0 && windows < WINDOWS_AT_ONCE {
            let end = buckets.min(*cursor + left);
            let Some(start) = index.next_due(*cursor, end, over) else {
                left -= end - *cursor;
                *cursor = end % buckets;
                continue;
            };
            windows += 1;
            let room = room - (dead.len() - before);
            let taken = |bucket, key, entry: Entry<V>| {
                freed += kept.left(bucket);
                let mut departure = entry.depart(key, Cause::Expired, now);
                if let Some(asked) = asked {
                    departure.farewell = asked.farewell(&departure.key, |key| self.rehash(key));
                }
                dead.push(departure);
            };
            let end = buckets.min(start + WINDOW);
            let (looked_at, stop, soonest) =
                window::take_dead(table, start..end, room, over, taken);
            report.looked_at += looked_at;
            left -= start - *cursor;
            *cursor = start;
            if stop < end {
                index.stays_due(start);
                report.held_back = true;
                break;
            }
            index.learn(start, soonest);
            left -= end - start;
            *cursor = end % buckets;
        }
        if left == 0 {
            let soonest = index.learn_soonest();
            self.notes[visit.shard].soonest.store(soonest.order(), Relaxed);
        }
        visit.left = Some(left);
        report.expired = dead.len() - before;
        // Under the lock, so that nobody can write a new value to one of these keys and be told of first.
        self.journal.record_all(visit.shard, Cause::Expired, dead);
        bump(&self.notes[visit.shard].departures.expired, report.expired as u64);
        self.free(freed);
        report
    }

    fn lock(&self, shard: usize, patience: Patience) -> Option<Locked<'_, K, V, Beside<K, V>>> {
        match patience {
            Patience::None => self.shards.try_write(shard),
            Patience::Wait => Some(self.shards.write(shard)),
            Patience::Spin(patience) => {
                let begin = std::time::Instant::now();
                self.shards.try_write_while(shard, || begin.elapsed() < patience)
            }
        }
    }
}

impl ShardPass {
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0)
    }
}
