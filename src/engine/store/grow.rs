//! Growth of a table that has side tables.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use super::{
    Store,
    side_tables::SideTables,
    window::{self, Table, WINDOW},
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Rehashes a full table and moves its side tables along. Used instead of `RawTable::reserve`, which does not
    /// report to which buckets it moves entries. If enough buckets are free, the new table has the same size: the table
    /// was full of tombstones, which removals leave behind. At least an eighth of the buckets is free then, so a rehash
    /// is paid for by that many inserts.
    pub(super) fn grow(&self, table: &mut Table<K, V>, side_tables: &mut SideTables) {
        let full = if table.buckets() < 8 { table.buckets() - 1 } else { table.buckets() / 8 * 7 };
        let capacity = if table.len() < full / 8 * 7 { full } else { full + 1 };
        let mut larger = Table::with_capacity(capacity);
        let mut old_side_tables = side_tables.resize(larger.buckets());
        for start in (0..table.buckets()).step_by(WINDOW) {
            let end = table.buckets().min(start + WINDOW);
            let taken = |from, key, entry| {
                let hash = self.hash_or_zero(&key);
                let to =
                    window::insert(&mut larger, hash, key, entry, |key| self.hash_or_zero(key));
                side_tables.relocate(&mut old_side_tables, from, to);
            };
            window::drain_window(table, start..end, taken);
        }
        mem::swap(table, &mut larger);
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{
        clock::{Deadline, Tick},
        hasher::DefaultHasher,
        store::Store,
    };

    /// Inserts and removals leave tombstones. Clearing them must not make the table larger.
    #[test]
    fn table_at_its_bound_does_not_grow() {
        let store = Store::<u64, u64, _>::new(64, 0, DefaultHasher::default());
        let store = store.evicting(10_000, None, || 1);
        let buckets = || (0..64).map(|shard| store.shards.read(shard).buckets()).sum::<usize>();
        for key in 0..300_000 {
            store.set(key, key, &Tick::EPOCH, |_| Deadline::PERSISTENT);
        }
        assert_eq!(store.len(), 10_000);
        assert!(buckets() <= 20_000, "{}", buckets());
    }
}
