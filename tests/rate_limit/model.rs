//! Random arrivals, refunds, resets and plans, compared with limiters that are too simple to be wrong.
//!
//! `PROPTEST_CASES` sets the number of sequences (1,000 by default), `FLEETING_SEED` the seed.

use std::{collections::VecDeque, time::Duration};

use fleeting::{Limit, Limited, Permit, RateLimiter, Sweep, Window};
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use crate::sequences;

type Key = u8;

const KEYS: usize = 3;
const NANOSECOND: Duration = Duration::from_nanos(1);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Clone, Debug)]
enum Op {
    Check(Key, Cost),
    /// A caller without competitors that comes again at `retry_after`, and one nanosecond sooner.
    Insist(Key, Cost),
    Peek(Key),
    /// Peeks, then takes all units that remain.
    Take(Key, u32),
    /// Waits until a limit has more units.
    Await(Key, usize),
    /// Refunds one of the permits that are held.
    Refund(usize),
    Reset(Key),
    Pass(Gap),
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u32),
    /// The smallest quota, plus or minus a number of units.
    Quota(i64),
}

/// Length of time that passes.
#[derive(Clone, Copy, Debug)]
enum Gap {
    Nanoseconds(u64),
    /// A number of eighths of a limit's window, plus or minus some nanoseconds.
    Eighths(usize, u64, i64),
    /// Until an admitted call leaves the window of a limit, plus or minus some nanoseconds.
    Edge(usize, usize, i64),
}

#[derive(Clone, Debug)]
struct Setup {
    window: Window,
    limits: Vec<Limit>,
    shards: usize,
    /// With the task that removes idle keys.
    task: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop_oneof![4 => Just(0), 1 => 0..KEYS as Key];
    prop_oneof![
        16 => (key(), cost()).prop_map(|(key, cost)| Op::Check(key, cost)),
        2 => (key(), cost()).prop_map(|(key, cost)| Op::Insist(key, cost)),
        2 => key().prop_map(Op::Peek),
        2 => (key(), 0..3_u32).prop_map(|(key, more)| Op::Take(key, more)),
        1 => (key(), 0..3_usize).prop_map(|(key, limit)| Op::Await(key, limit)),
        3 => (0..20_usize).prop_map(Op::Refund),
        1 => key().prop_map(Op::Reset),
        12 => gap().prop_map(Op::Pass),
    ]
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        8 => Just(Cost::Units(1)),
        3 => (0..5_u32).prop_map(Cost::Units),
        2 => (-1..=1_i64).prop_map(Cost::Quota),
    ]
}

fn gap() -> impl Strategy<Value = Gap> {
    let near = || prop_oneof![4 => Just(0), 2 => -1..=1_i64];
    prop_oneof![
        2 => Just(Gap::Nanoseconds(0)),
        2 => (0..20_u64).prop_map(Gap::Nanoseconds),
        6 => (0..3_usize, 0..20_u64, near()).prop_map(|(l, n, by)| Gap::Eighths(l, n, by)),
        6 => (0..6_usize, 0..3_usize, near()).prop_map(|(c, l, by)| Gap::Edge(c, l, by)),
        1 => (0..4 * 3_600_000_000_000_u64).prop_map(Gap::Nanoseconds),
    ]
}

fn limit() -> impl Strategy<Value = Limit> {
    // Above 65,535, `Buckets` use wider counters.
    let quota = prop_oneof![12 => 1..6_u32, 3 => 6..40_u32, 1 => 65_534..65_538_u32];
    let per = prop_oneof![
        2 => 1..30_u64,
        1 => Just(97),
        2 => Just(1_000),
        3 => Just(1_000_000_000),
        1 => Just(1_000_000_007),
        2 => Just(60_000_000_000),
        1 => Just(3_600_000_000_000),
    ];
    (quota, per).prop_map(|(quota, per)| Limit::new(quota, Duration::from_nanos(per)))
}

fn window() -> impl Strategy<Value = Window> {
    let buckets = prop_oneof![Just(1), Just(2), Just(8), Just(10), 1..100_usize];
    prop_oneof![2 => Just(Window::Log), 2 => buckets.prop_map(Window::Buckets), 1 => Just(Window::Gcra)]
}

fn setup() -> impl Strategy<Value = Setup> {
    let limits = prop_oneof![
        2 => proptest::collection::vec(limit(), 1),
        1 => proptest::collection::vec(limit(), 2..=3),
    ];
    (window(), limits, 1..10_usize, any::<bool>())
        .prop_map(|(window, limits, shards, task)| Setup { window, limits, shards, task })
}

/// Admitted call that was not refunded.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: usize,
    at: Instant,
    cost: u32,
}

