//! The one door to the file system: what the queues ask of it goes by [`Dir`] or is named here.
//!
//! All of it blocks for as long as the disk does. Only `watch.rs`, which asks the system for news of a directory,
//! goes by another door, the crate `notify`.

mod dir;

use std::path::Path;

pub(super) use rustix::fs::{CWD, FileType, Mode, Stat, lstat, rmdir, stat, unlink};
use rustix::{
    fs::{Access, OFlags, access, chmod, fsync, mkdir, open},
    io::{Errno, Result},
};

use self::dir::DIR_MODE;
pub(super) use self::dir::{Dir, OpenFor, is_file, modified, rename_to_free_name};

/// A new directory; its mode is the process' matter unless there is a umask.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    mkdir(path, DIR_MODE)
}

/// Gives a directory the mode that it would have got under this umask.
///
/// The process' own umask is never switched, not even for a moment: other threads make files meanwhile.
pub(super) fn apply_umask(path: &Path, umask: Mode) -> Result<()> {
    chmod(path, DIR_MODE.difference(umask))
}

/// Whether anything is at `path`; it is, unless the file system clearly says that it is not.
pub(super) fn may_exist(path: &Path) -> bool {
    !matches!(access(path, Access::EXISTS), Err(Errno::NOENT))
}

/// Lets a file's content survive a crash of the machine.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fsync(open(path, flags, Mode::empty())?)
}

/// Whether what is in the directory at `path` is in memory alone.
#[cfg(target_os = "linux")]
pub(super) fn is_in_memory(path: &Path) -> bool {
    // Those of the kernel's `linux/magic.h`.
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    // The width of the type differs between machines.
    rustix::fs::statfs(path).is_ok_and(|stat| [TMPFS, RAMFS].contains(&(stat.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_in_memory(_: &Path) -> bool {
    false
}
