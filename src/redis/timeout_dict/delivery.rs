//! An entry on its way from the server to the caller. If it does not reach the caller, because the call or the claim
//! was dropped, it is returned to the server: tried again until the server answers.

use std::{mem, sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::Mutex, task::JoinHandle, time::sleep};

use super::{
    counters::HeldClaim,
    dict_state::{DictState, Failure},
};
use crate::{engine::panics::resume_panic_of, redis::Error};

/// A taken or claimed entry. Dropping it does what [`OnDrop`] says.
pub(super) struct TakenEntry {
    pub(super) state: Arc<DictState>,
    pub(super) key: Vec<u8>,
    /// Score that it had in the index: its deadline.
    pub(super) due: f64,
    /// Number of the attempt, from 1.
    pub(super) attempts: u32,
    /// True for a dead letter, whose `due` is the time at which it became dead.
    pub(super) is_dead: bool,
    /// Value as returned by the script; `Nil` once a claim holds the decoded value.
    pub(super) value: Reply,
    pub(super) on_drop: OnDrop,
    /// Runtime on which it is returned, since it may be dropped on a thread without one.
    runtime: Handle,
}

#[derive(Default)]
pub(super) enum OnDrop {
    #[default]
    Nothing,
    /// The entry was removed, and is put back in its former state.
    PutBack { saved: Vec<u8> },
    /// The entry was leased but the caller has not received it: it gets its former score again.
    GiveBack { lease_end: i64, score: Vec<u8> },
    /// The caller has a claim, which fails. The mutex is locked during an extension, which changes the end of the
    /// lease. `score` is the former score, for a release.
    Fail { lease_end: Arc<Mutex<i64>>, score: Vec<u8>, _held: HeldClaim },
}

impl TakenEntry {
    pub(super) fn new(state: &Arc<DictState>, key: Vec<u8>, value: Reply, on_drop: OnDrop) -> Self {
        let (state, runtime) = (state.clone(), Handle::current());
        Self { state, key, due: 0.0, attempts: 1, is_dead: false, value, on_drop, runtime }
    }

    /// Returns the end of its lease, if the caller has not received it.
    pub(super) fn lease_end(&self) -> Option<i64> {
        match self.on_drop {
            OnDrop::GiveBack { lease_end, .. } => Some(lease_end),
            _ => None,
        }
    }

    /// Marks an entry that was leased for a take as removed. If it is put back, it has no reason, as after a take.
    pub(super) fn mark_removed(&mut self) {
        if let OnDrop::GiveBack { score, .. } = &self.on_drop {
            let failures = self.attempts.saturating_sub(1).to_string();
            let saved = match self.is_dead {
                true => [b"+inf ", failures.as_bytes(), b" ", &score[..]].concat(),
                false => [&score[..], b" ", failures.as_bytes(), b" -"].concat(),
            };
            self.on_drop = OnDrop::PutBack { saved };
        }
    }

    /// Makes dropping it do nothing, because the caller has received it or the server needs no report.
    pub(super) fn disarm(&mut self) {
        self.on_drop = OnDrop::Nothing;
    }

    /// Returns it to the server and waits for the first reply.
    pub(super) async fn send_back(mut self) {
        if let Some(task) = self.spawn_send_back() {
            // Fails only if the runtime is shutting down. `send_back` has logged any other failure.
            let _ = task.await;
        }
    }

    /// In a task, because `Drop` cannot wait.
    fn spawn_send_back(&mut self) -> Option<JoinHandle<()>> {
        // Taken, so that the drop after `send_back` does not send it again.
        let on_drop = mem::take(&mut self.on_drop);
        if matches!(on_drop, OnDrop::Nothing) {
            return None;
        }
        let (key, value) = (mem::take(&mut self.key), mem::take(&mut self.value));
        Some(self.runtime.spawn(send_back(self.state.clone(), key, value, on_drop, self.attempts)))
    }
}

impl Drop for TakenEntry {
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
        OnDrop::PutBack { saved } => {
            if let Err(error) = state.put_back(&key, &saved, &value).await {
                if was_not_executed(&error) {
                    tokio::spawn(put_back_later(state, key, saved, value));
                } else {
                    log_lost(&state, &error);
                }
            }
            return;
        }
        OnDrop::GiveBack { lease_end, score } => {
            // If the reply is lost, the entry is due again at the latest when its lease expires.
            state.give_back(&key, lease_end, &score).await.map(drop)
        }
        OnDrop::Fail { lease_end, .. } => {
            // Waits for an extension in progress, which changes the end of the lease.
            let lease_end = *lease_end.lock().await;
            let failure = Failure { attempt: attempts, delay: None, reason: None };
            state.fail(&key, lease_end, failure).await.map(drop)
        }
    };
    if let Err(error) = outcome {
        let error: &dyn std::error::Error = &error;
        // The key of the entry is not logged, since it may be a secret.
        tracing::warn!(
            dict = state.name,
            error,
            "failed to return a claimed entry; it becomes due again when its lease expires"
        );
    }
}

/// First and longest pause before a removed entry is put back again; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Puts a removed entry back once the server can be reached, in a task of its own, so that no caller waits for it.
/// Without a bound of time: an entry that is given up is lost, and while the server cannot be reached, none is removed.
async fn put_back_later(state: Arc<DictState>, key: Vec<u8>, saved: Vec<u8>, value: Reply) {
    let (mut pause, longest) = PAUSES;
    loop {
        sleep(pause).await;
        match state.put_back(&key, &saved, &value).await {
            Ok(()) => return,
            Err(error) if was_not_executed(&error) => pause = longest.min(2 * pause),
            Err(error) => return log_lost(&state, &error),
        }
    }
}

/// Returns whether the server certainly did not execute the call, and may do so later.
fn was_not_executed(error: &Error) -> bool {
    matches!(error, Error::Connect(_) | Error::Unavailable(_)) && error.is_temporary()
}

fn log_lost(state: &DictState, error: &Error) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(dict = state.name, error, "failed to put back a removed entry");
}

/// Runs a future to completion in a task, even if the caller is dropped. Otherwise, the entries of a reply that no task
/// reads would stay leased, and could not be returned.
pub(super) async fn run_to_end<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    // Boxed, as in `engine::tasks`.
    match tokio::spawn(future.boxed()).await {
        Ok(outcome) => outcome,
        Err(ended) => {
            resume_panic_of(ended);
            // Cancelled by the shutdown of the runtime, which drops this future, too.
            std::future::pending().await
        }
    }
}
