//! An entry on its way from the server to the caller, and its way back: what was taken or claimed and reaches
//! nobody, since the caller gave up or a claim is dropped, goes back by itself.

use std::{mem, sync::Arc};

use ::redis::Value as Reply;
use tokio::{runtime::Handle, sync::Mutex, task::JoinHandle};

use super::state::DictState;
use crate::redis::Error;

/// An entry that was taken or claimed. To drop it does what [`OnDrop`] says.
pub(super) struct Delivery {
    pub(super) state: Arc<DictState>,
    pub(super) key: Vec<u8>,
    /// When it was due, in the index' scores.
    pub(super) due: f64,
    /// Which attempt it is.
    pub(super) attempts: u32,
    /// As the script gave it; nothing where a claim has it in its own form.
    pub(super) value: Reply,
    pub(super) on_drop: OnDrop,
    /// On which it goes back: it may be dropped on a thread that has none.
    runtime: Handle,
}

#[derive(Default)]
pub(super) enum OnDrop {
    #[default]
    Nothing,
    /// It was taken out, and is put back as it was.
    PutBack { saved: Vec<u8> },
    /// It was lent, and nobody has heard of it: it has the score again that it had.
    GiveBack { lease_end: i64, score: Vec<u8> },
    /// Somebody has its claim, which fails. An extension has the claim's number until it knows the next one.
    Fail { lease_end: Arc<Mutex<i64>> },
}

impl Delivery {
    pub(super) fn new(state: &Arc<DictState>, key: Vec<u8>, value: Reply, on_drop: OnDrop) -> Self {
        let (state, runtime) = (state.clone(), Handle::current());
        Self { state, key, due: 0.0, attempts: 1, value, on_drop, runtime }
    }

    /// The number of its lease, which nobody has heard of.
    pub(super) fn lease_end(&self) -> Option<i64> {
        match self.on_drop {
            OnDrop::GiveBack { lease_end, .. } => Some(lease_end),
            _ => None,
        }
    }

    /// It was lent to a take, and is out now.
    pub(super) fn mark_removed(&mut self) {
        if let OnDrop::GiveBack { score, .. } = &self.on_drop {
            let failures = self.attempts.saturating_sub(1).to_string();
            let saved = [&score[..], b" ", failures.as_bytes(), b" -"].concat();
            self.on_drop = OnDrop::PutBack { saved };
        }
    }

    /// It has reached who wanted it, or has gone its way.
    pub(super) fn disarm(&mut self) {
        self.on_drop = OnDrop::Nothing;
    }

    /// Lets it go back, and waits until it has.
    pub(super) async fn send_back(mut self) {
        if let Some(task) = self.spawn_send_back() {
            let _ = task.await;
        }
    }

    /// By a task, as nobody who drops it can wait.
    fn spawn_send_back(&mut self) -> Option<JoinHandle<()>> {
        let on_drop = mem::take(&mut self.on_drop);
        if matches!(on_drop, OnDrop::Nothing) {
            return None;
        }
        let (key, value) = (mem::take(&mut self.key), mem::take(&mut self.value));
        Some(self.runtime.spawn(send_back(self.state.clone(), key, value, on_drop, self.attempts)))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.spawn_send_back();
    }
}

async fn send_back(
    state: Arc<DictState>,
    key: Vec<u8>,
    value: Reply,
    on_drop: OnDrop,
    attempts: u32,
) {
    let outcome = match on_drop {
        OnDrop::Nothing => Ok(()),
        OnDrop::PutBack { saved } => state.put_back(&key, &saved, &value).await,
        OnDrop::GiveBack { lease_end, score } => state.give_back(&key, lease_end, &score).await,
        OnDrop::Fail { lease_end } => {
            // After an extension that is under way, which makes the number another.
            let lease_end = *lease_end.lock().await;
            state.fail(&key, lease_end, None, attempts).await.map(drop)
        }
    };
    if let Err(error) = outcome {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, key = %String::from_utf8_lossy(&key), "an entry did not go back");
    }
}

/// Carries a future to its end, also where the caller gives up: an answer that nobody reads would hold entries
/// that nobody knows of, and so can't go back.
pub(super) async fn run_to_end<T: Send + 'static>(
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
