//! Oracle of several limits for one key: random sequences of calls, compared with a naive model that stores every call
//! of a key with the limit that admitted it. It asserts the rules of the contract, not an algorithm, and so the same
//! sequences run in memory and on Redis. Times are microseconds.
//!
//! `FLEETING_ORACLE_SEQUENCES` sets the number of sequences, `FLEETING_SEED` the seed. A failing sequence is printed
//! after all calls without which it fails as well were removed.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

#[path = "several_limits/cases.rs"]
pub(crate) mod cases;
#[path = "several_limits/model.rs"]
mod model;
#[path = "several_limits/run.rs"]
mod run;
#[path = "several_limits/sequence.rs"]
mod sequence;
#[path = "several_limits/shrink.rs"]
mod shrink;

use std::{collections::BTreeMap, panic::AssertUnwindSafe, time::Duration};

use fleeting::{Limit, State};
use futures::FutureExt;
use rand::{SeedableRng, rngs::SmallRng};

pub(crate) use self::{
    run::play,
    sequence::{Features, Sequence, Setup},
};

/// A limiter with its clock, in memory or on Redis.
pub(crate) trait Backend {
    type Permit;

    /// Longest difference between the time of a reply and that of the model: of the rounding and the connection.
    const SLACK: u64;

    /// True if waits are by the clock of the limiter, and a dropped call has an exact effect.
    const HAS_WAITERS: bool;

    fn now(&self) -> u64;
    async fn pass(&self, time: u64);
    async fn check(&self, key: &str, cost: u32, limits: Option<&[Limit]>) -> Checked<Self>;
    async fn peek(&self, key: &str, limits: &[Limit]) -> State;
    async fn refund(&self, permit: Self::Permit);
    async fn settle(&self, permit: Self::Permit, actual: u32);
    /// `None`: the limits of the builder.
    async fn set_limits(&self, limits: Option<&[Limit]>);
    async fn reset(&self, key: &str) -> bool;
    async fn until_ready_within(&self, key: &str, most: Duration) -> Checked<Self>;
    /// Polls a waiter a number of times, and drops it. Returns its permit if it was admitted.
    async fn give_up(&self, key: &str, polls: u32) -> Option<Self::Permit>;
    fn remaining(permit: &Self::Permit) -> u32;
}

pub(crate) type Checked<B> = Result<<B as Backend>::Permit, Denial>;

/// A denial: after at least and at most which time its call would pass, by a clock that does not run during a call.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// True if the call would pass at a later time.
    pub(crate) is_ready_later: bool,
    /// Limit that the denial names.
    pub(crate) limit: Limit,
}

/// A rule of the contract that a sequence broke.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) promise: &'static str,
    pub(crate) details: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Broken>;

/// Returns an error with the details unless the promise is kept.
pub(crate) fn promise(
    kept: bool,
    promise: &'static str,
    details: impl FnOnce() -> String,
) -> Outcome {
    if kept { Ok(()) } else { Err(Broken { promise, details: details() }) }
}

/// Runs random sequences. Each promise that is broken is reported once for each window, with the shortest sequence.
///
/// `play` runs a sequence on a new limiter. The runs of a sequence must have the same result.
pub(crate) async fn run_sequences(
    default: u64,
    features: Features,
    play: impl AsyncFn(&Sequence) -> Outcome,
) {
    let play = async |sequence: &Sequence| {
        let panicked = |_| {
            let details = "its message is above".to_owned();
            Err(Broken { promise: "no call panics", details })
        };
        AssertUnwindSafe(play(sequence)).catch_unwind().await.unwrap_or_else(panicked)
    };
    let number = |name: &str| Some(std::env::var(name).ok()?.parse().expect("a number"));
    let sequences = number("FLEETING_ORACLE_SEQUENCES").unwrap_or(default);
    let seed = number("FLEETING_SEED").unwrap_or(44);
    println!("{sequences} sequences from seed {seed}");
    let begin = std::time::Instant::now();
    let mut broken: BTreeMap<(String, &str), (u64, u64, Sequence, Broken)> = BTreeMap::new();
    for number in 0..sequences {
        let seed = seed.wrapping_mul(1 << 32) + number;
        let sequence = Sequence::random(&mut SmallRng::seed_from_u64(seed), features);
        if let Err(reason) = play(&sequence).await {
            let window = format!("{:?}", sequence.setup.window);
            let entry =
                broken.entry((window, reason.promise)).or_insert((0, seed, sequence, reason));
            entry.0 += 1;
        }
    }
    println!("played in {:?}", begin.elapsed());
    let mut report = String::new();
    for ((window, promise), (times, seed, sequence, reason)) in &broken {
        let (shortest, reason) = shrink::shortest(sequence, reason, &play).await;
        let details = reason.details;
        report += &format!(
            "\n\n{times} of {sequences} sequences, seed {seed}, {window}: broken promise '{promise}'\n{shortest}=> {details}"
        );
    }
    assert!(broken.is_empty(), "{report}");
}

/// Limits in microseconds, for the model.
fn micros(length: Duration) -> u64 {
    length.as_micros() as u64
}
