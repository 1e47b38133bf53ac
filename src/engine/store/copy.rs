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
const BUCKETS_AT_ONCE: usize = 256;

/// For how long, where it takes long to clone what is in them.
const LONGEST: Duration = Duration::from_micros(50);

/// After how many clones the time is read: at first, and where they take next to no time. Each reading waits for all that
/// is still on its way from memory, and cloning is little but to wait for that.
const CLONES_BETWEEN: usize = 4;
const MOST_BETWEEN: usize = 32;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Puts clones of what lives in the next buckets of a shard into `copies`; tells whether there may be more.
    pub(crate) fn copy_some(
        &self,
        pass: &mut TableCursor,
        now: &impl Now,
        copies: &mut Vec<Copied<K, V>>,
    ) -> bool
    where
        K: Clone,
        V: Clone,
    {
        let shard = self.shards.read(pass.shard);
        if shard.state().old.is_some() {
            // An entry that moves from one table to the other could be missed in both.
            drop(shard);
            self.move_on(pass.shard);
            return true;
        }
        let now = now.tick();
        pass.resume_in(shard.state().generation);
        let side_tables = &shard.state().side_tables;
        let begin = Instant::now();
        let mut between = CLONES_BETWEEN;
        let mut until_reading = between;
        let end = shard.buckets().min(pass.next + BUCKETS_AT_ONCE);
        while pass.next < end {
            let bucket = pass.next;
            pass.next += 1;
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
                    let took = begin.elapsed();
                    if took >= LONGEST {
                        break;
                    }
                    if took < LONGEST / 4 {
                        between = MOST_BETWEEN.min(2 * between);
                    }
                    until_reading = between;
                }
            }
        }
        pass.next < shard.buckets()
    }

    /// Moves some of what is still in the old table of a shard.
    fn move_on(&self, shard: usize) {
        let mut locked = self.shards.write(shard);
        let (_, emptied) = self.move_some(&mut locked, shard);
        drop(locked);
        drop(emptied);
    }
}
