//! What goes through whole shards: clearing, copying, counting.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use dashmap::SharedValue;
use hashbrown::raw::RawTable;

use super::{Cause, Entry, Store, bump, window};
use crate::engine::{
    clock::{Deadline, Tick},
    panics,
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Takes everything out of one shard.
    pub(crate) fn clear_shard(&self, index: usize, now: Tick) {
        // Made before the lock: to allocate under it would keep readers waiting for the system.
        let mut fresh = RawTable::with_capacity(self.reserved);
        let mut departures = Vec::new();
        let mut table = self.map.shards()[index].write();
        mem::swap(&mut *table, &mut fresh);
        self.mark_moved(index, &table);
        let departs = |(key, entry): (K, SharedValue<Entry<V>>)| {
            let entry = entry.into_inner();
            let dead = entry.deadline.is_dead(now);
            entry.depart(key, if dead { Cause::Expired } else { Cause::Removed }, now)
        };
        let wanted = self.journal.wants(Cause::Expired) || self.journal.wants(Cause::Removed);
        if wanted {
            departures.extend(fresh.drain().map(departs));
        }
        let mut expired = departures.iter().filter(|d| d.cause == Cause::Expired).count();
        let mut removed = departures.len() - expired;
        self.journal.record_wanted(index, &mut departures);
        drop(table);
        // What nobody wants to hear of is counted here, out of the lock.
        window::look(&fresh, |_, entry| {
            *(if entry.deadline.is_dead(now) { &mut expired } else { &mut removed }) += 1;
        });
        // These counters are only ever written under the lock.
        let counting = self.map.shards()[index].write();
        bump(&self.shards[index].counters.expired, expired as u64);
        bump(&self.shards[index].counters.removed, removed as u64);
        drop(counting);
        self.give_room(expired + removed);
        // One by one: a table that is dropped whole leaks the rest where one panics.
        panics::drop_all(departures);
        panics::drop_all(fresh.drain());
    }

    /// Clones of the live entries of one shard, with their deadlines.
    pub(crate) fn snapshot(&self, index: usize, now: Tick) -> Vec<(K, V, Deadline)>
    where
        K: Clone,
        V: Clone,
    {
        // Made before the lock, so that it is dropped after it where a clone panics.
        let mut live = Vec::new();
        let table = self.map.shards()[index].read();
        live.reserve(table.len());
        window::look(&table, |key, entry| {
            if !entry.deadline.is_dead(now) {
                live.push((key.clone(), entry.value.clone(), entry.deadline));
            }
        });
        drop(table);
        live
    }

    /// Live entries, counted window by window.
    pub(crate) fn live_len(&self, now: Tick) -> usize {
        let mut live = 0;
        for shard in self.map.shards() {
            let table = shard.read();
            window::look(&table, |_, entry| {
                live += usize::from(!entry.deadline.is_dead(now));
            });
        }
        live
    }
}
