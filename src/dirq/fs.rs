//! The only access to the file system: all system calls of queues are made by [`Dir`] or by the functions here.
//!
//! All of them block for as long as the disk does. The exception is `watch.rs`, which uses the crate `notify` to be
//! notified of changes.

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

/// Syncs the content of a file, so that it survives a crash of the machine.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    // `fsync` needs no permission to write.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = call("open", || fs::open(path, flags, Mode::empty()))?;
    call("sync a file", || fs::fsync(file))
}

/// The storage of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// Memory only: no call waits for a disk.
    Memory,
    /// A local disk, on a file system whose change times are reliable.
    Disk,
    /// A network, or an unknown file system.
    Other,
}

/// Returns the storage of the directory at `path`, as far as it is known.
#[cfg(target_os = "linux")]
pub(super) fn medium(path: &Path) -> Medium {
    // From the kernel's `linux/magic.h`: tmpfs, ramfs; ext2 to ext4, XFS, Btrfs, F2FS.
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    const ON_DISKS: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    // The width of the type differs between architectures.
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
