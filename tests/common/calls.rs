//! Calls of a cache and settings of its builder, as the model test and the fuzzer generate them.

use std::time::Duration;

use fleeting::{Cause, Sweep};

use crate::oracle::{Condition, Key, Settings};

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
    Load(u8, LoadTtl, Load),
    LoadMany(Vec<u8>, LoadTtl),
    Removal(Removal),
    /// Begins `wait_for`, which is polled after each call.
    AwaitValue(u8),
    /// Begins `expired`, which is polled after each call.
    AwaitRemoval(u8),
    #[cfg(any(feature = "serde", fuzzing))]
    Snapshot {
        is_compressed: bool,
    },
    #[cfg(any(feature = "serde", fuzzing))]
    Restore(Restore),
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
    GetOrSet,
    GetOrSetWith,
    GetOrTrySet { fails: bool },
    GetOrTrySetWith { fails: bool },
    GetOrTrySetWithFreshness { fails: bool },
    RefreshWith,
}

/// TTL of a loaded value, by type of the argument.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum LoadTtl {
    Duration(Span),
    Option(Option<Span>),
    Closure(Span),
    Tagged(Span, u8),
    TaggedBy(Span, u8),
}

/// Bytes from which the last snapshot is restored.
#[cfg(any(feature = "serde", fuzzing))]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Restore {
    All,
    /// All but the end.
    Cut(u16),
}

#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Removal {
    One(u8),
    Many(Vec<u8>),
    /// Removes the multiples of a number.
    If(u8),
    /// Removes all but the multiples of a number.
    Retain(u8),
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
    /// `set_sweep`; manual sweeps if the interval is zero.
    Set {
        every: Span,
        sample_percent: u8,
    },
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Span {
    /// Few distinct instants, so that deadlines coincide.
    Ticks(u8),
    /// Long enough for the backoff of refreshes.
    Seconds(u8),
    Nanoseconds(u32),
    Years(u16),
    Longest,
}

impl Span {
    pub(crate) fn duration(self) -> Duration {
        match self {
            Span::Ticks(n) => Duration::from_millis(100 * u64::from(n % 8)),
            Span::Seconds(n) => Duration::from_secs((n % 16).into()),
            Span::Nanoseconds(n) => Duration::from_nanos(n.into()),
            Span::Years(n) => Duration::from_secs(365 * 86_400 * u64::from(n % 1_000)),
            Span::Longest => Duration::MAX,
        }
    }
}

/// Settings of a builder, all of them valid.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) settings: Settings,
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
