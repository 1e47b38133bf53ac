use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{ErrorKind, FromRedisValue, RedisError, Script};
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    super::{Client, Error, codec::encode_key, keyspace::Names, script::Call},
    LimiterStats,
    breaker::Switch,
    deny_cache::{Denial, Denials},
    permit::{Charged, Permit},
    protocol::{self, Charge, Left, Outcome, Rule, Verdict},
};
use crate::{
    engine::{coop, hasher::DefaultHasher},
    rate_limit::{Limit, Limited, PerLimit, Standing, State, Waiting, Window},
};

/// A longer key is named by its beginning and a hash.
const MAX_KEY_BYTES: usize = 256;

/// How often it is logged at most that the server fails.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// What all handles of a limiter share.
pub(crate) struct Shared {
    pub(super) client: Client,
    pub(super) names: Names,
    pub(super) name: String,
    pub(super) window: Window,
    pub(super) limits: Box<[Limit]>,
    /// The limits as the window counts them.
    pub(super) rules: PerLimit<Rule>,
    pub(super) timeout: Duration,
    pub(super) policy: Policy,
    pub(super) switch: Switch,
    pub(super) denials: Option<Denials>,
    /// By subject.
    pub(super) waiting: Waiting<Vec<u8>, DefaultHasher>,
    pub(super) counts: Counts,
    /// No failure is logged before this.
    pub(super) quiet_until: Mutex<Option<Instant>>,
}

/// What decides while the server fails.
pub(super) enum Policy {
    Allow,
    Deny,
    Local(crate::RateLimiter<Vec<u8>>),
}

#[derive(Default)]
pub(super) struct Counts {
    admitted: AtomicU64,
    denied: AtomicU64,
    denied_locally: AtomicU64,
    refunded: AtomicU64,
    errors: AtomicU64,
    by_policy: AtomicU64,
}

/// What was decided of a call.
pub(crate) struct Decision {
    pub(crate) outcome: Result<Permit, Limited>,
    /// What is left of each limit; nothing where nobody knows.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "the layer tells of it"))]
    pub(crate) left: PerLimit<Left>,
}

