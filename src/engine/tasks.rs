//! Tasks with names in tokio-console, which itself needs `--cfg tokio_unstable`.

use tokio::{runtime::Handle, task::JoinHandle};

/// Spawns a task, which tokio-console shows as `fleeting KIND NAME`.
#[cfg(not(tokio_unstable))]
pub(crate) fn spawn<F>(runtime: &Handle, _kind: &str, _name: &str, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    runtime.spawn(task)
}

/// Spawns a task, which tokio-console shows as `fleeting KIND NAME`.
#[cfg(tokio_unstable)]
pub(crate) fn spawn<F>(runtime: &Handle, kind: &str, name: &str, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let name = format!("fleeting {kind} {name}");
    let task = tokio::task::Builder::new().name(&name).spawn_on(task, runtime);
    task.expect("a runtime with threads accepts tasks")
}
