//! Single flight of loads within a process: the leader asks the server for all callers that wait for the key.
//!
//! A reply counts only for callers that joined before the request was sent. A later caller may already have seen a
//! write that is newer than the reply.

use std::{
    hash::BuildHasher,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
};

use super::super::Error;
use crate::{
    cache::ReentrancyScope,
    engine::{
        hasher::DefaultHasher,
        store::{Flight, JoinedWait, LoadFailure, Lookup, Preceding, WaitMap},
    },
};

/// Flights by encoded key. Results are encoded values, so that values need not be `Clone`.
pub(super) struct Flights {
    hasher: DefaultHasher,
    by_key: Mutex<WaitMap<Vec<u8>, Flight<Vec<u8>>>>,
}

/// Membership in a flight, as its leader or a follower, until it is dropped.
pub(super) struct FlightMembership {
    flights: Arc<Flights>,
    hash: u64,
    flight: Arc<Flight<Vec<u8>>>,
    is_leader: bool,
    /// Requests of the flight's leader before this caller joined.
    reads_begun: Preceding,
    /// The same of the last caller that joined before the load of this leader began.
    load_begun: Preceding,
}

/// Outcome of a flight for a follower.
pub(super) enum FlightOutcome {
    /// The leader gave up, and this caller is the leader now.
    Leader,
    Loaded(Vec<u8>),
    /// Error of the loader, of any type.
    LoaderFailed(LoadFailure),
    Error(Error),
    /// The result is not for this caller, since a write may have come before it: ask again.
    Retry,
}

/// End of a flight without a value or a loader error. Private, so that a loader cannot return this type.
enum NoValue {
    Error(Error),
    Retry,
}

