//! Counters of a client: attempts to send a command, failures and recoveries.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{AcqRel, Relaxed},
    },
};
#[cfg(feature = "metrics")]
use std::time::Duration;

use super::outage::ReportedOutages;
use crate::redis::Error;

pub(super) struct ClientCounters {
    commands: AtomicU64,
    failures: AtomicU64,
    reconnects: AtomicU64,
    /// True if the last attempt reached no server or got no reply.
    is_down: AtomicBool,
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only for metrics"))]
    outages: Arc<ReportedOutages>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
}

impl ClientCounters {
    pub(super) fn new(outages: Arc<ReportedOutages>) -> Self {
        Self {
            commands: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            outages,
            #[cfg(feature = "metrics")]
            registration: Default::default(),
        }
    }

    /// Returns the number of unreachable servers, and the time for which the first of them has been unreachable.
    #[cfg(feature = "metrics")]
    pub(super) fn outages(&self) -> (usize, Duration) {
        self.outages.read()
    }

    #[cfg(feature = "metrics")]
    /// Returns the numbers of commands, failures and recoveries.
    pub(super) fn get(&self) -> [u64; 3] {
        [&self.commands, &self.failures, &self.reconnects].map(|count| count.load(Relaxed))
    }

    /// Counts one attempt to send a command by its outcome.
    pub(super) fn record<T>(&self, answer: &Result<T, Error>) {
        match answer {
            Err(Error::Connect(_) | Error::Unanswered(_)) => self.record_failure(),
            _ => self.record_reply(),
        }
    }

    fn record_reply(&self) {
        self.commands.fetch_add(1, Relaxed);
        // The swap lets exactly one of several concurrent replies count the recovery. `AcqRel` is stronger than the
        // counters need, as no other data depends on the flag; it costs nothing, since the swap runs once per recovery.
        if self.is_down.load(Relaxed) && self.is_down.swap(false, AcqRel) {
            self.reconnects.fetch_add(1, Relaxed);
        }
    }

    fn record_failure(&self) {
        self.commands.fetch_add(1, Relaxed);
        self.failures.fetch_add(1, Relaxed);
        self.is_down.store(true, Relaxed);
    }
}
