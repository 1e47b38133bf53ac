//! Durability of new elements: an element survives a crash of the machine if its files, its name, and the names of all
//! directories above it are synced.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use rustix::io::Errno;

use super::{Root, SyncedDirs};
use crate::dirq::{
    Error, Name,
    fs::{Dir, OpenFor},
    mutex::lock,
};

/// A written entry that is not an element yet. Dropping it removes the entry.
pub(in crate::dirq) trait Unpublished: Send {
    /// Syncs the content, so that it survives a crash of the machine.
    fn sync(&mut self) -> Result<(), Error>;
}

impl Root {
    /// Maximum number of files of a queue that are written and open before they are synced.
    pub(in crate::dirq) const MAX_OPEN_FILES: usize = 64;

    /// Number of threads that sync files concurrently, because a disk can sync several files at once.
    const SYNC_THREADS: usize = 4;

    /// Syncs the written entries on several threads, and replaces an entry by the error if its sync fails.
    pub(in crate::dirq) fn sync_each<W: Unpublished>(&self, written: &mut [Result<W, Error>]) {
        let threads = if self.in_place { 1 } else { Self::SYNC_THREADS };
        let others = written.len().min(threads).saturating_sub(1);
        let left = Mutex::new(written.iter_mut());
        let next = || lock(&left).next();
        let sync = || {
            while let Some(written) = next() {
                if let Err(error) = written.as_mut().map_or(Ok(()), W::sync) {
                    *written = Err(error);
                }
            }
        };
        // One thread would gain nothing, because the sync of each file also flushes the disk. With four, 64 callers add
        // 2.5 times as many elements (docs/architecture.md).
        thread::scope(|scope| {
            for _ in 0..others {
                // If no thread can be created, the others sync everything.
                let _ = thread::Builder::new().spawn_scoped(scope, sync);
            }
            sync();
        });
    }

    /// Finishes an add. The element is already in the queue, so an error carries its name.
    pub(in crate::dirq) fn finish_add(&self, name: Name) -> Result<Name, Error> {
        self.finish(&[name]).map_err(|error| error.after_adding(vec![name]))?;
        Ok(name)
    }

    /// Finishes several adds, all of which succeeded up to the first error.
    pub(in crate::dirq) fn finish_adds(
        &self,
        mut adds: impl Iterator<Item = Result<Name, Error>>,
    ) -> Result<Vec<Name>, Error> {
        let mut names = Vec::with_capacity(adds.size_hint().0);
        let failed = adds.try_for_each(|add| add.map(|name| names.push(name))).err();
        // The sync error takes precedence, because it concerns the named elements. If the caller retries, the other
        // error occurs again.
        match self.finish(&names).err().or(failed) {
            None => Ok(names),
            Some(error) => Err(error.after_adding(names)),
        }
    }

    /// Finishes several adds that have separate results.
    pub(in crate::dirq) fn finish_each(
        &self,
        adds: impl Iterator<Item = Result<Name, Error>>,
    ) -> Vec<Result<Name, Error>> {
        let mut adds: Vec<_> = adds.collect();
        let names: Vec<_> = adds.iter().filter_map(|add| add.as_ref().ok().copied()).collect();
        if let Err(error) = self.finish(&names) {
            for add in &mut adds {
                if let Ok(name) = add {
                    *add = Err(error.duplicate().after_adding(vec![*name]));
                }
            }
        }
        adds
    }

    /// Counts new elements. Syncs their names if the queue is synced, so that they survive a crash of the machine.
    fn finish(&self, names: &[Name]) -> Result<(), Error> {
        // Before the sync, whose failure does not remove the elements.
        self.shared.metrics.added(names.len());
        if !self.sync {
            return Ok(());
        }
        // Names of one call are ordered, so names in the same directory are adjacent.
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

    /// Syncs the names of the directories above, because the process that created them may not have synced them.
    fn sync_path_to(&self, directory: u32, dir: &Dir) -> Result<(), Error> {
        let Some(root) = self.open_root()? else { return Ok(()) };
        let made = |dir: &Dir| {
            let id = dir.id().map_err(Error::on("sync", || dir.path()))?;
            Ok((id, dir.birth_time()))
        };
        let path_dirs =
            SyncedDirs { root: Some(made(&root)?), directory: Some((directory, made(dir)?)) };
        // Not locked during the syncs: concurrent adds may sync a directory twice, but do not wait for each other.
        let (is_root_synced, same) = {
            let synced = lock(&self.synced);
            (synced.root == path_dirs.root, *synced == path_dirs)
        };
        if !same {
            root.sync().map_err(Error::on("sync", || &self.path))?;
        }
        if !is_root_synced {
            sync_ancestors(&root).map_err(Error::on("sync the parents of", || &self.path))?;
        }
        // After both syncs: if one fails, the next add repeats them.
        *lock(&self.synced) = path_dirs;
        Ok(())
    }
}

/// The right to have a number of unsynced files open, out of a limit per process: a process that adds to a hundred
/// queues at once must not have thousands of files open.
pub(in crate::dirq) struct OpenFiles(pub(in crate::dirq) usize);

impl OpenFiles {
    /// A quarter of the usual limit of 1,024 files per process.
    const MAX: usize = 256;

    /// Takes up to `wanted` files if available, but at least `needed`: a single item must always be possible.
    pub(in crate::dirq) fn take(needed: usize, wanted: usize) -> Self {
        let mut taken = 0;
        let take = |all: usize| {
            taken = Self::MAX.saturating_sub(all).min(wanted).max(needed);
            Some(all + taken)
        };
        // `Relaxed`: only the number matters, it orders no other memory.
        // Cannot fail: `take` always returns a number.
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

/// Syncs the names of a directory and of its ancestors, up to the root of its file system.
fn sync_ancestors(dir: &Dir) -> Result<(), Errno> {
    let mut below = dir.id()?;
    // By `..` and not by the path, which may contain symbolic links.
    let mut above = dir.open_subdir(c"..", OpenFor::Listing);
    loop {
        let dir = match above {
            Ok(dir) => dir,
            // Without permission to read a directory, it cannot be synced. It is older than the queue and belongs to
            // another user.
            Err(Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(error),
        };
        let id = dir.id()?;
        // The root directory is its own parent. Above a mount point begins another file system.
        if id == below || id.0 != below.0 {
            return Ok(());
        }
        dir.sync()?;
        below = id;
        above = dir.open_subdir(c"..", OpenFor::Listing);
    }
}
