//! The file layout of a simple queue.
//!
//! 1. An element `dir/NAME` is complete from the moment it is visible: it is written as `dir/OTHER.tmp` and then
//!    renamed atomically, without replacing another file.
//! 2. It is locked while `dir/NAME.lck` exists, a second hard link to it. The owner of the lock reads through that
//!    link.
//! 3. Its data is removed before its lock: in the other order, a partially removed element could be locked again.

use std::ffi::CStr;

use bytes::Bytes;

use crate::dirq::{
    add::Group,
    file_name::{LOCK, TEMPORARY, element_of},
    root::Root,
};

/// The implementation of [`QueueSimple`](crate::dirq::QueueSimple).
#[derive(Debug)]
pub struct Simple {
    pub(super) root: Root,
    /// Number of seconds for which new elements share a directory.
    pub(super) granularity: u32,
    /// Adds that wait to be synced.
    pub(super) sync_group: Group<Bytes>,
}

/// The kind of a file that accompanies an element, by its suffix.
pub(super) enum Companion {
    Lock,
    /// An element that is being written. It has a name of its own, because the element has none yet.
    Temporary,
}

/// Parses the name of a lock or a temporary file.
pub(super) fn companion_of(name: &CStr) -> Option<(u64, Companion)> {
    let (element, suffix) = name.to_bytes().split_at_checked(14)?;
    let element = element_of(element)?;
    match suffix {
        suffix if suffix == LOCK.as_bytes() => Some((element, Companion::Lock)),
        suffix if suffix == TEMPORARY.as_bytes() => Some((element, Companion::Temporary)),
        _ => None,
    }
}
