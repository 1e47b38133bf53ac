//! What all handles of a limiter share, and the one way on which the server is asked: within a timeout, through
//! the breaker, with failures counted and logged.

use std::{fmt, sync::Mutex, time::Duration};

use ::redis::{ErrorKind, FromRedisValue, RedisError, Script};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    super::{Client, Error, codec::encode_key, keyspace::Keyspace, script::Call},
    breaker::CircuitBreaker,
    deny_cache::DenyCache,
    limit_set::{OwnPlan, Plan},
    on_error::Fallback,
    protocol::{self, Charge, LimitArgs, Outcome, Remaining, Reply, Verb},
    stats::{Counters, LimiterStats},
};
use crate::{
    engine::{coop, hasher::DefaultHasher},
    rate_limit::{Limit, PerLimit, Standing, State, WaitSettings, Waiting, Window},
};

/// A longer key is named by its beginning and a hash.
const MAX_KEY_BYTES: usize = 256;

/// How often it is logged at most that the server fails.
const LOG_EVERY: Duration = Duration::from_secs(1);

pub(super) struct LimiterState {
    pub(super) client: Client,
    pub(super) keyspace: Keyspace,
    pub(super) name: String,
    pub(super) window: Window,
    pub(super) plan: OwnPlan,
    pub(super) timeout: Duration,
    pub(super) fallback: Fallback,
    pub(super) breaker: CircuitBreaker,
    pub(super) deny_cache: Option<DenyCache>,
    /// By subject.
    pub(super) waiting: Waiting<Vec<u8>, DefaultHasher>,
    pub(super) wait: WaitSettings,
    pub(super) counters: Counters,
    /// No failure is logged before this.
    pub(super) quiet_until: Mutex<Option<Instant>>,
    #[cfg(feature = "dashboard")]
    pub(super) hot: super::top_denied::Hot,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl LimiterState {
    /// The key on the server.
    ///
    /// A long one is shortened, by a hash for which nobody finds a second text (SHA-1), and which all
    /// processes have. It is longer than every other then, so that none can be made to look like it.
    pub(super) fn subject<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>, Error> {
        let mut key = encode_key(key)?;
        if key.len() > MAX_KEY_BYTES {
            let hash = Script::new(&String::from_utf8_lossy(&key)).get_hash().to_owned();
            key.truncate(MAX_KEY_BYTES);
            key.push(b'#');
            key.extend_from_slice(hash.as_bytes());
        }
        Ok(self.keyspace.tagged(&key))
    }

    pub(super) async fn peek(
        &self,
        subject: &[u8],
        plan: Option<&[Limit]>,
    ) -> Result<State, Error> {
        coop::proceed().await;
        let own = self.plan.present();
        let limits = plan.unwrap_or(&own.limits);
        if limits.is_empty() {
            return Ok(State { standings: PerLimit::Many([].into()), ready: None });
        }
        let Reply { outcome, remaining } = self.look(subject, 1, plan, &own).await?;
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

    /// What a check of `cost` units would find, which is above no quota.
    pub(super) async fn look(
        &self,
        subject: &[u8],
        cost: u32,
        plan: Option<&[Limit]>,
        own: &Plan,
    ) -> Result<Reply, Error> {
        let args = self.limit_args_of(plan, own);
        let call =
            protocol::ask(Verb::Peek, self.window, subject, cost, &args).within(self.timeout);
        self.ask_limits(call.send_idempotent(&self.client), cost, &args).await
    }

    pub(super) async fn reset(&self, subject: &[u8]) -> Result<bool, Error> {
        coop::proceed().await;
        let call = Call::command("DEL", subject).within(self.timeout);
        let answer = self.ask(call.send_once::<u64>(&self.client)).await;
        // Also after a failure, since the server may have done it.
        self.forget_denials(subject);
        self.fallback.reset(subject).await;
        Ok(answer? > 0)
    }

    pub(super) async fn refund(
        &self,
        subject: &[u8],
        born: u64,
        charges: &[Charge],
    ) -> Result<u64, Error> {
        coop::proceed().await;
        let call = protocol::refund(self.window, subject, born, charges).within(self.timeout);
        let answer = self.ask(call.send_once(&self.client)).await;
        self.forget_denials(subject);
        answer
    }

    /// Charges what a call has cost beyond its permit, by the limits of its plan or those that hold.
    pub(super) async fn owe(
        &self,
        subject: &[u8],
        cost: u32,
        plan: Option<&[LimitArgs]>,
    ) -> Result<(), Error> {
        coop::proceed().await;
        let own = self.plan.present();
        let limits = plan.unwrap_or(&own.args);
        let call =
            protocol::ask(Verb::Debt, self.window, subject, cost, limits).within(self.timeout);
        let answer = self.ask(call.send_once::<Vec<u8>>(&self.client)).await;
        // They have to wait longer now.
        self.forget_denials(subject);
        answer.map(drop)
    }

    /// What a script answers to a check or a peek.
    pub(super) async fn ask_limits(
        &self,
        call: impl Future<Output = Result<Vec<u8>, Error>>,
        cost: u32,
        args: &[LimitArgs],
    ) -> Result<Reply, Error> {
        let answer = self.ask(call).await?;
        let reply = protocol::decode(&answer, self.window, cost, args, Instant::now());
        reply.ok_or_else(|| Error::Server(error_of(ErrorKind::Parse, "no answer of this script")))
    }

    /// What the server answers, if it is asked at all.
    async fn ask<T: FromRedisValue>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !self.breaker.admits() {
            let cause = "it has failed, and is asked again in a moment";
            return Err(Error::Unavailable(error_of(ErrorKind::Io, cause)));
        }
        let answer = call.await;
        match &answer {
            Err(error) if error.is_temporary() => {
                if self.breaker.failed() {
                    tracing::warn!(limiter = self.name, "the server is left alone for a while");
                }
            }
            // An error that stays is an answer: the server is there.
            _ => {
                if self.breaker.succeeded() {
                    tracing::info!(limiter = self.name, "the server answers again");
                }
            }
        }
        if let Err(error) = &answer {
            self.counters.errors.add(1);
            self.log_failure(error);
        }
        answer
    }

    pub(super) fn limit_args_of(&self, plan: Option<&[Limit]>, own: &Plan) -> PerLimit<LimitArgs> {
        match plan {
            None => own.args.clone(),
            Some(limits) => limits.iter().map(|limit| LimitArgs::new(limit, self.window)).collect(),
        }
    }

    /// Counts a denial of a subject by the limit at this place.
    pub(super) fn count_denial(
        &self,
        #[cfg_attr(not(feature = "dashboard"), expect(unused, reason = "it is shown there alone"))]
        subject: &[u8],
        place: usize,
    ) {
        self.counters.count_denial(place);
        #[cfg(feature = "dashboard")]
        self.hot.note(subject);
    }

    pub(super) fn forget_denials(&self, subject: &[u8]) {
        if let Some(denials) = &self.deny_cache {
            denials.forget(subject);
        }
    }

    pub(super) fn stats(&self) -> LimiterStats {
        self.counters.snapshot(self.breaker.state())
    }

    /// Writes that the server fails, at most once in [`LOG_EVERY`]: every call may find it so.
    fn log_failure(&self, error: &Error) {
        let now = Instant::now();
        let mut quiet_until = self.quiet_until.lock().expect("no user code runs under this lock");
        if quiet_until.is_some_and(|until| now < until) {
            return;
        }
        *quiet_until = now.checked_add(LOG_EVERY);
        // A subscriber of tracing is user code.
        drop(quiet_until);
        let error: &dyn std::error::Error = error;
        tracing::warn!(limiter = self.name, error, "the server of a rate limiter fails");
    }
}

impl fmt::Debug for LimiterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name)
            .field("window", &self.window)
            .field("limits", &self.plan.present().limits)
            .finish_non_exhaustive()
    }
}

fn error_of(kind: ErrorKind, cause: &'static str) -> RedisError {
    (kind, cause).into()
}
