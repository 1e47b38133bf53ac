//! Runs random sequences of cache methods with random settings, and compares the results with a naive map.
//!
//! In addition to `tests/cache/model.rs`, it covers settings that must panic, deadlines near the end of time, tables of
//! more than one window, and subscribers that fall behind.
#![no_main]

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use arbitrary::Arbitrary;
use fleeting::{Builder, Cache, Cause, Event, Events, LosslessEvents, Sweep, Ttl, When};
use futures_util::FutureExt;
use libfuzzer_sys::fuzz_target;
use tokio::{
    task::unconstrained,
    time::{Instant, advance},
};

type Key = u16;

/// Nanoseconds since the cache was built; `None` is persistent.
type Deadline = Option<i128>;

/// The cache stores deadlines in a `u64`, and is built at 2^58. A later deadline than `LATEST` is persistent; a deadline
/// before `EARLIEST` is set to it.
const LATEST: i128 = u64::MAX as i128 - (1 << 58);
const EARLIEST: i128 = 1 - (1 << 58);

/// Capacity of a lossless stream that no sequence fills.
const ENOUGH: usize = 1 << 20;

/// Maximum of passes times shards that a rotation may take: more would make a run too slow.
const LONGEST_ROTATION: f64 = 2_000.0;

#[derive(Arbitrary, Debug)]
struct Input {
    setup: Setup,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
struct Setup {
    default_ttl: Option<Span>,
    shards: Shards,
    initial_capacity: u16,
    event_capacity: u8,
    manual: bool,
    every: Span,
    sample: Number,
    repeat_at: Number,
    budget: Number,
    seed: u64,
    removed: bool,
    replaced: bool,
    /// Capacity of a lossless subscriber that reads rarely.
    slow: Option<u8>,
}

/// Usually few shards, so that their tables grow; sometimes any number.
#[derive(Arbitrary, Debug)]
struct Shards {
    few: u8,
    any: u32,
}

/// Any number, often a valid one.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Parts(u8),
    Any(f64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Span {
    /// Few distinct instants, so that deadlines coincide.
    Ticks(u8),
    Nanoseconds(u32),
    Years(u16),
    Longest,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Condition {
    NoTtl,
    HasTtl,
    Later,
    Sooner,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Get(u8),
    GetEx(u8, Span),
    GetExWith(u8, Span),
    Set(u8),
    SetEx(u8, Span),
    SetNx(u8, Option<Span>),
    SetKeepTtl(u8),
    /// Enough keys to make tables grow, and shrink after their removal.
    Fill(Key, Span),
    Remove(u8),
    ContainsKey(u8),
    Ttl(u8),
    Expire(u8, Span),
    ExpireIf(u8, Span, Condition),
    ExpireAt(u8, Span),
    ExpireBefore(u8, Span),
    Extend(u8, Span),
    Persist(u8),
    ExpireNow(u8),
    Update(u8),
    Clear,
    Advance(Span),
    Sweep,
    /// The number of passes that examines every entry.
    Rotate,
    Pause,
    Resume,
    Iterate,
    ReadSlowStreams,
    DropSlow,
}

fuzz_target!(|input: Input| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut test = Test::new(input.setup);
        // `check` locks all shards after each method, so the number of methods is limited by that of the shards.
        let ops = 10_000_usize.div_ceil(test.shards);
        for op in input.ops.into_iter().take(ops) {
            test.run(op).await;
        }
        test.end().await;
    });
});

impl Span {
    fn duration(self) -> Duration {
        match self {
            Span::Ticks(n) => Duration::from_millis(100 * u64::from(n % 8)),
            Span::Nanoseconds(n) => Duration::from_nanos(n.into()),
            Span::Years(n) => Duration::from_secs(365 * 86_400 * u64::from(n % 1_000)),
            Span::Longest => Duration::MAX,
        }
    }
}