/// Quota of a limit, and the time for which a charge counts.
#[derive(Clone, Copy, Debug)]
struct Span {
    quota: u32,
    per: Duration,
}

impl Span {
    /// Span after which a call leaves an exact window.
    fn exact(limit: &Limit) -> Self {
        Self { quota: limit.quota(), per: limit.per() }
    }

    /// Longest span after which a call leaves `n` buckets: its own bucket counts until all of it has left.
    fn longest(limit: &Limit, n: usize) -> Self {
        let bucket = limit.per().as_nanos().div_ceil(n as u128) as u64;
        Self { quota: limit.quota(), per: Duration::from_nanos((n as u64 + 1) * bucket) }
    }

    /// Units of the calls in the window `(at - per, at]`.
    fn used(self, calls: &[Call], at: Instant) -> u32 {
        calls.iter().filter(|call| at - call.at < self.per).map(|call| call.cost).sum()
    }

    fn fits(self, calls: &[Call], at: Instant, cost: u32) -> bool {
        self.used(calls, at) + cost <= self.quota
    }
}

fn all_fit(spans: &[Span], calls: &[Call], at: Instant, cost: u32) -> bool {
    spans.iter().all(|span| span.fits(calls, at, cost))
}

/// First instant from now on at which the cost passes all limits, if nothing more is charged.
fn ready(spans: &[Span], calls: &[Call], cost: u32) -> Instant {
    let now = Instant::now();
    let leave = calls.iter().flat_map(|call| spans.iter().map(|span| call.at + span.per));
    let instants = leave.chain([now]).filter(|at| *at >= now);
    instants
        .filter(|at| all_fit(spans, calls, *at, cost))
        .min()
        .expect("all charges leave the window eventually")
}

/// Bucket that leaks `quota` parts per nanosecond. A unit has `per` parts, so it leaks in `per / quota`.
///
/// If a call is refunded, at least what has not leaked of it is given back, first in, first out; and at most so much
/// that the bucket is as if the call was never made.
#[derive(Clone, Debug)]
struct Bucket {
    quota: u128,
    unit: u128,
    /// Numbers of the calls, and the parts of each that have not leaked.
    charges: VecDeque<(usize, u128)>,
    leaked: Instant,
    /// Numbers, times and parts of all calls that were not refunded.
    calls: Vec<(usize, Instant, u128)>,
}

impl Bucket {
    fn new(limit: &Limit) -> Self {
        let (quota, unit) = (u128::from(limit.quota()), limit.per().as_nanos());
        Self { quota, unit, charges: VecDeque::new(), leaked: Instant::now(), calls: Vec::new() }
    }

    fn leak(&mut self) {
        let mut passed = (Instant::now() - self.leaked).as_nanos() * self.quota;
        self.leaked = Instant::now();
        while let Some((_, left)) = self.charges.front_mut() {
            let leaked = passed.min(*left);
            passed -= leaked;
            *left -= leaked;
            if *left > 0 {
                return;
            }
            self.charges.pop_front();
        }
    }

    /// Least and most usage, in parts.
    fn levels(&self) -> [u128; 2] {
        let leak = |level: u128, since: Instant, until: Instant| {
            level.saturating_sub((until - since).as_nanos() * self.quota)
        };
        let mut level = (0, self.leaked);
        for (_, at, parts) in &self.calls {
            level = (leak(level.0, level.1.min(*at), *at) + parts, *at);
        }
        let least = leak(level.0, level.1, self.leaked);
        [least, self.charges.iter().map(|(_, left)| left).sum()]
    }

    /// Least and most time until `cost` more units pass.
    fn waits(&self, cost: u32) -> [Duration; 2] {
        self.levels().map(|level| {
            let full = level + u128::from(cost) * self.unit;
            let excess = full.saturating_sub(self.quota * self.unit);
            Duration::from_nanos(excess.div_ceil(self.quota) as u64)
        })
    }

    /// Least and most remaining units.
    fn remaining(&self) -> (u32, u32) {
        let [most, least] =
            self.levels().map(|level| self.quota.saturating_sub(level.div_ceil(self.unit)) as u32);
        (least, most)
    }
}

/// Admitted calls of one key.
#[derive(Clone, Debug)]
struct Known {
    calls: Vec<Call>,
    buckets: Vec<Bucket>,
    /// Permits of calls with lower numbers were reset.
    since: usize,
    /// Number of the last call when a permit was refunded.
    refunded: usize,
}

impl Known {
    fn new(limits: &[Limit], since: usize) -> Self {
        let buckets = limits.iter().map(Bucket::new).collect();
        Self { calls: Vec::new(), buckets, since, refunded: 0 }
    }

