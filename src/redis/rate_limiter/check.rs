//! Decision of a check: from the cost alone if possible, by a cached denial, by the server, or by
//! [`OnError`](super::OnError) if the server fails.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{
    super::Error,
    deny_cache::{Denial, DenyCache, DenyLookup, MAX_DENIAL_WITH_RESERVATIONS},
    limiter_state::LimiterState,
    on_error::Fallback,
    permit::{Charged, Permit},
    protocol::{self, Charges, LimitArgs, Outcome, Remaining, Reply, Verb},
    reservations::{ServerCheck, Taken, with_reserved},
};
use crate::{
    engine::coop,
    rate_limit::{Limit, Limited, PerLimit, Several},
};

/// A call that is to be decided.
pub(super) struct Attempt<'a> {
    pub(super) subject: &'a [u8],
    pub(super) cost: u32,
    pub(super) limits: &'a [Limit],
    /// The limits if they are those of the call; `None` if they are the limiter's own.
    pub(super) limits_override: Option<&'a [Limit]>,
    /// True if a denial is not counted, since the caller may continue to wait. It is counted once, when its wait ends.
    pub(super) is_waiter: bool,
}

/// Look-up of a call in the cache of denials, before the server is asked.
pub(super) struct DenialLookup<'a> {
    /// `None` if denials are not cached.
    cache: Option<(&'a DenyCache, DenyLookup)>,
    /// True if denials of the subject are cached, of other calls.
    has_denials: bool,
}

/// Decision about a call.
pub(super) struct Decision {
    pub(super) outcome: Result<Permit, Limited>,
    /// Remaining quota of each limit; empty if unknown.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "reported by the layer"))]
    pub(super) remaining: PerLimit<Remaining>,
}

impl LimiterState {
    /// Admits a call under the limiter's own limits from a reservation, without an allocation and without a copy of its
    /// subject. Returns `None` if it is to be decided by [`decide`](Self::decide).
    #[inline]
    pub(super) async fn admit_reserved<Q: Serialize + ?Sized>(
        self: &Arc<Self>,
        key: &Q,
        cost: u32,
    ) -> Result<Option<Permit>, Error> {
        let Some(reservations) = self.reservations.as_ref().filter(|_| cost > 0) else {
            return Ok(None);
        };
        coop::proceed().await;
        let taken = self.with_subject(key, |subject| reservations.take(subject, cost))?;
        Ok(taken.map(|taken| self.admit_taken(taken, cost)))
    }

    /// Charges `cost` under `limits_override` or else the limiter's own limits, or returns when to retry.
    pub(super) async fn decide(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
    ) -> Result<Decision, Error> {
        self.decide_or_wait(subject, cost, limits_override, false).await
    }

