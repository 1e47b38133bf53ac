//! Decides when to scan a queue again: the operating system reports new elements (inotify and similar), and a timer
//! covers everything that it does not report.

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
    records::{Records, now_micros},
};

/// Waits until queues should be scanned again.
pub(super) struct Watch {
    every: Duration,
    /// Notified by the watcher's thread. It stores one notification while there is no waiter.
    changed: Arc<Notify>,
    watches: Watches,
    /// Time of the last check for elements whose backoff ends.
    last_check: u64,
}

/// The directories that the system watches. Only new elements and directories count: waking for each unlocked element
/// would retry an element immediately after it failed.
enum Watches {
    /// Not needed so far.
    NotStarted,
    /// With the watched directories, each with the index of its queue.
    Active(RecommendedWatcher, BTreeSet<(usize, u32)>),
    /// The system cannot watch: only the timer is used.
    Failed,
}

impl Watch {
    /// New elements are added to the last directories. The timer covers the others.
    const MAX_DIRECTORIES: usize = 16;
    /// A shorter interval would be a busy loop.
    const MIN_INTERVAL: Duration = Duration::from_millis(1);

    pub(super) fn new(every: Duration) -> Self {
        let every = every.max(Self::MIN_INTERVAL);
        Self {
            every,
            changed: Arc::default(),
            watches: Watches::NotStarted,
            last_check: now_micros(),
        }
    }

    /// Waits until there may be something new. Spurious returns are possible.
    pub(super) async fn wait<P: Protocol + ?Sized>(&mut self, queues: &Arc<[Arc<P>]>) {
        let mut longest = self.every;
        if let Some(first) = queues.first() {
            if self.update_watches(first, queues).await {
                // Elements that were added before the watch was active are found by another scan.
                return;
            }
            longest = longest.min(self.time_until_due(first, queues).await);
        }
        // A timeout also ends the wait.
        let _ = timeout(longest, self.changed.notified()).await;
    }

    /// Returns the time until the backoff of the next element ends. Backoffs that begin later in other processes are
    /// covered by the timer.
    async fn time_until_due<P: Protocol + ?Sized>(
        &mut self,
        first: &Arc<P>,
        queues: &Arc<[Arc<P>]>,
    ) -> Duration {
        let (queues, last_check) = (queues.clone(), self.last_check);
        let soonest = run("list", Work::Long, first, move |_| {
            let mut soonest = u64::MAX;
            for queue in queues.iter() {
                if let Some(records) = Records::open(queue.root())? {
                    let dues = records.list()?.into_iter().filter_map(|(_, record)| record.due);
                    // Elements that were due at the last check are locked: an immediate scan would find them locked
                    // again.
                    soonest = dues.filter(|due| *due > last_check).fold(soonest, u64::min);
                }
            }
            Ok(soonest)
        });
        // If they cannot be listed, the next scan reports the error.
        let soonest = soonest.await.unwrap_or(u64::MAX);
        self.last_check = now_micros();
        Duration::from_micros(soonest.saturating_sub(self.last_check))
    }

    /// Watches new directories and, the first time, the queues themselves. Returns whether it watches anything new.
    async fn update_watches<P: Protocol + ?Sized>(
        &mut self,
        first: &Arc<P>,
        queues: &Arc<[Arc<P>]>,
    ) -> bool {
        let queues = queues.clone();
        let changed = self.changed.clone();
        // Moved to the blocking thread. If this future is dropped in the meantime, only the timer is used.
        let watches = mem::replace(&mut self.watches, Watches::Failed);
        let updated = run("watch", Work::Long, first, move |_| {
            let is_first = matches!(watches, Watches::NotStarted);
            let (mut watcher, old) = match watches {
                Watches::NotStarted => {
                    let path = queues[0].root().path();
                    let mut watcher = watcher(changed).map_err(|error| watch_error(path, error))?;
                    for queue in queues.iter() {
                        watch(&mut watcher, queue.root().path())?;
                    }
                    (watcher, BTreeSet::new())
                }
                Watches::Active(watcher, old) => (watcher, old),
                Watches::Failed => return Ok((Watches::Failed, false)),
            };
            let mut now = BTreeSet::new();
            for (index, queue) in queues.iter().enumerate() {
                let mut directories = queue.root().directories()?;
                let first = directories.len().saturating_sub(Self::MAX_DIRECTORIES);
                now.extend(directories.split_off(first).into_iter().map(|last| (index, last)));
            }
            let path = |&(queue, directory): &(usize, u32)| {
                queues[queue].root().path().join(FileName::directory(directory).as_str())
            };
            for gone in old.difference(&now) {
                // The system stops watching removed directories by itself.
                let _ = watcher.unwatch(&path(gone));
            }
            // They may already be removed, or contain elements: the caller scans again after each new watch.
            for new in now.difference(&old) {
                watch(&mut watcher, &path(new))?;
            }
            let has_new = is_first || !now.is_subset(&old);
            Ok((Watches::Active(watcher, now), has_new))
        });
        match updated.await {
            Ok((watches, has_new)) => {
                self.watches = watches;
                has_new
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, interval = ?self.every, "file watcher failed, falling back to polling");
                false
            }
        }
    }
}

fn watcher(changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // After an error, for instance lost events, scanning is always correct.
        if event.is_ok_and(|event| !is_new_entry(&event)) {
            return;
        }
        changed.notify_one();
    })
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
