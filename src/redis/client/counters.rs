//! How often a client has sent something, and how that went.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use crate::redis::Error;

#[derive(Default)]
pub(super) struct ClientCounters {
    commands: AtomicU64,
    failures: AtomicU64,
    reconnects: AtomicU64,
    /// The last try came to no server, or to no answer.
    is_down: AtomicBool,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl ClientCounters {
    #[cfg(feature = "metrics")]
    /// Commands, failures, and how often a failure was over.
    pub(super) fn get(&self) -> [u64; 3] {
        [&self.commands, &self.failures, &self.reconnects].map(|count| count.load(Relaxed))
    }

    /// How a try to send something went.
    pub(super) fn note<T>(&self, answer: &Result<T, Error>) {
        match answer {
            Err(Error::Connect(_) | Error::Unanswered(_)) => self.failed(),
            _ => self.answered(),
        }
    }

    fn answered(&self) {
        self.commands.fetch_add(1, Relaxed);
        if self.is_down.load(Relaxed) && self.is_down.swap(false, AcqRel) {
            self.reconnects.fetch_add(1, Relaxed);
        }
    }

    fn failed(&self) {
        self.commands.fetch_add(1, Relaxed);
        self.failures.fetch_add(1, Relaxed);
        self.is_down.store(true, Relaxed);
    }
}
