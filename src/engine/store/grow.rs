//! Making a table larger of whose entries something is known by the bucket that each is in.

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
    /// Makes a table larger that is full, by hand: what is known of its entries goes with them. One in which there are
    /// empty buckets enough only loses the marks of what has left: that takes a move for every seven entries that come.
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
            window::take_if(table, start..end, usize::MAX, |_| true, taken);
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

    /// What leaves and comes wears a table out, and for that it need not grow.
    #[test]
    fn tables_that_are_full_stay_as_large_as_they_are() {
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
