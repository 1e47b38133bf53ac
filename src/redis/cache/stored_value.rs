//! Layout of stored values with tags. `tags.lua` describes it, and reads it in scripts.

use std::iter;

/// Beginning of a stored value with tags. No JSON, no MessagePack begins with its first byte; values of `Format::Raw`
/// may, and are then stored with zero tags.
pub(super) const TAGGED: &[u8] = b"\xC1tag";

/// Length of the version of a tag.
const VERSION_LEN: usize = 16;

/// Returns the beginning of a stored value with its tags, if it has any.
pub(super) fn tags_of(value: &[u8]) -> Option<&[u8]> {
    let tags = header(value)?;
    (tags.len() > TAGGED.len() + 4).then_some(tags)
}

/// Returns a stored value without its tags.
pub(super) fn untagged(value: &[u8]) -> &[u8] {
    &value[header(value).map_or(0, <[u8]>::len)..]
}

/// Returns an encoded value as it is stored without tags.
pub(super) fn stored(value: Vec<u8>) -> Vec<u8> {
    match value.starts_with(TAGGED) {
        true => [TAGGED, &[0; 4], &value].concat(),
        false => value,
    }
}

/// Returns an encoded value as it is stored with the tags of `old`.
pub(super) fn stored_with_tags_of(old: &[u8], value: Vec<u8>) -> Vec<u8> {
    match tags_of(old) {
        Some(tags) => [tags, &value].concat(),
        None => stored(value),
    }
}

/// Returns each tag of [`tags_of`] with its version.
pub(super) fn versions(tags: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = &tags[TAGGED.len() + 4..];
    iter::from_fn(move || {
        let (length, after) = split_number(rest)?;
        let (tag, version);
        (tag, rest) = after.split_at_checked(length)?;
        (version, rest) = rest.split_at_checked(VERSION_LEN)?;
        Some((tag, version))
    })
}

/// Returns the part of a stored value before the value itself. Anything else that begins with `TAGGED` has none.
fn header(value: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = split_number(value.strip_prefix(TAGGED)?)?;
    for _ in 0..count {
        let (length, tag) = split_number(rest)?;
        rest = tag.get(length.checked_add(VERSION_LEN)?..)?;
    }
    Some(&value[..value.len() - rest.len()])
}

fn split_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((usize::try_from(u32::from_le_bytes(*number)).ok()?, rest))
}
