//! Removal of tags, during writes of the same tag and removals of it by other callers.

use super::{Parts, drain, explore, spawn};
use crate::engine::{event::Cause, store::TableCursor};

impl Parts {
    fn set_tagged(&self, value: u32) -> Option<u32> {
        let tags = vec!["tag".into()];
        let replaced = self.store.set_tagged(1, value, tags, &self.at(1), self.until(100));
        self.publisher.flush();
        replaced
    }

    fn remove_tag(&self) {
        self.store.remove_tag("tag", &self.at(1));
        self.publisher.flush();
    }

    /// Removes all live entries, and returns their number.
    fn remove_all(&self) -> usize {
        let (mut cursor, mut removed, mut has_more) = (TableCursor::default(), 0, true);
        while has_more {
            let step = self.store.remove_if(&mut cursor, &mut |_, _| true, &self.at(1));
            removed += step.0;
            has_more = step.1;
        }
        self.publisher.flush();
        removed
    }
}

/// Each of two calls that remove one tag at once has ended the values when it returns.
#[test]
fn overlapping_calls_of_remove_tag_each_hold_when_they_return() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        parts.set_tagged(1);
        let reads = spawn(&parts, |parts| {
            parts.remove_tag();
            assert_ne!(parts.get(1), Some(1), "removed by a call that has returned");
        });
        let writes = spawn(&parts, |parts| {
            parts.remove_tag();
            assert_eq!(parts.set(2, 1, 100), None, "removed by a call that has returned");
        });
        reads.join().unwrap();
        writes.join().unwrap();
        assert_eq!((parts.get(1), drain(&mut events)), (Some(2), vec![(1, Cause::Removed)]));
    });
}

/// A write that returns the tagged value as replaced came before the removal of the tag, so a later call of `remove_if`
/// finds its value.
#[test]
fn write_sees_a_removed_tag_before_another_caller_acts_on_the_removal() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        parts.set_tagged(1);
        let writes = spawn(&parts, |parts| parts.set(2, 1, 100));
        parts.remove_tag();
        let removed = parts.remove_all();
        let replaced = writes.join().unwrap();
        let left = parts.get(1);
        let first = match replaced {
            Some(_) => (1, Cause::Replaced),
            None => (1, Cause::Removed),
        };
        assert!(removed == 1 || replaced.is_none(), "the second value was live in `remove_if`");
        assert_eq!(left, (removed == 0).then_some(2));
        let second = (removed == 1).then_some((2, Cause::Removed));
        let expected: Vec<_> = [first].into_iter().chain(second).collect();
        assert_eq!(drain(&mut events), expected);
    });
}

/// The removal of a tag reads its clock before it takes effect. A call that in between lets a value expire, and reports
/// it, has the value depart as expired.
#[test]
fn value_expired_by_a_call_does_not_depart_as_removed() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        parts.set_tagged(1);
        let expires = spawn(&parts, |parts| {
            let now = parts.at(2);
            parts.store.update(&1, &now, |_, _| ((), Some(now.into()))).is_some()
        });
        parts.remove_tag();
        let is_expired = expires.join().unwrap();
        assert_eq!(parts.get(3), None);
        let cause = if is_expired { Cause::Expired } else { Cause::Removed };
        assert_eq!(drain(&mut events), [(1, cause)]);
    });
}

/// A value that replaces one which was written after the removal of its tag was itself written after it, and stays.
#[test]
fn tagged_write_after_the_removal_of_its_tag_stays() {
    explore(|| {
        let parts = Parts::new();
        let mut events = parts.subscribe();
        // So that the removal has an effect if it comes first.
        parts.store.set_tagged(2, 9, vec!["tag".into()], &parts.at(1), parts.until(100));
        let tagged = spawn(&parts, |parts| parts.set_tagged(1));
        parts.remove_tag();
        let replaced = parts.set(2, 1, 100);
        let replaced_by_tagged = tagged.join().unwrap();
        let expected = match (replaced, replaced_by_tagged) {
            (None, Some(2)) => Some(1),
            (Some(1) | None, None) => Some(2),
            other => panic!("one of two writes comes first, but they replaced {other:?}"),
        };
        assert_eq!(parts.get(1), expected, "{:?}", drain(&mut events));
    });
}
