//! Kind of storage of a directory: memory, a local disk, or anything else.

use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::fs;

#[cfg(target_os = "linux")]
use super::call::call;

/// The storage of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirq) enum Medium {
    /// Memory only: no call waits for a disk.
    Memory,
    /// A local disk, on a file system whose change times are reliable.
    Disk,
    /// A network, or an unknown file system.
    Other,
}

/// Returns the storage of the directory at `path`, as far as it is known.
#[cfg(target_os = "linux")]
pub(in crate::dirq) fn medium(path: &Path) -> Medium {
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
pub(in crate::dirq) fn medium(_: &Path) -> Medium {
    Medium::Other
}
