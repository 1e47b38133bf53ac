//! The directory of a queue: operations of both kinds on it and on the directories of elements in it.
//!
//! The queue's directory is stored as a path and not as an open directory: if it is moved away and created again, the
//! next call uses the new one. Therefore each call begins with an [`Opener`]. Only opening a queue and adding to it
//! create that directory.

mod options;
mod sync;

use std::{
    ffi::CStr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::io::Errno;

pub(super) use self::{
    options::Options,
    sync::{OpenFiles, Unpublished},
};
use super::{
    Error, Name, Purge,
    bound::QueueBound,
    dir_cache::DirCache,
    file_name::{FileName, directory_of, element_of},
    fs::{Dir, FileType, Medium, Mode, OpenFor, file_id, make_dir, stat},
    name_generator::NameGenerator,
    retry_budget::RetryBudget,
    shared::SharedQueue,
    snapshot::Cached,
    spin_handoff::SpinHandoff,
};
use crate::engine::retries::Retries;

/// The directory of a queue, with its settings.
///
/// `pub` only because [`Protocol`](super::protocol::Protocol) mentions it. Other crates cannot name it.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    pub(super) umask: Option<Mode>,
    pub(super) sync: bool,
    /// True if all work runs on the calling thread, even if it waits for a disk. Tests inject faults there.
    pub(super) in_place: bool,
    /// Maximum size of an element's content in bytes.
    pub(super) max_size: u64,
    /// `None` if deliveries are not counted.
    pub(super) retries: Option<Retries>,
    /// `None` if streams do not purge the queue.
    pub(super) purge_every: Option<(Duration, Purge)>,
    /// `None` if the number of elements is not bounded.
    pub(super) bound: Option<Arc<QueueBound>>,
    pub(super) names: NameGenerator,
    /// Device and inode. Several paths may lead to one queue.
    id: DirId,
    /// The medium at the time of opening.
    medium: Medium,
    /// Hands work to the thread of the previous call if that is still spinning.
    pub(super) handoff: Arc<SpinHandoff>,
    pub(super) shared: Arc<SharedQueue>,
    /// `None` if the directory may be on a network: the cache relies on change times, which are reported late there.
    cache: Option<DirCache>,
    /// The latest snapshot of the records.
    pub(super) record_cache: Mutex<Cached>,
    /// True if the latest delivery could not be recorded.
    is_unrecorded: AtomicBool,
    synced: Mutex<SyncedDirs>,
}

/// The directories on the path to the latest new elements whose names are known to be on disk. Each has its identity,
/// because another process may delete and create one.
#[derive(Debug, Default, PartialEq, Eq)]
struct SyncedDirs {
    root: Option<DirIdentity>,
    directory: Option<(u32, DirIdentity)>,
}

/// Identity and birth time of a directory. File systems reuse the inode of a deleted directory, so the identity is not
/// enough.
type DirIdentity = (DirId, Option<(i64, u32)>);

/// Device and inode.
pub(super) type DirId = (u64, u64);

impl Root {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> DirId {
        self.id
    }

    /// Returns the error of a call that needs a lock: that the queue's own directory is away, in place of
    /// [`Error::NotLocked`], if all of its locks are away with it. Its file system may be mounted again.
    pub(super) fn not_locked_or_away(&self, error: Error) -> Error {
        if !matches!(error, Error::NotLocked { .. }) {
            return error;
        }
        match stat(&self.path) {
            // Under a mount point, there is a directory of another device.
            Ok(found) if file_id(&found).0 != self.id.0 => {
                Error::io("open", &self.path, Errno::NOENT)
            }
            Ok(_) => error,
            Err(errno) => Error::io("open", &self.path, errno),
        }
    }

    /// Returns whether no call can wait for a disk.
    pub(super) fn in_memory(&self) -> bool {
        self.medium == Medium::Memory
    }

    /// Returns whether calls wait only for a local disk, usually for a short time.
    pub(super) fn on_disk(&self) -> bool {
        self.medium == Medium::Disk
    }

    /// Returns whether change times and inodes are those of a file system of this machine.
    pub(super) fn is_local(&self) -> bool {
        self.cache.is_some()
    }