    /// Decides like [`decide`](Self::decide). If `is_waiter`, a denial is not counted, since the caller may continue to
    /// wait.
    pub(super) async fn decide_or_wait(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        limits_override: Option<&[Limit]>,
        is_waiter: bool,
    ) -> Result<Decision, Error> {
        if cost == 0 {
            return self.probe(subject, 0, limits_override, is_waiter).await;
        }
        coop::proceed().await;
        let current = self.current_limits.get();
        let limits = limits_override.unwrap_or(&current.limits);
        // Calls with limits of their own ask the server.
        let reservations = self.reservations.as_ref().filter(|_| limits_override.is_none());
        let take_reserved = || {
            let taken = reservations?.take(&subject, cost)?;
            let remaining = taken.remaining();
            Some(Decision { outcome: Ok(self.admit_taken(taken, cost)), remaining })
        };
        if let Some(decision) = take_reserved() {
            return Ok(decision);
        }
        let attempt = Attempt { subject: &subject, cost, limits, limits_override, is_waiter };
        let mut lookup = match self.decide_locally(&attempt) {
            Ok(decision) => return Ok(decision),
            Err(lookup) => lookup,
        };
        let (mut draw, mut timeout) = (None, self.timeout);
        let check = reservations.map(|all| all.server_check(&subject, cost, &current));
        match check.unwrap_or(ServerCheck::Ask) {
            ServerCheck::Ask => {}
            ServerCheck::Draw(right) => draw = Some(right),
            // It waits for one draw, and asks the server itself if that leaves it nothing: otherwise all calls of the
            // subject would ask one after the other.
            ServerCheck::Wait(mut draw_in_flight) => {
                let begin = Instant::now();
                let _ = timeout_at(begin + self.timeout / 2, draw_in_flight.changed()).await;
                timeout = timeout.saturating_sub(begin.elapsed());
                if let Some(decision) = take_reserved() {
                    return Ok(decision);
                }
                lookup = match self.decide_locally(&attempt) {
                    Ok(decision) => return Ok(decision),
                    Err(lookup) => lookup,
                };
            }
        }
        let args = self.limit_args_of(limits_override, &current);
        let ask = async |timeout| {
            let window = self.window;
            let call = protocol::call_with_limits(Verb::Check, window, &subject, cost, &args);
            // Sent once: a second check could charge twice.
            let answer = call.within(timeout).send_once(&self.client);
            let reply = self.call_for_reply(&subject, answer, cost, &args).await;
            reply.map(|reply| (0, reply))
        };
        let begin = Instant::now();
        let mut reply = match &draw {
            Some(draw) => self.check_and_draw(&subject, cost, &current, draw).await,
            None => ask(timeout).await,
        };
        if let (Some(_), Ok((_, denied))) = (reservations, &reply) {
            let left = timeout.saturating_sub(begin.elapsed());
            if self.give_back_for(&subject, cost, denied, left).await {
                reply = ask(timeout.saturating_sub(begin.elapsed())).await;
            }
        }
        let (ahead, Reply { outcome, mut remaining }) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                return self.decide_without_server(error, &attempt, true).await;
            }
        };
        let outcome = match outcome {
            Outcome::Charged { mut charges } => {
                if let Some(draw) = draw {
                    let drawn = (draw, ahead);
                    (charges, remaining) =
                        self.keep_reserved(&subject, cost, drawn, charges, remaining);
                } else if let Some(reservations) = reservations {
                    remaining = with_reserved(remaining, reservations.left(&subject));
                }
                // The charge postpones the times at which other costs would pass.
                if lookup.has_denials {
                    self.forget_denials(&subject);
                }
                let limit_args = limits_override.map(|_| args);
                Ok(self.admit(subject, cost, charges, &remaining, limit_args))
            }
            Outcome::Denied { limit, wait } => {
                Err(self.deny_by_server(&attempt, limit, wait, &remaining, &lookup))
            }
        };
        Ok(Decision { outcome, remaining })
    }

    /// Admits a call by units that were charged ahead.
    fn admit_taken(self: &Arc<Self>, taken: Taken, cost: u32) -> Permit {
        self.counters.admitted.add(1);
        let remaining = taken.least_remaining();
        let charged = Charged::Ahead { limiter: Arc::clone(self), batch: taken.batch };
        Permit { charged, remaining, cost }
    }

    /// Admits a call that was charged on the server. `limit_args` if the limits are those of the call.
    fn admit(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        charges: Charges,
        remaining: &PerLimit<Remaining>,
        limit_args: Option<PerLimit<LimitArgs>>,
    ) -> Permit {
        self.counters.admitted.add(1);
        let least = remaining.iter().map(|quota| quota.remaining).min();
        let limiter = Arc::clone(self);
        Permit {
            charged: Charged::OnServer { limiter, subject, charges, limit_args },
            remaining: least.unwrap_or(u32::MAX),
            cost,
        }
    }

    /// Decides about a call that needs no server: its cost is above a quota, it has no limits, or its denial is cached,
    /// which is then counted. Otherwise returns the look-up in the cache.
    pub(super) fn decide_locally(
        &self,
        attempt: &Attempt<'_>,
    ) -> Result<Decision, DenialLookup<'_>> {
        let Attempt { subject, cost, limits, limits_override, is_waiter } = *attempt;
        if let Some(decision) = deny_above_quota(limits, cost) {
            return Ok(decision);
        }
        if limits.is_empty() {
            return Ok(uncounted());
        }
        let Some(cache) = &self.deny_cache else {
            return Err(DenialLookup { cache: None, has_denials: false });
        };
        // Taken before the call: a cached denial counts from here, and is not cached if the subject changed during the
        // call.
        let at = cache.look_up(subject);
        let (denial, has_denials) = cache.find(at, subject, cost, limits_override);
        let Some(denial) = denial else {
            return Err(DenialLookup { cache: Some((cache, at)), has_denials });
        };
        if !is_waiter {
            self.count_denial(subject, limit_index(&denial.limited, limits));
            self.counters.denied_locally.add(1);
        }
        Ok(Decision { outcome: Err(denial.limited), remaining: denial.remaining })
    }

    /// Returns the denial by the server of a call, counts it and caches it.
    pub(super) fn deny_by_server(
        &self,
        attempt: &Attempt<'_>,
        limit: usize,
        wait: Duration,
        remaining: &PerLimit<Remaining>,
        lookup: &DenialLookup<'_>,
    ) -> Limited {
        let Attempt { subject, cost, limits, limits_override, is_waiter } = *attempt;
        if !is_waiter {
            self.count_denial(subject, limit);
        }
        let ready = Instant::now().checked_add(wait).map(Into::into);
        let several = exceeded(limits, remaining, cost);
        let limited = Limited::new(limits[limit].clone(), cost, ready, several)
            .with_remaining(remaining[limit].remaining);
        if let Some((cache, at)) = lookup.cache
            && let Some(until) = at.asked_at.checked_add(self.denial_time(wait))
        {
            let (limited, remaining) = (limited.clone(), remaining.clone());
            let limits_override = limits_override.map(Into::into);
            let generation = at.generation;
            let denial = Denial { limited, remaining, limits_override, generation, until };
            cache.insert(at, subject, denial);
        }
        limited
    }

    /// Returns for how long the denial counts of a call that would pass after `wait`.
    pub(super) fn denial_time(&self, wait: Duration) -> Duration {
        if self.reservations.is_some() { wait.min(MAX_DENIAL_WITH_RESERVATIONS) } else { wait }
    }

    /// Decides by [`OnError`](super::OnError). If not `charges`, the permit has cost 0 and is not counted.
    pub(super) async fn decide_without_server(
        &self,
        error: Error,
        attempt: &Attempt<'_>,
        charges: bool,
    ) -> Result<Decision, Error> {
        if !Fallback::is_for(&error) {
            return Err(error);
        }
        self.counters.by_policy.add(1);
        let Attempt { subject, cost, limits, is_waiter, .. } = *attempt;
        let decision = match self.fallback.decide(error, subject, cost, limits, charges).await? {
            None => uncounted(),
            Some((outcome, remaining)) => {
                let outcome = outcome.map(|permit| {
                    let remaining = permit.remaining();
                    let cost = if charges { cost } else { 0 };
                    Permit { charged: Charged::Local(permit), remaining, cost }
                });
                Decision { outcome, remaining }
            }
        };
        match &decision.outcome {
            Ok(_) if charges => self.counters.admitted.add(1),
            Err(limited) if !is_waiter => self.count_denial(subject, limit_index(limited, limits)),
            _ => {}
        }
        Ok(decision)
    }
}

