//! A table from which entries move to a smaller one.

use super::{room::Marks, window::Table};

/// A table that was too large, and what has not moved from it yet.
pub(super) struct OldTable<K, V> {
    pub(super) table: Table<K, V>,
    /// What was known of its entries, where they make room for each other.
    pub(super) marks: Option<Marks>,
    /// The bucket from which on nothing has moved.
    pub(super) next: usize,
}
