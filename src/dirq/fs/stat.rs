//! Accessors for file metadata.

use rustix::fs::{FileType, Stat};

pub(in crate::dirq) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(in crate::dirq) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns the device and inode.
// The types of the fields differ between platforms.
#[allow(clippy::unnecessary_cast)]
pub(in crate::dirq) fn file_id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

/// Returns the modification time in nanoseconds since 1970.
pub(in crate::dirq) fn modified(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}
