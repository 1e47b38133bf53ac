//! State shared by all handles of a limiter, and its calls to the server: each has a timeout, passes the circuit
//! breaker, and has its failures counted and logged.

use std::{fmt, sync::Mutex, time::Duration};

use ::redis::{ErrorKind, FromRedisValue, RedisError, Script};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    super::{
        Client, Error,
        client::{is_too_many_in_flight, is_unreachable},
        codec::{append_key, with_buffer},
        keyspace::Keyspace,
        script::Call,
    },
    breaker::{CircuitBreaker, OPEN_FOR},
    deny_cache::DenyCache,
    limit_set::{CurrentLimits, LimitSet},
    on_error::Fallback,
    protocol::{self, Charges, LimitArgs, Outcome, Remaining, Reply, Verb},
    reservations::Reservations,
    stats::{LimiterCounters, LimiterStats},
};
use crate::{
    engine::{coop, hasher::DefaultHasher},
    rate_limit::{Limit, MAX_KEY_BYTES, PerLimit, Standing, State, WaitSettings, Waiting, Window},
};

/// Minimum time between two log messages about a failing server: every call may fail.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct LimiterState {
    pub(super) client: Client,
    pub(super) keyspace: Keyspace,
    pub(super) name: String,
    pub(super) window: Window,
    pub(super) current_limits: CurrentLimits,
    pub(super) timeout: Duration,
    pub(super) fallback: Fallback,
    pub(super) breaker: CircuitBreaker,
    pub(super) deny_cache: Option<DenyCache>,
    pub(super) reservations: Option<Reservations>,
    /// Wait queues by subject.
    pub(super) waiting: Waiting<Vec<u8>, DefaultHasher>,
    /// Queues of the waiters that charge nothing.
    #[cfg(feature = "axum")]
    pub(super) probing: Waiting<Vec<u8>, DefaultHasher>,
    pub(super) wait: WaitSettings,
    pub(super) counters: LimiterCounters,
    /// Time before which no further failure is logged.
    pub(super) quiet_until: Mutex<Option<Instant>>,
    #[cfg(feature = "dashboard")]
    pub(super) top_denied: super::top_denied::TopDenied,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
}

impl LimiterState {
    /// Returns the key on the server of a rate-limit key.
    ///
    /// A long key is shortened with a hash that is the same in all processes: SHA-1, for which no second preimage is
    /// known. A shortened key is longer than any other, so no key can be chosen to collide with it.
    pub(super) fn subject<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>, Error> {
        self.with_subject(key, <[u8]>::to_vec)
    }

