//! Who loads which key in this process: one of those who want the same asks the server, for all of them.
//!
//! What the server has said is for those who were there before it was asked, and for nobody else: who comes later may have
//! seen a write that the answer is older than.

use std::{
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard},
};

use super::super::Error;
use crate::{
    cache::ReentrancyScope,
    engine::{
        hasher::DefaultHasher,
        store::{Failure, Flight, Joined, LoadResult, WaitMap, WaitOutcome},
    },
};

/// By key, as it is on the server; what is loaded is as it is there, too, so that values need not be cloned.
pub(super) struct Flights {
    hasher: DefaultHasher,
    of_keys: Mutex<WaitMap<Vec<u8>, Flight<Vec<u8>>>>,
}

/// A place among those who wait for one load, until it is dropped.
pub(super) struct Seat {
    flights: Arc<Flights>,
    hash: u64,
    flight: Arc<Flight<Vec<u8>>>,
    leads: bool,
    /// How often the server had been asked when this one came, or of who leads, before it was asked last.
    asks: u32,
}

/// What those get who waited for another.
pub(super) enum Told {
    /// That other has gone: who waited leads from now on.
    Leads,
    Loaded(Vec<u8>),
    /// Of the loader, of whichever type.
    Failed(Failure),
    Refused(Error),
    /// What was loaded is for nobody else: a write may have come before it.
    Again,
}

/// How a flight lands that has nothing for those who waited; none of these is a type that a loader may return.
enum Nothing {
    Refused(Error),
    Again,
}

impl Flights {
    pub(super) fn join(self: &Arc<Self>, key: &[u8]) -> Seat {
        let hash = self.hasher.hash_one(key);
        let mut of_keys = self.lock();
        let Joined { shared, is_first } =
            of_keys.join(hash, key, || key.to_vec(), Flight::is_finished, Flight::new);
        let asks = shared.write_version();
        drop(of_keys);
        Seat { flights: self.clone(), hash, flight: shared, leads: is_first, asks }
    }

    fn lock(&self) -> MutexGuard<'_, WaitMap<Vec<u8>, Flight<Vec<u8>>>> {
        self.of_keys.lock().expect("nothing panics under this lock")
    }
}

impl Default for Flights {
    fn default() -> Self {
        Self { hasher: DefaultHasher::default(), of_keys: Mutex::new(WaitMap::new()) }
    }
}

impl Seat {
    pub(super) fn leads(&self) -> bool {
        self.leads
    }

    /// Whether what is polled is a part of this load, and would wait for itself.
    pub(super) fn is_within(&self) -> bool {
        ReentrancyScope::is(&self.flight)
    }

    /// Awaits `load` as a part of this load.
    pub(super) async fn run<F: Future>(&self, load: F) -> F::Output {
        ReentrancyScope::run(&self.flight, load).await
    }

    /// The server is about to be asked: who comes from now on does not get the answer.
    pub(super) fn ask(&mut self) {
        let of_keys = self.flights.lock();
        self.asks = self.flight.write_version();
        self.flight.bump_write_version();
        drop(of_keys);
    }

    /// Waits for who leads. Cancel safe.
    pub(super) async fn wait(&mut self) -> Told {
        let landing = match self.flight.wait().await {
            WaitOutcome::Leader => {
                self.leads = true;
                return Told::Leads;
            }
            WaitOutcome::Finished(landing) => landing,
        };
        match &landing.outcome {
            Ok(value) if landing.started_at_version >= self.asks => Told::Loaded(value.clone()),
            Ok(_) => Told::Again,
            Err(failure) => match failure.downcast_ref() {
                None => Told::Failed(failure.clone()),
                Some(Nothing::Refused(error)) => Told::Refused(same(error)),
                Some(Nothing::Again) => Told::Again,
            },
        }
    }

    /// All who wait get this, but for those who came after the server was asked.
    pub(super) fn land(self, outcome: Result<Vec<u8>, Failure>) {
        self.end(outcome);
    }

    /// All who wait get this error.
    pub(super) fn refuse(self, error: &Error) {
        self.end(Err(Arc::new(Nothing::Refused(same(error)))));
    }

    /// All who wait ask again.
    pub(super) fn ask_again(self) {
        self.end(Err(Arc::new(Nothing::Again)));
    }

    fn end(mut self, outcome: Result<Vec<u8>, Failure>) {
        self.flight.finish(LoadResult { started_at_version: self.asks, outcome });
        self.leads = false;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.leads {
            self.flight.abandon();
        }
        let key = self.flights.lock().leave(self.hash, &self.flight);
        drop(key);
    }
}

/// The same once more, for another who asked.
pub(super) fn same(error: &Error) -> Error {
    match error {
        Error::Address(error) => Error::Address(error.clone()),
        Error::Name(name) => Error::Name(name.clone()),
        Error::Connect(error) => Error::Connect(error.clone()),
        Error::Unanswered(error) => Error::Unanswered(error.clone()),
        Error::Unavailable(error) => Error::Unavailable(error.clone()),
        Error::WrongType { key } => Error::WrongType { key: key.clone() },
        Error::Encode(source) => Error::Encode(source.to_string().into()),
        Error::Decode { key, source } => {
            Error::Decode { key: key.clone(), source: source.to_string().into() }
        }
        Error::Server(error) => Error::Server(error.clone()),
        Error::Limited(limited) => Error::Limited(limited.clone()),
        Error::Contended => Error::Contended,
        Error::NoEvents => Error::NoEvents,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_comes_after_the_server_was_asked_does_not_get_the_answer() {
        let flights = Arc::new(Flights::default());
        let mut leader = flights.join(b"ada");
        let mut early = flights.join(b"ada");
        leader.ask();
        let mut late = flights.join(b"ada");
        assert!(leader.leads() && !early.leads() && !late.leads());
        leader.land(Ok(b"1".to_vec()));
        assert!(matches!(early.wait().now_or_never(), Some(Told::Loaded(value)) if value == b"1"));
        assert!(matches!(late.wait().now_or_never(), Some(Told::Again)));
        let mut next = flights.join(b"ada");
        assert!(next.leads());
        // An error is no older than anything.
        next.ask();
        let mut late = flights.join(b"ada");
        next.refuse(&Error::Contended);
        assert!(matches!(late.wait().now_or_never(), Some(Told::Refused(Error::Contended))));
    }

    #[test]
    fn nothing_is_left_of_those_who_go_whichever_way() {
        let flights = Arc::new(Flights::default());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..20_000_u32 {
                        let mut seat = flights.join(&(n % 7).to_le_bytes());
                        if !seat.leads() {
                            // As one who is dropped while it waits; it may have come to lead by then.
                            let _ = seat.wait().now_or_never();
                        } else if n % 3 == 0 {
                            seat.ask_again();
                        }
                    }
                });
            }
        });
        assert!(flights.lock().is_empty());
    }
}
