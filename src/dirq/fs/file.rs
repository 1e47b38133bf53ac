//! A file's content: written whole or not at all, read whole or not at all.

use std::os::fd::OwnedFd;

use nix::unistd::close;
#[cfg(target_os = "linux")]
use rustix::fs::{Advice, fadvise};
use rustix::{
    buffer::spare_capacity,
    fs::{Mode, fchmod, fstat, fsync},
    io::{Errno, Result, read, write},
};

use super::{call::call, stat::is_file};

/// A new file with all of its data, still open.
pub(in crate::dirq) struct NewFile(OwnedFd);

impl NewFile {
    /// Lets the disk begin with it, so that who syncs many waits for less: asked whether memory has to keep it, Linux
    /// begins to write what only memory has.
    #[cfg(target_os = "linux")]
    pub(super) fn begin_sync(&self) {
        // A hint, without which it takes longer.
        let _ = call("begin to sync", || fadvise(&self.0, 0, None, Advice::DontNeed));
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn begin_sync(&self) {}

    /// Lets what is in it survive a crash of the machine, and closes it.
    pub(in crate::dirq) fn sync(self) -> Result<()> {
        call("sync a file", || fsync(&self.0))?;
        self.close()
    }

    /// Some file systems (NFS, CIFS, those in user space) only say here that the disk or the quota is full.
    pub(super) fn close(self) -> Result<()> {
        call("close", || close(self.0).map_err(|error| Errno::from_raw_os_error(error as i32)))
    }
}

/// Writes all of `data` into a file that is new. The mode is for where the process' umask took more of it than it was
/// to.
pub(super) fn write_all(file: OwnedFd, mut data: &[u8], mode: Option<Mode>) -> Result<NewFile> {
    while !data.is_empty() {
        match call("write", || write(&file, data)) {
            // No file system should; it would be asked for ever.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => data = &data[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(mode) = mode {
        call("chmod", || fchmod(&file, mode))?;
    }
    Ok(NewFile(file))
}

/// All of a regular file: `EINVAL` where it is something else, `EFBIG` where it is longer than `limit`.
pub(super) fn read_all(file: &OwnedFd, limit: u64) -> Result<Vec<u8>> {
    let stat = call("stat", || fstat(file))?;
    if !is_file(&stat) {
        return Err(Errno::INVAL);
    }
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    if len > limit {
        return Err(Errno::FBIG);
    }
    // One read of the size that it has: a file of an element never grows, and a read that only finds the end would be
    // a call more for each element. Anybody may have written that size, so that there may be no memory for it.
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    while data.len() < len {
        match call("read", || read(file, spare_capacity(&mut data))) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(data)
}
