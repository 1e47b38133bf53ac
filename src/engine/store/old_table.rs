//! A table from which entries move to a smaller one.

use super::{side_tables::OldSideTables, window::Table};

/// A table that was too large, and what has not moved from it yet.
pub(super) struct OldTable<K, V> {
    pub(super) table: Table<K, V>,
    /// What was kept of its entries.
    pub(super) side_tables: OldSideTables,
    /// The bucket from which on nothing has moved.
    pub(super) next: usize,
}
