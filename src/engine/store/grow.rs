//! Making a table larger of whose entries something is known by the bucket that each is in.

use std::{
    hash::{BuildHasher, Hash},
    mem,
};

use super::{
    Store,
    room::Room,
    window::{self, Table, WINDOW},
};

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Makes a table larger that is full, by hand: what is known of its entries goes with them. As `reserve` does, one
    /// that is half empty only loses the marks of what has left.
    pub(super) fn grow(&self, table: &mut Table<K, V>, room: &mut Room) {
        let full = if table.buckets() < 8 { table.buckets() - 1 } else { table.buckets() / 8 * 7 };
        let wanted = if table.len() < full / 2 { full } else { full + 1 };
        let mut larger = Table::with_capacity(wanted);
        let marks = room.resize(larger.buckets());
        for start in (0..table.buckets()).step_by(WINDOW) {
            let end = table.buckets().min(start + WINDOW);
            let taken = |from, key, entry| {
                let hash = self.rehash(&key);
                let to = window::insert(&mut larger, hash, key, entry, |key| self.rehash(key));
                room.relocate(&marks, from, to);
            };
            window::take(table, start..end, usize::MAX, |_| true, taken);
        }
        mem::swap(table, &mut larger);
    }
}
