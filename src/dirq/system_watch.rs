//! Registration of watched directories at the operating system (inotify and similar). `watch` decides which these are.

use std::{
    collections::BTreeMap,
    io, mem,
    path::{Path, PathBuf},
};

use tokio::time::{Duration, Instant};

use super::{
    Error,
    file_name::{directory_of, element_of},
    fs::{WatchId, Watcher},
};

/// The directories that the system watches. Only new elements and directories count: waking for each unlocked element
/// would retry an element immediately after it failed.
#[derive(Default)]
pub(super) struct SystemWatch {
    /// `None` before the first use, and after a failure.
    watcher: Option<Watcher>,
    /// The watch of each directory: another directory may replace it at its path.
    watched: BTreeMap<PathBuf, WatchId>,
    /// Time before which a failure is not followed by another attempt, which may start a thread.
    retry_at: Option<Instant>,
    /// True if the latest update failed, as a whole or for some directories.
    has_failed: bool,
}

/// The result of an update.
pub(super) struct Updated {
    /// True if a directory is watched that was not watched before.
    pub(super) has_new: bool,
    /// True if all directories are watched that this process may read. Otherwise the update should be repeated after
    /// [`RETRY_AFTER`](SystemWatch::RETRY_AFTER).
    pub(super) is_complete: bool,
    /// The first failure of a series.
    pub(super) failure: Option<Error>,
}

impl SystemWatch {
    /// Pause after a failure, for instance because the process has too many open files.
    pub(super) const RETRY_AFTER: Duration = Duration::from_secs(2);

    /// Watches `root` and the directories in it, and no others. Calls `notify`, on another thread, for each new element
    /// and directory, and if `root` is moved or removed. If a directory cannot be watched, the others are.
    pub(super) fn update(
        &mut self,
        root: &Path,
        directories: impl Iterator<Item = PathBuf>,
        notify: impl Fn() + Send + 'static,
    ) -> Updated {
        let now = Instant::now();
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return Updated { has_new: false, is_complete: false, failure: None };
        }
        let mut updated = self.try_update(root, directories, notify).unwrap_or_else(|error| {
            *self = Self { has_failed: self.has_failed, ..Self::default() };
            Updated { has_new: false, is_complete: false, failure: Some(error) }
        });
        self.retry_at =
            (updated.failure.is_some() && !updated.is_complete).then(|| now + Self::RETRY_AFTER);
        let had_failed = mem::replace(&mut self.has_failed, updated.failure.is_some());
        updated.failure = updated.failure.filter(|_| !had_failed);
        updated
    }

    fn try_update(
        &mut self,
        root: &Path,
        directories: impl Iterator<Item = PathBuf>,
        notify: impl Fn() + Send + 'static,
    ) -> Result<Updated, Error> {
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => {
                let watcher = Watcher::new(is_new, notify);
                none.insert(watcher.map_err(|error| watch_error(root, error))?)
            }
        };
        let mut updated = Updated { has_new: false, is_complete: true, failure: None };
        let mut watched = BTreeMap::new();
        // All of them, even if they are watched: a directory that was deleted and created again may have the same
        // inode.
        for path in [root.to_owned()].into_iter().chain(directories) {
            let before = self.watched.get(&path).copied();
            let watch = match watcher.watch(&path, path == root) {
                // It may contain elements: a scan follows.
                Ok(watch) => {
                    updated.has_new |= before != Some(watch);
                    Some(watch)
                }
                // A purge removed the directory in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    // Without the permission, its elements cannot be read either. The next update tries again.
                    updated.is_complete &= error.kind() == io::ErrorKind::PermissionDenied;
                    updated.failure.get_or_insert(watch_error(&path, error));
                    before
                }
            };
            watched.extend(watch.map(|watch| (path, watch)));
        }
        for (path, watch) in mem::replace(&mut self.watched, watched) {
            // A directory that was moved keeps its watch.
            if !self.watched.values().any(|&stays| stays == watch) {
                watcher.unwatch(&path, watch);
            }
        }
        // The queue may have been moved away, and may be created again.
        updated.is_complete &= self.watched.contains_key(root);
        Ok(updated)
    }
}

/// Returns whether elements or directories of a queue have such names.
fn is_new(name: &[u8]) -> bool {
    element_of(name).is_some() || directory_of(name).is_some()
}

fn watch_error(path: &Path, error: io::Error) -> Error {
    Error::io("watch", path, error)
}