    /// Logs the first of several consecutive deliveries that could not be recorded.
    pub(super) fn note_recorded(&self, recorded: Result<(), Error>) {
        // `Relaxed`: the flag orders no other memory.
        if self.is_unrecorded.swap(recorded.is_err(), Relaxed) {
            return;
        }
        if let Err(error) = recorded {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                queue = %self.path.display(),
                "delivery could not be recorded, its failure will not count"
            );
        }
    }

    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// Returns the directories of elements, in order. Other files with such a name are omitted.
    pub(super) fn directories(&self) -> Result<Vec<u32>, Error> {
        let mut found = Vec::new();
        let Some(root) = self.open_root()? else { return Ok(found) };
        root.list(|name, file_type| {
            if let Some(number) = directory_of(name.to_bytes())
                && matches!(file_type, FileType::Directory | FileType::Unknown)
            {
                found.push(number);
            }
        })
        .map_err(Error::on("list", || &self.path))?;
        found.sort_unstable();
        Ok(found)
    }

    /// Returns the elements of type `kind` in a directory, unordered. Returns none if the directory is missing, or is
    /// not a directory.
    pub(super) fn elements(&self, directory: u32, kind: FileType) -> Result<Vec<Name>, Error> {
        self.elements_and(directory, kind, |_| ())
    }

    /// Same as [`elements`](Self::elements), and calls `other` with each name that is not an element's.
    pub(super) fn elements_and(
        &self,
        directory: u32,
        kind: FileType,
        other: impl FnMut(&CStr),
    ) -> Result<Vec<Name>, Error> {
        let mut found = Vec::new();
        let visit = |element| found.push(Name { directory, element });
        self.each_element(directory, kind, visit, other)?;
        Ok(found)
    }

    pub(super) fn count(&self, kind: FileType) -> Result<u64, Error> {
        self.directories()?.into_iter().map(|directory| self.count_in(directory, kind)).sum()
    }

    pub(super) fn count_in(&self, directory: u32, kind: FileType) -> Result<u64, Error> {
        let mut count = 0;
        self.each_element(directory, kind, |_| count += 1, |_| ())?;
        Ok(count)
    }

    fn each_element(
        &self,
        directory: u32,
        kind: FileType,
        mut visit: impl FnMut(u64),
        mut other: impl FnMut(&CStr),
    ) -> Result<(), Error> {
        let mut unknown = Vec::new();
        let dir = self.list(directory, |name, file_type| {
            let Some(element) = element_of(name.to_bytes()) else { return other(name) };
            if file_type == kind {
                visit(element);
            } else if file_type == FileType::Unknown {
                unknown.push(element);
            }
        })?;
        // After the listing: some file systems do not report types in it, so that each element costs a `stat`.
        for element in unknown {
            if let Some(dir) = &dir
                && let Ok(stat) = dir.stat(FileName::element(element).c_str())
                && FileType::from_raw_mode(stat.st_mode) == kind
            {
                visit(element);
            }
        }
        Ok(())
    }

    /// Calls `visit` with each name in a directory of elements, and returns the directory. Returns `None` if it is
    /// missing, or is not a directory.
    pub(super) fn list(
        &self,
        directory: u32,
        visit: impl FnMut(&CStr, FileType),
    ) -> Result<Option<Arc<Dir>>, Error> {
        let dir = match self.open(directory) {
            Ok(Some(dir)) => dir,
            // Another kind of file with such a name is not part of the queue.
            Ok(None) | Err(Error::Foreign { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match dir.list(visit) {
            Ok(()) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("list", dir.path(), error)),
        }
    }

    /// Opens a directory of elements, or returns `None` if it is missing.
    pub(super) fn open(&self, directory: u32) -> Result<Option<Arc<Dir>>, Error> {
        self.opener().open(directory)
    }

    /// Opens a subdirectory of the queue that is not a directory of elements. Creates it if needed, but not the queue's
    /// own directory: if that is away, it could not be moved or mounted back.
    pub(super) fn open_or_make<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &str,
    ) -> Result<Arc<Dir>, Error> {
        self.open_or(opener, name, |path| match make_dir(path, self.umask) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(Error::io("create", path, error)),
        })
    }

    /// Same as [`open_or_make`](Self::open_or_make), but also creates the queue's directory and its parents, as an add
    /// does.
    pub(super) fn open_or_make_all<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &str,
    ) -> Result<Arc<Dir>, Error> {
        self.open_or(opener, name, |path| make_all(path, self.umask))
    }

    fn open_or<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &str,
        make: impl Fn(&Path) -> Result<(), Error>,
    ) -> Result<Arc<Dir>, Error> {
        let path = self.path.join(name);
        let mut retries = RetryBudget::of("create");
        loop {
            if let Some(dir) = opener.open_named(name)? {
                return Ok(dir);
            }
            // It does not exist yet, or another process removed it.
            make(&path)?;
            // Creating the directory has changed the queue's, so the generation of the old opener is outdated.
            *opener = self.opener();
            retries.spend(|| path.clone())?;
        }
    }

    /// Returns an opener that has just validated the cached directories. Each call uses one opener for everything it
    /// opens.
    pub(super) fn opener(&self) -> Opener<'_> {
        let cache =
            self.cache.as_ref().and_then(|cache| Some((cache, cache.validate(&self.path)?)));
        Opener { path: &self.path, cache }
    }

    /// Creates a directory of elements and its parents, unless they exist.
    pub(super) fn make(&self, directory: u32) -> Result<(), Error> {
        self.make_named(FileName::directory(directory).as_str())
    }

    /// Creates a subdirectory of the queue and its parents, unless they exist.
    pub(super) fn make_named(&self, name: &str) -> Result<(), Error> {
        make_all(&self.path.join(name), self.umask)
    }

    /// Returns [`Error::TooLarge`] if content of `len` bytes exceeds the limit.
    pub(super) fn check_size(&self, len: u64, path: impl FnOnce() -> PathBuf) -> Result<(), Error> {
        match len <= self.max_size {
            true => Ok(()),
            false => Err(Error::TooLarge { path: path(), limit: self.max_size }),
        }
    }

    /// Opens the queue's own directory, which may be a symbolic link; `None` if it is missing.
    fn open_root(&self) -> Result<Option<Dir>, Error> {
        // The dot follows the link. `Dir::open` rejects links otherwise.
        match Dir::open(self.path.join(".")) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("open", &self.path, error)),
        }
    }
}

