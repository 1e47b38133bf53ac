//! Attempts to connect: one at a time for all callers, for how long a failure answers further ones, and when the next
//! attempt follows in the background.

use std::{
    io,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use ::redis::{ErrorKind, RedisError};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    super::{
        connect::{MAX_IN_FLIGHT, MAX_LARGE_IN_FLIGHT},
        connection::Connection,
        large_runtime::LargeRuntime,
        single_flight::SharedResult,
        watchdog::watchdog,
    },
    ConnectionAttempt, SharedConnection, State, no_connection,
};
use crate::{
    engine::coop,
    redis::{Error, error::is_refusal},
};

/// Time for which a failed attempt is the answer to further callers: in general, and if the server refused the login.
const FAILURE_TTL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Time for which a call to an unreachable server waits for an attempt that it starts: enough to find a server nearby.
const BRIEFLY: Duration = Duration::from_millis(2);

/// Pause between two attempts in the background.
const RETRY_EVERY: Duration = Duration::from_millis(400);

impl SharedConnection {
    /// Returns the connection, or waits for one, unless the server is unreachable.
    pub(super) async fn connection_until(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        if let Some(error) = self.unreachable() {
            // A task that makes calls without a pause would keep its worker from the attempt in flight.
            coop::proceed().await;
            // The server may have returned since the last attempt.
            return match self.attempt_briefly().await {
                Some(connection) => Ok(connection),
                None => Err(Error::Connect(error)),
            };
        }
        match timeout_at(deadline, self.connection()).await {
            Ok(connection) => connection.map_err(Error::Connect),
            Err(_) => Err(self.unreachable().map_or_else(no_connection, Error::Connect)),
        }
    }

    /// Returns the error of a call that is not to wait.
    pub(in super::super) fn unreachable(&self) -> Option<RedisError> {
        self.0.outage.error()
    }

    /// Makes an attempt unless there was one recently, and waits for it for a moment. It continues without the caller.
    async fn attempt_briefly(&self) -> Option<Arc<Connection>> {
        let retry_at = self.current().failure.as_ref().map(|(_, _, until)| *until);
        if self.0.attempt.is_running() || retry_at.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        timeout(BRIEFLY, self.attempt()).await.ok()?.ok()?.ok()
    }

    pub(super) async fn connection(&self) -> ConnectionAttempt {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let version = self.0.route.connector.credentials_version();
        // Otherwise, while the server is down, each caller in turn would wait for another attempt.
        if let Some((error, with, until)) = &self.current().failure
            && *with == version
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let gone = |_| Err((ErrorKind::Io, "the runtime that connected was shut down").into());
        match self.attempt().await.unwrap_or_else(gone) {
            // The attempt began with credentials that have been replaced since.
            Err(error)
                if is_refusal(&error)
                    && version != self.0.route.connector.credentials_version() =>
            {
                self.attempt().await.unwrap_or_else(gone)
            }
            attempt => attempt,
        }
    }

    /// Joins the attempt in flight, or starts one.
    pub(super) fn attempt(&self) -> SharedResult<ConnectionAttempt> {
        self.0.attempt.join(|| {
            // Here, since the previous attempt has ended: otherwise its success might end the outage before it begins.
            let is_open = |connection: &Arc<Connection>| connection.is_open();
            if !self.current().connection.as_ref().is_some_and(is_open) {
                self.0.outage.begin();
            }
            let (route, state) = (self.0.route.clone(), Arc::downgrade(&self.0));
            let (runtime, max_in_flight) = match self.0.is_large {
                true => (LargeRuntime::current(), MAX_LARGE_IN_FLIGHT),
                false => (None, MAX_IN_FLIGHT),
            };
            async move {
                let connector = route.connector.clone();
                // Before the login: if the credentials change during the attempt, the connection is renewed.
                let version = connector.credentials_version();
                let limit = connector.timeout;
                let connect = async move {
                    match timeout(limit, route.connect()).await {
                        Ok(new) => new,
                        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                    }
                };
                let new = match &runtime {
                    // The task of the connection starts there, too.
                    Some(runtime) => {
                        let task = runtime.handle().spawn(connect);
                        task.await.unwrap_or_else(|ended| Err(io::Error::other(ended).into()))
                    }
                    None => connect.await,
                };
                let attempt =
                    new.map(|new| Arc::new(Connection::new(new, version, max_in_flight, runtime)));
                if let Ok(connection) = &attempt {
                    let (state, this) = (state.clone(), Arc::downgrade(connection));
                    connection.set_on_end(move || {
                        // `is_open` is false by now, so no caller can obtain the connection.
                        connector.on_connection_retired();
                        if let Some(shared) = Self::upgrade(&state) {
                            shared.on_end(&this);
                        }
                    });
                }
                if let Some(shared) = Self::upgrade(&state) {
                    shared.finish_attempt(&attempt, version);
                }
                if let Ok(connection) = &attempt
                    && connection.is_tracking()
                {
                    let probe = move |connection: &_| {
                        Self::upgrade(&state).map(|shared| shared.probe(connection))
                    };
                    tokio::spawn(watchdog(Arc::downgrade(connection), probe));
                }
                attempt
            }
        })
    }

