//! How a simple queue lies in the file system.
//!
//! 1. An element `dir/NAME` is complete from its first moment: it is written as `dir/OTHER.tmp` and gets its
//!    name by one step of the file system, which never replaces another.
//! 2. It is locked as long as `dir/NAME.lck`, a second link to it, exists. What is done under the lock goes
//!    through that link.
//! 3. It leaves data first: without its lock, an element that is half removed could be locked once more.

use std::ffi::CStr;

use crate::dirq::{
    file_name::{LOCK, TEMPORARY, element_of},
    group::Group,
    root::Root,
};

/// The kind of a [`QueueSimple`](crate::dirq::QueueSimple).
#[derive(Debug)]
pub struct Simple {
    pub(super) root: Root,
    /// For how many seconds new elements go to the same directory.
    pub(super) granularity: u32,
    /// Adds that are synced.
    pub(super) sync_group: Group<Vec<u8>>,
}

/// What a file beside an element is, by its suffix.
pub(super) enum Companion {
    Lock,
    /// That of an element which is being written. It has a name of its own: there is no element yet.
    Temporary,
}

/// The element that a file of this name is beside, if it is one of those.
pub(super) fn companion_of(name: &CStr) -> Option<(u64, Companion)> {
    let (element, suffix) = name.to_bytes().split_at_checked(14)?;
    let element = element_of(element)?;
    match suffix {
        suffix if suffix == LOCK.as_bytes() => Some((element, Companion::Lock)),
        suffix if suffix == TEMPORARY.as_bytes() => Some((element, Companion::Temporary)),
        _ => None,
    }
}
