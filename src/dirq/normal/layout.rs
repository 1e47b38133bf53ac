//! How a normal queue lies in the file system.
//!
//! 1. An element `NNNNNNNN/NAME` is a directory with a file for each field, and complete from its first moment:
//!    it is written in `temporary` and renamed.
//! 2. It is locked as long as a directory `locked` is in it.
//! 3. It leaves by a rename into `obsolete`, where it is taken apart.

use std::{ffi::CStr, sync::Arc};

use bytes::Bytes;
use rustix::io::Errno;

use super::rotation::Rotation;
use crate::dirq::{
    Error, Name, Schema,
    file_name::FileName,
    fs::{Dir, OpenFor},
    group::Group,
    root::{Opener, Root},
};

/// The kind of a [`Queue`](crate::dirq::Queue).
#[derive(Debug)]
pub struct Normal {
    pub(super) root: Root,
    pub(super) schema: Option<Schema>,
    pub(super) rotation: Rotation,
    /// Adds that are synced.
    pub(super) sync_group: Group<Files>,
}

/// The files of an element, by the names of its fields.
pub(super) type Files = Vec<(String, Bytes)>;

pub(super) const TEMPORARY: &str = "temporary";
pub(super) const OBSOLETE: &str = "obsolete";
pub(super) const LOCKED: &CStr = c"locked";

impl Normal {
    pub(super) fn schema(&self) -> Result<&Schema, Error> {
        self.schema.as_ref().ok_or_else(|| Error::NoSchema { path: self.root.path().to_owned() })
    }

    /// The directory of an element, and the one it is in; none where it is gone.
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
            // A file or a link, which is never followed.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(Error::Foreign { path: self.root.path_of(name) })
            }
            Err(error) => Err(Error::io("open", self.root.path_of(name), error)),
        }
    }
}

/// The open directory of an element.
pub(super) struct OpenElement {
    /// The one that it is in.
    pub(super) parent: Arc<Dir>,
    pub(super) dir: Dir,
}
