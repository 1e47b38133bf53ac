use std::{mem, sync::Arc};

use ::redis::Value as Reply;
use tokio::{runtime::Handle, sync::Mutex, task::JoinHandle};

use super::state::Shared;
use crate::redis::Error;

/// An entry that was taken or claimed. Where nobody gets it in the end, it goes back.
pub(super) struct Held {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Vec<u8>,
    /// As the script gave it; nothing where a claim has it in its own form.
    pub(super) value: Reply,
    pub(super) way_back: WayBack,
    runtime: Handle,
}

#[derive(Default)]
pub(super) enum WayBack {
    #[default]
    None,
    /// It was taken out. Without a deadline it is due again in a while.
    Put { deadline: Vec<u8> },
    /// It was lent.
    Give {
        /// The claim's number. An extension has it until it knows the next one.
        lease_end: Arc<Mutex<i64>>,
        deadline: Vec<u8>,
    },
}

impl Held {
    pub(super) fn new(shared: &Arc<Shared>, key: Vec<u8>, value: Reply, way_back: WayBack) -> Self {
        Self { shared: shared.clone(), key, value, way_back, runtime: Handle::current() }
    }

    /// It has reached who wanted it, or has gone its way.
    pub(super) fn keep(&mut self) {
        self.way_back = WayBack::None;
    }

    /// Lets it go back, and waits until it has.
    pub(super) async fn give_back(mut self) {
        if let Some(task) = self.leave() {
            let _ = task.await;
        }
    }

    /// By a task, as nobody who drops it can wait.
    fn leave(&mut self) -> Option<JoinHandle<()>> {
        let way_back = mem::take(&mut self.way_back);
        if matches!(way_back, WayBack::None) {
            return None;
        }
        let (key, value) = (mem::take(&mut self.key), mem::take(&mut self.value));
        Some(self.runtime.spawn(go_back(self.shared.clone(), key, value, way_back)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leave();
    }
}

async fn go_back(shared: Arc<Shared>, key: Vec<u8>, value: Reply, way_back: WayBack) {
    let outcome = match way_back {
        WayBack::None => Ok(()),
        WayBack::Put { deadline } => shared.put_back(&key, &deadline, &value).await,
        WayBack::Give { lease_end, deadline } => {
            let lease_end = *lease_end.lock().await;
            shared.give_back(&key, lease_end, &deadline).await
        }
    };
    if let Err(error) = outcome {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, key = %String::from_utf8_lossy(&key), "an entry did not go back");
    }
}

/// Carries a future to its end, also where the caller gives up.
pub(super) async fn to_its_end<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    match tokio::spawn(future).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}
