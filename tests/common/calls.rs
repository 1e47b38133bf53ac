//! Calls of a cache and settings of its builder, as the model test and the fuzzer generate them.

use std::time::Duration;

use fleeting::{Cause, Sweep};

use crate::oracle::{Condition, Key};

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Call {
    Read(u8, Read),
    ReadMany(Vec<u8>),
    Write(u8, Write),
    WriteMany(Vec<u8>, Option<Span>),
    /// Enough keys to make tables grow, and shrink after their removal.
    Fill(Key, Span),
    Deadline(u8, DeadlineCall),
    Compute(u8, Change),
    ComputeWith(u8, Change),
    Load(u8, Option<Span>, Load),
    LoadMany(Vec<u8>, Span),
    Removal(Removal),
    Sweeper(SweeperCall),
    Advance(Span),
    Iterate,
    /// Changes the bound, if the cache has one.
    SetBound(u8),
    ReadSlowStreams,
    DropSlow,
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Read {
    Get,
    GetEx(Span),
    GetExWith(Span),
    ContainsKey,
    Ttl,
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Write {
    Set,
    SetEx(Span),
    SetNx(Option<Span>),
    SetKeepTtl,
    SetTagged(Span, u8),
    Update,
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum DeadlineCall {
    Expire(Span),
    ExpireIf(Span, Condition),
    ExpireAt(Span),
    /// `expire_at` with an instant in the past.
    ExpireBefore(Span),
    Extend(Span),
    Persist,
    ExpireNow,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Change {
    Keep,
    Set,
    SetEx(Span),
    SetKeepTtl,
    Remove,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Load {
    Closure,
    FailingClosure,
    Future,
    FailingFuture,
    /// `refresh_with`, which loads even if there is a live value.
    Refresh,
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Removal {
    One(u8),
    Many(Vec<u8>),
    /// Removes the multiples of a number.
    If(u8),
    Tag(u8),
    All,
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum SweeperCall {
    Sweep,
    /// The number of passes that examines every entry.
    Rotate,
    Pause,
    Resume,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Span {
    /// Few distinct instants, so that deadlines coincide.
    Ticks(u8),
    Nanoseconds(u32),
    Years(u16),
    Longest,
}

impl Span {
    pub(crate) fn duration(self) -> Duration {
        match self {
            Span::Ticks(n) => Duration::from_millis(100 * u64::from(n % 8)),
            Span::Nanoseconds(n) => Duration::from_nanos(n.into()),
            Span::Years(n) => Duration::from_secs(365 * 86_400 * u64::from(n % 1_000)),
            Span::Longest => Duration::MAX,
        }
    }
}

/// Settings of a builder, all of them valid.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) time_to_idle: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
    pub(crate) bound: crate::oracle::Bound,
    pub(crate) shards: usize,
    pub(crate) initial_capacity: usize,
    pub(crate) sweep: Sweep,
    /// Number of passes that examines every entry.
    pub(crate) passes: f64,
    pub(crate) causes: Vec<Cause>,
    pub(crate) event_capacity: usize,
    /// Capacity of a lossless subscriber that reads rarely.
    pub(crate) slow: Option<usize>,
}
