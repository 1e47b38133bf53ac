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
    records::{Records, now_micros},
};

/// Knows when to look into queues again.
pub(super) struct Watch {
    every: Duration,
    /// Told by the watcher's own thread. It keeps one notice for who does not wait yet.
    changed: Arc<Notify>,
    watches: Watches,
    /// When it was last_check for what comes due last.
    last_check: u64,
}

/// What the system watches. Only new elements and directories count: to wake for each lock that is given back
/// would be to try in vain, again and again, what somebody just failed at.
enum Watches {
    /// Nobody had to wait yet.
    NotStarted,
    /// With the directories, each by which queue it is in.
    Active(RecommendedWatcher, BTreeSet<(usize, u32)>),
    /// The system can't: there is only the clock.
    Failed,
}

impl Watch {
    /// Elements are added to the last directories; the rest is left to the clock.
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

    /// Waits until there may be something new. It may return without reason.
    pub(super) async fn wait<P: Protocol + ?Sized>(&mut self, queues: &Arc<[Arc<P>]>) {
        let mut longest = self.every;
        if let Some(first) = queues.first() {
            if self.update_watches(first, queues).await {
                // What came before the watch was there is seen by looking once more.
                return;
            }
            longest = longest.min(self.time_until_due(first, queues).await);
        }
        // The clock ends the wait as well.
        let _ = timeout(longest, self.changed.notified()).await;
    }

    /// How long none of the elements that rest comes due. What others let rest from now on is left to the clock.
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
                    // Those that were due at the last look are locked: to look again at once would find them so.
                    soonest = dues.filter(|due| *due > last_check).fold(soonest, u64::min);
                }
            }
            Ok(soonest)
        });
        // Where they can't be listed, the walk tells why.
        let soonest = soonest.await.unwrap_or(u64::MAX);
        self.last_check = now_micros();
        Duration::from_micros(soonest.saturating_sub(self.last_check))
    }

    /// Watches the directories that are new, and at first the queues themselves; false where it did before.
    async fn update_watches<P: Protocol + ?Sized>(
        &mut self,
        first: &Arc<P>,
        queues: &Arc<[Arc<P>]>,
    ) -> bool {
        let queues = queues.clone();
        let changed = self.changed.clone();
        // Lent to the thread that may wait. Whoever drops this future in between goes on by the clock.
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
                // The system forgets by itself what was removed.
                let _ = watcher.unwatch(&path(gone));
            }
            // They may be gone by now, or have elements already: the caller looks once more after each new one.
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
                tracing::warn!(error, every = ?self.every, "file watcher failed, falling back to polling");
                false
            }
        }
    }
}

fn watcher(changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // After an error, as where events were lost, to look is never wrong.
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
        // A purge took the directory just now.
        Err(notify::Error { kind: notify::ErrorKind::PathNotFound, .. }) => Ok(()),
        Err(error) => Err(watch_error(path, error)),
    }
}

fn watch_error(path: &Path, error: notify::Error) -> Error {
    Error::io("watch", path, std::io::Error::other(error))
}