/// Asserts that `setter` panics with the message `why`.
fn refused<T>(setter: impl FnOnce() -> T, why: &str) {
    // The fuzzer's own panic hook aborts the process.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let result = panic::catch_unwind(AssertUnwindSafe(setter));
    panic::set_hook(hook);
    let payload = result.err().expect("a bad value must be refused");
    assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some(why));
}

type SetShare = fn(Sweep, f64) -> Sweep;

impl Setup {
    /// Returns a builder in which refused settings keep their default.
    fn builder(&self) -> Builder<Key, u32> {
        let mut builder = Cache::builder()
            .initial_capacity(usize::from(self.initial_capacity % 1_000))
            .publish(self.causes())
            .sweep(self.sweep());
        match self.shards.number() {
            shards @ 1..=65_536 => builder = builder.shards(shards),
            shards => {
                let why = format!("shards must be 1 to 65536, got {shards}");
                refused(|| Cache::<Key, u32>::builder().shards(shards), &why);
            }
        }
        match self.event_capacity {
            0 => {
                let why = "event_capacity must be at least 1, got 0";
                refused(|| Cache::<Key, u32>::builder().event_capacity(0), why);
            }
            events => builder = builder.event_capacity(events.into()),
        }
        match self.default_ttl {
            None => builder,
            Some(ttl) => builder.time_to_live(ttl.duration()),
        }
    }

    fn passes(&self) -> f64 {
        let sample = self.sample.value();
        (1.0 / if is_share(sample) { sample } else { 0.1 }).ceil()
    }

    fn causes(&self) -> Vec<Cause> {
        let mut causes = vec![Cause::Expired];
        causes.extend(self.removed.then_some(Cause::Removed));
        causes.extend(self.replaced.then_some(Cause::Replaced));
        causes
    }

    fn sweep(&self) -> Sweep {
        let mut sweep = Sweep::default();
        let shares: [(&str, Number, SetShare); 3] = [
            ("sample", self.sample, Sweep::sample),
            ("repeat_at", self.repeat_at, Sweep::repeat_at),
            ("budget", self.budget, Sweep::budget),
        ];
        if self.manual {
            sweep = Sweep::manual();
        } else if self.every.duration().is_zero() {
            let why = "every must be longer than zero, got 0ns";
            refused(|| Sweep::default().every(Duration::ZERO), why);
        } else {
            sweep = sweep.every(self.every.duration());
        }
        for (name, number, set) in shares {
            let share = number.value();
            if is_share(share) {
                sweep = set(sweep, share);
            } else {
                let why = format!("{name} must be above 0 and at most 1, got {share}");
                refused(|| set(Sweep::default(), share), &why);
            }
        }
        sweep.seed(self.seed)
    }
}

impl Shards {
    fn number(&self) -> usize {
        match self.few {
            0 => 0,
            255 => self.any as usize % 100_000,
            few => 1 + usize::from(few % 4),
        }
    }
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Parts(n) => f64::from(n) / 200.0,
            Number::Any(value) => value,
        }
    }
}

/// The naive map of resident entries, expired or not.
struct Model {
    start: Instant,
    entries: BTreeMap<Key, (u32, Deadline)>,
    expected: Vec<EventRecord>,
    /// The published causes.
    causes: Vec<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventRecord {
    key: Key,
    value: u32,
    deadline: Deadline,
    cause: &'static str,
}

impl Model {
    fn now(&self) -> i128 {
        self.start.elapsed().as_nanos() as i128
    }

    fn after(&self, ttl: Span) -> Deadline {
        deadline_at(self.now() + ttl.duration().as_nanos() as i128)
    }

    fn is_dead(&self, deadline: Deadline) -> bool {
        deadline.is_some_and(|deadline| self.now() >= deadline)
    }

    /// Returns the live value, as the first step of each method; removes an expired one.
    fn live(&mut self, key: Key) -> Option<(u32, Deadline)> {
        let (value, deadline) = *self.entries.get(&key)?;
        if !self.is_dead(deadline) {
            return Some((value, deadline));
        }
        self.depart(key, Cause::Expired, deadline);
        None
    }

