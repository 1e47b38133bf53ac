//! Thread of the connections for large values: it copies and parses megabytes, for which no worker of the program
//! waits.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::engine::runtime_thread;

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
        let (stop, stopped) = oneshot::channel::<()>();
        let mut builder = Builder::new_current_thread();
        builder.enable_all();
        let end = async { drop(stopped.await) };
        let handle = runtime_thread::start("fleeting-large", builder, end).ok()?;
        Some(Self { handle, _stop: stop })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, thread};

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