    fn charge(&mut self, number: usize, cost: u32) {
        self.calls.push(Call { number, at: Instant::now(), cost });
        for bucket in &mut self.buckets {
            let parts = bucket.unit * u128::from(cost);
            bucket.charges.push_back((number, parts));
            bucket.calls.push((number, Instant::now(), parts));
        }
    }

    fn take_back(&mut self, number: usize) {
        self.calls.retain(|call| call.number != number);
        for bucket in &mut self.buckets {
            bucket.charges.retain(|(of, _)| *of != number);
            bucket.calls.retain(|(of, ..)| *of != number);
        }
    }
}

struct Test {
    limiter: RateLimiter<Key>,
    window: Window,
    limits: Vec<Limit>,
    known: Vec<Known>,
    permits: Vec<(Key, usize, Permit)>,
    calls: usize,
    admitted: u64,
    denied: u64,
    /// Number of checks of cost 0, or above a quota.
    trivial: u64,
}

impl Test {
    fn new(setup: Setup) -> Self {
        let sweep = if setup.task { Sweep::default() } else { Sweep::manual() };
        let mut builder =
            RateLimiter::builder().window(setup.window).shards(setup.shards).sweep(sweep.seed(1));
        for limit in &setup.limits {
            builder = builder.limit(limit.clone());
        }
        Self {
            limiter: builder.build(),
            window: setup.window,
            known: vec![Known::new(&setup.limits, 0); KEYS],
            limits: setup.limits,
            permits: Vec::new(),
            calls: 0,
            admitted: 0,
            denied: 0,
            trivial: 0,
        }
    }

    async fn run(&mut self, op: Op) {
        match op {
            Op::Check(key, cost) => drop(self.check(key, self.units(cost)).await),
            Op::Insist(key, cost) => self.insist(key, self.units(cost)).await,
            Op::Peek(key) => self.peek(key).await,
            Op::Take(key, more) => {
                let state = self.limiter.peek(&key).await;
                let cost = state.remaining() + more;
                let passes = self.check(key, cost).await.is_ok();
                assert_eq!(passes, more == 0, "{cost} units, {state:?}");
            }
            Op::Await(key, limit) => self.await_more(key, limit % self.limits.len()).await,
            Op::Refund(permit) => self.refund(permit).await,
            Op::Reset(key) => {
                let in_use = self.is_in_use(key);
                let had_entry = self.limiter.reset(&key).await;
                assert!(had_entry || !in_use, "a reset found no usage");
                assert!(!self.limiter.reset(&key).await, "a second reset found usage");
                self.known[usize::from(key)] = Known::new(&self.limits, self.calls + 1);
            }
            Op::Pass(gap) => advance(self.length(gap)).await,
        }
        let stats = self.limiter.stats();
        assert!((0..=self.trivial).contains(&(stats.admitted - self.admitted)), "{stats:?}");
        assert!((0..=self.trivial).contains(&(stats.denied - self.denied)), "{stats:?}");
        assert_eq!(stats.overflowed, 0);
    }

    fn is_in_use(&mut self, key: Key) -> bool {
        let known = &mut self.known[usize::from(key)];
        known.buckets.iter_mut().for_each(Bucket::leak);
        let limits = 0..self.limits.len();
        limits
            .map(|limit| (self.remaining(key, limit).1, &self.limits[limit]))
            .any(|(most_remaining, limit)| most_remaining < limit.quota())
    }

    fn units(&self, cost: Cost) -> u32 {
        let least =
            self.limits.iter().map(Limit::quota).min().expect("there is at least one limit");
        match cost {
            Cost::Units(units) => units,
            Cost::Quota(by) => (i64::from(least) + by) as u32,
        }
    }

    fn length(&self, gap: Gap) -> Duration {
        let limit = |limit: usize| &self.limits[limit % self.limits.len()];
        let (length, by) = match gap {
            Gap::Nanoseconds(n) => (Duration::from_nanos(n), 0),
            Gap::Eighths(of, eighths, by) => (limit(of).per() * eighths as u32 / 8, by),
            Gap::Edge(call, of, by) => {
                let calls = &self.known[0].calls;
                let call = calls.len().checked_sub(1 + call).map(|index| calls[index]);
                let leaves = call.map(|call| call.at + limit(of).per());
                let length = leaves.map(|at| at.saturating_duration_since(Instant::now()));
                (length.unwrap_or_default(), by)
            }
        };
        moved(length, by)
    }

