//! Tasks with names in tokio-console, which itself needs `--cfg tokio_unstable`.

use std::pin::Pin;

use tokio::{runtime::Handle, task::JoinHandle};

/// Future of a task. Boxed: otherwise all of Tokio's code for tasks is compiled for each type of key, value and loader.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns a task, which tokio-console shows as `fleeting KIND NAME`.
#[cfg(not(tokio_unstable))]
pub(crate) fn spawn(
    runtime: &Handle,
    _kind: &str,
    _name: &str,
    task: TaskFuture,
) -> JoinHandle<()> {
    runtime.spawn(task)
}

/// Spawns a task, which tokio-console shows as `fleeting KIND NAME`.
#[cfg(tokio_unstable)]
pub(crate) fn spawn(runtime: &Handle, kind: &str, name: &str, task: TaskFuture) -> JoinHandle<()> {
    let name = format!("fleeting {kind} {name}");
    let task = tokio::task::Builder::new().name(&name).spawn_on(task, runtime);
    task.expect("a runtime with threads accepts tasks")
}
