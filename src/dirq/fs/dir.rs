//! Open directories and operations on the files in them. Files are addressed relative to the open directory, so that
//! changes to the path above cannot redirect a call.

use std::{
    ffi::{CStr, CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
use rustix::fs::{RawDir, StatxFlags, statx};
use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW,
        flock, fstat, fsync, linkat, openat, readlinkat, renameat, statat, symlinkat, unlinkat,
        utimensat,
    },
    io::{Errno, Result},
};

use super::{
    call::call,
    file::{NewFile, read_all, write_all},
    make_dir::make_dir_at,
    open::open_file,
    stat::file_id,
};

/// An open directory.
///
/// Operations cannot leave the directory: no name contains a slash, and no link is followed.
#[derive(Debug)]
pub(in crate::dirq) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    opened_for: OpenFor,
}

/// The purpose of opening a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirq) enum OpenFor {
    /// To access files in it whose names are known.
    Traversal,
    /// To list it as well, and only once: the position belongs to the descriptor and is not reset.
    Listing,
}

impl Dir {
    /// Opens the directory at `path`; `ENOTDIR` if it is a symbolic link.
    pub(in crate::dirq) fn open(path: PathBuf) -> Result<Self> {
        let fd = call("open", || rustix::fs::open(&path, TRAVERSE, Mode::empty()))?;
        Ok(Self { fd, path, opened_for: OpenFor::Traversal })
    }

    /// Opens a subdirectory.
    pub(in crate::dirq) fn open_subdir(&self, name: &CStr, opened_for: OpenFor) -> Result<Self> {
        let flags = match opened_for {
            OpenFor::Traversal => TRAVERSE,
            OpenFor::Listing => LIST,
        };
        let fd = call("open", || openat(&self.fd, name, flags, Mode::empty()))?;
        Ok(Self { fd, path: self.path_of(name), opened_for })
    }

    /// Returns the path of `name` in this directory, for error messages.
    pub(in crate::dirq) fn path_of(&self, name: &CStr) -> PathBuf {
        self.path.join(Path::new(OsStr::from_bytes(name.to_bytes())))
    }

