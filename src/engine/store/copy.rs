//! Copying what lives, a few entries under one lock: for who walks through all of it while others read and write.

use std::{
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

use super::{Store, table_cursor::TableCursor, tags::TagSet, window};
use crate::engine::clock::{Deadline, Now};

/// A live entry, as it was under the lock.
pub(crate) struct Copied<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) deadline: Deadline,
    /// Until when it may live where it is read: later, in a cache whose entries die idle.
    pub(crate) hard_deadline: Deadline,
    pub(crate) tags: Option<TagSet>,
}

/// How many buckets are looked at under one lock.
const BUCKETS_PER_LOCK: usize = 256;

/// For how long, where it takes long to clone what is in them.
const MAX_LOCK_TIME: Duration = Duration::from_micros(50);

/// After how many clones the time is read: at first, and where they take next to no time. Each reading waits for all that
/// is still on its way from memory, and cloning is little but to wait for that.
const MIN_CLONES_PER_READING: usize = 4;
const MAX_CLONES_PER_READING: usize = 32;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Puts clones of what lives in the next buckets of a shard into `copies`; tells whether there may be more.
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
            // An entry that moves from one table to the other could be missed in both.
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
        let end = shard.buckets().min(cursor.next + BUCKETS_PER_LOCK);
        while cursor.next < end {
            let bucket = cursor.next;
            cursor.next += 1;
            let Some((key, entry)) = window::entry_at(&shard, bucket) else { continue };
            let deadline = entry.deadline();
            if !deadline.is_dead(now) && !side_tables.is_removed(bucket, deadline) {
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
                    if took >= MAX_LOCK_TIME {
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

    /// Moves some of what is still in the old table of a shard.
    fn continue_rehash(&self, shard: usize) {
        let mut locked = self.shards.write(shard);
        let (_, emptied) = self.move_windows(&mut locked, shard);
        drop(locked);
        drop(emptied);
    }
}
