//! Thread of the connections for large values: it copies and parses megabytes, for which no worker of the program waits.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Runtime of the thread. Each connection on it holds a clone; the thread ends with the last one.
pub(super) struct LargeRuntime {
    handle: Handle,
    /// Its drop ends the thread.
    _stop: oneshot::Sender<()>,
}

impl LargeRuntime {
    /// Returns the runtime of this process, and starts it if there is none; `None` if the system has no thread for it.
    ///
    /// Blocks until the thread has started.
    pub(super) fn current() -> Option<Arc<Self>> {
        static CURRENT: Mutex<Weak<LargeRuntime>> = Mutex::new(Weak::new());
        // One thread starts at a time, even if several connections begin at once.
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = current.upgrade() {
            return Some(runtime);
        }
        let runtime = Arc::new(Self::start()?);
        *current = Arc::downgrade(&runtime);
        Some(runtime)
    }

    fn start() -> Option<Self> {
        let (send_handle, handle) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            // Built and dropped on its thread: the drop of a runtime panics inside of another one.
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            if send_handle.send(runtime.handle().clone()).is_ok() {
                let _ = runtime.block_on(stopped);
            }
        };
        thread::Builder::new().name("fleeting-large".to_owned()).spawn(run).ok()?;
        Some(Self { handle: handle.recv().ok()?, _stop: stop })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn thread_ends_with_the_last_clone_and_starts_again() {
        for _ in 0..3 {
            let (one, other) = (LargeRuntime::current().unwrap(), LargeRuntime::current().unwrap());
            assert!(Arc::ptr_eq(&one, &other));
            let task = one.handle().spawn(pending::<()>());
            drop(one);
            let name = other.handle().spawn(async { thread::current().name().map(str::to_owned) });
            assert_eq!(name.await.unwrap().as_deref(), Some("fleeting-large"));
            assert!(!task.is_finished());
            drop(other);
            // The drop of the runtime cancels its tasks.
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }
}
