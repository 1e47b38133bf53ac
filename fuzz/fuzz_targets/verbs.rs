//! Runs random sequences of cache methods with random settings, and compares the results with the oracle.
//!
//! In addition to `tests/cache/model.rs`, it covers settings that must panic, deadlines near the end of time, tables of
//! more than one window, and causes that are not published.
#![no_main]

#[path = "../../tests/common/calls.rs"]
mod calls;
#[path = "../../tests/common/comparison.rs"]
mod comparison;
#[path = "../../tests/common/oracle.rs"]
mod oracle;
#[path = "sequence.rs"]
mod sequence;

use std::{
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use arbitrary::Arbitrary;
use fleeting::{Builder, Cache, Cause, Sweep};
use libfuzzer_sys::fuzz_target;

use self::{
    calls::{Call, Setup, Span},
    comparison::{Comparison, jittered},
    oracle::{Bound, Key, Value},
    sequence::Sequence,
};

#[derive(Arbitrary, Debug)]
struct Input {
    settings: Settings,
    calls: Sequence<Call>,
}

#[derive(Arbitrary, Debug)]
struct Settings {
    default_ttl: Option<Span>,
    time_to_idle: Option<Span>,
    jitter: Number,
    stale_while_revalidate: Option<Span>,
    stale_if_error: Option<Span>,
    negative_ttl: Option<Span>,
    refresh_ahead: Option<Number>,
    bound: AnyBound,
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

/// Usually none, or one that evicts.
#[derive(Arbitrary, Debug)]
enum AnyBound {
    None,
    Entries(u8),
    Weight(u8),
}

fuzz_target!(|input: Input| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let setup = input.settings.setup();
        // The comparison locks all shards after each call, so the number of calls is limited by that of the shards.
        let calls = 10_000_usize.div_ceil(setup.shards);
        let mut comparison = Comparison::new(setup);
        for call in input.calls.0.into_iter().take(calls) {
            comparison.run(call).await;
        }
        comparison.end().await;
    });
});

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

impl Settings {
    /// Returns the settings, of which refused ones keep a default.
    fn setup(&self) -> Setup {
        Setup {
            settings: self.oracle_settings(),
            shards: self.shards(),
            initial_capacity: usize::from(self.initial_capacity % 1_000),
            sweep: self.sweep(),
            passes: self.passes(),
            causes: self.causes(),
            event_capacity: self.event_capacity(),
            slow: self.slow(),
        }
    }

    fn oracle_settings(&self) -> oracle::Settings {
        let time_to_idle = self.time_to_idle();
        let jitter = if time_to_idle.is_some() { 0.0 } else { self.jitter() };
        let window = |window: Option<Span>| window.map(Span::duration).unwrap_or_default();
        oracle::Settings {
            default_ttl: self.default_ttl.map(|ttl| jittered(ttl.duration(), jitter)),
            time_to_idle,
            jitter,
            stale_while_revalidate: window(self.stale_while_revalidate),
            stale_if_error: window(self.stale_if_error),
            negative_ttl: self.negative_ttl(),
            refresh_ahead: self.refresh_ahead(),
            bound: self.bound(),
        }
    }

    fn jitter(&self) -> f64 {
        let jitter = self.jitter.value();
        if (0.0..1.0).contains(&jitter) {
            // More would shorten the shortest TTLs to zero.
            return jitter.min(0.99);
        }
        let why = format!("jitter must be at least 0 and below 1, got {jitter}");
        refused(|| builder().jitter(jitter), &why);
        0.0
    }

    fn negative_ttl(&self) -> Option<Duration> {
        let ttl = self.negative_ttl?.duration();
        if ttl.is_zero() {
            refused(|| builder().negative_ttl(ttl), "negative_ttl must be above zero, got 0ns");
            return None;
        }
        Some(ttl)
    }

    fn refresh_ahead(&self) -> f64 {
        // Loads take a nanosecond, so this is the mean time of a refresh before the deadline in seconds.
        let Some(factor) = self.refresh_ahead.map(|seconds| seconds.value() * 1e9) else {
            return 0.0;
        };
        if factor >= 0.0 && factor.is_finite() {
            return factor;
        }
        let why = format!("refresh_ahead must be a number and at least 0, got {factor}");
        refused(|| builder().refresh_ahead(factor), &why);
        0.0
    }

    fn shards(&self) -> usize {
        match self.shards.number() {
            shards @ 1..=65_536 => shards,
            shards => {
                let why = format!("shards must be 1 to 65536, got {shards}");
                refused(|| builder().shards(shards), &why);
                4
            }
        }
    }

    fn event_capacity(&self) -> usize {
        if self.event_capacity == 0 {
            refused(|| builder().event_capacity(0), "event_capacity must be at least 1, got 0");
        }
        usize::from(self.event_capacity).max(1)
    }

    fn slow(&self) -> Option<usize> {
        if self.slow == Some(0) {
            let why = "the capacity of lossless events must be at least 1, got 0";
            let cache = builder().build();
            refused(|| cache.events_lossless(0), why);
        }
        self.slow.map(usize::from).filter(|capacity| *capacity > 0)
    }

    fn time_to_idle(&self) -> Option<Duration> {
        let idle = self.time_to_idle?.duration();
        if idle.is_zero() {
            refused(|| builder().time_to_idle(idle), "time_to_idle must be above zero, got 0ns");
            return None;
        }
        Some(idle)
    }

    fn bound(&self) -> Bound {
        match self.bound {
            AnyBound::None => Bound::None,
            AnyBound::Entries(0) => {
                refused(|| builder().max_entries(0), "max_entries must be at least 1, got 0");
                Bound::None
            }
            AnyBound::Weight(0) => {
                let why = "max_weight must be at least 1, got 0";
                refused(|| builder().max_weight(0, |_, _| 1), why);
                Bound::None
            }
            AnyBound::Entries(bound) => Bound::Entries(bound.into()),
            AnyBound::Weight(bound) => Bound::Weight(bound.into()),
        }
    }

    fn passes(&self) -> f64 {
        let sample = self.sample.value();
        (1.0 / if is_share(sample) { sample } else { 0.1 }).ceil()
    }

    fn causes(&self) -> Vec<Cause> {
        let mut causes = vec![Cause::Expired, Cause::Evicted];
        // Evictions of entries that were removed by tag must be visible.
        let is_bounded = !matches!(self.bound, AnyBound::None);
        causes.extend((self.removed || is_bounded).then_some(Cause::Removed));
        causes.extend((self.replaced || is_bounded).then_some(Cause::Replaced));
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

fn builder() -> Builder<Key, Value> {
    Cache::builder()
}

fn is_share(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}
