//! Where the work of a call is done: in place, or on one of the runtime's threads that may wait for a disk.

use std::{
    io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::{JoinError, consume_budget, spawn_blocking};

use super::{Error, protocol::Protocol};

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
    pub(super) fn of_data(len: usize) -> Self {
        if len <= Self::SHORT_DATA { Self::Short } else { Self::Long }
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
    if super::fs::faults::is_planned() {
        return work(queue);
    }
    if length == Work::Short && queue.root().in_memory() {
        // A task that never waits for anything else still lets others run.
        consume_budget().await;
        return work(queue);
    }
    let worker = queue.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, queue.root().path())))
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
    run(operation, Work::Long, queue, move |queue| work(queue, limit)).await
}

/// Runs `work` on a path, which may be on any disk: never in place.
pub(super) async fn run_blocking<T: Send + 'static>(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    #[cfg(test)]
    if super::fs::faults::is_planned() {
        return work(&path);
    }
    let worker = path.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, &path)))
}

fn failed(error: JoinError, operation: &'static str, path: &Path) -> Error {
    match error.try_into_panic() {
        // As if the work had been done in place.
        Ok(panic) => resume_unwind(panic),
        // Work on such a thread is never aborted, and so the runtime did not begin it.
        Err(_) => Error::io(operation, path, io::Error::other("the runtime shuts down")),
    }
}
