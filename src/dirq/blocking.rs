//! Chooses where work runs: in place, or on a thread of the runtime that may block on a disk.

use std::{io, path::Path, sync::Arc};

use tokio::{runtime::Handle, task::consume_budget};

use super::{
    Error,
    protocol::Protocol,
    root::{Options, Root},
    shared::SharedQueue,
    spin_handoff::{NotStarted, SpinHandoff, may_block},
};

/// Units of Tokio's cooperative budget that a call consumes if its caller spins for the result: a task that does
/// nothing else lets others run about once per millisecond.
const BUDGET_UNITS: usize = 3;

/// Duration of work that does not wait for a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A few system calls that concern one element.
    Short,
    /// Proportional to the number of elements, or to the number of bytes.
    Long,
}

impl Work {
    /// Writing more takes longer than a round trip to another thread.
    pub(super) const SHORT_DATA: usize = 64 * 1024;

    /// Returns the duration of an add of `len` bytes.
    pub(super) fn for_add(root: &Root, len: usize) -> Self {
        let waits = root.sync && !root.in_memory();
        if len <= Self::SHORT_DATA && !waits { Self::Short } else { Self::Long }
    }
}

/// Runs `work` on a queue: in place if it is short and the queue is in memory, otherwise on a thread that may block.
///
/// If the threads of the queue are all at work, the work waits for one, and never begins if the future is dropped.
/// Dropping the future does not stop work that has begun: its result is dropped on that thread, which undoes what must
/// be undone. Work in place begins only after the last await.
///
/// # Panics
///
/// Panics outside of a Tokio runtime, unless the work runs in place; and if `work` panics.
pub(super) async fn run<P: Protocol + ?Sized, T: Send + 'static>(
    operation: &'static str,
    length: Work,
    queue: &Arc<P>,
    work: impl FnOnce(&Arc<P>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if queue.root().in_place {
        return work(queue);
    }
    if length == Work::Short && queue.root().in_memory() {
        // A task that awaits nothing else must still let others run.
        consume_budget().await;
        return work(queue);
    }
    let short = length == Work::Short && queue.root().on_disk();
    if short {
        // The caller usually spins for the result, which occupies this thread.
        for _ in 0..BUDGET_UNITS {
            consume_budget().await;
        }
    }
    let target = queue.clone();
    let work = move || {
        target.root().shared.run_deferred();
        work(&target)
    };
    let done = queue.root().handoff.run(short, work).await;
    done.unwrap_or_else(|NotStarted| Err(failed(operation, queue.root().path())))
}

/// Runs `work` that reads an element, limited to a number of bytes per file. It runs in place if the queue is in memory
/// and the element is short, otherwise on a thread that may block.
///
/// If the element turns out to be long, `work` runs again on such a thread. A run that fails with [`Error::TooLarge`]
/// must therefore have undone its effects.
///
/// # Panics
///
/// As for [`run`].
pub(super) async fn run_read<P: Protocol + ?Sized, T: Send + 'static>(
    operation: &'static str,
    queue: &Arc<P>,
    work: impl Fn(&Arc<P>, u64) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let limit = queue.root().max_size;
    let short = Work::SHORT_DATA as u64;
    if queue.root().in_memory() {
        consume_budget().await;
        match work(queue, limit.min(short)) {
            Err(Error::TooLarge { .. }) if limit > short => {}
            done => return done,
        }
    }
    let length = if queue.root().in_memory() { Work::Long } else { Work::Short };
    run(operation, length, queue, move |queue| work(queue, limit)).await
}

/// Runs short `work` on a queue for a caller that cannot wait, such as a drop: on a thread that may block if this one
/// belongs to a runtime, and otherwise in place. Later calls to the queue find it done.
pub(super) fn run_detached<P: Protocol + ?Sized>(
    queue: &Arc<P>,
    work: impl FnOnce() + Send + 'static,
) {
    let root = queue.root();
    let runs_in_place = root.in_place || root.in_memory() || may_block();
    match Handle::try_current() {
        Ok(runtime) if !runs_in_place => {
            if let Some(run) = root.shared.defer(Box::new(work)) {
                // Not a task: a runtime of one thread polls tasks only while it is driven.
                root.handoff.run_detached(runtime, move || drop(run));
            }
        }
        _ => work(),
    }
}

/// Opens a queue, and creates its subdirectories `always`.
pub(super) async fn open(options: Options, always: &'static [&'static str]) -> Result<Root, Error> {
    if options.in_place {
        return options.open(always);
    }
    let path = options.path.clone();
    run_blocking("open", &path, move || options.open(always)).await
}

/// Runs `work` on a directory, which may be on any disk, and so never in place.
pub(super) async fn run_blocking<T: Send + 'static>(
    operation: &'static str,
    directory: &Path,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    // A handoff that is used once never spins: only its limit, and its treatment of panics and shutdown, are needed.
    let shared = SharedQueue::at(directory);
    let handoff = Arc::new(SpinHandoff::new(shared.threads.clone()));
    let work = move || {
        // Until the end of the work, even without its caller: calls at the same time share the limit.
        let _shared = shared;
        work()
    };
    let done = handoff.run(false, work).await;
    done.unwrap_or_else(|NotStarted| Err(failed(operation, directory)))
}

pub(super) fn failed(operation: &'static str, path: &Path) -> Error {
    Error::io(operation, path, io::Error::other("the Tokio runtime is shutting down"))
}
