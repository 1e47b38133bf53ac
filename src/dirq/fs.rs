//! The only access to the file system: all system calls of queues are made by [`Dir`] or by the functions here.
//!
//! All of them block for as long as the disk does.

mod call;
mod dir;
#[cfg(test)]
pub(crate) mod faults;
mod file;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod inotify;
mod make_dir;
mod medium;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod notify;
mod open;
mod rename;
mod stat;

use std::path::Path;

pub(super) use rustix::fs::{CWD, FileType, Mode, Stat};
use rustix::{
    fs::{self, Access, OFlags},
    io::{Errno, Result},
};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::inotify::{WatchId, Watcher};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use self::notify::{WatchId, Watcher};
use self::{call::call, make_dir::make_dir_at, open::open_file};
pub(super) use self::{
    dir::{Dir, OpenFor},
    file::NewFile,
    medium::{Medium, medium},
    rename::rename_to_free_name,
    stat::{file_id, is_directory, is_file, modified},
};

/// Creates a directory with the mode that results from `umask`, or from the process' umask.
pub(super) fn make_dir(path: &Path, umask: Option<Mode>) -> Result<()> {
    make_dir_at(CWD, path, umask)
}

pub(super) fn rmdir(path: &Path) -> Result<()> {
    call("rmdir", || fs::rmdir(path))
}

pub(super) fn unlink(path: &Path) -> Result<()> {
    call("unlink", || fs::unlink(path))
}

pub(super) fn stat(path: &Path) -> Result<Stat> {
    call("stat", || fs::stat(path))
}

/// Returns the metadata of `path` without following a link.
pub(super) fn lstat(path: &Path) -> Result<Stat> {
    call("stat", || fs::lstat(path))
}

/// Returns whether `path` exists. Returns true unless the file system reports that it does not.
pub(super) fn may_exist(path: &Path) -> bool {
    !matches!(call("access", || fs::access(path, Access::EXISTS)), Err(Errno::NOENT))
}

/// Returns whether the process, or the system, has too many open files.
pub(super) fn is_out_of_file_descriptors(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE)
}

/// Syncs the content of a regular file, so that it survives a crash of the machine.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    // `fsync` needs no permission to write.
    let (file, _) = open_file("open", CWD, path, OFlags::RDONLY)?;
    call("sync a file", || fs::fsync(file))
}
