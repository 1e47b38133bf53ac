//! The one door to the file system: what the queues ask of it goes by [`Dir`] or is named here.
//!
//! All of it blocks for as long as the disk does. Only `watch.rs`, which asks the system for news of a directory,
//! goes by another door, the crate `notify`.

mod call;
mod dir;
#[cfg(test)]
pub(crate) mod faults;
mod file;
mod make_dir;
mod rename;
mod stat;

use std::path::Path;

pub(super) use rustix::fs::{CWD, FileType, Mode, Stat};
use rustix::{
    fs::{self, Access, OFlags},
    io::{Errno, Result},
};

use self::{call::call, make_dir::make_dir_at};
pub(super) use self::{
    dir::{Dir, OpenFor},
    rename::rename_to_free_name,
    stat::{id, is_directory, is_file, modified},
};

/// A new directory, with the mode that it gets under this umask, or under that of the process.
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

/// What is at `path` itself, a link included.
pub(super) fn lstat(path: &Path) -> Result<Stat> {
    call("stat", || fs::lstat(path))
}

/// Whether anything is at `path`; it is, unless the file system clearly says that it is not.
pub(super) fn may_exist(path: &Path) -> bool {
    !matches!(call("access", || fs::access(path, Access::EXISTS)), Err(Errno::NOENT))
}

/// Lets a file's content survive a crash of the machine.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = call("open", || fs::open(path, flags, Mode::empty()))?;
    call("sync a file", || fs::fsync(file))
}

/// Whether what is in the directory at `path` is in memory alone.
#[cfg(target_os = "linux")]
pub(super) fn is_in_memory(path: &Path) -> bool {
    // Those of the kernel's `linux/magic.h`.
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    // The width of the type differs between machines.
    call("statfs", || fs::statfs(path))
        .is_ok_and(|stat| [TMPFS, RAMFS].contains(&(stat.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_in_memory(_: &Path) -> bool {
    false
}
