//! Outages: while a server has been unreachable for a whole timeout, calls fail immediately instead of waiting.
//!
//! An outage begins with an attempt to connect, and ends when one succeeds. It is shared by all connections of a client
//! to a server: those of all lanes, and those of near caches.

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use ::redis::RedisError;
use tokio::time::Instant;

use crate::redis::{Error, error::is_caused_by};

/// Time since the last failed attempt after which the state is unknown if no other one began: the runtime of the
/// attempts was shut down.
const FORGET_AFTER: Duration = Duration::from_secs(3);

/// Outages of all servers of a client, by the name of the server.
pub(super) struct Outages {
    /// Time without a connection after which calls fail immediately.
    fail_after: Duration,
    /// Time after which an attempt has certainly ended.
    max_attempt: Duration,
    reported: Arc<ReportedOutages>,
    by_server: Mutex<HashMap<String, Weak<Outage>>>,
}

/// The start of each reported outage of a client's servers, for its metrics.
#[derive(Default)]
pub(super) struct ReportedOutages(Mutex<Vec<Instant>>);

pub(super) struct Outage {
    /// Name of the server, for log messages.
    server: String,
    fail_after: Duration,
    max_attempt: Duration,
    reported: Arc<ReportedOutages>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Start of the first attempt to connect since there was a connection.
    since: Option<Instant>,
    /// Start of the last attempt, unless one has failed since.
    attempted_at: Option<Instant>,
    /// Last failed attempt and its error.
    failure: Option<(Instant, RedisError)>,
    /// True if it was logged and counted.
    is_reported: bool,
}

/// Source of the error of a call that was not sent because the server is unreachable.
#[derive(Debug)]
struct Unreachable {
    cause: Option<RedisError>,
}

impl Outages {
    pub(super) fn new(timeout: Duration, connect_timeout: Duration) -> Self {
        // A little less: a call that waited for its whole timeout has begun before the first attempt, and gives up a
        // pause before its end.
        let fail_after = timeout * 19 / 20;
        // Its task may be scheduled late.
        let max_attempt = connect_timeout + Duration::from_millis(100);
        let (reported, by_server) = Default::default();
        Self { fail_after, max_attempt, reported, by_server }
    }

    /// Returns the state of outages of a server.
    pub(super) fn of(&self, server: String) -> Arc<Outage> {
        let mut by_server = self.by_server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outage) = by_server.get(&server).and_then(Weak::upgrade) {
            return outage;
        }
        // Of nodes that have left the cluster.
        by_server.retain(|_, outage| outage.strong_count() > 0);
        let outage = Arc::new(Outage {
            server: server.clone(),
            fail_after: self.fail_after,
            max_attempt: self.max_attempt,
            reported: self.reported.clone(),
            state: Mutex::default(),
        });
        by_server.insert(server, Arc::downgrade(&outage));
        outage
    }

    /// Returns the outages in progress, for the metrics.
    pub(super) fn reported(&self) -> &Arc<ReportedOutages> {
        &self.reported
    }
}

impl Outage {
    /// Records the start of an attempt while there is no connection.
    pub(super) fn begin(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        state.since.get_or_insert(now);
        state.attempted_at = Some(now);
    }

    pub(super) fn record_failure(&self, error: &RedisError) {
        let mut state = self.state();
        state.attempted_at = None;
        let old = state.failure.replace((Instant::now(), error.clone()));
        drop(state);
        // After unlock.
        drop(old);
    }

    /// Records that there is a connection.
    pub(super) fn end(&self) {
        let State { since, is_reported, .. } = std::mem::take(&mut *self.state());
        if let Some(since) = since.filter(|_| is_reported) {
            self.reported.remove(since);
            let after = since.elapsed();
            tracing::info!(server = self.server, ?after, "server is reachable again");
        }
    }

    /// Returns the error of a call that begins now, if the server is unreachable.
    pub(super) fn error(&self) -> Option<RedisError> {
        let mut state = self.state();
        let now = Instant::now();
        let failed_recently =
            state.failure.as_ref().is_some_and(|(at, _)| now - *at < FORGET_AFTER);
        let since = state.since?;
        let is_attempting = state.attempted_at.is_some_and(|at| now - at < self.max_attempt);
        if now - since < self.fail_after || !is_attempting && !failed_recently {
            return None;
        }
        let cause = state.failure.as_ref().map(|(_, error)| error.clone());
        let is_new = !std::mem::replace(&mut state.is_reported, true);
        drop(state);
        if is_new {
            self.reported.add(since);
            let error = cause.as_ref().map(|error| error as &dyn StdError);
            tracing::warn!(
                server = self.server,
                error,
                "server is unreachable, calls fail until it answers"
            );
        }
        let error = Unreachable { cause };
        Some(io::Error::new(io::ErrorKind::NotConnected, error).into())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let State { since, is_reported, .. } = *self.state();
        if let Some(since) = since.filter(|_| is_reported) {
            self.reported.remove(since);
        }
    }
}

impl ReportedOutages {
    /// Returns the number of unreachable servers, and the time for which the first of them has been unreachable.
    #[cfg(any(test, feature = "metrics"))]
    pub(super) fn read(&self) -> (usize, Duration) {
        let all = self.all();
        (all.len(), all.iter().min().map(Instant::elapsed).unwrap_or_default())
    }

    fn add(&self, since: Instant) {
        self.all().push(since);
    }

    fn remove(&self, since: Instant) {
        let mut all = self.all();
        if let Some(at) = all.iter().position(|other| *other == since) {
            all.swap_remove(at);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether this is the error of an [`Outage`], after which a retry would fail, too.
pub(in crate::redis) fn is_unreachable(error: &RedisError) -> bool {
    is_caused_by::<Unreachable>(error)
}

/// Returns whether a call has waited for a server that did not answer, so that another call would wait, too.
pub(in crate::redis) fn has_waited(error: &Error) -> bool {
    match error {
        Error::Unanswered(_) => true,
        Error::Connect(cause) => !is_unreachable(cause),
        _ => false,
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server has been unreachable for longer than the timeout")
    }
}

impl StdError for Unreachable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_ref().map(|error| error as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage() -> Arc<Outage> {
        let second = Duration::from_secs(1);
        Outages::new(second, 90 * second).of("10.0.0.1:6379".into())
    }

    fn refused() -> RedisError {
        io::Error::from(io::ErrorKind::ConnectionRefused).into()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_fail_after_a_timeout_without_a_connection() {
        let outage = outage();
        outage.record_failure(&refused());
        assert!(outage.error().is_none(), "no attempt was made without a connection");
        outage.begin();
        tokio::time::advance(Duration::from_millis(900)).await;
        outage.record_failure(&refused());
        assert!(outage.error().is_none());
        tokio::time::advance(Duration::from_millis(100)).await;
        let error = outage.error().expect("the server is unreachable");
        assert!(is_unreachable(&error) && !is_unreachable(&refused()));
        assert_eq!(outage.reported.read(), (1, Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(outage.reported.read(), (1, Duration::from_secs(6)));
        outage.end();
        assert!(outage.error().is_none());
        assert_eq!(outage.reported.read(), (0, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn outage_without_attempts_is_forgotten() {
        let outage = outage();
        outage.begin();
        outage.record_failure(&refused());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(outage.error().is_none());
        // An attempt is in progress.
        outage.begin();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(outage.error().is_some());
        let reported = outage.reported.clone();
        drop(outage);
        assert_eq!(reported.read().0, 0);
    }
}
