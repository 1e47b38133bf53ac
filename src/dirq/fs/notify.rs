//! Reports of new names in directories on systems other than Linux, by the crate `notify`.

use std::{
    collections::BTreeMap,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use ::notify::{
    Error, ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{ModifyKind, RenameMode},
    recommended_watcher,
};

use super::{file_id, stat};

/// The watch of a directory. If the directory is replaced, it is another one.
pub(in super::super) type WatchId = u64;

/// Watches directories until it is dropped.
pub(in super::super) struct Watcher {
    watcher: RecommendedWatcher,
    root: Arc<OnceLock<PathBuf>>,
    /// Device and inode of each watched directory, and its watch.
    watched: BTreeMap<PathBuf, ((u64, u64), WatchId)>,
    watches: WatchId,
}

impl Watcher {
    /// Calls `notify` after reports that contain a name for which `is_new` returns true, and after those that the root
    /// was moved or removed, or that reports were lost.
    pub(in super::super) fn new(
        is_new: fn(&[u8]) -> bool,
        notify: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let root = Arc::new(OnceLock::<PathBuf>::new());
        let watched = root.clone();
        let watcher = recommended_watcher(move |event: ::notify::Result<Event>| {
            // After an error, for instance lost events, scanning is always correct.
            let is_reported = event.map_or(true, |event| {
                is_arrival(&event, is_new)
                    || watched.get().is_some_and(|root| is_gone(&event, root))
            });
            if is_reported {
                notify();
            }
        });
        let watcher = watcher.map_err(io_error)?;
        Ok(Self { watcher, root, watched: BTreeMap::new(), watches: 0 })
    }

    /// Watches a directory, and returns its watch: the present one if the directory is watched already. `is_root` also
    /// reports that it is moved or removed.
    pub(in super::super) fn watch(
        &mut self,
        directory: &Path,
        is_root: bool,
    ) -> io::Result<WatchId> {
        if is_root {
            self.root.get_or_init(|| directory.to_owned());
        }
        // Identified before it is watched: if it is replaced in between, the next call finds a difference.
        let id = file_id(&stat(directory)?);
        if let Some(&(watched, watch)) = self.watched.get(directory) {
            if watched == id {
                return Ok(watch);
            }
            self.unwatch(directory, watch);
        }
        self.watcher.watch(directory, RecursiveMode::NonRecursive).map_err(io_error)?;
        self.watches += 1;
        self.watched.insert(directory.to_owned(), (id, self.watches));
        Ok(self.watches)
    }

    pub(in super::super) fn unwatch(&mut self, directory: &Path, watch: WatchId) {
        if self.watched.get(directory).is_some_and(|&(_, current)| current == watch) {
            self.watched.remove(directory);
            // The system stops watching removed directories by itself.
            let _ = self.watcher.unwatch(directory);
        }
    }
}

fn is_arrival(event: &Event, is_new: fn(&[u8]) -> bool) -> bool {
    let has_arrived = match event.kind {
        EventKind::Create(_) => true,
        EventKind::Modify(ModifyKind::Name(mode)) => mode != RenameMode::From,
        _ => false,
    };
    let names = || event.paths.iter().filter_map(|path| path.file_name());
    event.need_rescan() || has_arrived && names().any(|name| is_new(name.as_bytes()))
}

fn is_gone(event: &Event, root: &Path) -> bool {
    let is_gone = matches!(
        event.kind,
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From))
    );
    is_gone && event.paths.iter().any(|path| path == root)
}

fn io_error(error: Error) -> io::Error {
    match error.kind {
        ErrorKind::PathNotFound => io::ErrorKind::NotFound.into(),
        ErrorKind::Io(error) => error,
        _ => io::Error::other(error),
    }
}