    fn finish_attempt(&self, attempt: &ConnectionAttempt, version: u64) {
        let mut current = self.current();
        let old = match attempt {
            Ok(connection) => {
                current.failure = None;
                current.connection.replace(connection.clone())
            }
            Err(error) => {
                let (short, long) = FAILURE_TTL;
                let ttl = if is_refusal(error) { long } else { short };
                current.failure = Some((error.clone(), version, Instant::now() + ttl));
                None
            }
        };
        drop(current);
        match attempt {
            // A server that refuses the login is reachable, and would refuse the next attempts, too.
            Err(error) if !is_refusal(error) => {
                self.0.outage.record_failure(error);
                self.retry_in_background();
            }
            Err(_) => self.0.outage.end(),
            Ok(connection) => {
                self.0.outage.end();
                // It may have ended before it was stored.
                if !connection.is_open() {
                    self.retry_in_background();
                }
            }
        }
        // Only now: no caller can obtain the old connection any more.
        if old.is_some() {
            self.0.route.connector.on_connection_retired();
        }
        // After unlock: without waiters, this closes the connection.
        drop(old);
    }

    /// Makes attempts until there is a connection, so that a server which returns is found without a call.
    fn retry_in_background(&self) {
        if self.is_connected() || self.0.is_retrying.swap(true, Relaxed) {
            return;
        }
        let retrying = Retrying(Arc::downgrade(&self.0));
        tokio::spawn(async move {
            loop {
                sleep(RETRY_EVERY).await;
                // Upgraded for one attempt only: the task must not keep the shared connection alive.
                let Some(shared) = Self::upgrade(&retrying.0) else { return };
                if shared.is_connected() {
                    return;
                }
                // Reports the outage, even if there are no calls.
                let _ = shared.0.outage.error();
                // A replica may have been promoted, at another address.
                if let Some(find_successor) = &shared.0.route.find_successor {
                    find_successor();
                }
                let attempt = shared.attempt();
                drop(shared);
                // The next one would be refused, too, until the credentials change.
                if matches!(attempt.await, Ok(Err(error)) if is_refusal(&error)) {
                    return;
                }
            }
        });
    }

    /// Reconnects after the peer or the network has closed this connection.
    fn on_end(&self, ended: &Weak<Connection>) {
        let is_this = |current: &&Arc<Connection>| Arc::as_ptr(current) == ended.as_ptr();
        let was_used =
            self.current().connection.as_ref().filter(is_this).map(|ended| ended.replies() > 0);
        match was_used {
            Some(true) => drop(self.attempt()),
            // After a pause, because the server may close each new connection.
            Some(false) => self.retry_in_background(),
            None => {}
        }
    }
}

/// Marks the end of the task that makes attempts, even if its runtime is shut down.
struct Retrying(Weak<State>);

impl Drop for Retrying {
    fn drop(&mut self) {
        if let Some(state) = self.0.upgrade() {
            state.is_retrying.store(false, Relaxed);
        }
    }
}