/// Denies a cost above a quota, which can never pass, without a round trip.
fn deny_above_quota(limits: &[Limit], cost: u32) -> Option<Decision> {
    let exceeded = limits.iter().filter(|limit| limit.quota() < cost);
    let limit = exceeded.clone().next()?;
    let several = Several::of(exceeded.clone());
    let outcome = Err(Limited::new(limit.clone(), cost, None, several));
    Some(Decision { outcome, remaining: PerLimit::Many([].into()) })
}

/// Returns the exhausted limits if there are several.
pub(super) fn exceeded(
    limits: &[Limit],
    remaining: &[Remaining],
    cost: u32,
) -> Option<Box<Several>> {
    let each = limits.iter().zip(remaining);
    Several::of(each.filter(|(_, left)| left.remaining < cost).map(|(limit, _)| limit))
}

/// Returns the index in `limits` of the limit that denied.
pub(super) fn limit_index(limited: &Limited, limits: &[Limit]) -> usize {
    limits.iter().position(|limit| limit == limited.limit()).unwrap_or(0)
}

/// Admits a call without counting it.
pub(super) fn uncounted() -> Decision {
    let permit = Permit { charged: Charged::Uncounted, remaining: u32::MAX, cost: 0 };
    Decision { outcome: Ok(permit), remaining: PerLimit::Many([].into()) }
}