    /// Checks, and compares the outcome with the promises of the window.
    async fn check(&mut self, key: Key, cost: u32) -> Result<(), Limited> {
        let outcome = self.limiter.check_n(&key, cost).await;
        let now = Instant::now();
        self.known[usize::from(key)].buckets.iter_mut().for_each(Bucket::leak);
        self.trivial += u64::from(cost == 0);
        if cost == 0 {
            let permit = outcome.expect("a cost of 0 always passes");
            assert_eq!(permit.remaining(), self.limiter.peek(&key).await.remaining());
            return Ok(());
        }
        if self.limits.iter().any(|limit| limit.quota() < cost) {
            self.trivial += 1;
            let limited = outcome.expect_err("a cost above a quota never passes");
            assert_eq!((limited.retry_after(), limited.ready_at()), (Duration::MAX, None));
            assert!(limited.limit().quota() < cost);
            assert_eq!(limited.cost(), cost);
            return Err(limited);
        }
        let permit = match outcome {
            Ok(permit) => permit,
            Err(limited) => {
                self.denied += 1;
                assert_eq!(limited.cost(), cost);
                let at = limited.ready_at().expect("the cost is not above a quota");
                assert!(at > now, "denied with a retry_after of zero");
                assert_eq!(limited.retry_after(), at - now);
                self.compare_denial(key, cost, &limited, at);
                return Err(limited);
            }
        };
        self.admitted += 1;
        self.calls += 1;
        let known = &mut self.known[usize::from(key)];
        match self.window {
            Window::Log | Window::Buckets(_) => {
                let spans: Vec<Span> = self.limits.iter().map(Span::exact).collect();
                let calls = &known.calls;
                assert!(
                    all_fit(&spans, calls, now, cost),
                    "{cost} admitted above a quota: {calls:?}"
                );
            }
            Window::Gcra => {
                assert!(
                    known.buckets.iter().all(|bucket| bucket.waits(cost)[0].is_zero()),
                    "{:?}",
                    known.buckets
                );
            }
            other => unreachable!("{other:?}"),
        }
        known.charge(self.calls, cost);
        self.compare_remaining(key, permit.remaining());
        self.permits.push((key, self.calls, permit));
        Ok(())
    }

