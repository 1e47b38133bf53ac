//! Tests of the buffer of entries that were read ahead.

use super::*;

/// Returns the deadlines that are known after an entry with the deadline `taken` was leased.
fn known_after(known: &[i64], taken: i64) -> Vec<i64> {
    let mut ahead = ReadAhead::new(1, false);
    ahead.was_read(0, known.iter().copied().collect(), false);
    ahead.took(0, taken, i64::MAX);
    ahead.shards[0].deadlines.iter().copied().collect()
}

#[test]
fn taken_entry_is_the_only_one_of_its_deadline_that_is_forgotten() {
    assert_eq!(known_after(&[5, 5, 5, 8], 5), [5, 5, 8]);
}

#[test]
fn entry_that_was_added_after_the_read_leaves_all_known_entries() {
    assert_eq!(known_after(&[5, 8], 3), [5, 8]);
    assert_eq!(known_after(&[5, 8], 6), [8]);
}

#[test]
fn entries_before_the_taken_one_are_forgotten() {
    assert_eq!(known_after(&[1, 2, 5, 8], 5), [8]);
}