/// Opens subdirectories of the queue, whose cache was validated when the opener was created. Directories opened by one
/// opener belong to the same queue, as far as that can be checked cheaply. `pub` for the same reason as [`Root`].
pub struct Opener<'a> {
    path: &'a Path,
    /// The cache with its validated generation; `None` if each directory must be opened.
    cache: Option<(&'a DirCache, u64)>,
}

impl Opener<'_> {
    /// Opens a directory of elements, or returns `None` if it is missing.
    pub(super) fn open(&self, directory: u32) -> Result<Option<Arc<Dir>>, Error> {
        self.open_named(FileName::directory(directory).as_str())
    }

    /// Opens a subdirectory of the queue, or returns `None` if it is missing.
    pub(super) fn open_named(&self, name: &str) -> Result<Option<Arc<Dir>>, Error> {
        if let Some((cache, generation)) = self.cache
            && let Some(dir) = cache.get(name, generation)
        {
            return Ok(Some(dir));
        }
        let path = self.path.join(name);
        self.cache_opened(name, Dir::open(path.clone()), path)
    }

    /// Opens a directory in a subdirectory of the queue, or returns `None` if it is missing. If it is removed while the
    /// subdirectory exists, the removed one may be returned.
    pub(super) fn open_below(&self, parent: &Dir, name: &CStr) -> Result<Option<Arc<Dir>>, Error> {
        let path = parent.path_of(name);
        let key = path.to_string_lossy();
        if let Some((cache, generation)) = self.cache
            && let Some(dir) = cache.get(&key, generation)
        {
            return Ok(Some(dir));
        }
        let opened = parent.open_subdir(name, OpenFor::Traversal);
        self.cache_opened(&key, opened, path.clone())
    }

    fn cache_opened(
        &self,
        key: &str,
        opened: Result<Dir, Errno>,
        path: PathBuf,
    ) -> Result<Option<Arc<Dir>>, Error> {
        let dir = match opened {
            Ok(dir) => Arc::new(dir),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::Foreign { path }),
            Err(error) => return Err(Error::io("open", path, error)),
        };
        if let Some((cache, generation)) = self.cache {
            cache.insert(key, &dir, generation);
        }
        Ok(Some(dir))
    }

    /// Returns a number that is equal for two openers if no directory was created or removed between them; `None` if
    /// this is unknown.
    pub(super) fn generation(&self) -> Option<u64> {
        self.cache.map(|(_, generation)| generation)
    }
}

/// Creates a directory and its parents, unless they exist. The umask applies to each created directory.
fn make_all(path: &Path, umask: Option<Mode>) -> Result<(), Error> {
    let mut retries = RetryBudget::of("create");
    loop {
        match (make_dir(path, umask), path.parent()) {
            (Ok(()) | Err(Errno::EXIST), _) => return Ok(()),
            // Bottom-up: usually only the last directory is missing.
            (Err(Errno::NOENT), Some(parent)) => make_all(parent, umask)?,
            (Err(error), _) => return Err(Error::io("create", path, error)),
        }
        // The parent exists each time, and yet nothing can be created in it: most likely it is a dangling link.
        let cannot_make = |_| Error::io("create", path, Errno::NOENT);
        retries.spend(|| path.to_owned()).map_err(cannot_make)?;
    }
}
