//! When to look into a queue again: the system tells of new elements (inotify and its like), and a clock makes up for
//! all that it does not tell.

use std::{
    collections::BTreeSet, mem, os::unix::ffi::OsStrExt, path::Path, sync::Arc, time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{ModifyKind, RenameMode},
};
use tokio::{sync::Notify, time::timeout};

use super::{
    Error,
    blocking::{Work, run},
    file_name::{FileName, directory_of, element_of},
    protocol::Protocol,
};

/// Knows when to look into a queue again.
pub(super) struct Watch {
    every: Duration,
    /// Told by the watcher's own thread. It keeps one notice for who does not wait yet.
    changed: Arc<Notify>,
    watches: Watches,
}

/// What the system watches. Only new elements and directories count: to wake for each lock that is given back
/// would be to try in vain, again and again, what somebody just failed at.
enum Watches {
    /// Nobody had to wait yet.
    None,
    On(RecommendedWatcher, BTreeSet<u32>),
    /// The system can't: there is only the clock.
    Failed,
}

impl Watch {
    /// Elements are added to the last directories; the rest is left to the clock.
    const DIRECTORIES: usize = 16;
    /// A shorter interval would be a busy loop.
    const SHORTEST: Duration = Duration::from_millis(1);

    pub(super) fn new(every: Duration) -> Self {
        Self { every: every.max(Self::SHORTEST), changed: Arc::default(), watches: Watches::None }
    }

    /// Waits until there may be something new. It may return without reason.
    pub(super) async fn wait<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) {
        if self.follow(queue).await {
            // What came before the watch was there is seen by looking once more.
            return;
        }
        // The clock ends the wait as well.
        let _ = timeout(self.every, self.changed.notified()).await;
    }

    /// Watches the directories that are new, and at first the queue itself; false where it did before.
    async fn follow<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> bool {
        let changed = self.changed.clone();
        // Lent to the thread that may wait. Whoever drops this future in between goes on by the clock.
        let watches = mem::replace(&mut self.watches, Watches::Failed);
        let followed = run("watch", Work::Long, queue, move |queue| {
            let is_first = matches!(watches, Watches::None);
            let (mut watcher, old) = match watches {
                Watches::None => {
                    let mut watcher =
                        watcher(changed).map_err(|error| failed(queue.root().path(), error))?;
                    watch(&mut watcher, queue.root().path())?;
                    (watcher, BTreeSet::new())
                }
                Watches::On(watcher, old) => (watcher, old),
                Watches::Failed => return Ok((Watches::Failed, false)),
            };
            let mut directories = queue.root().directories()?;
            let first = directories.len().saturating_sub(Self::DIRECTORIES);
            let now = BTreeSet::from_iter(directories.split_off(first));
            let path = |directory: &u32| {
                queue.root().path().join(FileName::directory(*directory).as_str())
            };
            for gone in old.difference(&now) {
                // The system forgets by itself what was removed.
                let _ = watcher.unwatch(&path(gone));
            }
            // They may be gone by now, or have elements already: the caller looks once more after each new one.
            for new in now.difference(&old) {
                watch(&mut watcher, &path(new))?;
            }
            let is_new = is_first || !now.is_subset(&old);
            Ok((Watches::On(watcher, now), is_new))
        });
        match followed.await {
            Ok((watches, is_new)) => {
                self.watches = watches;
                is_new
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, every = ?self.every, "the queue is looked into by the clock alone");
                false
            }
        }
    }
}

fn watcher(changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // After an error, as where events were lost, to look is never wrong.
        if event.is_ok_and(|event| !is_news(&event)) {
            return;
        }
        changed.notify_one();
    })
}

fn is_news(event: &Event) -> bool {
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
        // A purge took the directory just now.
        Err(notify::Error { kind: notify::ErrorKind::PathNotFound, .. }) => Ok(()),
        Err(error) => Err(failed(path, error)),
    }
}

fn failed(path: &Path, error: notify::Error) -> Error {
    Error::io("watch", path, std::io::Error::other(error))
}
