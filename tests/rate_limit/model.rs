//! Random arrivals, refunds, resets and plans, against limiters so simple that they must be right.
//!
//! `PROPTEST_CASES` sets how many sequences (1,000 by default), `FLEETING_SEED` which.

use std::{collections::VecDeque, time::Duration};

use fleeting::{Limit, Limited, Permit, RateLimiter, Sweep, Window};
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use crate::sequences;

type Key = u8;

const KEYS: usize = 3;
const NANOSECOND: Duration = Duration::from_nanos(1);

#[derive(Clone, Debug)]
enum Op {
    Check(Key, Cost),
    /// A lone caller that comes again when it was told to, and a nanosecond sooner.
    Insist(Key, Cost),
    Peek(Key),
    /// Peeks, and takes what it was told that there is.
    Take(Key, u32),
    /// Waits for more of a limit.
    Await(Key, usize),
    /// Gives back one of the permits at hand.
    Refund(usize),
    Reset(Key),
    Pass(Gap),
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u32),
    /// The least quota, and so many more or less.
    Quota(i64),
}

/// How much time passes.
#[derive(Clone, Copy, Debug)]
enum Gap {
    Nanoseconds(u64),
    /// So many eighths of the window of a limit, and some nanoseconds more or less.
    Eighths(usize, u64, i64),
    /// Until a call that passed leaves the window of a limit, and some nanoseconds more or less.
    Edge(usize, usize, i64),
}

#[derive(Clone, Debug)]
struct Setup {
    window: Window,
    limits: Vec<Limit>,
    shards: usize,
    /// With the task that forgets idle keys.
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
    // Beyond 65,535 `Buckets` count in other numbers.
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

/// A call that passed and was not taken back.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: usize,
    at: Instant,
    cost: u32,
}

/// How long what was charged to a limit is in use, and how much of it may be.
#[derive(Clone, Copy, Debug)]
struct Span {
    quota: u32,
    per: Duration,
}

impl Span {
    /// A call leaves after exactly this.
    fn exact(limit: &Limit) -> Self {
        Self { quota: limit.quota(), per: limit.per() }
    }

    /// No call leaves `n` buckets later than after this: its own bucket counts until all of it has left.
    fn longest(limit: &Limit, n: usize) -> Self {
        let bucket = limit.per().as_nanos().div_ceil(n as u128) as u64;
        Self { quota: limit.quota(), per: Duration::from_nanos((n as u64 + 1) * bucket) }
    }

    /// Of the calls that were in the window `(at - per, at]`.
    fn used(self, calls: &[Call], at: Instant) -> u32 {
        calls.iter().filter(|call| at - call.at < self.per).map(|call| call.cost).sum()
    }

    fn has_room(self, calls: &[Call], at: Instant, cost: u32) -> bool {
        self.used(calls, at) + cost <= self.quota
    }
}

fn have_room(spans: &[Span], calls: &[Call], at: Instant, cost: u32) -> bool {
    spans.iter().all(|span| span.has_room(calls, at, cost))
}

/// The first instant from now on at which all have room, where nothing more is charged.
fn ready(spans: &[Span], calls: &[Call], cost: u32) -> Instant {
    let now = Instant::now();
    let leave = calls.iter().flat_map(|call| spans.iter().map(|span| call.at + span.per));
    let instants = leave.chain([now]).filter(|at| *at >= now);
    instants
        .filter(|at| have_room(spans, calls, *at, cost))
        .min()
        .expect("in the end all have left")
}

/// A bucket that leaks a nanosecond in each nanosecond, what was filled in first first; each unit in it is
/// `per / quota` of them, rounded up.
#[derive(Clone, Debug)]
struct Bucket {
    quota: u64,
    unit: u64,
    /// The numbers of the calls, and what is left of them.
    charges: VecDeque<(usize, u64)>,
    leaked: Instant,
}

impl Bucket {
    fn new(limit: &Limit) -> Self {
        let quota = u64::from(limit.quota());
        let unit = (limit.per().as_nanos() as u64).div_ceil(quota);
        Self { quota, unit, charges: VecDeque::new(), leaked: Instant::now() }
    }

    fn leak(&mut self) {
        let mut passed = (Instant::now() - self.leaked).as_nanos() as u64;
        self.leaked = Instant::now();
        while let Some((_, left)) = self.charges.front_mut() {
            let gone = passed.min(*left);
            passed -= gone;
            *left -= gone;
            if *left > 0 {
                return;
            }
            self.charges.pop_front();
        }
    }