    /// Calls `f` with the output of [`subject`](Self::subject), without an allocation for most keys.
    #[inline]
    pub(super) fn with_subject<Q: Serialize + ?Sized, R>(
        &self,
        key: &Q,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Error> {
        with_buffer(|subject| {
            self.keyspace.open_tag(subject);
            let begin = subject.len();
            append_key(key, subject)?;
            if subject.len() - begin > MAX_KEY_BYTES {
                // The client library's SHA-1. The result is part of stored keys and must not change.
                let text = String::from_utf8_lossy(&subject[begin..]);
                let hash = Script::new(&text).get_hash().to_owned();
                subject.truncate(begin + MAX_KEY_BYTES);
                subject.push(b'#');
                subject.extend_from_slice(hash.as_bytes());
            }
            subject.push(b'}');
            Ok(f(subject))
        })
    }

    pub(super) async fn peek(
        &self,
        subject: &[u8],
        limits_override: Option<&[Limit]>,
    ) -> Result<State, Error> {
        coop::proceed().await;
        let current = self.current_limits.get();
        let limits = limits_override.unwrap_or(&current.limits);
        if limits.is_empty() {
            return Ok(State { standings: PerLimit::Many([].into()), ready: None });
        }
        let Reply { outcome, remaining } =
            self.peek_cost(subject, 1, limits_override, &current).await?;
        let standing = |(quota, limit): (&Remaining, &Limit)| Standing {
            limit: limit.clone(),
            remaining: quota.remaining,
            more_at: quota.more_at,
        };
        let ready = match outcome {
            Outcome::Charged { .. } => None,
            Outcome::Denied { wait, .. } => Instant::now().checked_add(wait),
        };
        Ok(State { standings: remaining.iter().zip(limits).map(standing).collect(), ready })
    }

    /// Returns the reply of a check of `cost` units without charging. The cost must not be above a quota.
    pub(super) async fn peek_cost(
        &self,
        subject: &[u8],
        cost: u32,
        limits_override: Option<&[Limit]>,
        current: &LimitSet,
    ) -> Result<Reply, Error> {
        let args = self.limit_args_of(limits_override, current);
        let call = protocol::call_with_limits(Verb::Peek, self.window, subject, cost, &args);
        let call = call.within(self.timeout).send_idempotent(&self.client);
        self.call_for_reply(subject, call, cost, &args).await
    }

    pub(super) async fn reset(&self, subject: &[u8]) -> Result<bool, Error> {
        coop::proceed().await;
        // Sent once: a repeated `DEL` would report that there was no state.
        let call = Call::command("DEL", subject).within(self.timeout);
        let answer = self.call_server(subject, call.send_once::<u64>(&self.client)).await;
        // After a failure too, since the server may have executed the command.
        self.forget_denials(subject);
        if let Some(reservations) = &self.reservations
            && let Some(unused) = reservations.forget(subject)
        {
            match &answer {
                Ok(_) => self.counters.returned.add(unused.units.into()),
                Err(_) => reservations.give_back(Some(unused)),
            }
        }
        self.fallback.reset(subject).await;
        // Last: a waiter that is woken checks again at once, in the local limiter if the server fails.
        self.wake_waiters(subject);
        Ok(answer? > 0)
    }

    pub(super) async fn refund(&self, subject: &[u8], charges: &Charges) -> Result<u64, Error> {
        coop::proceed().await;
        let call = protocol::refund(self.window, subject, charges).within(self.timeout);
        let answer = self.call_server(subject, call.send_once(&self.client)).await;
        // After a failure too, as in `reset`.
        self.forget_denials(subject);
        self.wake_waiters(subject);
        answer
    }

    /// Charges the cost of a call beyond that of its permit, under the limits of the call or the current ones.
    pub(super) async fn add_debt(
        &self,
        subject: &[u8],
        cost: u32,
        limit_args: Option<&[LimitArgs]>,
    ) -> Result<(), Error> {
        coop::proceed().await;
        let current = self.current_limits.get();
        let args = limit_args.unwrap_or(&current.args);
        let call = protocol::call_with_limits(Verb::Debt, self.window, subject, cost, args);
        let call = call.within(self.timeout).send_once::<Vec<u8>>(&self.client);
        let answer = self.call_server(subject, call).await;
        // The debt extends their waits.
        self.forget_denials(subject);
        answer.map(drop)
    }

    /// Performs the call of a check or a peek and decodes its reply.
    pub(super) async fn call_for_reply(
        &self,
        subject: &[u8],
        call: impl Future<Output = Result<Vec<u8>, Error>>,
        cost: u32,
        args: &[LimitArgs],
    ) -> Result<Reply, Error> {
        let answer = self.call_server(subject, call).await?;
        let reply = protocol::decode(&answer, self.window, cost, args, Instant::now());
        reply.ok_or_else(unexpected_reply)
    }

    /// Performs a call, unless the circuit breaker is open.
    pub(super) async fn call_server<T: FromRedisValue>(
        &self,
        subject: &[u8],
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !self.breaker.admits()
            && let Some(error) = self.refusal(subject)
        {
            return Err(error);
        }
        let answer = call.await;
        match &answer {
            // Nothing was sent, so it shows nothing about the server.
            Err(error) if is_too_many_in_flight(error) => {}
            Err(error) if error.is_temporary() => {
                let cause = match error {
                    Error::Connect(cause) => Some(cause.clone()),
                    _ => None,
                };
                if self.breaker.record_failure(cause) {
                    let error: &dyn std::error::Error = error;
                    let retry_after = OPEN_FOR;
                    tracing::warn!(
                        limiter = self.name,
                        error,
                        ?retry_after,
                        "circuit breaker opened"
                    );
                }
            }
            // A permanent error is an answer: the server can be reached.
            _ => {
                if self.breaker.record_success() {
                    tracing::info!(limiter = self.name, "circuit breaker closed");
                }
            }
        }
        if let Err(error) = &answer {
            self.counters.errors.add(1);
            self.log_failure(error);
        }
        answer
    }

    /// Returns the error of a call that is not sent because the circuit breaker is open; `None` if the server can be
    /// connected to again.
    fn refusal(&self, subject: &[u8]) -> Option<Error> {
        if let Some(error) = self.client.unreachable(subject) {
            self.breaker.set_cause(Some(error.clone()));
            return Some(Error::Connect(error));
        }
        match self.breaker.cause() {
            // The outage has ended.
            Some(cause) if is_unreachable(&cause) || self.client.is_connected(subject) => None,
            Some(cause) => Some(Error::Connect(cause)),
            None => {
                let cause = "circuit breaker is open after repeated failures of the server";
                Some(Error::Unavailable(error_of(ErrorKind::Io, cause)))
            }
        }
    }

    pub(super) fn limit_args_of(
        &self,
        limits_override: Option<&[Limit]>,
        current: &LimitSet,
    ) -> PerLimit<LimitArgs> {
        match limits_override {
            None => current.args.clone(),
            Some(limits) => limits.iter().map(|limit| LimitArgs::new(limit, self.window)).collect(),
        }
    }

    /// Counts a denial of a subject by the limit with this index.
    pub(super) fn count_denial(
        &self,
        #[cfg_attr(
            not(feature = "dashboard"),
            expect(unused, reason = "only the dashboard shows it")
        )]
        subject: &[u8],
        limit: usize,
    ) {
        self.counters.count_denial(limit);
        #[cfg(feature = "dashboard")]
        self.top_denied.note(subject);
    }

    pub(super) fn forget_denials(&self, subject: &[u8]) {
        if let Some(denials) = &self.deny_cache {
            denials.forget(subject);
        }
    }

    pub(super) fn wake_waiters(&self, subject: &[u8]) {
        self.waiting.wake_key(subject);
        #[cfg(feature = "axum")]
        self.probing.wake_key(subject);
    }

    pub(super) fn stats(&self) -> LimiterStats {
        self.counters.snapshot(self.breaker.state())
    }

    /// Logs a failed call, at most once per [`LOG_INTERVAL`].
    fn log_failure(&self, error: &Error) {
        let now = Instant::now();
        let mut quiet_until = self.quiet_until.lock().expect("no user code runs under this lock");
        if quiet_until.is_some_and(|until| now < until) {
            return;
        }
        *quiet_until = now.checked_add(LOG_INTERVAL);
        // Unlocks before user code, which a tracing subscriber is.
        drop(quiet_until);
        let error: &dyn std::error::Error = error;
        tracing::warn!(limiter = self.name, error, "rate limit call to the server failed");
    }
}

impl fmt::Debug for LimiterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name)
            .field("window", &self.window)
            .field("limits", &self.current_limits.get().limits)
            .finish_non_exhaustive()
    }
}

pub(super) fn unexpected_reply() -> Error {
    Error::Server(error_of(ErrorKind::Parse, "unexpected reply of the rate limiter script"))
}

fn error_of(kind: ErrorKind, cause: &'static str) -> RedisError {
    (kind, cause).into()
}