    /// Verifies that a denied call did not fit, and fits at the promised time.
    fn compare_denial(&self, key: Key, cost: u32, limited: &Limited, at: Instant) {
        let known = &self.known[usize::from(key)];
        let calls = &known.calls;
        let exact: Vec<Span> = self.limits.iter().map(Span::exact).collect();
        match self.window {
            Window::Log => {
                assert_eq!(at, ready(&exact, calls, cost), "{calls:?}");
                let named = ready(&[Span::exact(limited.limit())], calls, cost);
                assert_eq!(at, named, "another limit has a longer wait than {}", limited.limit());
            }
            Window::Buckets(n) => {
                let longest = self.limits.iter().map(|limit| Span::longest(limit, n));
                let longest: Vec<Span> = longest.collect();
                assert!(!all_fit(&longest, calls, Instant::now(), cost), "{calls:?}");
                let bounds = ready(&exact, calls, cost)..=ready(&longest, calls, cost);
                assert!(bounds.contains(&at), "{at:?} is not in {bounds:?}: {calls:?}");
            }
            Window::Gcra => {
                let waits = known.buckets.iter().map(|bucket| bucket.waits(cost));
                let (least, most): (Vec<_>, Vec<_>) =
                    waits.map(|[least, most]| (least, most)).unzip();
                let bounds = least.into_iter().max().unwrap()..=most.into_iter().max().unwrap();
                let wait = at - Instant::now();
                assert!(
                    bounds.contains(&wait),
                    "{wait:?} is not in {bounds:?}: {:?}",
                    known.buckets
                );
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Verifies that `remaining` is the least that any limit has left.
    fn compare_remaining(&self, key: Key, remaining: u32) {
        let limits = 0..self.limits.len();
        let bounds = limits.map(|limit| self.remaining(key, limit));
        let (least, most): (Vec<u32>, Vec<u32>) = bounds.unzip();
        let (least, most) = (*least.iter().min().unwrap(), *most.iter().min().unwrap());
        assert!((least..=most).contains(&remaining), "{remaining} is not in {least}..={most}");
    }

    /// Lower and upper bound of the units that a limit has left.
    fn remaining(&self, key: Key, limit: usize) -> (u32, u32) {
        let (known, now) = (&self.known[usize::from(key)], Instant::now());
        let exact = Span::exact(&self.limits[limit]);
        let remaining = |span: Span| span.quota.saturating_sub(span.used(&known.calls, now));
        match self.window {
            Window::Log => (remaining(exact), remaining(exact)),
            Window::Buckets(n) => {
                let longest = Span::longest(&self.limits[limit], n);
                (remaining(longest), remaining(exact))
            }
            Window::Gcra => known.buckets[limit].remaining(),
            other => unreachable!("{other:?}"),
        }
    }

    async fn insist(&mut self, key: Key, cost: u32) {
        let Err(limited) = self.check(key, cost).await else { return };
        let Some(at) = limited.ready_at() else { return };
        advance(limited.retry_after() - NANOSECOND).await;
        let sooner =
            self.check(key, cost).await.expect_err("the call passed a nanosecond too soon");
        assert_eq!(sooner.ready_at(), Some(at), "a denial changed something");
        advance(NANOSECOND).await;
        assert!(self.check(key, cost).await.is_ok(), "denied at the promised time");
    }

    async fn peek(&mut self, key: Key) {
        let state = self.limiter.peek(&key).await;
        let now = Instant::now();
        let known = &mut self.known[usize::from(key)];
        known.buckets.iter_mut().for_each(Bucket::leak);
        let known = &self.known[usize::from(key)];
        assert_eq!(state.standings().len(), self.limits.len());
        for (index, standing) in state.standings().iter().enumerate() {
            let limit = &self.limits[index];
            assert_eq!(standing.limit(), limit);
            let (least, most) = self.remaining(key, index);
            let remaining = standing.remaining();
            assert!((least..=most).contains(&remaining), "{remaining} is not in {least}..={most}");
            assert_eq!(standing.more_after().is_none(), remaining == limit.quota());
            if self.window == Window::Log {
                let leave = known.calls.iter().map(|call| call.at + limit.per());
                let next = leave.filter(|at| *at > now).min();
                assert_eq!(standing.more_after(), next.map(|at| at - now));
            }
        }
        self.compare_remaining(key, state.remaining());
        assert_eq!(state.retry_after().is_zero(), state.remaining() > 0);
        if self.window == Window::Log {
            let exact: Vec<Span> = self.limits.iter().map(Span::exact).collect();
            assert_eq!(state.retry_after(), ready(&exact, &known.calls, 1) - now);
        }
    }

    /// Verifies that more units are available when a standing promises them, and not a nanosecond sooner.
    async fn await_more(&mut self, key: Key, limit: usize) {
        let before = self.limiter.peek(&key).await;
        let standing = &before.standings()[limit];
        let Some(after) = standing.more_after() else { return };
        advance(after - NANOSECOND).await;
        let sooner = self.limiter.peek(&key).await.standings()[limit].remaining();
        assert_eq!(sooner, standing.remaining(), "passed a nanosecond too soon");
        advance(NANOSECOND).await;
        let then = self.limiter.peek(&key).await.standings()[limit].remaining();
        assert!(then > standing.remaining(), "{then} after {after:?}: {standing:?}");
        self.peek(key).await;
    }

    async fn refund(&mut self, permit: usize) {
        let Some(index) = self.permits.len().checked_sub(1 + permit) else { return };
        let (key, number, permit) = self.permits.remove(index);
        let known = &mut self.known[usize::from(key)];
        if self.window == Window::Gcra && number <= known.refunded {
            // Refunds of permits from before the last refund are not exact; see `Window::Gcra`.
            return;
        }
        permit.refund().await;
        if number >= known.since {
            known.buckets.iter_mut().for_each(Bucket::leak);
            known.take_back(number);
            known.refunded = self.calls;
        }
        self.peek(key).await;
    }
}

#[test]
fn each_window_admits_exactly_the_calls_that_it_promises() {
    proptest!(config(), |(setup in setup(), ops in proptest::collection::vec(op(), 1..120))| {
        paused(async {
            let mut test = Test::new(setup);
            for op in ops {
                test.run(op).await;
            }
        });
    });
}

/// Bursts in each window of a small quota: mostly the operations of the test above, at the edges of windows.
#[test]
fn burst_at_the_edge_of_a_window_does_not_exceed_the_quota() {
    let edge = (0..8_usize, -2..=2_i64).prop_map(|(call, by)| Op::Pass(Gap::Edge(call, 0, by)));
    let check = (1..4_u32).prop_map(|units| Op::Check(0, Cost::Units(units)));
    let refund = (0..4_usize).prop_map(Op::Refund);
    let op = prop_oneof![4 => check, 4 => edge, 1 => refund];
    proptest!(config(), |(setup in setup(), ops in proptest::collection::vec(op, 1..120))| {
        paused(async {
            let mut test = Test::new(setup);
            for op in ops {
                test.run(op).await;
            }
        });
    });
}

/// Operations with limits that change from call to call.
#[derive(Clone, Debug)]
enum PlanOp {
    Check(Cost, usize),
    Insist(Cost, usize),
    Peek(usize),
    Take(u32, usize),
    Refund(usize),
    Reset,
    Pass(Gap),
}

fn plan_op() -> impl Strategy<Value = PlanOp> {
    // Mostly the same plan for a while.
    let plan = || prop_oneof![4 => Just(0), 2 => 0..3_usize];
    prop_oneof![
        16 => (cost(), plan()).prop_map(|(cost, plan)| PlanOp::Check(cost, plan)),
        2 => (cost(), plan()).prop_map(|(cost, plan)| PlanOp::Insist(cost, plan)),
        1 => plan().prop_map(PlanOp::Peek),
        2 => (0..3_u32, plan()).prop_map(|(more, plan)| PlanOp::Take(more, plan)),
        3 => (0..20_usize).prop_map(PlanOp::Refund),
        1 => Just(PlanOp::Reset),
        12 => gap().prop_map(PlanOp::Pass),
    ]
}

/// Admitted call, as one of the limits of its plan counted it.
#[derive(Clone, Copy, Debug)]
struct PlanCall {
    call: Call,
    limit: usize,
    /// False once it had left the longest window by which the key was checked, and the key was checked by another one:
    /// then the limiter may have forgotten it.
    is_certain: bool,
}

struct PlanTest {
    limiter: RateLimiter<Key>,
    window: Window,
    plans: Vec<Vec<Limit>>,
    known: Vec<PlanCall>,
    permits: Vec<(usize, Permit)>,
    calls: usize,
    /// Longest window by which the key was checked, for each position.
    longest: [Duration; 3],
}

impl PlanTest {
    fn new(window: Window, own: Limit, plans: Vec<Vec<Limit>>) -> Self {
        let builder = RateLimiter::builder().window(window).limit(own).sweep(Sweep::manual());
        let (known, permits) = (Vec::new(), Vec::new());
        let longest = [Duration::ZERO; 3];
        Self { limiter: builder.build(), window, plans, known, permits, calls: 0, longest }
    }

    async fn run(&mut self, op: PlanOp) {
        match op {
            PlanOp::Check(cost, plan) => drop(self.check(self.units(cost, plan), plan).await),
            PlanOp::Insist(cost, plan) => {
                let cost = self.units(cost, plan);
                let Err(limited) = self.check(cost, plan).await else { return };
                let Some(at) = limited.ready_at() else { return };
                advance(limited.retry_after() - NANOSECOND).await;
                let sooner =
                    self.check(cost, plan).await.expect_err("passed a nanosecond too soon");
                assert_eq!(sooner.ready_at(), Some(at), "a denial changed something");
                advance(NANOSECOND).await;
                assert!(self.check(cost, plan).await.is_ok(), "denied at the promised time");
            }
            PlanOp::Peek(plan) => {
                self.peek(plan).await;
            }
            PlanOp::Take(more, plan) => {
                let remaining = self.peek(plan).await;
                let cost = remaining.saturating_add(more);
                let passes = self.check(cost, plan).await.is_ok();
                assert_eq!(passes, more == 0 || self.plans[plan].is_empty(), "{cost} units");
            }
            PlanOp::Refund(permit) => {
                let Some(index) = self.permits.len().checked_sub(1 + permit) else { return };
                let (number, permit) = self.permits.remove(index);
                permit.refund().await;
                self.known.retain(|known| known.call.number != number);
            }
            PlanOp::Reset => {
                self.limiter.reset(&0).await;
                self.known.clear();
            }
            PlanOp::Pass(gap) => advance(self.length(gap)).await,
        }
    }

    fn units(&self, cost: Cost, plan: usize) -> u32 {
        let least = self.plans[plan].iter().map(Limit::quota).min().unwrap_or(1);
        match cost {
            Cost::Units(units) => units,
            Cost::Quota(by) => (i64::from(least) + by) as u32,
        }
    }

    fn length(&self, gap: Gap) -> Duration {
        let limits: Vec<&Limit> = self.plans.iter().flatten().collect();
        let per = |of: usize| limits.get(of).map_or(Duration::ZERO, |limit| limit.per());
        match gap {
            Gap::Nanoseconds(n) => Duration::from_nanos(n),
            Gap::Eighths(of, eighths, by) => moved(per(of) * eighths as u32 / 8, by),
            Gap::Edge(call, of, by) => {
                let call = self.known.len().checked_sub(1 + call).map(|index| self.known[index]);
                let leaves = call.map(|known| known.call.at + per(of));
                let length = leaves.map(|at| at.saturating_duration_since(Instant::now()));
                moved(length.unwrap_or_default(), by)
            }
        }
    }

    async fn check(&mut self, cost: u32, plan: usize) -> Result<(), Limited> {
        let limits = &self.plans[plan];
        let outcome = self.limiter.check_n_with(&0, cost, limits).await;
        if cost == 0 || limits.is_empty() {
            let remaining = outcome.expect("checks by no limits pass").remaining();
            assert_eq!(remaining, self.limiter.peek_with(&0, limits).await.remaining());
            return Ok(());
        }
        if limits.iter().any(|limit| limit.quota() < cost) {
            let limited = outcome.expect_err("a cost above a quota never passes");
            assert_eq!(limited.ready_at(), None);
            return Err(limited);
        }
        self.forget(plan);
        let limits = &self.plans[plan];
        let now = Instant::now();
        let permit = match outcome {
            Ok(permit) => permit,
            Err(limited) => {
                assert!(limited.ready_at().expect("the cost is not above a quota") > now);
                assert!(
                    limits.contains(limited.limit()),
                    "the denial names a limit of another plan"
                );
                if self.window == Window::Log {
                    let fits = |(index, limit): (usize, &Limit)| {
                        Span::exact(limit).fits(&self.calls_of(index, false), now, cost)
                    };
                    let all_fit = limits.iter().enumerate().all(fits);
                    assert!(!all_fit, "denied although nothing was in use: {:?}", self.known);
                }
                return Err(limited);
            }
        };
        if self.window != Window::Gcra {
            for (index, limit) in self.plans[plan].iter().enumerate() {
                let fits = Span::exact(limit).fits(&self.calls_of(index, true), now, cost);
                assert!(fits, "{cost} admitted above {limit}: {:?}", self.known);
            }
        }
        self.calls += 1;
        let call = Call { number: self.calls, at: now, cost };
        let limits = 0..self.plans[plan].len();
        self.known.extend(limits.map(|limit| PlanCall { call, limit, is_certain: true }));
        let (remaining, left) = (permit.remaining(), self.peek(plan).await);
        assert_eq!(remaining, left, "permit and peek differ");
        self.permits.push((self.calls, permit));
        Ok(())
    }

    async fn peek(&mut self, plan: usize) -> u32 {
        let state = self.limiter.peek_with(&0, &self.plans[plan]).await;
        assert_eq!(state.standings().len(), self.plans[plan].len());
        assert_eq!(state.retry_after().is_zero(), state.remaining() > 0, "{state:?}");
        for (standing, limit) in state.standings().iter().zip(&self.plans[plan]) {
            assert_eq!(standing.limit(), limit);
            assert!(standing.remaining() <= limit.quota());
        }
        state.remaining()
    }

    fn calls_of(&self, limit: usize, certain: bool) -> Vec<Call> {
        let calls = self.known.iter().filter(|known| known.limit == limit);
        calls.filter(|known| known.is_certain || !certain).map(|known| known.call).collect()
    }

    /// Marks the calls that the limiter may have forgotten before a check by a plan.
    fn forget(&mut self, plan: usize) {
        let now = Instant::now();
        for (index, limit) in self.plans[plan].iter().enumerate() {
            let longest = &mut self.longest[index];
            let calls = self.known.iter_mut().filter(|known| known.limit == index);
            let mut is_in_use = false;
            for known in calls {
                let is_in_window = now - known.call.at < *longest;
                known.is_certain &= is_in_window;
                is_in_use |= is_in_window;
            }
            let before = if is_in_use { *longest } else { Duration::ZERO };
            *longest = before.max(limit.per());
        }
    }
}

#[test]
fn changing_plans_admit_no_more_than_the_plan_of_the_check() {
    let plan = || proptest::collection::vec(limit(), 0..=3);
    let plans = proptest::collection::vec(plan(), 3);
    let ops = proptest::collection::vec(plan_op(), 1..120);
    proptest!(config(), |(window in window(), own in limit(), plans in plans, ops in ops)| {
        paused(async {
            let mut test = PlanTest::new(window, own, plans);
            for op in ops {
                test.run(op).await;
            }
        });
    });
}

/// Plans that differ only in their quota: the log is then as exact as with one plan.
#[test]
fn plans_that_differ_in_quota_count_the_same_calls() {
    let quotas = proptest::collection::vec(1..12_u32, 1..40);
    let gaps = proptest::collection::vec(0..40_u64, 40);
    proptest!(config(), |(quotas in quotas, gaps in gaps)| {
        paused(async {
            let per = Duration::from_nanos(100);
            let limiter = RateLimiter::<Key>::builder().limit(Limit::new(1, per)).build();
            let mut calls = Vec::new();
            for (quota, gap) in quotas.into_iter().zip(gaps) {
                advance(Duration::from_nanos(gap)).await;
                let limit = Limit::new(quota, per);
                let passes = limiter.check_with(&0, std::slice::from_ref(&limit)).await.is_ok();
                let now = Instant::now();
                assert_eq!(passes, Span::exact(&limit).fits(&calls, now, 1), "{calls:?}");
                if passes {
                    calls.push(Call { number: 0, at: now, cost: 1 });
                }
            }
        });
    });
}

/// Longest windows, largest quotas, and plans from one extreme to the other: nothing overflows.
#[test]
fn extreme_limits_and_costs_do_not_panic() {
    let pers = [NANOSECOND, Duration::from_nanos(7), Duration::from_secs(1), CENTURY];
    let quotas = [1, 2, 1_000, u32::MAX];
    let limits: Vec<Limit> =
        pers.iter().flat_map(|per| quotas.map(|quota| Limit::new(quota, *per))).collect();
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10_000), Window::Gcra] {
        paused(async {
            let limiter = RateLimiter::<Key>::builder().window(window).limit(limits[0].clone());
            let limiter = limiter.sweep(Sweep::manual()).build();
            for pause in [Duration::ZERO, NANOSECOND, Duration::from_secs(1), CENTURY / 2] {
                for first in &limits {
                    for second in &limits {
                        let plan = [first.clone(), second.clone()];
                        let least = first.quota().min(second.quota());
                        for cost in [1, least, u32::MAX] {
                            let outcome = limiter.check_n_with(&0, cost, &plan).await;
                            assert!(outcome.is_err() || cost <= least);
                            if let Err(limited) = &outcome {
                                assert_eq!(limited.ready_at().is_none(), cost > least);
                                assert!(limited.retry_after() > Duration::ZERO);
                            }
                            let left = limiter.peek_with(&0, &plan).await;
                            assert!(left.remaining() <= least);
                            let one = limiter.peek_with(&0, &plan[1..]).await;
                            assert!(one.remaining() <= second.quota());
                            if let Ok(permit) = outcome
                                && cost > 1
                            {
                                permit.refund().await;
                            }
                        }
                    }
                }
                advance(pause).await;
            }
        });
    }
}

/// A window of a century, until all of it has passed: no quota is free early, and all of it is free then.
#[test]
fn window_of_a_century_is_exact() {
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10), Window::Gcra] {
        paused(async {
            let limiter = RateLimiter::<Key>::builder().window(window);
            let limiter = limiter.limit(Limit::new(2, CENTURY)).sweep(Sweep::manual()).build();
            assert!(limiter.check_n(&0, 2).await.is_ok());
            let limited = limiter.check_n(&0, 2).await.expect_err("the whole quota is in use");
            assert!(limited.retry_after() >= CENTURY, "{:?}", limited.retry_after());
            assert!(limited.retry_after() <= 2 * CENTURY, "{:?}", limited.retry_after());
            advance(limited.retry_after() - NANOSECOND).await;
            assert!(limiter.check_n(&0, 2).await.is_err());
            advance(NANOSECOND).await;
            assert!(limiter.check_n(&0, 2).await.is_ok());
        });
    }
}

