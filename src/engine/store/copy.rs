//! Copies of live entries, a few under each lock, for snapshots that are taken while other tasks read and write.

use std::{
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

use super::Store;
use crate::engine::{
    clock::{Deadline, Now},
    shard::{
        table_cursor::{BUCKETS_PER_LOCK, TableCursor},
        tags::TagSet,
    },
};

/// A copy of a live entry.
pub(crate) struct EntryCopy<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) deadline: Deadline,
    /// The hard deadline; later than `deadline` if that is an idle deadline.
    pub(crate) hard_deadline: Deadline,
    pub(crate) tags: Option<TagSet>,
}

/// Time after which the lock is released early if the entries are slow to clone.
const MAX_LOCK_TIME: Duration = Duration::from_micros(50);

/// Number of clones between two readings of the clock: at first, and at most if clones prove to be fast. Each reading
/// waits for all pending loads, and cloning consists mostly of waiting for loads.
const MIN_CLONES_PER_READING: usize = 4;
const MAX_CLONES_PER_READING: usize = 32;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Appends clones of the live entries in the next buckets of a shard to `copies`. Returns whether the shard may
    /// have more.
    pub(crate) fn copy_part(
        &self,
        cursor: &mut TableCursor,
        now: &impl Now,
        copies: &mut Vec<EntryCopy<K, V>>,
    ) -> bool
    where
        K: Clone,
        V: Clone,
    {
        let shard = self.shards.read(cursor.shard);
        if shard.is_shrinking() {
            // Moved on first: an entry that moves between the tables during the copy could be missed in both.
            drop(shard);
            self.continue_rehash(cursor.shard);
            return true;
        }
        let now = now.tick();
        cursor.resume_in(shard.generation());
        let started = Instant::now();
        let mut clones_per_reading = MIN_CLONES_PER_READING;
        let mut until_reading = clones_per_reading;
        let end = cursor.end_of_step(BUCKETS_PER_LOCK, shard.buckets());
        let max_lock_time = MAX_LOCK_TIME * u32::try_from(cursor.work_factor()).unwrap_or(u32::MAX);
        while cursor.next < end {
            let bucket = cursor.next;
            cursor.next += 1;
            let Some(scanned) = shard.scanned(bucket) else { continue };
            if scanned.is_live(now) {
                copies.push(EntryCopy {
                    key: scanned.key.clone(),
                    value: scanned.entry.value.clone(),
                    deadline: scanned.entry.deadline(),
                    hard_deadline: scanned.hard_deadline(),
                    tags: scanned.tags(),
                });
                until_reading -= 1;
                if until_reading == 0 {
                    let took = started.elapsed();
                    if took >= max_lock_time {
                        break;
                    }
                    if took < MAX_LOCK_TIME / 4 {
                        clones_per_reading = MAX_CLONES_PER_READING.min(2 * clones_per_reading);
                    }
                    until_reading = clones_per_reading;
                }
            }
        }
        cursor.next < shard.buckets()
    }

    /// Moves some of the entries that are still in the old table of a shard.
    fn continue_rehash(&self, shard: usize) {
        drop(self.lock_shard(shard).unless_moving());
    }
}