    pub(in crate::dirq) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file with the content `data`. Returns it open if it is to be synced. After an error, the file does not
    /// exist.
    pub(in crate::dirq) fn create(
        &self,
        name: &CStr,
        data: &[u8],
        umask: Option<Mode>,
        sync: bool,
    ) -> Result<Option<NewFile>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        // The final mode is set at creation: a file that was readable for a moment stays open to processes that opened
        // it then.
        let mode = FILE_MODE.difference(umask.unwrap_or(Mode::empty()));
        let file = call("create", || openat(&self.fd, name, flags, mode))?;
        let written = write_all(file, data, umask.map(|_| mode)).and_then(|file| match sync {
            true => {
                file.begin_sync();
                Ok(Some(file))
            }
            false => file.close().map(|()| None),
        });
        written.inspect_err(|_| {
            // The original error is more useful than that of the cleanup.
            let _ = self.unlink(name);
        })
    }

    /// Writes `data` at the end of a regular file: `ELOOP` if it is a link, `EINVAL` or `ENXIO` if it is something
    /// else.
    pub(in crate::dirq) fn append(&self, name: &CStr, data: &[u8]) -> Result<()> {
        let file = self.open_to_append(name)?;
        file.append(data)?;
        file.close()
    }

    /// Syncs the content of a file that this process has written: `ELOOP` if it is a link.
    pub(in crate::dirq) fn sync_file(&self, name: &CStr) -> Result<()> {
        self.open_to_append(name)?.sync()
    }

    fn open_to_append(&self, name: &CStr) -> Result<NewFile> {
        let access = OFlags::WRONLY | OFlags::APPEND;
        let (file, _) = open_file("open to append", &self.fd, name, access)?;
        Ok(NewFile::from(file))
    }

    /// Reads a regular file: `ELOOP` if it is a link, `EINVAL` if it is not a regular file, `EFBIG` if it is longer
    /// than `limit`.
    pub(in crate::dirq) fn read(&self, name: &CStr, limit: u64) -> Result<Vec<u8>> {
        let (file, stat) = open_file("open", &self.fd, name, OFlags::RDONLY)?;
        read_all(&file, &stat, limit)
    }

    pub(in crate::dirq) fn link(&self, from: &CStr, to: &CStr) -> Result<()> {
        call("link", || linkat(&self.fd, from, &self.fd, to, AtFlags::empty()))
    }

    /// Creates a symbolic link that holds a short text and is never followed.
    pub(in crate::dirq) fn symlink(&self, text: &CStr, name: &CStr) -> Result<()> {
        call("symlink", || symlinkat(text, &self.fd, name))
    }

    pub(in crate::dirq) fn read_link(&self, name: &CStr) -> Result<CString> {
        call("read a link", || readlinkat(&self.fd, name, Vec::new()))
    }

    pub(in crate::dirq) fn unlink(&self, name: &CStr) -> Result<()> {
        call("unlink", || unlinkat(&self.fd, name, AtFlags::empty()))
    }

    /// Creates a subdirectory with the mode that results from `umask`, or from the process' umask.
    pub(in crate::dirq) fn mkdir(&self, name: &CStr, umask: Option<Mode>) -> Result<()> {
        make_dir_at(&self.fd, name, umask)
    }

    pub(in crate::dirq) fn rmdir(&self, name: &CStr) -> Result<()> {
        call("rmdir", || unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
    }

    /// Moves `from` in this directory to `name` in `to`. A directory replaces an empty directory.
    pub(in crate::dirq) fn rename(&self, from: &CStr, to: &Self, name: &CStr) -> Result<()> {
        call("rename", || renameat(&self.fd, from, &to.fd, name))
    }

    /// Sets both times to the kernel's current time. Any process with write access may do this; explicit times are
    /// reserved to the file's owner.
    pub(in crate::dirq) fn touch(&self, name: &CStr) -> Result<()> {
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now(), last_modification: now() };
        call("touch", || utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Returns the metadata of `name` without following a link.
    pub(in crate::dirq) fn stat(&self, name: &CStr) -> Result<Stat> {
        call("stat", || statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Returns the device and inode of the directory.
    pub(in crate::dirq) fn id(&self) -> Result<(u64, u64)> {
        Ok(file_id(&self.own_stat()?))
    }

    /// Returns the time of its creation, if the file system reports it. It distinguishes the directory from a later one
    /// with the same inode.
    #[cfg(target_os = "linux")]
    pub(in crate::dirq) fn birth_time(&self) -> Option<(i64, u32)> {
        let stat = || statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let stat = call("stat", stat).ok()?;
        let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        is_known.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
    }

    #[cfg(not(target_os = "linux"))]
    pub(in crate::dirq) fn birth_time(&self) -> Option<(i64, u32)> {
        None
    }

    /// Returns the metadata of the directory itself.
    pub(in crate::dirq) fn own_stat(&self) -> Result<Stat> {
        call("stat", || fstat(&self.fd))
    }

    /// Calls `visit` with each name in the directory except `.` and `..`, and its type, which is `Unknown` on some file
    /// systems.
    pub(in crate::dirq) fn list(&self, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
        let opened;
        let fd = match self.opened_for {
            OpenFor::Listing => self.fd.as_fd(),
            OpenFor::Traversal => {
                opened = self.readable()?;
                opened.as_fd()
            }
        };
        call("list", || {
            for_each_name(fd, |name, file_type| {
                #[cfg(test)]
                super::faults::count_listed();
                if ![c".", c".."].contains(&name) {
                    visit(name, file_type);
                }
            })
        })
    }

    /// Locks the directory until the result is dropped; `EWOULDBLOCK` if it is locked, by this or another process. The
    /// lock is advisory: it affects no other call.
    pub(in crate::dirq) fn try_lock(&self) -> Result<OwnedFd> {
        // A descriptor of its own: locks of the same one do not exclude each other.
        let fd = self.readable()?;
        call("lock", || flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
        Ok(fd)
    }

    /// Syncs the names in the directory, so that they survive a crash of the machine.
    pub(in crate::dirq) fn sync(&self) -> Result<()> {
        match self.readable() {
            Ok(readable) => call("sync a directory", || fsync(readable)),
            // A drop box: a directory that this process may write and not read.
            Err(Errno::ACCESS) => self.sync_file_system(),
            Err(error) => Err(error),
        }
    }

    /// Syncs the whole file system of the directory, which needs no permission to read. `EACCES` if neither is
    /// possible.
    #[cfg(target_os = "linux")]
    fn sync_file_system(&self) -> Result<()> {
        // A file without a name, because a descriptor for paths only cannot be synced.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let open = || openat(&self.fd, c".", flags, Mode::RUSR | Mode::WUSR);
        let file = call("create a file without a name", open).map_err(|_| Errno::ACCESS)?;
        call("sync the file system", || rustix::fs::syncfs(file))
    }

    #[cfg(not(target_os = "linux"))]
    fn sync_file_system(&self) -> Result<()> {
        Err(Errno::ACCESS)
    }

    fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        call("open for reading", || openat(&self.fd, c".", flags, Mode::empty()))
    }
}

#[cfg(target_os = "linux")]
fn for_each_name(fd: BorrowedFd<'_>, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
    // 64 KiB hold about 2,000 names of 32 bytes: most directories need one system call.
    let mut buffer: Vec<u8> = Vec::with_capacity(64 * 1024);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        visit(entry.file_name(), entry.file_type());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn for_each_name(fd: BorrowedFd<'_>, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        visit(entry.file_name(), entry.file_type());
    }
    Ok(())
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const FILE_MODE: Mode = Mode::from_bits_retain(0o666);

/// `O_PATH` needs no permission to read the directory: some processes may only add elements.
#[cfg(target_os = "linux")]
const TRAVERSE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const TRAVERSE: OFlags = LIST;

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
