//! How new elements survive a crash of the machine, where that is wanted: they do, if their names do, and those of all
//! directories on the way to them.

use std::{
    panic::resume_unwind,
    sync::{MutexGuard, PoisonError},
    thread,
};

use rustix::io::Errno;

use super::{Root, Synced};
use crate::dirq::{
    Error, Name,
    fs::{Dir, OpenFor},
};

impl Root {
    /// How many files of one call are synced at once: a disk that waits for one takes others along.
    const SYNCED_AT_ONCE: usize = 16;

    /// Writes `items`, in parts at once where each is synced; or undoes it all by dropping what was written, where one
    /// can't be.
    pub(in crate::dirq) fn write_all<T: Sync, W: Send>(
        &self,
        items: &[T],
        write: impl Fn(&[T]) -> Result<Vec<W>, Error> + Sync,
    ) -> Result<Vec<W>, Error> {
        // A plan is for the calls of one thread.
        #[cfg(test)]
        if crate::dirq::fs::faults::is_planned() {
            return write(items);
        }
        if !self.sync || items.len() < 2 {
            return write(items);
        }
        let mut parts = items.chunks(items.len().div_ceil(Self::SYNCED_AT_ONCE));
        let own = parts.next();
        thread::scope(|scope| {
            let write = &write;
            let begin = |part| match thread::Builder::new().spawn_scoped(scope, move || write(part))
            {
                Ok(thread) => Ok(thread),
                // There are no more threads to be had.
                Err(_) => Err(write(part)),
            };
            let others: Vec<_> = parts.map(begin).collect();
            let mut written = own.map_or(Ok(Vec::new()), write)?;
            for other in others {
                let part = match other {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    Err(part) => part,
                };
                written.extend(part?);
            }
            Ok(written)
        })
    }

    /// The last step of an add. Where it fails, the element is there: so its name comes with the error.
    pub(in crate::dirq) fn finish_add(&self, name: Name) -> Result<Name, Error> {
        self.counts.added(1);
        self.sync_names(&[name]).map_err(|error| error.behind(vec![name]))?;
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
        self.counts.added(names.len());
        // What is told of those that are there goes first: the next try tells again why no other could follow.
        match self.sync_names(&names).err().or(failed) {
            None => Ok(names),
            Some(error) => Err(error.behind(names)),
        }
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
                self.sync_way_to(directory, &dir)?;
            }
        }
        Ok(())
    }

    /// The same for the names of the directories above: whoever made them may not have cared.
    fn sync_way_to(&self, directory: u32, dir: &Dir) -> Result<(), Error> {
        let Some(root) = self.open_root()? else { return Ok(()) };
        let id_of = |dir: &Dir| dir.id().map_err(Error::on("sync", || dir.path()));
        let way = Synced { root: Some(id_of(&root)?), directory: Some((directory, id_of(dir)?)) };
        let (same_root, same) = {
            let synced = self.synced();
            (synced.root == way.root, *synced == way)
        };
        if !same {
            root.sync().map_err(Error::on("sync", || &self.path))?;
        }
        if !same_root {
            sync_above(&root).map_err(Error::on("sync what is above", || &self.path))?;
        }
        *self.synced() = way;
        Ok(())
    }

    fn synced(&self) -> MutexGuard<'_, Synced> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the name of a directory, and of those above it, survive a crash of the machine, up to that of its file system.
fn sync_above(dir: &Dir) -> Result<(), Errno> {
    let mut below = dir.id()?;
    // Not by the path, in which there may be links.
    let mut above = dir.enter(c"..", OpenFor::Listing);
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
        above = dir.enter(c"..", OpenFor::Listing);
    }
}
