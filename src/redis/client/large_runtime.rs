//! Thread of the connections for large values: it copies and parses megabytes, for which no worker of the program waits.

use std::{future::pending, sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle, Runtime};

/// Returns the runtime of the thread, which starts with the first call and runs as long as the process; `None` if the
/// system has no thread for it.
pub(super) fn large_runtime() -> Option<&'static Handle> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    RUNTIME.get_or_init(start).as_ref()
}

fn start() -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    // Never dropped, which would panic in the task that calls this, if the thread did not start.
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    let run = || runtime.block_on(pending::<()>());
    thread::Builder::new().name("fleeting-large".to_owned()).spawn(run).ok()?;
    Some(runtime.handle().clone())
}