impl Shared {
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
        Ok(self.names.single(&key))
    }

    /// Charges `cost`, by the limiter's own limits where there is no plan, or tells when to come again.
    pub(super) async fn decide(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
    ) -> Result<Decision, Error> {
        coop::proceed().await;
        let limits = plan.unwrap_or(&self.limits);
        if let Some(decision) = uncounted(limits, cost) {
            return Ok(decision);
        }
        let asked = Instant::now();
        let ticket = self.denials.as_ref().map(|denials| (denials, denials.ticket(&subject)));
        let found = ticket.map(|(denials, at)| denials.find(at, &subject, cost, plan, asked));
        let (denial, is_known) = found.unwrap_or_default();
        if let Some(denial) = denial {
            add(&self.counts.denied);
            add(&self.counts.denied_locally);
            return Ok(Decision { outcome: Err(denial.limited), left: denial.left });
        }
        let rules = self.rules_of(plan);
        let call = protocol::check(self.window, &subject, cost, &rules);
        let answer = call.within(self.timeout).change(&self.client);
        let Verdict { outcome, left } = match self.verdict(answer, cost, &rules).await {
            Ok(verdict) => verdict,
            Err(error) => return self.decide_without(error, subject, cost, limits).await,
        };
        let outcome = match outcome {
            Outcome::Charged { born, charges } => {
                add(&self.counts.admitted);
                if is_known {
                    self.forget(&subject);
                }
                let remaining = left.iter().map(|left| left.remaining).min().unwrap_or(u32::MAX);
                let limiter = Arc::clone(self);
                Ok(Permit {
                    charged: Charged::OnServer { limiter, subject, born, charges },
                    remaining,
                })
            }
            Outcome::Denied { limit, wait } => {
                add(&self.counts.denied);
                let ready = Instant::now().checked_add(wait).map(Into::into);
                let limited = Limited { limit: limits[limit].clone(), cost, ready };
                if let Some((denials, ticket)) = ticket
                    && let Some(until) = asked.checked_add(wait)
                {
                    let plan = plan.map(Into::into);
                    let denial =
                        Denial { limited: limited.clone(), left: left.clone(), plan, until };
                    denials.keep(ticket, &subject, denial);
                }
                Err(limited)
            }
        };
        Ok(Decision { outcome, left })
    }

    /// By the policy, where the server failed.
    async fn decide_without(
        &self,
        error: Error,
        subject: Vec<u8>,
        cost: u32,
        limits: &[Limit],
    ) -> Result<Decision, Error> {
        if is_of_the_key(&error) {
            return Err(error);
        }
        add(&self.counts.by_policy);
        let decision = match &self.policy {
            Policy::Deny => return Err(error),
            Policy::Allow => free(),
            Policy::Local(limiter) => {
                let outcome = limiter.check_n_with(&subject[..], cost, limits).await;
                let state = limiter.peek_with(&subject[..], limits).await;
                let left = state.standings().iter().map(|standing| Left {
                    remaining: standing.remaining,
                    more_at: standing.more_at,
                });
                let outcome = outcome.map(|permit| {
                    let remaining = permit.remaining();
                    Permit { charged: Charged::Here(permit), remaining }
                });
                Decision { outcome, left: left.collect() }
            }
        };
        add(if decision.outcome.is_ok() { &self.counts.admitted } else { &self.counts.denied });
        Ok(decision)
    }

    pub(super) async fn peek(
        &self,
        subject: &[u8],
        plan: Option<&[Limit]>,
    ) -> Result<State, Error> {
        coop::proceed().await;
        let limits = plan.unwrap_or(&self.limits);
        if limits.is_empty() {
            return Ok(State { standings: PerLimit::Many([].into()), ready: None });
        }
        let rules = self.rules_of(plan);
        let call = protocol::peek(self.window, subject, &rules);
        let answer = call.within(self.timeout).read(&self.client);
        let Verdict { outcome, left } = self.verdict(answer, 1, &rules).await?;
        let standing = |(left, limit): (&Left, &Limit)| Standing {
            limit: limit.clone(),
            remaining: left.remaining,
            more_at: left.more_at,
        };
        let ready = match outcome {
            Outcome::Charged { .. } => None,
            Outcome::Denied { wait, .. } => Instant::now().checked_add(wait),
        };
        Ok(State { standings: left.iter().zip(limits).map(standing).collect(), ready })
    }

    pub(super) async fn reset(&self, subject: &[u8]) -> Result<bool, Error> {
        coop::proceed().await;
        let call = Call::command("DEL", subject).within(self.timeout);
        let answer = self.asked(call.change::<u64>(&self.client)).await;
        self.forget(subject);
        if let Policy::Local(limiter) = &self.policy {
            limiter.reset(subject).await;
        }
        Ok(answer? > 0)
    }

    pub(super) async fn refund(
        &self,
        subject: &[u8],
        born: u64,
        charges: &[Charge],
    ) -> Result<(), Error> {
        coop::proceed().await;
        let call = protocol::refund(self.window, subject, born, charges).within(self.timeout);
        let answer = self.asked(call.change::<u64>(&self.client)).await;
        self.forget(subject);
        self.counts.refunded.fetch_add(answer?, Relaxed);
        Ok(())
    }

    pub(super) async fn until_ready(
        self: &Arc<Self>,
        subject: Vec<u8>,
        max_wait: Option<Duration>,
    ) -> Result<Permit, Error> {
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        let waiter = self.waiting.join(subject.clone());
        let turn = waiter.queue.lock();
        let _turn = match end {
            None => turn.await,
            Some(end) => match timeout_at(end, turn).await {
                Ok(turn) => turn,
                Err(_) => return Err(self.limited(&subject).await?.into()),
            },
        };
        loop {
            let limited = match self.decide(subject.clone(), 1, None).await?.outcome {
                Ok(permit) => return Ok(permit),
                Err(limited) => limited,
            };
            match limited.ready_at() {
                Some(ready) if end.is_none_or(|end| ready <= end) => sleep_until(ready).await,
                _ => return Err(limited.into()),
            }
        }
    }

    /// What a check of one unit would be told now, if it were told to wait.
    async fn limited(&self, subject: &[u8]) -> Result<Limited, Error> {
        let state = self.peek(subject, None).await?;
        let longest = state.standings().iter().filter(|standing| standing.remaining == 0);
        let longest = longest.max_by_key(|standing| standing.more_at);
        let limit = longest.map_or(&self.limits[0], |standing| &standing.limit).clone();
        Ok(Limited { limit, cost: 1, ready: Some(state.ready.unwrap_or_else(Instant::now).into()) })
    }

    async fn verdict(
        &self,
        call: impl Future<Output = Result<Vec<u8>, Error>>,
        cost: u32,
        rules: &[Rule],
    ) -> Result<Verdict, Error> {
        let answer = self.asked(call).await?;
        let verdict = protocol::read(&answer, self.window, cost, rules, Instant::now());
        verdict.ok_or_else(|| Error::Server(said(ErrorKind::Parse, "no answer of this script")))
    }

    /// What the server answers, if it is asked at all.
    async fn asked<T: FromRedisValue>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !self.switch.admits() {
            let cause = "it has failed, and is asked again in a moment";
            return Err(Error::Unavailable(said(ErrorKind::Io, cause)));
        }
        let answer = call.await;
        match &answer {
            Err(error) if error.is_temporary() => {
                if self.switch.failed() {
                    tracing::warn!(limiter = self.name, "the server is left alone for a while");
                }
            }
            _ => {
                if self.switch.succeeded() {
                    tracing::info!(limiter = self.name, "the server answers again");
                }
            }
        }
        if let Err(error) = &answer {
            add(&self.counts.errors);
            self.log(error);
        }
        answer
    }

    fn rules_of(&self, plan: Option<&[Limit]>) -> PerLimit<Rule> {
        match plan {
            None => self.rules.clone(),
            Some(limits) => limits.iter().map(|limit| Rule::new(limit, self.window)).collect(),
        }
    }

    fn forget(&self, subject: &[u8]) {
        if let Some(denials) = &self.denials {
            denials.forget(subject);
        }
    }

    /// Writes that the server fails, at most once in [`LOG_EVERY`].
    fn log(&self, error: &Error) {
        let now = Instant::now();
        let mut quiet_until = self.quiet_until.lock().expect("no user code runs under this lock");
        if quiet_until.is_some_and(|until| now < until) {
            return;
        }
        *quiet_until = now.checked_add(LOG_EVERY);
        drop(quiet_until);
        let error: &dyn std::error::Error = error;
        tracing::warn!(limiter = self.name, error, "the server of a rate limiter fails");
    }

    pub(super) fn stats(&self) -> LimiterStats {
        let counts = &self.counts;
        LimiterStats {
            admitted: counts.admitted.load(Relaxed),
            denied: counts.denied.load(Relaxed),
            denied_locally: counts.denied_locally.load(Relaxed),
            refunded: counts.refunded.load(Relaxed),
            errors: counts.errors.load(Relaxed),
            by_policy: counts.by_policy.load(Relaxed),
            breaker: self.switch.state(),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name)
            .field("window", &self.window)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Whether it is no failure of the server, but of what is asked: then no policy helps.
fn is_of_the_key(error: &Error) -> bool {
    matches!(error, Error::WrongType { .. } | Error::Encode(_) | Error::Decode { .. })
}

/// What costs nothing, or more than a quota; the server is not asked about it.
fn uncounted(limits: &[Limit], cost: u32) -> Option<Decision> {
    if let Some(limit) = limits.iter().find(|limit| limit.quota() < cost) {
        let outcome = Err(Limited { limit: limit.clone(), cost, ready: None });
        return Some(Decision { outcome, left: PerLimit::Many([].into()) });
    }
    (cost == 0 || limits.is_empty()).then(free)
}

fn free() -> Decision {
    let permit = Permit { charged: Charged::Nowhere, remaining: u32::MAX };
    Decision { outcome: Ok(permit), left: PerLimit::Many([].into()) }
}

fn said(kind: ErrorKind, cause: &'static str) -> RedisError {
    (kind, cause).into()
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}
