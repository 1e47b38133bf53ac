//! The directories of a queue that the operating system watches for new elements (inotify and similar).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{ModifyKind, RenameMode},
};
use tokio::time::{Duration, Instant};

use super::{
    Error,
    file_name::{directory_of, element_of},
    fs::{file_id, stat},
};

/// The directories that the system watches. Only new elements and directories count: waking for each unlocked element
/// would retry an element immediately after it failed.
#[derive(Default)]
pub(super) struct SystemWatch {
    /// `None` before the first use, and after a failure.
    watcher: Option<RecommendedWatcher>,
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
                let watcher = watcher(root.to_owned(), notify);
                none.insert(watcher.map_err(|error| watch_error(root, error))?)
            }
        };
        self.watched.retain(|path, id| {
            let stays = now.get(path) == Some(id);
            if !stays {
                // The system stops watching removed directories by itself.
                let _ = watcher.unwatch(path);
            }
            stays
        });
        let mut has_new = false;
        // They may already be removed, or contain elements: a scan follows.
        for (path, id) in now {
            if let Entry::Vacant(place) = self.watched.entry(path) {
                watch(watcher, place.key())?;
                place.insert(id);
                has_new = true;
            }
        }
        Ok(has_new)
    }
}

fn watcher(
    root: PathBuf,
    notify: impl Fn() + Send + 'static,
) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // After an error, for instance lost events, scanning is always correct.
        if event.is_ok_and(|event| !is_new_entry(&event) && !is_gone(&event, &root)) {
            return;
        }
        notify();
    })
}

/// Returns whether the queue's directory was moved or removed: another one may replace it.
fn is_gone(event: &Event, root: &Path) -> bool {
    let is_gone = matches!(
        event.kind,
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From))
    );
    is_gone && event.paths.iter().any(|path| path == root)
}

fn is_new_entry(event: &Event) -> bool {
    if event.need_rescan() {
        return true;
    }
    let arrived = match event.kind {
        EventKind::Create(_) => true,
        EventKind::Modify(ModifyKind::Name(mode)) => mode != RenameMode::From,
        _ => false,
    };
    arrived
        && event.paths.iter().filter_map(|path| path.file_name()).any(|name| {
            let name = name.as_bytes();
            element_of(name).is_some() || directory_of(name).is_some()
        })
}

fn watch(watcher: &mut RecommendedWatcher, path: &Path) -> Result<(), Error> {
    match watcher.watch(path, RecursiveMode::NonRecursive) {
        Ok(()) => Ok(()),
        // A purge removed the directory in the meantime.
        Err(notify::Error { kind: notify::ErrorKind::PathNotFound, .. }) => Ok(()),
        Err(error) => Err(watch_error(path, error)),
    }
}

fn watch_error(path: &Path, error: notify::Error) -> Error {
    Error::io("watch", path, std::io::Error::other(error))
}