    fn depart(&mut self, key: Key, cause: Cause, deadline: Deadline) -> Option<u32> {
        let (value, _) = self.entries.remove(&key)?;
        if self.causes.contains(&cause) {
            self.expected.push(EventRecord { key, value, deadline, cause: name(cause) });
        }
        Some(value)
    }

    fn put(&mut self, key: Key, value: u32, deadline: Deadline) -> Option<u32> {
        let old = self.live(key).and_then(|(_, old)| old);
        let replaced = self.depart(key, Cause::Replaced, old);
        self.entries.insert(key, (value, deadline));
        replaced
    }

    /// Gives a live value the deadline that `new` returns, if any. Returns whether it was changed.
    fn set_deadline(&mut self, key: Key, new: impl FnOnce(Deadline) -> Option<Deadline>) -> bool {
        let Some((value, old)) = self.live(key) else { return false };
        let new = new(old);
        if let Some(new) = new {
            self.entries.insert(key, (value, new));
        }
        new.is_some()
    }

    fn live_entries(&self) -> BTreeMap<Key, u32> {
        let live = self.entries.iter().filter(|(_, (_, deadline))| !self.is_dead(*deadline));
        live.map(|(key, (value, _))| (*key, *value)).collect()
    }

    fn record_of(&self, event: &Event<Key, u32>) -> EventRecord {
        let deadline = event.deadline.map(|deadline| self.since_start(deadline));
        EventRecord { key: event.key, value: event.value, deadline, cause: name(event.cause) }
    }

    fn since_start(&self, instant: Instant) -> i128 {
        match instant.checked_duration_since(self.start) {
            Some(ahead) => ahead.as_nanos() as i128,
            None => -((self.start - instant).as_nanos() as i128),
        }
    }
}

fn deadline_at(nanoseconds: i128) -> Deadline {
    (nanoseconds <= LATEST).then_some(nanoseconds.max(EARLIEST))
}

fn is_share(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Expired => "expired",
        Cause::Removed => "removed",
        Cause::Replaced => "replaced",
        other => panic!("unexpected cause {other:?}"),
    }
}

struct Test {
    cache: Cache<Key, u32>,
    model: Model,
    /// Read after each method: it shows which entries the sweeper examined.
    lossless: LosslessEvents<Key, u32>,
    /// Streams that are read rarely, with the events that they have not yet returned.
    events: (Events<Key, u32>, VecDeque<EventRecord>),
    slow: Option<(LosslessEvents<Key, u32>, VecDeque<EventRecord>)>,
    event_capacity: usize,
    slow_capacity: usize,
    default_ttl: Option<Span>,
    /// The number of passes that examines every entry.
    passes: f64,
    shards: usize,
    next_value: u32,
}

impl Test {
    fn new(setup: Setup) -> Self {
        let cache = setup.builder().build();
        if setup.slow == Some(0) {
            let why = "the capacity of lossless events must be at least 1, got 0";
            refused(|| cache.events_lossless(0), why);
        }
        let slow_capacity = usize::from(setup.slow.unwrap_or(0));
        let slow = (slow_capacity > 0).then(|| cache.events_lossless(slow_capacity));
        Self {
            model: Model {
                start: Instant::now(),
                entries: BTreeMap::new(),
                expected: Vec::new(),
                causes: setup.causes(),
            },
            lossless: cache.events_lossless(ENOUGH),
            events: (cache.events(), VecDeque::new()),
            slow: slow.map(|slow| (slow, VecDeque::new())),
            event_capacity: match setup.event_capacity {
                0 => 1_024,
                events => events.into(),
            },
            slow_capacity,
            cache,
            default_ttl: setup.default_ttl,
            passes: setup.passes(),
            shards: match setup.shards.number() {
                shards @ 1..=65_536 => shards,
                // The default is about this number.
                _ => 64,
            },
            next_value: 0,
        }
    }

