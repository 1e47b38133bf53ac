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
    file::NewFile,
    rename::rename_to_free_name,
    stat::{file_id, is_directory, is_file, modified},
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

/// Whether it is because too many files are open, in the process or in all.
pub(super) fn is_out_of_file_descriptors(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE)
}

/// Lets a file's content survive a crash of the machine.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = call("open", || fs::open(path, flags, Mode::empty()))?;
    call("sync a file", || fs::fsync(file))
}

/// What a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// Memory alone: no call waits.
    Memory,
    /// A disk of this machine, by a file system whose times are right for all at once.
    Disk,
    /// A network, or whatever else.
    Other,
}

/// What the directory at `path` is on, as far as that is known.
#[cfg(target_os = "linux")]
pub(super) fn medium(path: &Path) -> Medium {
    // Those of the kernel's `linux/magic.h`: tmpfs, ramfs; ext2 to ext4, XFS, Btrfs, F2FS.
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    const ON_DISKS: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    // The width of the type differs between machines.
    match call("statfs", || fs::statfs(path)).map(|stat| stat.f_type as u32) {
        Ok(kind) if IN_MEMORY.contains(&kind) => Medium::Memory,
        Ok(kind) if ON_DISKS.contains(&kind) => Medium::Disk,
        _ => Medium::Other,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn medium(_: &Path) -> Medium {
    Medium::Other
}
