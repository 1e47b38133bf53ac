//! How new elements survive a crash of the machine, where that is wanted: they do, if their names do, and those of all
//! directories on the path_dirs to them.

use std::{
    iter,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use rustix::io::Errno;

use super::{Root, SyncedDirs};
use crate::dirq::{
    Error, Name,
    fs::{Dir, OpenFor},
};

/// What is written and is no element yet. Dropped as such, it leaves nothing after_adding.
pub(in crate::dirq) trait Unpublished: Send {
    /// Lets it survive a crash of the machine.
    fn sync(&mut self) -> Result<(), Error>;
}

impl Root {
    /// How many files are written and open before they are synced.
    pub(in crate::dirq) const MAX_OPEN_FILES: usize = 64;

    /// How many files are synced at once: a disk that waits for one takes others along.
    const SYNC_THREADS: usize = 4;

    /// Writes each of `items`, of so many files, and syncs what is written where that is wanted. What failed is told at
    /// its place.
    pub(in crate::dirq) fn write_each<T: Copy, W: Unpublished>(
        &self,
        items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        files: usize,
        mut write: impl FnMut(T) -> Result<W, Error>,
    ) -> impl Iterator<Item = Result<W, Error>> {
        let (mut items, sync) = (items.into_iter().peekable(), self.sync);
        let next = move || {
            let open = match sync {
                true => OpenFiles::take(files, (items.len() * files).min(Self::MAX_OPEN_FILES)),
                false => OpenFiles(0),
            };
            let at_once = (open.0 / files).max(1);
            let mut written = Vec::new();
            while written.len() < at_once
                && let Some(&item) = items.peek()
            {
                match write(item) {
                    // Once those are synced, they are closed.
                    Err(error) if error.is_out_of_file_descriptors() && !written.is_empty() => {
                        break;
                    }
                    done => written.push(done),
                }
                items.next();
            }
            if sync {
                sync_each(&mut written);
            }
            Some(written).filter(|written| !written.is_empty())
        };
        iter::from_fn(next).flatten()
    }

    /// The last step of an add. Where it fails, the element is there: so its name comes with the error.
    pub(in crate::dirq) fn finish_add(&self, name: Name) -> Result<Name, Error> {
        self.metrics.added(1);
        self.sync_names(&[name]).map_err(|error| error.after_adding(vec![name]))?;
        Ok(name)
    }

    /// The last step of several adds, of which all up to the first error are made.
    pub(in crate::dirq) fn finish_adds(
        &self,
        adds: impl Iterator<Item = Result<Name, Error>>,
    ) -> Result<Vec<Name>, Error> {
        let mut names = Vec::with_capacity(adds.size_hint().0);
        let mut failed = None;
        for add in adds {
            match add {
                Ok(name) => names.push(name),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        self.metrics.added(names.len());
        // What is told of those that are there goes first: the next try tells again why no other could follow.
        match self.sync_names(&names).err().or(failed) {
            None => Ok(names),
            Some(error) => Err(error.after_adding(names)),
        }
    }

    /// The last step of several adds, each of which has its own answer.
    pub(in crate::dirq) fn finish_each(
        &self,
        adds: impl Iterator<Item = Result<Name, Error>>,
    ) -> Vec<Result<Name, Error>> {
        let mut adds: Vec<_> = adds.collect();
        let names: Vec<_> = adds.iter().filter_map(|add| add.as_ref().ok().copied()).collect();
        self.metrics.added(names.len());
        if let Err(error) = self.sync_names(&names) {
            for add in &mut adds {
                if let Ok(name) = add {
                    *add = Err(error.duplicate().after_adding(vec![*name]));
                }
            }
        }
        adds
    }

    /// Lets the names of new elements survive a crash of the machine, if that is wanted.
    fn sync_names(&self, names: &[Name]) -> Result<(), Error> {
        if !self.sync {
            return Ok(());
        }
        // Names of one call come in order, and so those of a directory stand together.
        let mut directories: Vec<_> = names.iter().map(|name| name.directory).collect();
        directories.dedup();
        for directory in directories {
            if let Some(dir) = self.open(directory)? {
                dir.sync().map_err(Error::on("sync", || dir.path()))?;
                self.sync_path_to(directory, &dir)?;
            }
        }
        Ok(())
    }

    /// The same for the names of the directories above: whoever made them may not have cared.
    fn sync_path_to(&self, directory: u32, dir: &Dir) -> Result<(), Error> {
        let Some(root) = self.open_root()? else { return Ok(()) };
        let made = |dir: &Dir| {
            let id = dir.id().map_err(Error::on("sync", || dir.path()))?;
            Ok((id, dir.birth_time()))
        };
        let path_dirs =
            SyncedDirs { root: Some(made(&root)?), directory: Some((directory, made(dir)?)) };
        let (is_root_synced, same) = {
            let synced = self.synced();
            (synced.root == path_dirs.root, *synced == path_dirs)
        };
        if !same {
            root.sync().map_err(Error::on("sync", || &self.path))?;
        }
        if !is_root_synced {
            sync_ancestors(&root).map_err(Error::on("sync what is above", || &self.path))?;
        }
        *self.synced() = path_dirs;
        Ok(())
    }

    fn synced(&self) -> MutexGuard<'_, SyncedDirs> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Syncs what is written, several at once, and puts the error in its place where that fails.
fn sync_each<W: Unpublished>(written: &mut [Result<W, Error>]) {
    let others = written.len().min(Root::SYNC_THREADS).saturating_sub(1);
    // A plan is for the calls of one thread.
    #[cfg(test)]
    let others = if crate::dirq::fs::faults::has_plan() { 0 } else { others };
    let left = Mutex::new(written.iter_mut());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let sync = || {
        while let Some(written) = next() {
            if let Err(error) = written.as_mut().map_or(Ok(()), W::sync) {
                *written = Err(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            // Where there are no more threads to be had, the others do all.
            let _ = thread::Builder::new().spawn_scoped(scope, sync);
        }
        sync();
    });
}

/// The right to have so many files open that wait to be synced, of which the process has a number: one that adds to a
/// hundred queues at once must not have thousands of files open.
struct OpenFiles(usize);

impl OpenFiles {
    /// A quarter of what a process may have open on most systems.
    const MAX: usize = 256;

    /// So many as are wanted, or as there are; but as many as one needs at least.
    fn take(needed: usize, wanted: usize) -> Self {
        let mut taken = 0;
        let take = |all: usize| {
            taken = Self::MAX.saturating_sub(all).min(wanted).max(needed);
            Some(all + taken)
        };
        let _ = OPEN_FILES.fetch_update(Relaxed, Relaxed, take);
        Self(taken)
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        OPEN_FILES.fetch_sub(self.0, Relaxed);
    }
}

static OPEN_FILES: AtomicUsize = AtomicUsize::new(0);

/// Lets the name of a directory, and of those above it, survive a crash of the machine, up to that of its file system.
fn sync_ancestors(dir: &Dir) -> Result<(), Errno> {
    let mut below = dir.id()?;
    // Not by the path, in which there may be links.
    let mut above = dir.open_subdir(c"..", OpenFor::Listing);
    loop {
        let dir = match above {
            Ok(dir) => dir,
            // Who may not read a directory can't sync it. It is older than the queue, and its owner's.
            Err(Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(error),
        };
        let id = dir.id()?;
        if id == below || id.0 != below.0 {
            return Ok(());
        }
        dir.sync()?;
        below = id;
        above = dir.open_subdir(c"..", OpenFor::Listing);
    }
}