impl Flights {
    pub(super) fn join(self: &Arc<Self>, key: &[u8]) -> FlightMembership {
        let hash = self.hasher.hash_one(key);
        let mut by_key = self.lock();
        let JoinedWait { shared, is_first } =
            by_key.join(hash, key, || key.to_vec(), Flight::is_finished, || Flight::new(None));
        let reads_begun = shared.preceding(0);
        drop(by_key);
        FlightMembership {
            flights: self.clone(),
            hash,
            flight: shared,
            is_leader: is_first,
            reads_begun,
            load_begun: reads_begun,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitMap<Vec<u8>, Flight<Vec<u8>>>> {
        self.by_key.lock().expect("nothing panics under this lock")
    }
}

impl Default for Flights {
    fn default() -> Self {
        Self { hasher: DefaultHasher::default(), by_key: Mutex::new(WaitMap::new()) }
    }
}

impl FlightMembership {
    pub(super) fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Accepts each result of a flight that this caller has joined after another one: it is newer than its call.
    pub(super) fn accept_all(&mut self) {
        self.reads_begun = Preceding::default();
    }

    /// Returns whether the current task is running this load, so that it would wait for itself.
    pub(super) fn is_reentrant(&self) -> bool {
        ReentrancyScope::is(&self.flight)
    }

    /// Awaits `load` and marks the task as running this load.
    pub(super) async fn run<F: Future>(&self, load: F) -> F::Output {
        ReentrancyScope::run(&self.flight, pin!(load)).await
    }

    /// Notes that the leader is about to send a request: callers that join from now on do not get its reply.
    pub(super) fn begin_read(&mut self) {
        // Under the lock: a caller joins either before this request and gets its reply, or after it and does not.
        let by_key = self.flights.lock();
        self.flight.restart(None);
        self.flight.bump_write_version();
        drop(by_key);
    }

    /// The same for the request after which the load begins.
    pub(super) fn begin_load(&mut self) {
        self.begin_read();
        self.load_begun = self.flight.started();
    }

    /// Waits for the leader's result. Cancel safe.
    pub(super) async fn wait(&mut self) -> FlightOutcome {
        match self.flight.wait(self.reads_begun).await {
            Lookup::Leader(()) => {
                self.is_leader = true;
                FlightOutcome::Leader
            }
            Lookup::Loaded(value) => FlightOutcome::Loaded(value),
            Lookup::Failed(failure) => match failure.downcast_ref() {
                None => FlightOutcome::LoaderFailed(failure.clone()),
                Some(NoValue::Error(error)) => FlightOutcome::Error(clone_error(error)),
                Some(NoValue::Retry) => FlightOutcome::Retry,
            },
            // The flights of this cache end with a value or an error.
            Lookup::Live(_) | Lookup::Nested | Lookup::Again => FlightOutcome::Retry,
        }
    }

    /// Ends the flight with a result for all followers that joined before the leader's last request.
    pub(super) fn finish(self, outcome: Result<Vec<u8>, LoadFailure>) {
        self.finish_flight(outcome);
    }

    /// Ends the flight with a value that was not written, because a write takes precedence: for the followers that
    /// joined before the load began. Later ones may have seen the write.
    pub(super) fn finish_superseded(self, value: Vec<u8>) {
        let by_key = self.flights.lock();
        self.flight.restart_at(self.load_begun);
        drop(by_key);
        self.finish(Ok(value));
    }

    /// Ends the flight with an error for all followers.
    pub(super) fn finish_with_error(self, error: &Error) {
        self.finish_flight(Err(Arc::new(NoValue::Error(clone_error(error)))));
    }

    /// Ends the flight; all followers ask again.
    pub(super) fn finish_with_retry(self) {
        self.finish_flight(Err(Arc::new(NoValue::Retry)));
    }

    fn finish_flight(mut self, outcome: Result<Vec<u8>, LoadFailure>) {
        let lookup = match outcome {
            Ok(value) => Lookup::Loaded(value),
            Err(failure) => {
                // Errors are for all followers.
                let _by_key = self.flights.lock();
                self.flight.restart(None);
                Lookup::Failed(failure)
            }
        };
        self.flight.finish(lookup);
        self.is_leader = false;
    }
}

impl Drop for FlightMembership {
    fn drop(&mut self) {
        if self.is_leader {
            // Before leaving the flight, so that a follower that is still in it becomes the leader.
            self.flight.abandon();
        }
        let key = self.flights.lock().leave(self.hash, &self.flight);
        // The key is freed after unlock.
        drop(key);
    }
}

/// Clones an error for another waiter. A boxed source is not `Clone`, so that its text replaces it.
pub(super) fn clone_error(error: &Error) -> Error {
    match error {
        Error::Address(error) => Error::Address(error.clone()),
        Error::Name(name) => Error::Name(name.clone()),
        Error::Connect(error) => Error::Connect(error.clone()),
        Error::Unanswered(error) => Error::Unanswered(error.clone()),
        Error::Unavailable(error) => Error::Unavailable(error.clone()),
        Error::WrongType { key } => Error::WrongType { key: key.clone() },
        // Sources are not `Clone`, so the followers get their texts.
        Error::Encode(source) => Error::Encode(source.to_string().into()),
        Error::Decode { key, source } => {
            Error::Decode { key: key.clone(), source: source.to_string().into() }
        }
        Error::TooLarge { bytes, max } => Error::TooLarge { bytes: *bytes, max: *max },
        Error::Server(error) => Error::Server(error.clone()),
        Error::Limited(limited) => Error::Limited(limited.clone()),
        Error::Contended => Error::Contended,
        Error::ShardCount { name, recorded, configured } => {
            Error::ShardCount { name: name.clone(), recorded: *recorded, configured: *configured }
        }
        Error::NoEvents => Error::NoEvents,
        Error::Missed(events) => Error::Missed(*events),
        Error::GroupRemoved => Error::GroupRemoved,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn caller_that_joins_after_the_request_does_not_get_its_reply() {
        let flights = Arc::new(Flights::default());
        let mut leader = flights.join(b"ada");
        let mut early = flights.join(b"ada");
        leader.begin_read();
        let mut late = flights.join(b"ada");
        assert!(leader.is_leader() && !early.is_leader() && !late.is_leader());
        leader.finish(Ok(b"1".to_vec()));
        assert!(
            matches!(early.wait().now_or_never(), Some(FlightOutcome::Loaded(value)) if value == b"1")
        );
        assert!(matches!(late.wait().now_or_never(), Some(FlightOutcome::Retry)));
        let mut next = flights.join(b"ada");
        assert!(next.is_leader());
        // Errors are for all followers, also for late ones.
        next.begin_read();
        let mut late = flights.join(b"ada");
        next.finish_with_error(&Error::Contended);
        assert!(matches!(late.wait().now_or_never(), Some(FlightOutcome::Error(Error::Contended))));
    }

    #[test]
    fn flight_is_removed_with_its_last_member() {
        let flights = Arc::new(Flights::default());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..20_000_u32 {
                        let mut guard = flights.join(&(n % 7).to_le_bytes());
                        if !guard.is_leader() {
                            // A follower that is dropped while it waits. It may have become the leader by then.
                            let _ = guard.wait().now_or_never();
                        } else if n % 3 == 0 {
                            guard.finish_with_retry();
                        }
                    }
                });
            }
        });
        assert!(flights.lock().is_empty());
    }
}