    async fn run(&mut self, op: Op) {
        self.next_value += 1;
        let (cache, model, value) = (&self.cache, &mut self.model, self.next_value);
        let default = self.default_ttl.and_then(|ttl| model.after(ttl));
        match op {
            Op::Get(key) => {
                let key = fold_key(key);
                assert_eq!(cache.get(&key).await, model.live(key).map(|(value, _)| value));
            }
            Op::GetEx(key, ttl) => {
                let (key, new) = (fold_key(key), model.after(ttl));
                let live = model.live(key).map(|(value, _)| value);
                assert_eq!(cache.get_ex(&key, ttl.duration()).await, live);
                model.set_deadline(key, |_| Some(new));
            }
            Op::GetExWith(key, ttl) => {
                let (key, new) = (fold_key(key), model.after(ttl));
                let live = model.live(key).map(|(value, _)| value);
                let found = cache.get_ex_with(&key, |found| {
                    assert_eq!(Some(*found), live);
                    ttl.duration()
                });
                assert_eq!(found.await, live);
                model.set_deadline(key, |_| Some(new));
            }
            Op::Set(key) => {
                let key = fold_key(key);
                assert_eq!(cache.set(key, value).await, model.put(key, value, default));
            }
            Op::SetEx(key, ttl) => {
                let (key, new) = (fold_key(key), model.after(ttl));
                let replaced = cache.set_ex(key, value, ttl.duration()).await;
                assert_eq!(replaced, model.put(key, value, new));
            }
            Op::SetNx(key, ttl) => {
                let key = fold_key(key);
                let set = cache.set_nx(key, value, ttl.map(Span::duration)).await;
                assert_eq!(set, model.live(key).is_none());
                if set {
                    model.put(key, value, ttl.map_or(default, |ttl| model.after(ttl)));
                }
            }
            Op::SetKeepTtl(key) => {
                let key = fold_key(key);
                let kept = model.live(key).map_or(default, |(_, deadline)| deadline);
                let replaced = cache.set_keep_ttl(key, value).await;
                assert_eq!(replaced, model.put(key, value, kept));
            }
            Op::Fill(keys, ttl) => {
                let new = model.after(ttl);
                for key in 0..keys % 1_024 {
                    let replaced = cache.set_ex(key, value, ttl.duration()).await;
                    assert_eq!(replaced, model.put(key, value, new));
                }
            }
            Op::Remove(key) => {
                let key = fold_key(key);
                let live = model.live(key);
                let removed = live.and_then(|(_, d)| model.depart(key, Cause::Removed, d));
                assert_eq!(cache.remove(&key).await, removed);
            }
            Op::ContainsKey(key) => {
                let key = fold_key(key);
                assert_eq!(cache.contains_key(&key).await, model.live(key).is_some());
            }
            Op::Ttl(key) => {
                let key = fold_key(key);
                let ttl = match model.live(key) {
                    None => Ttl::Missing,
                    Some((_, None)) => Ttl::Persistent,
                    Some((_, Some(deadline))) => {
                        let left = deadline - model.now();
                        Ttl::Remaining(Duration::from_nanos(left as u64))
                    }
                };
                assert_eq!(cache.ttl(&key).await, ttl);
            }
            Op::Expire(key, ttl) => {
                let (key, new) = (fold_key(key), model.after(ttl));
                let changed = model.set_deadline(key, |_| Some(new));
                assert_eq!(cache.expire(&key, ttl.duration()).await, changed);
            }
            Op::ExpireIf(key, ttl, condition) => {
                let (key, new) = (fold_key(key), model.after(ttl));
                let order = |deadline: Deadline| deadline.unwrap_or(i128::MAX);
                let (when, holds): (_, fn(i128, i128) -> bool) = match condition {
                    Condition::NoTtl => (When::NoTtl, |old, _| old == i128::MAX),
                    Condition::HasTtl => (When::HasTtl, |old, _| old < i128::MAX),
                    Condition::Later => (When::Later, |old, new| new > old),
                    Condition::Sooner => (When::Sooner, |old, new| new < old),
                };
                let changed =
                    model.set_deadline(key, |old| holds(order(old), order(new)).then_some(new));
                assert_eq!(cache.expire_if(&key, ttl.duration(), when).await, changed);
            }
            Op::ExpireAt(key, ahead) => {
                let Some(at) = Instant::now().checked_add(ahead.duration()) else { return };
                let (key, new) = (fold_key(key), model.after(ahead));
                let changed = model.set_deadline(key, |_| Some(new));
                assert_eq!(cache.expire_at(&key, at).await, changed);
            }
            Op::ExpireBefore(key, behind) => {
                let Some(at) = Instant::now().checked_sub(behind.duration()) else { return };
                let (key, new) = (fold_key(key), deadline_at(model.since_start(at)));
                let changed = model.set_deadline(key, |_| Some(new));
                assert_eq!(cache.expire_at(&key, at).await, changed);
            }
            Op::Extend(key, more) => {
                let key = fold_key(key);
                let more = more.duration();
                let extended =
                    |old: Deadline| Some(deadline_at(old?.saturating_add(more.as_nanos() as i128)));
                let changed = model.set_deadline(key, extended);
                assert_eq!(cache.extend(&key, more).await, changed);
            }
            Op::Persist(key) => {
                let key = fold_key(key);
                let changed = model.set_deadline(key, |old| old.map(|_| None));
                assert_eq!(cache.persist(&key).await, changed);
            }
            Op::ExpireNow(key) => {
                let key = fold_key(key);
                let now = Some(model.now());
                let live = model.live(key);
                let ended = live.and_then(|_| model.depart(key, Cause::Expired, now));
                assert_eq!(cache.expire_now(&key).await, ended);
            }
            Op::Update(key) => {
                let key = fold_key(key);
                let live = model.live(key);
                let old = cache.update(&key, |v| std::mem::replace(v, value)).await;
                assert_eq!(old, live.map(|(value, _)| value));
                if let Some((_, deadline)) = live {
                    model.entries.insert(key, (value, deadline));
                }
            }
            Op::Clear => {
                cache.clear().await;
                let keys: Vec<Key> = model.entries.keys().copied().collect();
                for key in keys {
                    if let Some((_, deadline)) = model.live(key) {
                        model.depart(key, Cause::Removed, deadline);
                    }
                }
            }
            Op::Advance(span) => {
                // Tokio's timers do not reach centuries into the future.
                let span = span.duration().min(Duration::from_secs(3_600));
                advance(span).await;
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                self.accept_swept();
            }
            Op::Sweep => self.sweep().await,
            Op::Rotate => self.rotate().await,
            Op::Pause => cache.pause_sweeper(),
            Op::Resume => cache.resume_sweeper(),
            Op::Iterate => {
                let live = model.live_entries();
                assert_eq!(cache.live_len(), live.len());
                assert_eq!(cache.iter().count(), live.len(), "each entry once");
                assert_eq!(cache.iter().collect::<BTreeMap<_, _>>(), live);
                assert_eq!(cache.keys().count() + cache.values().count(), 2 * live.len());
            }
            Op::ReadSlowStreams => self.read_slow_streams(),
            Op::DropSlow => self.slow = None,
        }
        self.check();
    }

