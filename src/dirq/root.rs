//! The directory of a queue: what both kinds do with it and the directories of elements in it.
//!
//! A queue's directory is a path here and no open directory: whoever moves a queue away and makes a new one in its
//! place finds the next element in the new one. So each call begins with an [`Opener`].

mod sync;

use std::{
    ffi::CStr,
    io,
    path::{Path, PathBuf, absolute},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, make_rng, rngs::SmallRng};
use rustix::io::Errno;

pub(super) use self::sync::Unpublished;
use super::{
    Error, Name,
    bound::Bound,
    dir_cache::DirCache,
    file_name::{FileName, directory_of, element_of},
    fs::{Dir, FileType, Medium, Mode, file_id, is_directory, make_dir, medium, stat},
    metrics::QueueMetrics,
    name_generator::NameGenerator,
    retry_budget::RetryBudget,
    retry_policy::RetryPolicy,
    spin_handoff::SpinHandoff,
};

/// What both kinds of queues are opened with.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) path: PathBuf,
    pub(super) umask: Option<u32>,
    pub(super) rnd_hex: Option<u8>,
    pub(super) sync: bool,
    pub(super) max_size: u64,
    /// None where deliveries are not counted.
    pub(super) retries: Option<RetryPolicy>,
    /// None where it may have any number.
    pub(super) max_elements: Option<u64>,
    pub(super) wait_for_room: Option<Duration>,
}

impl Options {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            umask: None,
            rnd_hex: None,
            sync: false,
            max_size: 1 << 30,
            retries: None,
            max_elements: None,
            wait_for_room: None,
        }
    }

    /// Deliveries are counted as soon as one of the settings of retries is made.
    pub(super) fn retries(&mut self) -> &mut RetryPolicy {
        self.retries.get_or_insert(RetryPolicy::DEFAULT)
    }

    /// Makes the queue's directory, those above it, and those that are `always` in it, where they are not
    /// there.
    pub(super) fn open(self, always: &[&str]) -> Result<Root, Error> {
        let Self { path, umask, rnd_hex, sync, max_size, retries, max_elements, wait_for_room } =
            self;
        if let Some(retries) = &retries {
            retries.check()?;
        }
        if let Some(umask) = umask.filter(|&umask| umask > 0o777) {
            let reason = format!("must be at most 0o777, got {umask:#o}");
            return Err(Error::InvalidOption { option: "umask", reason });
        }
        if let Some(digit) = rnd_hex.filter(|&digit| digit > 15) {
            let reason = format!("must be one hexadecimal digit (0 to 15), got {digit}");
            return Err(Error::InvalidOption { option: "rnd_hex", reason });
        }
        let rnd_hex = rnd_hex.unwrap_or_else(|| make_rng::<SmallRng>().random_range(0..16));
        let umask = umask.map(|umask| Mode::from_bits_retain(umask as _));
        // Of now: the process may change its directory while the queue is open.
        let path = absolute(&path).map_err(|error| Error::io("resolve", path, error))?;
        make_all(&path, umask)?;
        let at_path = stat(&path).map_err(Error::on("open", || &path))?;
        if !is_directory(&at_path) {
            return Err(Error::io("open", path, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let medium = medium(&path);
        let root = Root {
            umask,
            sync,
            max_size,
            retries,
            bound: max_elements.map(|max| Bound::new(max, wait_for_room)),
            names: NameGenerator::new(rnd_hex),
            id: file_id(&at_path),
            medium,
            handoff: Arc::default(),
            cache: (medium != Medium::Other).then(DirCache::default),
            synced: Mutex::default(),
            metrics: Arc::default(),
            path,
        };
        always.iter().try_for_each(|name| root.make_named(name))?;
        #[cfg(feature = "metrics")]
        super::metrics::register_queue(&root.metrics, root.path());
        Ok(root)
    }
}

/// The directory of a queue, with what it was opened with.
///
/// It is `pub` only as a part of [`Protocol`](super::protocol::Protocol), which nobody outside can name.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    pub(super) umask: Option<Mode>,
    pub(super) sync: bool,
    /// How long what an element holds may be, in bytes.
    pub(super) max_size: u64,
    /// None where deliveries are not counted.
    pub(super) retries: Option<RetryPolicy>,
    /// None where it may have any number of elements.
    pub(super) bound: Option<Arc<Bound>>,
    pub(super) names: NameGenerator,
    /// Device and inode, as two paths may lead to one queue.
    id: DirId,
    /// As when it was opened.
    medium: Medium,
    /// The thread that did its last work, if that waits for more.
    pub(super) handoff: Arc<SpinHandoff>,
    /// None where it may be on a network, as it goes by times that are told too late there.
    cache: Option<DirCache>,
    synced: Mutex<SyncedDirs>,
    pub(super) metrics: Arc<QueueMetrics>,
}

/// The directories on the path_dirs to the last new elements whose names are known to be on disk, each with the one that
/// it is: others may make one anew.
#[derive(Debug, Default, PartialEq, Eq)]
struct SyncedDirs {
    root: Option<DirIdentity>,
    directory: Option<(u32, DirIdentity)>,
}

/// Which directory it is, and when it was made: what is made next may get the number of what is gone.
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

    /// Whether no call waits for a disk.
    pub(super) fn in_memory(&self) -> bool {
        self.medium == Medium::Memory
    }

    /// Whether a call that waits most probably does so for a disk of this machine, which seldom is for long.
    pub(super) fn on_disk(&self) -> bool {
        self.medium == Medium::Disk
    }

    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// The directories of elements, in order. What has such a name and is something else is left out.
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

    /// The elements of a directory that are of `kind`, in no order; none where the directory is gone, or is
    /// no directory.
    pub(super) fn elements(&self, directory: u32, kind: FileType) -> Result<Vec<Name>, Error> {
        self.elements_and(directory, kind, |_| ())
    }

    /// The same, and calls `other` with what is there and no element.
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
        // After the list, as some file systems don't tell types in it: then each costs a call.
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

    /// Calls `visit` with what is in a directory of elements, and returns that: nothing where it is gone, or is
    /// no directory.
    pub(super) fn list(
        &self,
        directory: u32,
        visit: impl FnMut(&CStr, FileType),
    ) -> Result<Option<Arc<Dir>>, Error> {
        let dir = match self.open(directory) {
            Ok(Some(dir)) => dir,
            Ok(None) | Err(Error::Foreign { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match dir.list(visit) {
            Ok(()) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("list", dir.path(), error)),
        }
    }

    /// A directory of elements; none where there is none.
    pub(super) fn open(&self, directory: u32) -> Result<Option<Arc<Dir>>, Error> {
        self.opener().open(directory)
    }

    /// A directory in the queue's that is not one of elements, which it makes if need be.
    pub(super) fn open_or_make<'a>(
        &'a self,
        opener: &mut Opener<'a>,
        name: &str,
    ) -> Result<Arc<Dir>, Error> {
        let mut retries = RetryBudget::of("make");
        loop {
            if let Some(dir) = opener.open_named(name)? {
                return Ok(dir);
            }
            // Nobody made it yet, or somebody removed it.
            self.make_named(name)?;
            *opener = self.opener();
            retries.spend(|| self.path.join(name))?;
        }
    }

    /// Looks at the queue's directory: what one call opens, it opens by this.
    pub(super) fn opener(&self) -> Opener<'_> {
        let cache =
            self.cache.as_ref().and_then(|cache| Some((cache, cache.validate(&self.path)?)));
        Opener { path: &self.path, cache }
    }

    /// Makes a directory of elements, and those above it, unless it is there.
    pub(super) fn make(&self, directory: u32) -> Result<(), Error> {
        self.make_named(FileName::directory(directory).as_str())
    }

    /// Makes a directory in the queue's, unless it is there.
    pub(super) fn make_named(&self, name: &str) -> Result<(), Error> {
        make_all(&self.path.join(name), self.umask)
    }

    /// An error where what an element is to hold is longer than it may be.
    pub(super) fn check_size(&self, len: u64, path: impl FnOnce() -> PathBuf) -> Result<(), Error> {
        match len <= self.max_size {
            true => Ok(()),
            false => Err(Error::TooLarge { path: path(), limit: self.max_size }),
        }
    }

    /// The queue's own directory, which may be a link, as its owner named it; none where it is gone.
    fn open_root(&self) -> Result<Option<Dir>, Error> {
        // The dot follows that link, which an open of a directory otherwise refuses.
        match Dir::open(self.path.join(".")) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("open", &self.path, error)),
        }
    }
}

