//! Entry point of the fuzzer to the layout of stored values.

use super::stored_value::{stored, stored_with_tags_of, tags_of, untagged, versions};

/// Asserts that `value` is read as it was written, alone and with the tags of `old`.
pub(in crate::redis) fn check(old: &[u8], value: &[u8]) {
    let alone = stored(value.to_vec());
    assert_eq!(untagged(&alone), value);
    assert_eq!(tags_of(&alone), None);
    let tagged = stored_with_tags_of(old, value.to_vec());
    assert_eq!(untagged(&tagged), value);
    assert_eq!(tags_of(&tagged), tags_of(old));
    if let Some(tags) = tags_of(old) {
        let names = versions(tags).map(|(tag, version)| tag.len() + version.len() + 4);
        assert_eq!(names.sum::<usize>() + 8, tags.len(), "all tags are listed");
    }
}
