//! The one door to the file system: all of this module that touches a disk does it here.

mod dir;

pub(super) use self::dir::{FOLDER_MODE, Folder, Listed, is_file, modified, publish};
