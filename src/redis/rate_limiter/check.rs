//! How a check is decided: by itself where the cost says it all, by a denial that still holds, by the server,
//! or, where that fails, by [`OnError`](super::OnError).

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    super::Error,
    deny_cache::Denial,
    on_error::{Fallback, FallbackDecision},
    permit::{Charged, Permit},
    protocol::{self, Outcome, Remaining, Reply, Verb},
    state::LimiterState,
};
use crate::{
    engine::coop,
    rate_limit::{Limit, Limited, PerLimit, Several},
};

/// What was decided of a call.
pub(super) struct Decision {
    pub(super) outcome: Result<Permit, Limited>,
    /// Of each limit; nothing where nobody knows.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "the layer tells of it"))]
    pub(super) remaining: PerLimit<Remaining>,
}

impl LimiterState {
    /// Charges `cost`, by the limiter's own limits where there is no plan, or tells when to come again.
    pub(super) async fn decide(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
    ) -> Result<Decision, Error> {
        self.decide_or_wait(subject, cost, plan, false).await
    }

    /// The same. Of who `waits` no denial is counted, as it may only be told to wait for longer.
    pub(super) async fn decide_or_wait(
        self: &Arc<Self>,
        subject: Vec<u8>,
        cost: u32,
        plan: Option<&[Limit]>,
        waits: bool,
    ) -> Result<Decision, Error> {
        coop::proceed().await;
        let own = self.plan.present();
        let limits = plan.unwrap_or(&own.limits);
        if let Some(decision) = never(limits, cost) {
            return Ok(decision);
        }
        if limits.is_empty() {
            return Ok(uncounted());
        }
        if cost == 0 {
            // What it settles is charged then.
            let charges = PerLimit::Many([].into());
            let plan = plan.map(|_| self.limit_args_of(plan, &own));
            let limiter = Arc::clone(self);
            let charged = Charged::OnServer { limiter, subject, born: 0, charges, plan };
            let permit = Permit { charged, remaining: u32::MAX, cost };
            return Ok(Decision { outcome: Ok(permit), remaining: PerLimit::Many([].into()) });
        }
        // Before the server is asked: what is kept of its answer counts from here, and is not kept where the
        // subject changed meanwhile.
        let asked_at = Instant::now();
        let lookup = self.deny_cache.as_ref().map(|cache| (cache, cache.look_up(&subject)));
        let found = lookup.map(|(cache, at)| cache.find(at, &subject, cost, plan, asked_at));
        let (denial, is_known) = found.unwrap_or_default();
        if let Some(denial) = denial {
            if !waits {
                self.count_denial(&subject, place_of(&denial.limited, limits));
                self.counters.denied_locally.add(1);
            }
            return Ok(Decision { outcome: Err(denial.limited), remaining: denial.remaining });
        }
        let args = self.limit_args_of(plan, &own);
        let call = protocol::ask(Verb::Check, self.window, &subject, cost, &args);
        // Once: a second check would charge a second time.
        let answer = call.within(self.timeout).send_once(&self.client);
        let Reply { outcome, remaining } = match self.ask_limits(answer, cost, &args).await {
            Ok(reply) => reply,
            Err(error) => {
                return self.decide_without_server(error, &subject, cost, limits, waits).await;
            }
        };
        let outcome = match outcome {
            Outcome::Charged { born, charges } => {
                self.counters.admitted.add(1);
                // What other costs were denied until has moved.
                if is_known {
                    self.forget_denials(&subject);
                }
                let least = remaining.iter().map(|quota| quota.remaining).min();
                let limiter = Arc::clone(self);
                let plan = plan.map(|_| args);
                Ok(Permit {
                    charged: Charged::OnServer { limiter, subject, born, charges, plan },
                    remaining: least.unwrap_or(u32::MAX),
                    cost,
                })
            }
            Outcome::Denied { limit, wait } => {
                if !waits {
                    self.count_denial(&subject, limit);
                }
                let ready = Instant::now().checked_add(wait).map(Into::into);
                let several = exceeded(limits, &remaining, cost);
                let limited = Limited::new(limits[limit].clone(), cost, ready, several);
                if let Some((cache, at)) = lookup
                    && let Some(until) = asked_at.checked_add(wait)
                {
                    let (limited, remaining) = (limited.clone(), remaining.clone());
                    let plan = plan.map(Into::into);
                    let generation = at.generation;
                    let denial = Denial { limited, remaining, plan, generation, until };
                    cache.keep(at, &subject, denial);
                }
                Err(limited)
            }
        };
        Ok(Decision { outcome, remaining })
    }

    async fn decide_without_server(
        &self,
        error: Error,
        subject: &[u8],
        cost: u32,
        limits: &[Limit],
        waits: bool,
    ) -> Result<Decision, Error> {
        if !Fallback::is_for(&error) {
            return Err(error);
        }
        self.counters.by_policy.add(1);
        let decision = match self.fallback.decide(error, subject, cost, limits).await? {
            FallbackDecision::Uncounted => uncounted(),
            FallbackDecision::Local(outcome, remaining) => {
                let outcome = outcome.map(|permit| {
                    let remaining = permit.remaining();
                    Permit { charged: Charged::Here(permit), remaining, cost }
                });
                Decision { outcome, remaining }
            }
        };
        match &decision.outcome {
            Ok(_) => self.counters.admitted.add(1),
            Err(limited) if !waits => self.count_denial(subject, place_of(limited, limits)),
            Err(_) => {}
        }
        Ok(decision)
    }
}

/// What costs more than a quota: the server is not asked about it.
fn never(limits: &[Limit], cost: u32) -> Option<Decision> {
    let exceeded = limits.iter().filter(|limit| limit.quota() < cost);
    let limit = exceeded.clone().next()?;
    let several = Several::of(exceeded.clone());
    let outcome = Err(Limited::new(limit.clone(), cost, None, several));
    Some(Decision { outcome, remaining: PerLimit::Many([].into()) })
}

/// Those that have no room, where they are several.
pub(super) fn exceeded(
    limits: &[Limit],
    remaining: &[Remaining],
    cost: u32,
) -> Option<Box<Several>> {
    let each = limits.iter().zip(remaining);
    Several::of(each.filter(|(_, left)| left.remaining < cost).map(|(limit, _)| limit))
}

/// At which place among `limits` the one is that denied.
pub(super) fn place_of(limited: &Limited, limits: &[Limit]) -> usize {
    limits.iter().position(|limit| limit == limited.limit()).unwrap_or(0)
}

/// It passes, and nobody counts it.
pub(super) fn uncounted() -> Decision {
    let permit = Permit { charged: Charged::Nowhere, remaining: u32::MAX, cost: 0 };
    Decision { outcome: Ok(permit), remaining: PerLimit::Many([].into()) }
}