    /// The sweeper may choose its sample, but swept entries must be expired, and their events must match the model.
    fn accept_swept(&mut self) -> u64 {
        let mut swept = 0;
        while let Some(event) = unconstrained(self.lossless.recv()).now_or_never().flatten() {
            assert!(self.model.live(event.key).is_none(), "a live value was swept");
            let record = self.model.record_of(&event);
            assert_eq!(self.model.expected.pop(), Some(record));
            self.expect_event(record);
            swept += 1;
        }
        swept
    }

    /// Runs a manual sweep. The sweeper may be within a sweep of its own and continue it when this one yields, so the
    /// events of both are expected.
    async fn sweep(&mut self) {
        let before = self.cache.stats().expired;
        let report = self.cache.sweep().await;
        let expired = self.cache.stats().expired - before;
        assert!(report.expired <= expired, "{report:?} of {expired}");
        assert_eq!(expired, self.accept_swept());
    }

    /// Checks the bound on staleness, unless a lossless subscriber may delay the sweeper.
    async fn rotate(&mut self) {
        if self.slow.is_some() || self.passes * self.shards as f64 > LONGEST_ROTATION {
            return;
        }
        for _ in 0..self.passes as u32 {
            self.sweep().await;
        }
        let live = self.model.live_entries().len();
        assert_eq!(self.model.entries.len(), live, "a rotation must examine every entry");
    }

