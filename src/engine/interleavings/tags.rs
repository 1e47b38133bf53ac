//! Removal of tags, during writes of the same tag and removals of it by other callers.

use super::{Parts, drain, explore, spawn};
use crate::engine::event::Cause;

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
