//! File contents: files are written and read completely or not at all.

use std::os::fd::OwnedFd;

use nix::unistd::close;
#[cfg(target_os = "linux")]
use rustix::fs::{Advice, fadvise};
use rustix::{
    buffer::spare_capacity,
    fs::{Mode, Stat, fchmod, fsync},
    io::{Errno, Result, read, write},
};

use super::call::call;

/// A file of this process that is open for writing.
pub(in crate::dirq) struct NewFile(OwnedFd);

impl From<OwnedFd> for NewFile {
    fn from(file: OwnedFd) -> Self {
        Self(file)
    }
}

impl NewFile {
    /// Starts writing the file to disk, so that a later sync of several files takes less time: Linux starts writing
    /// pages back when it is advised that they are no longer needed.
    #[cfg(target_os = "linux")]
    pub(super) fn begin_sync(&self) {
        // A hint only: without it, the sync takes longer.
        let _ = call("begin to sync", || fadvise(&self.0, 0, None, Advice::DontNeed));
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn begin_sync(&self) {}

    /// Writes `data` at the end of the file.
    pub(super) fn append(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            match call("write", || write(&self.0, data)) {
                // No file system should return 0. Retrying could loop forever.
                Ok(0) => return Err(Errno::IO),
                Ok(count) => data = &data[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Syncs the content, so that it survives a crash of the machine, and closes the file.
    pub(in crate::dirq) fn sync(self) -> Result<()> {
        call("sync a file", || fsync(&self.0))?;
        self.close()
    }

    /// Closes the file. Some file systems (NFS, CIFS, FUSE) report only here that the disk or the quota is full.
    pub(in crate::dirq) fn close(self) -> Result<()> {
        call("close", || close(self.0).map_err(|error| Errno::from_raw_os_error(error as i32)))
    }
}

/// Writes `data` to a new file. `mode` is set explicitly if given, because the process' umask may have removed bits
/// from it.
pub(super) fn write_all(file: OwnedFd, data: &[u8], mode: Option<Mode>) -> Result<NewFile> {
    let file = NewFile(file);
    file.append(data)?;
    if let Some(mode) = mode {
        call("chmod", || fchmod(&file.0, mode))?;
    }
    Ok(file)
}

/// Reads a regular file with the metadata `stat`: `EFBIG` if it is longer than `limit`.
pub(super) fn read_all(file: &OwnedFd, stat: &Stat, limit: u64) -> Result<Vec<u8>> {
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    if len > limit {
        return Err(Errno::FBIG);
    }
    // Reads exactly the file's size: the file of an element never grows, and another read to detect its end would cost
    // one more system call per element. The size may come from any process, so the allocation must be fallible.
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    while data.len() < len {
        match call("read", || read(file, spare_capacity(&mut data))) {
            // Another process has truncated the file since the `stat`.
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(data)
}
