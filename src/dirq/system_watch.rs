//! The directories of a queue that the operating system watches for new elements (inotify and similar).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    path::{Path, PathBuf},
};

use tokio::time::{Duration, Instant};

use super::{
    Error,
    file_name::{directory_of, element_of},
    fs::{Watcher, file_id, stat},
};

/// The directories that the system watches. Only new elements and directories count: waking for each unlocked element
/// would retry an element immediately after it failed.
#[derive(Default)]
pub(super) struct SystemWatch {
    /// `None` before the first use, and after a failure.
    watcher: Option<Watcher>,
    /// Device and inode of each watched directory: another one may replace it at its path.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    /// Time before which a failure is not followed by another attempt, which may start a thread.
    retry_at: Option<Instant>,
}

/// The result of an update.
pub(super) struct Updated {
    /// True if a directory is watched that was not watched before.
    pub(super) has_new: bool,
    /// True if all directories are watched. Otherwise the update should be repeated after
    /// [`RETRY_AFTER`](SystemWatch::RETRY_AFTER).
    pub(super) is_complete: bool,
}

impl SystemWatch {
    /// Pause after a failure, for instance because the process has too many open files.
    pub(super) const RETRY_AFTER: Duration = Duration::from_secs(2);

    /// Watches `root` and the directories in it, and no others. Calls `notify`, on another thread, for each new element
    /// and directory, and if `root` is moved or removed. Returns an error for the first failure of a series.
    pub(super) fn update(
        &mut self,
        root: &Path,
        directories: impl Iterator<Item = PathBuf>,
        notify: impl Fn() + Send + 'static,
    ) -> Result<Updated, Error> {
        if self.retry_at.is_some_and(|retry_at| Instant::now() < retry_at) {
            return Ok(Updated { has_new: false, is_complete: false });
        }
        match self.try_update(root, directories, notify) {
            Ok(has_new) => {
                self.retry_at = None;
                // The queue may have been moved away, and may be created again.
                Ok(Updated { has_new, is_complete: self.watched.contains_key(root) })
            }
            Err(error) => {
                let is_first = self.retry_at.is_none();
                let retry_at = Some(Instant::now() + Self::RETRY_AFTER);
                *self = Self { retry_at, ..Self::default() };
                match is_first {
                    true => Err(error),
                    false => Ok(Updated { has_new: false, is_complete: false }),
                }
            }
        }
    }

    fn try_update(
        &mut self,
        root: &Path,
        directories: impl Iterator<Item = PathBuf>,
        notify: impl Fn() + Send + 'static,
    ) -> Result<bool, Error> {
        // Identified before they are watched: if one is replaced in between, the next update finds a difference.
        let now: BTreeMap<_, _> = [root.to_owned()]
            .into_iter()
            .chain(directories)
            .filter_map(|path| stat(&path).ok().map(|stat| (path, file_id(&stat))))
            .collect();
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => {
                let watcher = Watcher::new(is_new, notify);
                none.insert(watcher.map_err(|error| watch_error(root, error))?)
            }
        };
        self.watched.retain(|path, id| {
            let stays = now.get(path) == Some(id);
            if !stays {
                watcher.unwatch(path);
            }
            stays
        });
        let mut has_new = false;
        // They may already be removed, or contain elements: a scan follows.
        for (path, id) in now {
            if let Entry::Vacant(place) = self.watched.entry(path) {
                match watcher.watch(place.key(), place.key() == root) {
                    Ok(()) => {}
                    // A purge removed the directory in the meantime.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(watch_error(place.key(), error)),
                }
                place.insert(id);
                has_new = true;
            }
        }
        Ok(has_new)
    }
}

/// Returns whether elements or directories of a queue have such names.
fn is_new(name: &[u8]) -> bool {
    element_of(name).is_some() || directory_of(name).is_some()
}

fn watch_error(path: &Path, error: io::Error) -> Error {
    Error::io("watch", path, error)
}
