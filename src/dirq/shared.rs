//! State that all handles of this process on one path share.

use std::{
    collections::BTreeMap,
    mem,
    path::{Path, PathBuf, absolute},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    metrics::QueueMetrics,
    mutex::lock,
    threads::{MAX_THREADS, Threads},
    wakeups::Wakeups,
};

/// The queues of this process, by path. Not by device and inode: if the directory is replaced, a handle uses the new
/// one.
static QUEUES: Mutex<BTreeMap<PathBuf, Weak<SharedQueue>>> = Mutex::new(BTreeMap::new());

/// State that all handles of this process on one path share.
#[derive(Debug)]
pub(super) struct SharedQueue {
    /// The threads that may wait for the disk. Calls that find none wait in order, without a thread, and leave their
    /// place if they are dropped.
    pub(super) threads: Arc<Threads>,
    deferred: DeferredDrops,
    /// The streams that wait for new elements, as long as there are any.
    wakeups: Mutex<Weak<Wakeups>>,
    /// When a stream began the latest purge.
    purged_at: Mutex<Option<Instant>>,
    /// Metrics of all handles together: the number of elements of several handles must not be their sum.
    pub(super) metrics: Arc<QueueMetrics>,
}

impl SharedQueue {
    /// Returns the state of the queue at `path`, which may be relative.
    pub(super) fn at(path: &Path) -> Arc<Self> {
        let path = absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut queues = lock(&QUEUES);
        if let Some(shared) = queues.get(&path).and_then(Weak::upgrade) {
            return shared;
        }
        queues.retain(|_, shared| shared.strong_count() > 0);
        let threads = Threads::new(MAX_THREADS);
        let (deferred, wakeups) = (DeferredDrops::default(), Mutex::default());
        let (purged_at, metrics) = (Mutex::default(), Arc::default());
        let shared = Arc::new(Self { threads, deferred, wakeups, purged_at, metrics });
        queues.insert(path, Arc::downgrade(&shared));
        shared
    }

    /// Returns the wakeups for a stream that waits for new elements.
    pub(super) fn wakeups(&self) -> Arc<Wakeups> {
        let mut wakeups = lock(&self.wakeups);
        wakeups.upgrade().unwrap_or_else(|| {
            let new = Wakeups::new();
            *wakeups = Arc::downgrade(&new);
            new
        })
    }

    /// Returns the wakeups if a stream uses them.
    pub(super) fn active_wakeups(&self) -> Option<Arc<Wakeups>> {
        lock(&self.wakeups).upgrade()
    }

    /// Returns whether no purge began within the time `every`, in which case the caller begins one.
    pub(super) fn begin_purge(&self, every: Duration) -> bool {
        let mut purged_at = lock(&self.purged_at);
        let is_due = purged_at.is_none_or(|purged_at| purged_at.elapsed() >= every);
        if is_due {
            *purged_at = Some(Instant::now());
        }
        is_due
    }

    /// Defers `work`, which may block, until the next call of [`run_deferred`](Self::run_deferred). Returns the
    /// obligation to make that call if no other work was waiting for it.
    pub(super) fn defer(self: &Arc<Self>, work: DeferredWork) -> Option<DeferredRun> {
        let mut waiting = lock(&self.deferred.waiting);
        waiting.push(work);
        (waiting.len() == 1).then(|| DeferredRun(self.clone()))
    }

    /// Runs the deferred work. On return, all work is done that was deferred before the call.
    pub(super) fn run_deferred(&self) {
        // Held during the work: a call that begins in the meantime must find it done.
        let _running = lock(&self.deferred.running);
        loop {
            let waiting = mem::take(&mut *lock(&self.deferred.waiting));
            if waiting.is_empty() {
                return;
            }
            waiting.into_iter().for_each(|work| work());
        }
    }
}

/// Work of drops, which cannot wait for a thread. Every later call to the queue runs it first, so that a caller finds
/// unlocked what it has dropped.
#[derive(Default)]
struct DeferredDrops {
    waiting: Mutex<Vec<DeferredWork>>,
    running: Mutex<()>,
}

impl std::fmt::Debug for DeferredDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

type DeferredWork = Box<dyn FnOnce() + Send>;

/// Runs the deferred work when it is dropped: by a job, or by a runtime that shuts down before the job began.
pub(super) struct DeferredRun(Arc<SharedQueue>);

impl Drop for DeferredRun {
    fn drop(&mut self) {
        self.0.run_deferred();
    }
}
