//! The sample: a run of neighbouring buckets of one shard. The crate's only `unsafe`.
//!
//! `hashbrown` reads buckets by index only through `unsafe` calls. What makes each of them sound:
//!
//! 1. The table is borrowed for the whole call (exclusively where anything is taken out), so it can
//!    neither move nor be freed.
//! 2. Every index is below `buckets()`, by the `min` at the top of each function.
//! 3. A bucket is read or taken only right after `is_bucket_full` said that it holds an entry.
#![allow(unsafe_code)]

use std::ops::Range;

use dashmap::SharedValue;
use hashbrown::raw::RawTable;

use super::entry::Entry;

pub(super) type Table<K, V> = RawTable<(K, SharedValue<Entry<V>>)>;

/// Calls `each` with every entry of the buckets in `range`.
pub(super) fn look<K, V>(
    table: &Table<K, V>,
    range: Range<usize>,
    mut each: impl FnMut(&K, &Entry<V>),
) {
    let end = range.end.min(table.buckets());
    for index in range.start..end {
        // SAFETY: `index < end <= buckets()`, and the table is borrowed.
        if unsafe { table.is_bucket_full(index) } {
            // SAFETY: as above; the bucket is full, and nothing changes it while we borrow the table.
            let (key, entry) = unsafe { table.bucket(index).as_ref() };
            each(key, entry.get());
        }
    }
}

/// Takes out up to `room` of the entries in `range` that `leaves` names, and gives each to `taken`.
///
/// Returns how many entries were looked at and the bucket at which it stopped: the end, or the first
/// whose entry should leave but for which there was no room.
pub(super) fn take<K, V>(
    table: &mut Table<K, V>,
    range: Range<usize>,
    mut room: usize,
    mut leaves: impl FnMut(&Entry<V>) -> bool,
    mut taken: impl FnMut(K, Entry<V>),
) -> (usize, usize) {
    let end = range.end.min(table.buckets());
    let mut looked_at = 0;
    for index in range.start..end {
        // SAFETY: `index < end <= buckets()`, and the table is borrowed exclusively.
        if !unsafe { table.is_bucket_full(index) } {
            continue;
        }
        // SAFETY: `index` is in bounds, as above.
        let bucket = unsafe { table.bucket(index) };
        // SAFETY: the bucket is full, and nothing else touches it while we borrow the table.
        let leaving = leaves(unsafe { bucket.as_ref() }.1.get());
        if leaving && room == 0 {
            return (looked_at, index);
        }
        looked_at += 1;
        if leaving {
            // SAFETY: the bucket is full and belongs to this table; taking an entry out moves no other.
            let ((key, entry), _) = unsafe { table.remove(bucket) };
            taken(key, entry.into_inner());
            room -= 1;
        }
    }
    (looked_at, end)
}
