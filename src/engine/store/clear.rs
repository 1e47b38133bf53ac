//! Taking everything out, a part of a shard at a time.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use hashbrown::raw::RawTable;

use super::{
    Store,
    counters::bump,
    entry::{Cause, Departure, Entry},
    table_cursor::TableCursor,
    window::{self, WINDOW},
};
use crate::engine::{
    clock::{Now, Tick},
    panics,
};

/// How many buckets are cleared under one lock.
const BUCKETS_PER_LOCK: usize = 8 * WINDOW;

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Takes out what is in the next windows of a shard, or all of it where nobody wants to hear of it; tells whether
    /// there may be more.
    pub(crate) fn clear_windows(&self, cursor: &mut TableCursor, now: &impl Now) -> bool {
        // Made before the lock: to allocate under it would keep readers waiting for the system.
        let mut old_table = RawTable::with_capacity(self.reserved);
        let mut departures = Vec::with_capacity(BUCKETS_PER_LOCK);
        let mut locked = self.shards.write(cursor.shard);
        if locked.state().old.is_some() {
            let (_, emptied) = self.move_windows(&mut locked, cursor.shard);
            drop(locked);
            drop(emptied);
            return true;
        }
        let now = now.tick();
        let (table, state) = locked.parts();
        let mut freed = 0;
        state.bump_all_write_versions();
        let is_recorded = self.journal.has_subscriber(Cause::Expired)
            || self.journal.has_subscriber(Cause::Removed)
            || state.waiters.as_ref().is_some_and(|waiters| waiters.has_departure_waiters());
        if is_recorded {
            cursor.resume_in(state.generation);
            let end = table.buckets().min(cursor.next + BUCKETS_PER_LOCK);
            for start in (cursor.next..end).step_by(WINDOW) {
                let window = start..end.min(start + WINDOW);
                let taken = |bucket, key, entry: Entry<V>| {
                    let is_removed = state.side_tables.is_removed(bucket, entry.deadline());
                    freed += state.side_tables.departed(bucket);
                    let mut departure = departure_of(key, entry, is_removed, now);
                    if let Some(waiters) = &mut state.waiters {
                        departure.waiters = waiters
                            .take_departure_waiters(&departure.key, |key| self.hash_or_zero(key));
                    }
                    departures.push(departure);
                };
                window::take_if(table, window, usize::MAX, |_| true, taken);
            }
            cursor.next = end;
        }
        let is_last = !is_recorded || cursor.next == table.buckets();
        if !is_recorded || is_last && table.is_empty() {
            mem::swap(table, &mut old_table);
            freed += state.side_tables.cleared(old_table.len());
            state.side_tables.resize(table.buckets());
            state.index.clear();
            state.entries_moved(table);
        }
        let mut expired = departures.iter().filter(|d| d.cause == Cause::Expired).count();
        let mut removed = departures.len() - expired;
        self.journal.record_subscribed(cursor.shard, &mut departures);
        self.release(freed);
        drop(locked);
        // What nobody wants to hear of is counted here, out of the lock.
        window::for_each(&old_table, |_, entry| {
            *(if entry.deadline().is_dead(now) { &mut expired } else { &mut removed }) += 1;
        });
        // These counters are only ever written under the lock.
        let counting = self.shards.write(cursor.shard);
        let counters = &self.meta[cursor.shard].departures;
        bump(&counters.expired, expired as u64);
        bump(&counters.removed, removed as u64);
        drop(counting);
        // One by one: a table that is dropped whole leaks the rest where one panics.
        panics::drop_all(departures);
        panics::drop_all(old_table.drain());
        !is_last
    }
}

/// What was removed by a tag while it lived did not die since.
fn departure_of<K, V>(key: K, entry: Entry<V>, is_removed: bool, now: Tick) -> Departure<K, V> {
    let is_dead = !is_removed && entry.deadline().is_dead(now);
    entry.depart(key, if is_dead { Cause::Expired } else { Cause::Removed }, now)
}
