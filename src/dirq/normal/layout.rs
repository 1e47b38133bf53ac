//! The file layout of a normal queue.
//!
//! 1. An element `NNNNNNNN/NAME` is a directory with one file per field. It is complete from the moment it is visible:
//!    it is written in `temporary` and then renamed.
//! 2. It is locked while it contains a directory `locked`.
//! 3. It is removed by renaming it into `obsolete`, where its files are deleted.

use std::{ffi::CStr, sync::Arc};

use bytes::Bytes;
use rustix::io::Errno;

use super::rotation::Rotation;
use crate::dirq::{
    Error, Name, Schema,
    add::Group,
    file_name::FileName,
    fs::{Dir, OpenFor},
    root::{Opener, Root},
};

/// The implementation of [`Queue`](crate::dirq::Queue).
#[derive(Debug)]
pub struct Normal {
    pub(super) root: Root,
    pub(super) schema: Option<Schema>,
    pub(super) rotation: Rotation,
    /// Adds that wait to be synced.
    pub(super) sync_group: Group<Files>,
}

/// The files of an element, by field name.
pub(in crate::dirq) type Files = Vec<(String, Bytes)>;

pub(super) const TEMPORARY: &str = "temporary";
pub(super) const OBSOLETE: &str = "obsolete";
pub(super) const LOCKED: &CStr = c"locked";

impl Normal {
    pub(super) fn schema(&self) -> Result<&Schema, Error> {
        self.schema.as_ref().ok_or_else(|| Error::NoSchema { path: self.root.path().to_owned() })
    }

    /// Opens the directory of an element and its parent. Returns `None` if it is missing.
    pub(super) fn open_element(
        &self,
        opener: &Opener<'_>,
        name: &Name,
        opened_for: OpenFor,
    ) -> Result<Option<OpenElement>, Error> {
        let Some(parent) = opener.open(name.directory)? else { return Ok(None) };
        match parent.open_subdir(FileName::element(name.element).c_str(), opened_for) {
            Ok(element) => Ok(Some(OpenElement { parent, dir: element })),
            Err(Errno::NOENT) => Ok(None),
            // A file, or a link, which is never followed.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(Error::Foreign { path: self.root.path_of(name) })
            }
            Err(error) => Err(Error::io("open", self.root.path_of(name), error)),
        }
    }
}

/// The open directory of an element.
pub(super) struct OpenElement {
    /// The directory that contains it.
    pub(super) parent: Arc<Dir>,
    pub(super) dir: Dir,
}

impl OpenElement {
    /// Returns whether the element has been removed, or moved away for that, since it was opened.
    pub(super) fn is_removed(&self, name: &Name) -> bool {
        self.parent.stat(FileName::element(name.element).c_str()).err() == Some(Errno::NOENT)
    }
}
