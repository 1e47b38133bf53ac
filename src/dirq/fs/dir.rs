//! An open directory, and what is done with the files in it: by their names in it alone, so that nothing that
//! others do to the path above leads a call elsewhere.

#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;
use std::{
    ffi::{CStr, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
use rustix::fs::RawDir;
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fchmod, fstat,
        fsync, linkat, mkdirat, openat, renameat, statat, unlinkat, utimensat,
    },
    io::{Errno, Result, read, write},
};

/// An open directory.
///
/// What is done in it is done there and nowhere else: no name has a slash, and no link is followed.
#[derive(Debug)]
pub(in crate::dirq) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    opened_for: OpenFor,
}

/// What a directory is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dirq) enum OpenFor {
    /// To get at the files in it, whose names are known.
    Traversal,
    /// To list it as well, and once: the place in the list is the descriptor's, and is not set back.
    Listing,
}

impl Dir {
    /// Opens the directory at `path`; `ENOTDIR` where that is a symbolic link.
    pub(in crate::dirq) fn open(path: PathBuf) -> Result<Self> {
        let fd = rustix::fs::open(&path, TRAVERSE, Mode::empty())?;
        Ok(Self { fd, path, opened_for: OpenFor::Traversal })
    }

    /// Opens a directory in this one.
    pub(in crate::dirq) fn enter(&self, name: &CStr, opened_for: OpenFor) -> Result<Self> {
        let flags = match opened_for {
            OpenFor::Traversal => TRAVERSE,
            OpenFor::Listing => LIST,
        };
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd, path: self.path_of(name), opened_for })
    }

    /// The path of `name` in it, for an error.
    pub(in crate::dirq) fn path_of(&self, name: &CStr) -> PathBuf {
        self.path.join(Path::new(OsStr::from_bytes(name.to_bytes())))
    }

    pub(in crate::dirq) fn path(&self) -> &Path {
        &self.path
    }

    /// A new file with all of `data`. Where that fails, there is none.
    pub(in crate::dirq) fn create(
        &self,
        name: &CStr,
        data: &[u8],
        umask: Option<Mode>,
        sync: bool,
    ) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, FILE_MODE)?;
        write_all(&file, data, umask, sync).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = self.unlink(name);
        })
    }

    /// All of a regular file: `ELOOP` where it is a link, `EINVAL` where it is anything else.
    pub(in crate::dirq) fn read(&self, name: &CStr) -> Result<Vec<u8>> {
        // Not blocking, as a pipe would wait for somebody who writes.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        if !is_file(&stat) {
            return Err(Errno::INVAL);
        }
        // One read of the size that it has: a file of an element never grows, and a read that only finds the end
        // would be a call more for each element.
        let mut data = vec![0; usize::try_from(stat.st_size).unwrap_or(0)];
        let mut filled = 0;
        while filled < data.len() {
            match read(&file, &mut data[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    pub(in crate::dirq) fn link(&self, from: &CStr, to: &CStr) -> Result<()> {
        linkat(&self.fd, from, &self.fd, to, AtFlags::empty())
    }

    pub(in crate::dirq) fn unlink(&self, name: &CStr) -> Result<()> {
        unlinkat(&self.fd, name, AtFlags::empty())
    }

    /// A new directory in it; its mode is the process' matter unless there is a umask.
    pub(in crate::dirq) fn mkdir(&self, name: &CStr, umask: Option<Mode>) -> Result<()> {
        mkdirat(&self.fd, name, DIR_MODE)?;
        match umask {
            None => Ok(()),
            Some(umask) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(&self.fd, name, flags, Mode::empty()) {
                    Ok(made) => fchmod(&made, DIR_MODE.difference(umask)),
                    // Who else removed it, or made it anew, is responsible for its mode.
                    Err(Errno::NOENT) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    pub(in crate::dirq) fn rmdir(&self, name: &CStr) -> Result<()> {
        unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
    }

    /// Moves what is at `from`, here, to `name` in `to`. It replaces an empty directory by a directory.
    pub(in crate::dirq) fn rename(&self, from: &CStr, to: &Self, name: &CStr) -> Result<()> {
        renameat(&self.fd, from, &to.fd, name)
    }

    /// Sets both times to the kernel's now, which is allowed to whoever may write the file, unlike any other
    /// time.
    pub(in crate::dirq) fn touch(&self, name: &CStr) -> Result<()> {
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now(), last_modification: now() };
        utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What is at `name` itself, a link included.
    pub(in crate::dirq) fn stat(&self, name: &CStr) -> Result<Stat> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Calls `visit` with each name in it but `.` and `..`, and its type if the file system tells it.
    pub(in crate::dirq) fn list(&self, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
        let opened;
        let fd = match self.opened_for {
            OpenFor::Listing => self.fd.as_fd(),
            OpenFor::Traversal => {
                opened = self.readable()?;
                opened.as_fd()
            }
        };
        each_name(fd, |name, file_type| {
            if ![c".", c".."].contains(&name) {
                visit(name, file_type);
            }
        })
    }

    /// Lets its list of names survive a crash of the machine.
    pub(in crate::dirq) fn sync(&self) -> Result<()> {
        fsync(self.readable()?)
    }

    fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.fd, c".", flags, Mode::empty())
    }
}

/// Moves the file `from` of one directory to the name `to` in another; `EEXIST` where that is taken.
///
/// At once where the file system can, and else by a link and an unlink: for who looks at `to`, they are the
/// same.
pub(in crate::dirq) fn rename_to_free_name(
    from_dir: impl AsFd,
    from: &CStr,
    to_dir: &Dir,
    to: &CStr,
) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{RenameFlags, renameat_with};

        match renameat_with(&from_dir, from, &to_dir.fd, to, RenameFlags::NOREPLACE) {
            // What a kernel, and a file system, that has no such flag says.
            Err(Errno::NOSYS | Errno::INVAL | Errno::NOTSUP) => {}
            result => return result,
        }
    }
    link_and_unlink(from_dir, from, to_dir, to)
}

fn link_and_unlink(from_dir: impl AsFd, from: &CStr, to_dir: &Dir, to: &CStr) -> Result<()> {
    linkat(&from_dir, from, &to_dir.fd, to, AtFlags::empty())?;
    match unlinkat(&from_dir, from, AtFlags::empty()) {
        // A purge may take the old name as soon as it is old.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => to_dir.unlink(to).and(Err(error)),
    }
}

#[cfg(target_os = "linux")]
fn each_name(fd: BorrowedFd<'_>, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut entries = RawDir::new(fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        visit(entry.file_name(), entry.file_type());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn each_name(fd: BorrowedFd<'_>, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
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

pub(in crate::dirq) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// The time of a file's last change, in nanoseconds since 1970.
pub(in crate::dirq) fn modified(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

fn write_all(file: &OwnedFd, mut data: &[u8], umask: Option<Mode>, sync: bool) -> Result<()> {
    while !data.is_empty() {
        match write(file, data) {
            Ok(count) => data = &data[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(umask) = umask {
        fchmod(file, FILE_MODE.difference(umask))?;
    }
    if sync { fsync(file) } else { Ok(()) }
}

const FILE_MODE: Mode = Mode::from_bits_retain(0o666);
pub(super) const DIR_MODE: Mode = Mode::from_bits_retain(0o777);

/// To go through a directory needs no right to list it: others may only drop elements in.
#[cfg(target_os = "linux")]
const TRAVERSE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const TRAVERSE: OFlags = LIST;

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Most file systems can do it at once, and so no test from outside gets here.
    #[test]
    fn a_link_and_an_unlink_do_for_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::open(dir.path().to_owned()).unwrap();
        type Rename = fn(&Dir, &CStr, &Dir, &CStr) -> Result<()>;
        let renames: [Rename; 2] = [
            |from_dir, from, to_dir, to| rename_to_free_name(from_dir, from, to_dir, to),
            |from_dir, from, to_dir, to| link_and_unlink(from_dir, from, to_dir, to),
        ];
        for rename in renames {
            dir.create(c"draft", b"new", None, false).unwrap();
            dir.create(c"taken", b"old", None, false).unwrap();
            assert_eq!(rename(&dir, c"draft", &dir, c"taken"), Err(Errno::EXIST));
            assert_eq!(fs::read(dir.path().join("taken")).unwrap(), b"old");
            assert_eq!(rename(&dir, c"draft", &dir, c"free"), Ok(()));
            assert_eq!(rename(&dir, c"draft", &dir, c"more"), Err(Errno::NOENT));
            assert_eq!(fs::read(dir.path().join("free")).unwrap(), b"new");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
            dir.unlink(c"free").unwrap();
            dir.unlink(c"taken").unwrap();
        }
    }
}
