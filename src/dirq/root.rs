use std::{
    ffi::CStr,
    io,
    path::{Path, PathBuf, absolute},
    sync::Arc,
};

use rand::{RngExt, make_rng, rngs::SmallRng};
use rustix::{
    fs::{FileType, Mode, chmod, mkdir, stat},
    io::Errno,
};

use super::{
    Error, Name, PurgeReport,
    blocking::{is_in_memory, run_at},
    dir_cache::Kept,
    fs::{FOLDER_MODE, Folder},
    name::{Entry, Stamps, directory_of, element_of},
};

/// What both kinds of queues are opened with.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) path: PathBuf,
    pub(super) umask: Option<u32>,
    pub(super) rnd_hex: Option<u8>,
    pub(super) sync: bool,
}

impl Options {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), umask: None, rnd_hex: None, sync: false }
    }

    /// Makes the queue's directory, those above it, and those that are `always` in it, where they are not
    /// there.
    pub(super) async fn open(self, always: &'static [&'static str]) -> Result<Top, Error> {
        run_at("open", self.path.clone(), |_| {
            let top = self.open_now()?;
            always.iter().try_for_each(|name| top.make_named(name))?;
            Ok(top)
        })
        .await
    }

    fn open_now(self) -> Result<Top, Error> {
        let Self { path, umask, rnd_hex, sync } = self;
        if let Some(umask) = umask.filter(|&umask| umask > 0o777) {
            let reason = format!("it is at most 0o777, and not {umask:#o}");
            return Err(Error::InvalidOption { option: "umask", reason });
        }
        if let Some(digit) = rnd_hex.filter(|&digit| digit > 15) {
            let reason = format!("it is one hexadecimal digit, 0 to 15, and not {digit}");
            return Err(Error::InvalidOption { option: "rnd_hex", reason });
        }
        let rnd_hex = rnd_hex.unwrap_or_else(|| make_rng::<SmallRng>().random_range(0..16));
        let umask = umask.map(|umask| Mode::from_bits_retain(umask as _));
        let path = absolute(&path).map_err(|error| Error::io("resolve", path, error))?;
        make_all(&path, umask)?;
        let at_path = stat(&path).map_err(Error::on("open", || &path))?;
        if FileType::from_raw_mode(at_path.st_mode) != FileType::Directory {
            return Err(Error::io("open", path, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let id = (at_path.st_dev as u64, at_path.st_ino as u64);
        let kept = is_in_memory(&path).then(Kept::default);
        Ok(Top { path, umask, sync, stamps: Stamps::new(rnd_hex), id, kept })
    }
}

/// The directory of a queue, and what is the same in both kinds.
///
/// It is a path and no open directory: whoever moves a queue away and makes a new one in its place finds
/// the next element there. So each call begins with a [`View`].
#[derive(Debug)]
pub(super) struct Top {
    path: PathBuf,
    pub(super) umask: Option<Mode>,
    pub(super) sync: bool,
    pub(super) stamps: Stamps,
    /// Of device and inode: two paths may lead to one queue.
    id: (u64, u64),
    /// If it is in memory.
    kept: Option<Kept>,
}

impl Top {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Whether no call waits for a disk, as when it was opened.
    pub(super) fn in_memory(&self) -> bool {
        self.kept.is_some()
    }

    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// The directories of elements, in order. What has such a name and is something else is left out.
    pub(super) fn directories(&self) -> Result<Vec<u32>, Error> {
        let mut found = Vec::new();
        let Some(top) = self.root()? else { return Ok(found) };
        top.list(|name, file_type| {
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
        let mut found = Vec::new();
        self.each_element(directory, kind, |element| found.push(Name { directory, element }))?;
        Ok(found)
    }

    pub(super) fn count(&self, kind: FileType) -> Result<u64, Error> {
        self.directories()?.into_iter().map(|directory| self.count_in(directory, kind)).sum()
    }

    pub(super) fn count_in(&self, directory: u32, kind: FileType) -> Result<u64, Error> {
        let mut count = 0;
        self.each_element(directory, kind, |_| count += 1)?;
        Ok(count)
    }

    fn each_element(
        &self,
        directory: u32,
        kind: FileType,
        mut visit: impl FnMut(u64),
    ) -> Result<(), Error> {
        let mut unknown = Vec::new();
        let folder = self.list(directory, |name, file_type| {
            let Some(element) = element_of(name.to_bytes()) else { return };
            if file_type == kind {
                visit(element);
            } else if file_type == FileType::Unknown {
                unknown.push(element);
            }
        })?;
        for element in unknown {
            if let Some(folder) = &folder
                && let Ok(stat) = folder.stat(Entry::element(element).c_str())
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
    ) -> Result<Option<Arc<Folder>>, Error> {
        let folder = match self.folder(directory) {
            Ok(Some(folder)) => folder,
            Ok(None) | Err(Error::Foreign { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match folder.list(visit) {
            Ok(()) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("list", folder.path(), error)),
        }
    }

    /// A directory of elements; none where there is none.
    pub(super) fn folder(&self, directory: u32) -> Result<Option<Arc<Folder>>, Error> {
        self.view().folder(directory)
    }

    /// What is now in the queue's directory.
    pub(super) fn view(&self) -> View<'_> {
        let kept = self.kept.as_ref().and_then(|kept| Some((kept, kept.look(&self.path)?)));
        View { path: &self.path, kept }
    }

    /// Makes a directory of elements, and those above it, unless it is there.
    pub(super) fn make(&self, directory: u32) -> Result<(), Error> {
        self.make_named(Entry::directory(directory).as_str())
    }

    /// Makes a directory in the queue's, unless it is there.
    pub(super) fn make_named(&self, name: &str) -> Result<(), Error> {
        let made = make_all(&self.path.join(name), self.umask)?;
        if made
            && self.sync
            && let Some(root) = self.root()?
        {
            root.sync().map_err(Error::on("sync", || &self.path))?;
        }
        Ok(())
    }

    /// Lets the names of new elements survive a crash of the machine, if that is wanted.
    pub(super) fn sync_names(&self, names: &[Name]) -> Result<(), Error> {
        if !self.sync {
            return Ok(());
        }
        let mut directories: Vec<_> = names.iter().map(|name| name.directory).collect();
        directories.dedup();
        for directory in directories {
            if let Some(folder) = self.folder(directory)? {
                folder.sync().map_err(Error::on("sync", || folder.path()))?;
            }
        }
        Ok(())
    }

    /// Removes the directories of elements that are empty, but for the last.
    pub(super) fn remove_empty(&self, report: &mut PurgeReport) -> Result<(), Error> {
        let directories = self.directories()?;
        let Some((_, all_but_last)) = directories.split_last() else { return Ok(()) };
        for &directory in all_but_last {
            let path = self.path.join(Entry::directory(directory).as_str());
            match rustix::fs::rmdir(&path) {
                Ok(()) => report.directories += 1,
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(Error::io("remove", path, error)),
            }
        }
        Ok(())
    }

    /// The queue's own directory, which may be a link, as its owner named it; none where it is gone.
    fn root(&self) -> Result<Option<Folder>, Error> {
        match Folder::open(self.path.join(".")) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("open", &self.path, error)),
        }
    }
}

/// The queue's directory at one time. Two directories that are opened by one view are of one queue, as far as that
/// is cheap to see.
pub(super) struct View<'a> {
    path: &'a Path,
    kept: Option<(&'a Kept, u64)>,
}

impl View<'_> {
    /// A directory of elements; none where there is none.
    pub(super) fn folder(&self, directory: u32) -> Result<Option<Arc<Folder>>, Error> {
        self.open(Entry::directory(directory).as_str())
    }

    /// A directory in the queue's; none where there is none.
    pub(super) fn open(&self, name: &str) -> Result<Option<Arc<Folder>>, Error> {
        if let Some((kept, generation)) = self.kept
            && let Some(folder) = kept.get(name, generation)
        {
            return Ok(Some(folder));
        }
        let path = self.path.join(name);
        let folder = match Folder::open(path.clone()) {
            Ok(folder) => Arc::new(folder),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::Foreign { path }),
            Err(error) => return Err(Error::io("open", path, error)),
        };
        if let Some((kept, generation)) = self.kept {
            kept.keep(name, &folder, generation);
        }
        Ok(Some(folder))
    }

    /// Equal in two views between which no directory was made or removed; none where that can't be told.
    pub(super) fn generation(&self) -> Option<u64> {
        self.kept.map(|(_, generation)| generation)
    }
}

/// How often a call begins anew, because others took the name or removed the directory under it.
pub(super) struct Tries {
    operation: &'static str,
    left: u32,
}

impl Tries {
    const ALL: u32 = 256;

    pub(super) fn of(operation: &'static str) -> Self {
        Self { operation, left: Self::ALL }
    }

    /// An error after the last.
    pub(super) fn again(&mut self, path: impl FnOnce() -> PathBuf) -> Result<(), Error> {
        self.left -= 1;
        match self.left {
            0 => Err(Error::GaveUp { operation: self.operation, path: path(), tries: Self::ALL }),
            _ => Ok(()),
        }
    }
}

/// Makes a directory and those above it, where they are not there; whether it did. The umask goes for those
/// that it makes.
fn make_all(path: &Path, umask: Option<Mode>) -> Result<bool, Error> {
    let mut tries = Tries::of("make");
    loop {
        match (mkdir(path, FOLDER_MODE), path.parent()) {
            (Ok(()), _) => break,
            (Err(Errno::EXIST), _) => return Ok(false),
            (Err(Errno::NOENT), Some(parent)) => make_all(parent, umask)?,
            (Err(error), _) => return Err(Error::io("make", path, error)),
        };
        tries.again(|| path.to_owned())?;
    }
    match umask.map(|umask| chmod(path, FOLDER_MODE.difference(umask))) {
        None | Some(Ok(()) | Err(Errno::NOENT)) => Ok(true),
        Some(Err(error)) => Err(Error::io("set the mode of", path, error)),
    }
}
