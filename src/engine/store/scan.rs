//! Scans of whole shards: copies and counts of live entries.

use std::hash::{BuildHasher, Hash};
#[cfg(feature = "metrics")]
use std::time::Duration;

use super::Store;
use crate::engine::clock::{Deadline, Now};
#[cfg(feature = "metrics")]
use crate::engine::{clock::Tick, sync::atomic::Ordering::Relaxed};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Returns clones of the live entries of one shard, with their deadlines.
    pub(crate) fn snapshot(&self, index: usize, now: &impl Now) -> Vec<(K, V, Deadline)>
    where
        K: Clone,
        V: Clone,
    {
        self.remove_tagged_of(index, now);
        // Declared before the lock: if a clone panics, the other clones are dropped after the unlock.
        let mut live = Vec::new();
        let shard = self.shards.read(index);
        let now = now.tick();
        live.reserve(shard.resident());
        for table in shard.tables() {
            table.for_each(|key, entry| {
                if !entry.deadline().is_expired(now) {
                    live.push((key.clone(), entry.value.clone(), entry.deadline()));
                }
            });
        }
        drop(shard);
        live
    }

    /// Returns an upper bound on how long any resident entry has been expired.
    #[cfg(feature = "metrics")]
    pub(crate) fn staleness(&self, now: Tick) -> Duration {
        let earliest = self.context.meta.iter().map(|meta| meta.earliest_expiry.load(Relaxed));
        // Zero means that the shard is being shrunk and its earliest expiry is unknown.
        let earliest = earliest.filter(|earliest| *earliest > 0).min();
        earliest.map_or(Duration::ZERO, |earliest| now.since(Tick::from_nanoseconds(earliest)))
    }

    /// Counts the live entries, shard by shard.
    pub(crate) fn live_len(&self, now: &impl Now) -> usize {
        let mut live = 0;
        for index in 0..self.shard_count() {
            self.remove_tagged_of(index, now);
            let shard = self.shards.read(index);
            let now = now.tick();
            for table in shard.tables() {
                table.for_each(|_, entry| {
                    live += usize::from(!entry.deadline().is_expired(now));
                });
            }
        }
        live
    }
}
