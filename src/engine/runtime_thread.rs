//! Threads of the crate that drive a runtime of their own.

use std::{io, sync::mpsc, thread};

use tokio::runtime::{Builder, Handle};

/// Starts a thread that builds a runtime, and drives it until `end` resolves. Returns the runtime.
///
/// Blocks until the thread has started.
pub(crate) fn start(
    name: &str,
    mut builder: Builder,
    end: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Handle> {
    let (built, handle) = mpsc::channel();
    let run = move || {
        // Built and dropped on its thread: the drop of a runtime panics inside of another one.
        match builder.build() {
            Ok(runtime) => {
                if built.send(Ok(runtime.handle().clone())).is_ok() {
                    runtime.block_on(end);
                }
            }
            Err(error) => drop(built.send(Err(error))),
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    handle.recv().unwrap_or_else(|ended| Err(io::Error::other(ended)))
}
