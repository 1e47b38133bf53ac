//! Where the work of a call is done: in place, or on one of the runtime's threads that may wait for a disk.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::consume_budget;

use super::{
    Error,
    protocol::Protocol,
    root::Root,
    spin_handoff::{NotStarted, SpinHandoff},
};

/// How much of Tokio's cooperative budget a call takes that is looked out for in place: a task that does nothing else
/// lets others run about once in a millisecond.
const BUDGET_UNITS: usize = 3;

/// How long work lasts where it never waits for a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// As long as a few calls to the kernel: about an element.
    Short,
    /// As long as there are elements, or bytes.
    Long,
}

impl Work {
    /// A write of more takes longer than a trip to another thread.
    pub(super) const SHORT_DATA: usize = 64 * 1024;

    /// That of an add of so many bytes.
    pub(super) fn for_add(root: &Root, len: usize) -> Self {
        let waits = root.sync && !root.in_memory();
        if len <= Self::SHORT_DATA && !waits { Self::Short } else { Self::Long }
    }
}

/// Runs `work` on a queue: in place where it is short and the queue is in memory, and else on a thread that may
/// wait for a disk.
///
/// Who is dropped while it waits does not end the work: its result is dropped with it, and so undone where
/// that must be. Work in place is not begun before there is nothing more to wait for.
///
/// # Panics
///
/// Outside of a Tokio runtime, unless the work is done in place; and where `work` does.
pub(super) async fn run<P: Protocol + ?Sized, T: Send + 'static>(
    operation: &'static str,
    length: Work,
    queue: &Arc<P>,
    work: impl FnOnce(&Arc<P>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    // A plan is for the calls of one thread.
    #[cfg(test)]
    if super::fs::faults::has_plan() {
        return work(queue);
    }
    if length == Work::Short && queue.root().in_memory() {
        // A task that never waits for anything else still lets others run.
        consume_budget().await;
        return work(queue);
    }
    let short = length == Work::Short && queue.root().on_disk();
    if short {
        // As its end is most often found in place.
        for _ in 0..BUDGET_UNITS {
            consume_budget().await;
        }
    }
    let target = queue.clone();
    let done = queue.root().handoff.run(short, move || work(&target)).await;
    done.unwrap_or_else(|NotStarted| Err(failed(operation, queue.root().path())))
}

/// Runs `work` that reads an element, of as many bytes a file as it is given: in place where the queue is in memory and
/// the element short, and else on a thread that may wait.
///
/// It is begun anew there where the element turns out to be long, and so must have undone by then what it did.
///
/// # Panics
///
/// As [`run`].
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

/// Runs `work` on a path, which may be on any disk: never in place.
pub(super) async fn run_blocking<T: Send + 'static>(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    #[cfg(test)]
    if super::fs::faults::has_plan() {
        return work(&path);
    }
    let target = path.clone();
    let done = Arc::<SpinHandoff>::default().run(false, move || work(&target)).await;
    done.unwrap_or_else(|NotStarted| Err(failed(operation, &path)))
}

fn failed(operation: &'static str, path: &Path) -> Error {
    Error::io(operation, path, io::Error::other("the runtime shuts down"))
}