/// Opens the directories in a queue's, which it looked at when it was made: two that are opened by one opener are of
/// one queue, as far as that is cheap to see. It is `pub` as [`Root`] is.
pub struct Opener<'a> {
    path: &'a Path,
    /// With the generation of that look; none where each directory has to be opened anew.
    cache: Option<(&'a DirCache, u64)>,
}

impl Opener<'_> {
    /// A directory of elements; none where there is none.
    pub(super) fn open(&self, directory: u32) -> Result<Option<Arc<Dir>>, Error> {
        self.open_named(FileName::directory(directory).as_str())
    }

    /// A directory in the queue's; none where there is none.
    pub(super) fn open_named(&self, name: &str) -> Result<Option<Arc<Dir>>, Error> {
        if let Some((cache, generation)) = self.cache
            && let Some(dir) = cache.get(name, generation)
        {
            return Ok(Some(dir));
        }
        let path = self.path.join(name);
        let dir = match Dir::open(path.clone()) {
            Ok(dir) => Arc::new(dir),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::Foreign { path }),
            Err(error) => return Err(Error::io("open", path, error)),
        };
        if let Some((cache, generation)) = self.cache {
            cache.insert(name, &dir, generation);
        }
        Ok(Some(dir))
    }

    /// Equal in two openers between which no directory was made or removed; none where that can't be told.
    pub(super) fn generation(&self) -> Option<u64> {
        self.cache.map(|(_, generation)| generation)
    }
}

/// Makes a directory and those above it, where they are not there. The umask goes for those that it makes.
fn make_all(path: &Path, umask: Option<Mode>) -> Result<(), Error> {
    let mut retries = RetryBudget::of("make");
    loop {
        match (make_dir(path, umask), path.parent()) {
            (Ok(()) | Err(Errno::EXIST), _) => return Ok(()),
            // From below, as most often all but the last are there.
            (Err(Errno::NOENT), Some(parent)) => make_all(parent, umask)?,
            (Err(error), _) => return Err(Error::io("make", path, error)),
        }
        // The one above is there each time, and yet nothing can be made in it: most probably a link that leads nowhere.
        let cannot_make = |_| Error::io("make", path, Errno::NOENT);
        retries.spend(|| path.to_owned()).map_err(cannot_make)?;
    }
}