    fn check(&mut self) {
        let (len, resident) = (self.cache.len(), self.model.entries.len());
        assert_eq!((len, self.cache.is_empty()), (resident, resident == 0));
        let next = || unconstrained(self.lossless.recv()).now_or_never().flatten();
        let received: Vec<_> = std::iter::from_fn(next).collect();
        let mut received: Vec<EventRecord> = received
            .iter()
            .map(|event| {
                assert_eq!(event.at, Instant::now());
                self.model.record_of(event)
            })
            .collect();
        received.iter().for_each(|record| self.expect_event(*record));
        let mut expected = std::mem::take(&mut self.model.expected);
        // `clear` proceeds by shards: only the order of the events of one key is fixed.
        expected.sort_by_key(|record| record.key);
        received.sort_by_key(|record| record.key);
        assert_eq!(received, expected);
        let waiting = self.slow.as_ref().map_or(0, |(_, pending)| pending.len());
        let overflow = waiting.saturating_sub(self.slow_capacity);
        assert_eq!(self.cache.stats().overflow, overflow);
    }

    /// Expects the event on every stream, in the same order.
    fn expect_event(&mut self, record: EventRecord) {
        self.events.1.push_back(record);
        if let Some((_, pending)) = &mut self.slow {
            pending.push_back(record);
        }
    }

    fn read_slow_streams(&mut self) {
        let (events, pending) = &mut self.events;
        let missed = pending.len().saturating_sub(self.event_capacity);
        if missed > 0 {
            let lagged = unconstrained(events.recv()).now_or_never().flatten();
            assert_eq!(lagged.and_then(Result::err).map(|lagged| lagged.0), Some(missed as u64));
        }
        for record in pending.drain(..).skip(missed) {
            let event =
                unconstrained(events.recv()).now_or_never().flatten().expect("an event is pending");
            assert_eq!(self.model.record_of(&event.expect("not missed")), record);
        }
        if let Some((slow, pending)) = &mut self.slow {
            for record in pending.drain(..) {
                let event = unconstrained(slow.recv()).now_or_never().flatten().expect("lossless");
                assert_eq!(self.model.record_of(&event), record);
            }
        }
    }

    async fn end(mut self) {
        self.rotate().await;
        self.cache.shutdown().await;
        self.accept_swept();
        let live = self.model.live_entries();
        assert_eq!(
            self.model.entries.len(),
            live.len(),
            "expired entries must be removed at shutdown"
        );
        self.check();
        self.read_slow_streams();
        assert!(self.lossless.recv().await.is_none() && self.events.0.recv().await.is_none());
        if let Some((slow, _)) = &mut self.slow {
            assert!(slow.recv().await.is_none());
        }
    }
}

/// Maps to few keys, so that operations meet on them; some are outside of the range of `Fill`.
fn fold_key(key: u8) -> Key {
    match key {
        ..224 => Key::from(key % 8),
        _ => 2_000 + Key::from(key),
    }
}
