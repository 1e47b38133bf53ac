use std::{
    io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::{JoinError, spawn_blocking};

use super::{Error, protocol::Protocol};

/// Runs `work` on a queue, on a thread that may wait for a disk.
///
/// Who is dropped while it waits does not end the work: its result is dropped with it, and so undone where
/// that must be.
///
/// # Panics
///
/// Outside of a Tokio runtime; and where `work` does.
pub(super) async fn run<P: Protocol + ?Sized, T: Send + 'static>(
    operation: &'static str,
    queue: Arc<P>,
    work: impl FnOnce(&Arc<P>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let worker = queue.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, queue.top().path())))
}

/// The same on a path.
pub(super) async fn run_at<T: Send + 'static>(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let worker = path.clone();
    let done = spawn_blocking(move || work(&worker)).await;
    done.unwrap_or_else(|error| Err(failed(error, operation, &path)))
}

fn failed(error: JoinError, operation: &'static str, path: &Path) -> Error {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Error::io(operation, path, io::Error::other("the runtime shuts down")),
    }
}
