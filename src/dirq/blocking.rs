//! Where work on a queue is done: in place, or on a thread that may wait for a disk.

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
pub(super) enum Span {
    /// As long as a few calls to the kernel: about an element.
    Short,
    /// As long as there are elements, or bytes.
    Long,
}

impl Span {
    /// A write of more takes longer than a trip to another thread.
    const SHORT_DATA: usize = 64 * 1024;

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
    span: Span,
    queue: &Arc<P>,
    work: impl FnOnce(&Arc<P>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if span == Span::Short && queue.top().in_memory() {
        // A task that never waits for anything else still lets others run.
        consume_budget().await;
        return work(queue);
    }
    let worker = queue.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, queue.top().path())))
}

/// The same on a path, which may be on any disk.
pub(super) async fn run_at<T: Send + 'static>(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let worker = path.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, &path)))
}

/// Whether what is in the directory at `path` is in memory alone.
#[cfg(target_os = "linux")]
pub(super) fn is_in_memory(path: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    // The width of the type differs between machines.
    rustix::fs::statfs(path).is_ok_and(|stat| [TMPFS, RAMFS].contains(&(stat.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_in_memory(_: &Path) -> bool {
    false
}

fn failed(error: JoinError, operation: &'static str, path: &Path) -> Error {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Error::io(operation, path, io::Error::other("the runtime shuts down")),
    }
}