/// The largest quota of a century. Products of the time and the quota have more than 64 bits.
#[test]
fn use_of_the_largest_quota_in_a_century_is_exact() {
    const HALF: u32 = 1 << 31;
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        paused(async {
            let limiter = RateLimiter::<Key>::builder().window(window);
            let limiter = limiter.limit(Limit::new(u32::MAX, CENTURY)).sweep(Sweep::manual());
            let limiter = limiter.build();
            assert_eq!(
                limiter.check_n(&0, HALF).await.expect("it is below the quota").remaining(),
                u32::MAX - HALF
            );
            assert_eq!(limiter.peek(&0).await.remaining(), u32::MAX - HALF);
            advance(CENTURY / 4).await;
            // A quarter of the quota has leaked, which is three quarters of a unit less than 2^30.
            let used = if window == Window::Gcra { HALF / 2 + 1 } else { HALF };
            assert_eq!(limiter.peek(&0).await.remaining(), u32::MAX - used, "{window:?}");
        });
    }
}

fn config() -> ProptestConfig {
    sequences::config(1_000, 2_015)
}

fn paused(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}

/// `length`, some nanoseconds longer or shorter.
fn moved(length: Duration, by: i64) -> Duration {
    let nanoseconds = Duration::from_nanos(by.unsigned_abs());
    if by < 0 { length.saturating_sub(nanoseconds) } else { length + nanoseconds }
}
