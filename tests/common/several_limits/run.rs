//! Plays a sequence on a limiter, and compares each reply with the bounds of the model.

use std::{collections::BTreeMap, time::Duration};

use fleeting::{Limit, State};
use futures::future::join_all;

use super::{
    Backend, Checked, Denial, Outcome, micros,
    model::{Id, Position},
    promise,
    sequence::{Op, Plan, Sequence, Setup},
};

/// Plays a sequence on a new limiter.
pub(crate) async fn play<B: Backend>(backend: &B, sequence: &Sequence) -> Outcome {
    let setup = &sequence.setup;
    let mut run = Run {
        backend,
        setup,
        own: setup.plans[0].clone(),
        keys: BTreeMap::new(),
        pool: Vec::new(),
        held: Vec::new(),
        calls: 0,
        begin: backend.now(),
    };
    for op in &sequence.ops {
        run.op(*op).await?;
    }
    Ok(())
}

struct Run<'a, B: Backend> {
    backend: &'a B,
    setup: &'a Setup,
    /// Current limits of the limiter.
    own: Vec<Limit>,
    keys: BTreeMap<u8, Vec<Position>>,
    /// Calls of all keys, as if they were one: keys beyond `max_keys` share a quota.
    pool: Vec<Position>,
    held: Vec<Held<B::Permit>>,
    calls: usize,
    begin: u64,
}

type Passed = Result<(), Denial>;

struct Held<P> {
    permit: P,
    key: u8,
    call: usize,
    cost: u32,
    limits: Vec<Limit>,
    has_own_limits: bool,
}

fn text(limits: &[Limit]) -> String {
    limits.iter().map(Limit::to_string).collect::<Vec<_>>().join(", ")
}

fn name(key: u8) -> String {
    format!("key {key}")
}

