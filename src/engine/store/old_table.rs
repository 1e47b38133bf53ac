//! The old table of a shard that is being shrunk.

use super::{side_tables::OldSideTables, window::Table};

/// A table that is being shrunk, with the entries that were not moved yet.
pub(super) struct OldTable<K, V> {
    pub(super) table: Table<K, V>,
    /// Side tables of its entries.
    pub(super) side_tables: OldSideTables,
    /// First bucket from which no entry was moved yet, except single keys by writers.
    pub(super) next: usize,
}