    /// In use, in nanoseconds of leaking.
    fn level(&self) -> u64 {
        self.charges.iter().map(|(_, left)| left).sum()
    }

    /// How long until `cost` more find room.
    fn wait(&self, cost: u32) -> Duration {
        let full = self.level() + u64::from(cost) * self.unit;
        Duration::from_nanos(full.saturating_sub(self.quota * self.unit))
    }

    fn remaining(&self) -> u32 {
        (self.quota - self.level().div_ceil(self.unit)) as u32
    }
}

/// What passed for one key.
#[derive(Clone, Debug)]
struct Known {
    calls: Vec<Call>,
    buckets: Vec<Bucket>,
    /// Permits of calls before this number were reset.
    since: usize,
    /// The last call when one was taken back.
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
            bucket.charges.push_back((number, bucket.unit * u64::from(cost)));
        }
    }

    fn take_back(&mut self, number: usize) {
        self.calls.retain(|call| call.number != number);
        for bucket in &mut self.buckets {
            bucket.charges.retain(|(of, _)| *of != number);
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
    /// Checks of no units, or of more than a quota.
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
                assert_eq!(passes, more == 0, "{cost} units, of {state:?}");
            }
            Op::Await(key, limit) => self.await_more(key, limit % self.limits.len()).await,
            Op::Refund(permit) => self.refund(permit).await,
            Op::Reset(key) => {
                let in_use = self.is_in_use(key);
                let forgot = self.limiter.reset(&key).await;
                assert!(forgot || !in_use, "something was in use");
                assert!(!self.limiter.reset(&key).await, "nothing is known any more");
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
        let least = self.limits.iter().map(Limit::quota).min().expect("there is a limit");
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

    /// Checks, and compares what it is told with what the window promises.
    async fn check(&mut self, key: Key, cost: u32) -> Result<(), Limited> {
        let told = self.limiter.check_n(&key, cost).await;
        let now = Instant::now();
        self.known[usize::from(key)].buckets.iter_mut().for_each(Bucket::leak);
        self.trivial += u64::from(cost == 0);
        if cost == 0 {
            assert_eq!(told.expect("nothing always passes").remaining(), u32::MAX);
            return Ok(());
        }
        if self.limits.iter().any(|limit| limit.quota() < cost) {
            self.trivial += 1;
            let limited = told.expect_err("more than a quota never passes");
            assert_eq!((limited.retry_after(), limited.ready_at()), (Duration::MAX, None));
            assert!(limited.limit().quota() < cost);
            assert_eq!(limited.cost(), cost);
            return Err(limited);
        }
        let permit = match told {
            Ok(permit) => permit,
            Err(limited) => {
                self.denied += 1;
                assert_eq!(limited.cost(), cost);
                let at = limited.ready_at().expect("it is not above a quota");
                assert!(at > now, "denied, and told to come again at once");
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
                assert!(have_room(&spans, calls, now, cost), "{cost} more than a quota: {calls:?}");
            }
            Window::Gcra => {
                assert!(
                    known.buckets.iter().all(|b| b.wait(cost).is_zero()),
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

    /// It was denied: there was no room, and there is when it was told.
    fn compare_denial(&self, key: Key, cost: u32, limited: &Limited, at: Instant) {
        let known = &self.known[usize::from(key)];
        let calls = &known.calls;
        let exact: Vec<Span> = self.limits.iter().map(Span::exact).collect();
        match self.window {
            Window::Log => {
                assert_eq!(at, ready(&exact, calls, cost), "{calls:?}");
                let named = ready(&[Span::exact(limited.limit())], calls, cost);
                assert_eq!(at, named, "another limit takes longer than {}", limited.limit());
            }
            Window::Buckets(n) => {
                let longest = self.limits.iter().map(|limit| Span::longest(limit, n));
                let longest: Vec<Span> = longest.collect();
                assert!(!have_room(&longest, calls, Instant::now(), cost), "{calls:?}");
                let bounds = ready(&exact, calls, cost)..=ready(&longest, calls, cost);
                assert!(bounds.contains(&at), "{at:?} is not in {bounds:?}: {calls:?}");
            }
            Window::Gcra => {
                let wait = known.buckets.iter().map(|bucket| bucket.wait(cost)).max();
                assert_eq!(Some(at - Instant::now()), wait, "{:?}", known.buckets);
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// `told` is the least that any limit has left.
    fn compare_remaining(&self, key: Key, told: u32) {
        let limits = 0..self.limits.len();
        let bounds = limits.map(|limit| self.remaining(key, limit));
        let (least, most): (Vec<u32>, Vec<u32>) = bounds.unzip();
        let (least, most) = (*least.iter().min().unwrap(), *most.iter().min().unwrap());
        assert!((least..=most).contains(&told), "{told} is not in {least}..={most}");
    }

    /// What is left of a limit, at least and at most.
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
            Window::Gcra => (known.buckets[limit].remaining(), known.buckets[limit].remaining()),
            other => unreachable!("{other:?}"),
        }
    }

    async fn insist(&mut self, key: Key, cost: u32) {
        let Err(limited) = self.check(key, cost).await else { return };
        let Some(at) = limited.ready_at() else { return };
        advance(limited.retry_after() - NANOSECOND).await;
        let sooner = self.check(key, cost).await.expect_err("it came a nanosecond too soon");
        assert_eq!(sooner.ready_at(), Some(at), "a denial changes nothing");
        advance(NANOSECOND).await;
        assert!(self.check(key, cost).await.is_ok(), "it came when it was told to");
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
            assert!((least..=most).contains(&remaining), "{remaining}, not {least}..={most}");
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

    /// There is more when a standing says so, and not a nanosecond sooner.
    async fn await_more(&mut self, key: Key, limit: usize) {
        let before = self.limiter.peek(&key).await;
        let standing = &before.standings()[limit];
        let Some(after) = standing.more_after() else { return };
        advance(after - NANOSECOND).await;
        let sooner = self.limiter.peek(&key).await.standings()[limit].remaining();
        assert_eq!(sooner, standing.remaining(), "a nanosecond too soon");
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
            // What those charged before the last refund have left is not exact; see tests/rate_limit.rs.
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
fn each_window_admits_what_it_promises() {
    proptest!(config(), |(setup in setup(), ops in proptest::collection::vec(op(), 1..120))| {
        paused(async {
            let mut test = Test::new(setup);
            for op in ops {
                test.run(op).await;
            }
        });
    });
}

/// Bursts in each window of a small quota: most of what the test above does, at the places that matter.
#[test]
fn no_cluster_at_the_edge_of_a_window_gets_through() {
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

/// Limits that change from call to call.
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
    // Mostly the same one for a while.
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

/// A call that passed, as one of the limits of its plan knows of it.
#[derive(Clone, Copy, Debug)]
struct PlanCall {
    call: Call,
    limit: usize,
    /// No call has asked since with a window that it had left: then it may be forgotten.
    is_certain: bool,
}

struct PlanTest {
    limiter: RateLimiter<Key>,
    window: Window,
    plans: Vec<Vec<Limit>>,
    known: Vec<PlanCall>,
    permits: Vec<(usize, Permit)>,
    calls: usize,
}

impl PlanTest {
    fn new(window: Window, own: Limit, plans: Vec<Vec<Limit>>) -> Self {
        let builder = RateLimiter::builder().window(window).limit(own).sweep(Sweep::manual());
        let (known, permits) = (Vec::new(), Vec::new());
        Self { limiter: builder.build(), window, plans, known, permits, calls: 0 }
    }

    async fn run(&mut self, op: PlanOp) {
        match op {
            PlanOp::Check(cost, plan) => drop(self.check(self.units(cost, plan), plan).await),
            PlanOp::Insist(cost, plan) => {
                let cost = self.units(cost, plan);
                let Err(limited) = self.check(cost, plan).await else { return };
                let Some(at) = limited.ready_at() else { return };
                advance(limited.retry_after() - NANOSECOND).await;
                let sooner = self.check(cost, plan).await.expect_err("a nanosecond too soon");
                assert_eq!(sooner.ready_at(), Some(at), "a denial changes nothing");
                advance(NANOSECOND).await;
                assert!(self.check(cost, plan).await.is_ok(), "it came when it was told to");
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
        let told = self.limiter.check_n_with(&0, cost, limits).await;
        if cost == 0 || limits.is_empty() {
            assert_eq!(told.expect("nothing is charged").remaining(), u32::MAX);
            return Ok(());
        }
        if limits.iter().any(|limit| limit.quota() < cost) {
            let limited = told.expect_err("more than a quota never passes");
            assert_eq!(limited.ready_at(), None);
            return Err(limited);
        }
        let now = Instant::now();
        let permit = match told {
            Ok(permit) => permit,
            Err(limited) => {
                assert!(limited.ready_at().expect("it is not above a quota") > now);
                assert!(limits.contains(limited.limit()), "a limit of another plan");
                if self.window == Window::Log {
                    let has_room = |(index, limit): (usize, &Limit)| {
                        Span::exact(limit).has_room(&self.calls_of(index, false), now, cost)
                    };
                    let have_room = limits.iter().enumerate().all(has_room);
                    assert!(!have_room, "nothing was in use: {:?}", self.known);
                }
                self.ask(plan);
                return Err(limited);
            }
        };
        if self.window != Window::Gcra {
            for (index, limit) in self.plans[plan].iter().enumerate() {
                let has_room = Span::exact(limit).has_room(&self.calls_of(index, true), now, cost);
                assert!(has_room, "{cost} more than {limit}: {:?}", self.known);
            }
        }
        self.ask(plan);
        self.calls += 1;
        let call = Call { number: self.calls, at: now, cost };
        let limits = 0..self.plans[plan].len();
        self.known.extend(limits.map(|limit| PlanCall { call, limit, is_certain: true }));
        let (remaining, left) = (permit.remaining(), self.peek(plan).await);
        assert_eq!(remaining, left, "a permit knows what is left as well as a peek");
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
        self.ask(plan);
        state.remaining()
    }

    fn calls_of(&self, limit: usize, certain: bool) -> Vec<Call> {
        let calls = self.known.iter().filter(|known| known.limit == limit);
        calls.filter(|known| known.is_certain || !certain).map(|known| known.call).collect()
    }

    /// What has left the windows of a plan that asks may be forgotten.
    fn ask(&mut self, plan: usize) {
        let now = Instant::now();
        for known in &mut self.known {
            if let Some(limit) = self.plans[plan].get(known.limit) {
                known.is_certain &= now - known.call.at < limit.per();
            }
        }
    }
}

#[test]
fn no_change_of_plans_lets_more_pass_than_the_plan_that_is_asked() {
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

/// Plans of which only the quota changes: then the log is as exact as without a change.
#[test]
fn a_quota_that_goes_up_and_down_counts_the_same_calls() {
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
                assert_eq!(passes, Span::exact(&limit).has_room(&calls, now, 1), "{calls:?}");
                if passes {
                    calls.push(Call { number: 0, at: now, cost: 1 });
                }
            }
        });
    });
}

/// The longest windows, the greatest quotas, and plans from one end to the other: nothing overflows.
#[test]
fn no_extreme_panics() {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
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
                            let told = limiter.check_n_with(&0, cost, &plan).await;
                            assert!(told.is_err() || cost <= least);
                            if let Err(limited) = &told {
                                assert_eq!(limited.ready_at().is_none(), cost > least);
                                assert!(limited.retry_after() > Duration::ZERO);
                            }
                            let left = limiter.peek_with(&0, &plan).await;
                            assert!(left.remaining() <= least);
                            let one = limiter.peek_with(&0, &plan[1..]).await;
                            assert!(one.remaining() <= second.quota());
                            if let Ok(permit) = told
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

/// The whole life of a window of a century: nothing comes back before its time, and all of it then.
#[test]
fn a_century_is_a_window_as_any_other() {
    let century = Duration::from_secs(100 * 365 * 86_400);
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(10), Window::Gcra] {
        paused(async {
            let limiter = RateLimiter::<Key>::builder().window(window);
            let limiter = limiter.limit(Limit::new(2, century)).sweep(Sweep::manual()).build();
            assert!(limiter.check_n(&0, 2).await.is_ok());
            let limited = limiter.check_n(&0, 2).await.expect_err("it is all in use");
            assert!(limited.retry_after() >= century, "{:?}", limited.retry_after());
            assert!(limited.retry_after() <= 2 * century, "{:?}", limited.retry_after());
            advance(limited.retry_after() - NANOSECOND).await;
            assert!(limiter.check_n(&0, 2).await.is_err());
            advance(NANOSECOND).await;
            assert!(limiter.check_n(&0, 2).await.is_ok());
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
