//! Copies of live entries, a few under each lock, for snapshots that are taken while other tasks read and write.

use std::{
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

use super::{Store, table_cursor::TableCursor, tags::TagSet, window};
use crate::engine::clock::{Deadline, Now};

/// A copy of a live entry.
pub(crate) struct Copied<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) deadline: Deadline,
    /// The hard deadline; later than `deadline` if that is an idle deadline.
    pub(crate) hard_deadline: Deadline,
    pub(crate) tags: Option<TagSet>,
}

/// Maximum number of buckets that are copied under one lock.
const BUCKETS_PER_LOCK: usize = 256;

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
    pub(crate) fn copy_some(
        &self,
        cursor: &mut TableCursor,
        now: &impl Now,
        copies: &mut Vec<Copied<K, V>>,
    ) -> bool
    where
        K: Clone,
        V: Clone,
    {
        let shard = self.shards.read(cursor.shard);
        if shard.state().old.is_some() {
            // Moved on first: an entry that moves between the tables during the copy could be missed in both.
            drop(shard);
            self.continue_rehash(cursor.shard);
            return true;
        }
        let now = now.tick();
        cursor.resume_in(shard.state().generation);
        let side_tables = &shard.state().side_tables;
        let started = Instant::now();
        let mut clones_per_reading = MIN_CLONES_PER_READING;
        let mut until_reading = clones_per_reading;
        let end = cursor.end_of_step(BUCKETS_PER_LOCK, shard.buckets());
        let max_lock_time = MAX_LOCK_TIME * u32::try_from(cursor.work_factor()).unwrap_or(u32::MAX);
        while cursor.next < end {
            let bucket = cursor.next;
            cursor.next += 1;
            let Some((key, entry)) = window::entry_at(&shard, bucket) else { continue };
            let deadline = entry.deadline();
            if !deadline.is_expired(now) && !side_tables.is_removed(bucket, deadline) {
                let hard_deadline = side_tables.hard_deadline(bucket).unwrap_or(deadline);
                let (key, value) = (key.clone(), entry.value.clone());
                copies.push(Copied {
                    key,
                    value,
                    deadline,
                    hard_deadline,
                    tags: side_tables.tags(bucket),
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
        let mut locked = self.shards.write(shard);
        let (_, emptied) = self.move_windows(&mut locked, shard);
        drop(locked);
        drop(emptied);
    }
}