impl<B: Backend> Run<'_, B> {
    async fn op(&mut self, op: Op) -> Outcome {
        match op {
            Op::Check { key, plan, cost } => self.check(key, plan, cost).await.map(drop),
            Op::Insist { key, plan, cost } => {
                let Err(denial) = self.check(key, plan, cost).await? else { return Ok(()) };
                if !denial.is_ready_later {
                    return Ok(());
                }
                self.backend.pass(denial.most).await;
                let outcome = self.check(key, plan, cost).await?;
                promise(
                    outcome.is_ok(),
                    "3: a caller that comes at retry_after is admitted",
                    || format!("{denial:?}, then {outcome:?}; {}", self.history(key)),
                )
            }
            Op::Peek { key, plan } => self.peek(key, &self.setup.plans[plan]).await.map(drop),
            Op::Take { key, plan } => self.take(key, plan).await,
            Op::CheckAndRefund { key, plan, cost } => {
                self.checks_and_refunds(key, plan, cost, 1, 0, false).await
            }
            Op::ChecksAndRefunds { key, plan, checks, later, is_reverse } => {
                let cost = self.limits_of(plan).iter().map(Limit::quota).min().unwrap_or(1);
                let cost = (cost / checks as u32).max(1);
                self.checks_and_refunds(key, plan, cost, checks, later, is_reverse).await
            }
            Op::CheckAndSettle { key, plan, cost, actual } => {
                self.check_and_settle(key, plan, cost, actual).await
            }
            Op::Refund { call } => {
                let Some(held) = self.take_held(call) else { return Ok(()) };
                self.refund(held).await;
                Ok(())
            }
            Op::Settle { call, actual } => {
                let Some(held) = self.take_held(call) else { return Ok(()) };
                self.settle(held, actual).await;
                Ok(())
            }
            Op::SetLimits { plan } => {
                self.own = self.setup.plans[plan].clone();
                self.backend.set_limits(Some(&self.own)).await;
                Ok(())
            }
            Op::ClearLimits => {
                self.own = self.setup.plans[0].clone();
                self.backend.set_limits(None).await;
                Ok(())
            }
            Op::Reset { key } => self.reset(key).await,
            Op::Wait { key, most } => self.wait(key, most).await,
            Op::Crowd { key, most } => self.crowd(key, most).await,
            Op::GiveUp { key, polls } if B::HAS_WAITERS => {
                let permit = self.backend.give_up(&name(key), polls).await;
                let now = self.backend.now();
                permit.map_or(Ok(()), |permit| self.admitted(key, None, 1, permit, now))
            }
            Op::GiveUp { .. } => Ok(()),
            Op::Pass { time } => {
                self.backend.pass(time).await;
                Ok(())
            }
        }
    }

    fn limits_of(&self, plan: Plan) -> &[Limit] {
        plan.map_or(&self.own, |plan| &self.setup.plans[plan])
    }

    fn is_bounded(&self) -> bool {
        self.setup.max_keys.is_some()
    }

    /// Usage that the limiter must count: that of the key.
    fn least(&self, key: u8, at: usize) -> Position {
        self.keys.get(&key).and_then(|key| key.get(at)).cloned().unwrap_or_default()
    }

    /// Usage that it may count.
    fn most(&self, key: u8, at: usize) -> Position {
        if self.is_bounded() {
            return self.pool.get(at).cloned().unwrap_or_default();
        }
        self.least(key, at)
    }

    /// Records something at a position.
    fn record(&mut self, key: u8, at: usize, change: impl Fn(&mut Position)) {
        let key = self.keys.entry(key).or_default();
        for positions in [key, &mut self.pool] {
            if positions.len() <= at {
                positions.resize_with(at + 1, Position::default);
            }
            change(&mut positions[at]);
        }
    }

    fn history(&self, key: u8) -> String {
        let now = (self.backend.now() - self.begin) as f64 / 1e6;
        let positions = self.keys.get(&key).into_iter().flatten();
        let calls: Vec<String> = positions.map(|position| position.history(self.begin)).collect();
        format!("now {now:.6}s, calls {calls:?}")
    }

    async fn check(&mut self, key: u8, plan: Plan, cost: u32) -> Outcome<Passed> {
        let limits = plan.map(|plan| self.setup.plans[plan].as_slice());
        let checked: Checked<B> = self.backend.check(&name(key), cost, limits).await;
        let now = self.backend.now();
        match checked {
            Ok(permit) => {
                self.admitted(key, plan, cost, permit, now)?;
                Ok(Ok(()))
            }
            Err(denial) => {
                self.denied(key, plan, cost, &denial, now)?;
                Ok(Err(denial))
            }
        }
    }

    fn admitted(&mut self, key: u8, plan: Plan, cost: u32, permit: B::Permit, now: u64) -> Outcome {
        let limits = self.limits_of(plan).to_vec();
        self.calls += 1;
        for (at, limit) in limits.iter().enumerate() {
            if cost == 0 {
                break;
            }
            let (window, id) = (self.setup.window, Id::of(limit));
            let position = self.least(key, at);
            let exceeded = position.exceeded_by(window, id, now, cost.into(), B::SLACK.min(1));
            let exceeded = exceeded.filter(|rule| !self.is_bounded() || rule.starts_with('1'));
            promise(exceeded.is_none(), exceeded.unwrap_or_default(), || {
                format!("{cost} admitted by {limit}; {}", self.history(key))
            })?;
            let call = self.calls;
            self.record(key, at, |position| {
                position.used(limit, now);
                position.charged(call, now, cost.into(), id);
            });
        }
        let remaining = B::remaining(&permit);
        for (at, limit) in limits.iter().enumerate() {
            let most =
                self.least(key, at).most_remaining(self.setup.window, Id::of(limit), now, false);
            promise(
                u64::from(remaining) <= most || B::SLACK > 0,
                "a permit has what remains",
                || format!("{remaining} remain by {limit}, at most {most}; {}", self.history(key)),
            )?;
        }
        let call = self.calls;
        self.held.push(Held { permit, key, call, cost, limits, has_own_limits: plan.is_none() });
        Ok(())
    }

    fn denied(&mut self, key: u8, plan: Plan, cost: u32, denial: &Denial, now: u64) -> Outcome {
        let limits = self.limits_of(plan).to_vec();
        let is_too_large = limits.iter().any(|limit| limit.quota() < cost);
        promise(
            denial.is_ready_later != is_too_large,
            "only a cost above a quota never passes",
            || format!("{denial:?}"),
        )?;
        if is_too_large {
            return Ok(());
        }
        let ready = self.ready(key, &limits, cost, now);
        promise(ready > now, "2: no call counts for longer than its window", || {
            format!("{cost} denied by {}; {}", denial.limit, self.history(key))
        })?;
        promise(
            denial.least <= ready - now + B::SLACK,
            "3: retry_after is never too long",
            || {
                let (least, most) = (denial.least as f64 / 1e6, (ready - now) as f64 / 1e6);
                format!(
                    "{cost} denied for {least}s, at most {most}s are right; {}",
                    self.history(key)
                )
            },
        )?;
        for (at, limit) in limits.iter().enumerate() {
            self.record(key, at, |position| position.used(limit, now));
        }
        Ok(())
    }

    /// Time at which a call passes, by the highest usage that the limiter may count.
    fn ready(&self, key: u8, limits: &[Limit], cost: u32, now: u64) -> u64 {
        let ready = limits.iter().enumerate().map(|(at, limit)| {
            let position = self.most(key, at);
            position.ready(self.setup.window, Id::of(limit), now, cost.into(), self.is_bounded())
        });
        ready.max().unwrap_or(now)
    }

    async fn peek(&self, key: u8, limits: &[Limit]) -> Outcome<State> {
        let state = self.backend.peek(&name(key), limits).await;
        let now = self.backend.now();
        for (at, (standing, limit)) in state.standings().iter().zip(limits).enumerate() {
            let (window, id, left) =
                (self.setup.window, Id::of(limit), u64::from(standing.remaining()));
            let most = self.least(key, at).most_remaining(window, id, now, !self.is_bounded());
            let least = self.most(key, at).least_remaining(window, id, now, self.is_bounded());
            let details = || {
                let calls = self.history(key);
                format!("{left} remain by {limit}, {least} to {most} are right; {calls}")
            };
            // Rounding on Redis may cost a unit, or a call of the millions that are charged at once.
            let rounding = B::SLACK * limit.quota() as u64 / id.per + B::SLACK.min(1);
            promise(left <= most + rounding, "1: peek knows the calls of all limits", details)?;
            promise(left + rounding >= least, "2: peek forgets the calls that have left", details)?;
        }
        let ready = self.ready(key, limits, 1, now);
        let wait = state.retry_after().as_micros() as u64;
        promise(
            wait <= ready - now + B::SLACK,
            "3: the retry_after of a peek is never too long",
            || format!("{wait}us, at most {}us; {}", ready - now, self.history(key)),
        )?;
        Ok(state)
    }

    async fn take(&mut self, key: u8, plan: Plan) -> Outcome {
        // The peek of a key beyond the bound is not exact.
        if self.is_bounded() {
            return Ok(());
        }
        let limits = self.limits_of(plan).to_vec();
        let left = self.peek(key, &limits).await?.remaining();
        let details =
            |run: &Self| format!("{left} remain by {}; {}", text(&limits), run.history(key));
        let more = self.check(key, plan, left + 1).await?;
        promise(more.is_err(), "one unit more than remains is denied", || details(self))?;
        if left > 0 {
            let passes = self.check(key, plan, left).await?;
            promise(passes.is_ok(), "all units that remain are admitted", || details(self))?;
            let held = self.held.pop().expect("the call was admitted");
            self.refund(held).await;
        }
        Ok(())
    }

    /// Returns the remaining units of all plans by which the key has certainly been checked.
    async fn known_plans(&self, key: u8, checked: &[Limit]) -> BTreeMap<usize, Vec<u32>> {
        let now = self.backend.now();
        let is_known = |(at, limit): (usize, &Limit)| {
            let position = self.least(key, at);
            checked.get(at) == Some(limit)
                || position.is_known(self.setup.window, Id::of(limit), now)
        };
        let mut known = BTreeMap::new();
        for (number, limits) in self.setup.plans.iter().enumerate() {
            if limits.iter().enumerate().all(is_known) {
                let state = self.backend.peek(&name(key), limits).await;
                let left = state.standings().iter().map(|standing| standing.remaining()).collect();
                known.insert(number, left);
            }
        }
        known
    }

    /// Checks, and refunds of all of them, in order or in reverse: rule 4.
    async fn checks_and_refunds(
        &mut self,
        key: u8,
        plan: Plan,
        cost: u32,
        checks: usize,
        later: u64,
        is_reverse: bool,
    ) -> Outcome {
        let limits = self.limits_of(plan).to_vec();
        let before = self.known_plans(key, &limits).await;
        let left_before = self.backend.peek(&name(key), &limits).await.remaining();
        let held_before = self.held.len();
        for _ in 0..checks {
            if self.check(key, plan, cost).await?.is_err() {
                break;
            }
        }
        self.backend.pass(later).await;
        let mut held = self.held.split_off(held_before);
        if is_reverse {
            held.reverse();
        }
        for held in held {
            self.refund(held).await;
        }
        if self.is_bounded() {
            return Ok(());
        }
        let left = self.peek(key, &limits).await?.remaining();
        // A limit that was not used in its window may be known from others again.
        if limits.iter().any(|limit| micros(limit.per()) <= later) {
            return Ok(());
        }
        promise(left >= left_before, "4: checks and their refunds leave the quota", || {
            let limits = text(&limits);
            format!("{left_before} remained by {limits}, now {left}; {}", self.history(key))
        })?;
        if checks == 1 && later == 0 {
            let after = self.known_plans(key, &limits).await;
            let known = |plan: &usize| before.get(plan).zip(after.get(plan));
            let is_unchanged =
                before.keys().filter_map(known).all(|(before, after)| before == after);
            promise(
                is_unchanged,
                "4: a check and its refund leave what remains by all plans",
                || {
                    format!(
                        "{before:?} remained by the plans, now {after:?}; {}",
                        self.history(key)
                    )
                },
            )?;
        }
        Ok(())
    }

    /// A check that is settled at once leaves what a check of the final cost leaves: rule 4.
    async fn check_and_settle(&mut self, key: u8, plan: Plan, cost: u32, actual: u32) -> Outcome {
        let limits = self.limits_of(plan).to_vec();
        let before = self.backend.peek(&name(key), &limits).await;
        if self.check(key, plan, cost).await?.is_err() {
            return Ok(());
        }
        let held = self.held.pop().expect("the call was admitted");
        self.settle(held, actual).await;
        if self.is_bounded() {
            return Ok(());
        }
        let after = self.peek(key, &limits).await?;
        for (before, after) in before.standings().iter().zip(after.standings()) {
            let expected = before.remaining().saturating_sub(actual);
            // A debt of Gcra may leave a part of a unit more.
            promise(after.remaining() == expected, "4: a settled call has its final cost", || {
                let (before, after) = (before.remaining(), after.remaining());
                format!(
                    "{before} before, {after} after {cost} settled to {actual}; {}",
                    self.history(key)
                )
            })?;
        }
        Ok(())
    }

    fn take_held(&mut self, call: usize) -> Option<Held<B::Permit>> {
        let index = self.held.len().checked_sub(1 + call)?;
        Some(self.held.remove(index))
    }

    async fn refund(&mut self, held: Held<B::Permit>) {
        self.backend.refund(held.permit).await;
        for at in 0..held.limits.len() {
            self.record(held.key, at, |position| position.correct(held.call, 0));
        }
    }

    async fn settle(&mut self, held: Held<B::Permit>, actual: u32) {
        let Held { permit, key, call, cost, limits, has_own_limits } = held;
        self.backend.settle(permit, actual).await;
        let now = self.backend.now();
        if actual <= cost {
            for at in 0..limits.len() {
                self.record(key, at, |position| position.correct(call, actual.into()));
            }
            return;
        }
        // The limits of a debt are the current ones, if those of the check were.
        let current = if has_own_limits { self.own.clone() } else { limits.clone() };
        for at in 0..limits.len().max(current.len()) {
            let (old, new) = (limits.get(at), current.get(at));
            let by = new.filter(|_| old == new);
            let more = u64::from(actual - cost);
            let is_certain = old.is_some() && new.is_some();
            self.record(key, at, |position| {
                if let Some(limit) = by {
                    position.used(limit, now);
                }
                position.debt(now, more, by.map(Id::of), is_certain);
            });
        }
    }

    async fn reset(&mut self, key: u8) -> Outcome {
        self.backend.reset(&name(key)).await;
        self.keys.remove(&key);
        if self.is_bounded() {
            return Ok(());
        }
        for limits in &self.setup.plans {
            let left = self.peek(key, limits).await?;
            let is_whole = left.standings().iter().all(|s| s.remaining() == s.limit().quota());
            promise(is_whole, "a reset leaves nothing in use", || format!("{left:?}"))?;
        }
        Ok(())
    }

    async fn wait(&mut self, key: u8, most: u64) -> Outcome {
        let begin = self.backend.now();
        let ready = self.ready(key, &self.own, 1, begin);
        let most = if B::HAS_WAITERS { most } else { 1_000 };
        let checked =
            self.backend.until_ready_within(&name(key), Duration::from_micros(most)).await;
        let now = self.backend.now();
        // The timer counts milliseconds.
        const TICK: u64 = 2_000;
        match checked {
            Ok(permit) => {
                promise(
                    now <= ready + TICK,
                    "3: a waiter waits no longer than for its window",
                    || {
                        format!(
                            "{}us, at most {}us; {}",
                            now - begin,
                            ready - begin,
                            self.history(key)
                        )
                    },
                )?;
                self.admitted(key, None, 1, permit, now)
            }
            Err(_) => {
                promise(ready + TICK > begin + most, "3: a waiter waits for its window", || {
                    format!(
                        "{most}us were not enough, {}us are; {}",
                        ready - begin,
                        self.history(key)
                    )
                })
            }
        }
    }

    async fn crowd(&mut self, key: u8, most: [u64; 3]) -> Outcome {
        if !B::HAS_WAITERS {
            return Ok(());
        }
        let (backend, name) = (self.backend, name(key));
        let waits = most.map(|most| {
            let name = &name;
            async move {
                let permit = backend.until_ready_within(name, Duration::from_micros(most)).await;
                (backend.now(), permit)
            }
        });
        let mut admitted: Vec<(u64, B::Permit)> = Vec::new();
        for (at, checked) in join_all(waits).await {
            admitted.extend(checked.ok().map(|permit| (at, permit)));
        }
        admitted.sort_by_key(|(at, _)| *at);
        for (at, permit) in admitted {
            self.admitted(key, None, 1, permit, at)?;
        }
        Ok(())
    }
}
