//! Random sequences of all cache methods, compared with a map that is simple enough to be obviously correct.
//!
//! `PROPTEST_CASES` sets the number of sequences (1,000 by default), `FLEETING_SEED` their seed. The fuzzer makes the
//! same comparison with any settings and any times.

use std::{ops::Range, time::Duration};

use fleeting::{Cause, Sweep};
use proptest::{collection::vec, option, prelude::*};

use crate::{
    calls::{
        Call, Change, DeadlineCall, Load, LoadTtl, Read, Removal, Setup, Span, SweeperCall, Write,
    },
    comparison::{Comparison, jittered},
    oracle::{Bound, Condition, Settings},
    sequences::config,
};

/// Few keys, so that calls affect each other.
fn key() -> impl Strategy<Value = u8> {
    0..6_u8
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    vec(key(), 0..9)
}

fn ttl() -> impl Strategy<Value = Span> {
    prop_oneof![
        18 => (0..8_u8).prop_map(Span::Ticks),
        1 => any::<u32>().prop_map(Span::Nanoseconds),
        1 => any::<u16>().prop_map(Span::Years),
        2 => Just(Span::Longest),
    ]
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        4 => Just(Read::Get),
        2 => ttl().prop_map(Read::GetEx),
        1 => ttl().prop_map(Read::GetExWith),
        2 => Just(Read::ContainsKey),
        2 => Just(Read::Ttl),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        3 => Just(Write::Set),
        6 => ttl().prop_map(Write::SetEx),
        3 => option::of(ttl()).prop_map(Write::SetNx),
        3 => Just(Write::SetKeepTtl),
        3 => (ttl(), 0..3_u8).prop_map(|(ttl, tag)| Write::SetTagged(ttl, tag)),
        2 => Just(Write::Update),
    ]
}

fn deadline_call() -> impl Strategy<Value = DeadlineCall> {
    let condition = prop_oneof![
        Just(Condition::NoTtl),
        Just(Condition::HasTtl),
        Just(Condition::Later),
        Just(Condition::Sooner),
    ];
    prop_oneof![
        3 => ttl().prop_map(DeadlineCall::Expire),
        4 => (ttl(), condition).prop_map(|(ttl, when)| DeadlineCall::ExpireIf(ttl, when)),
        2 => ttl().prop_map(DeadlineCall::ExpireAt),
        1 => ttl().prop_map(DeadlineCall::ExpireBefore),
        2 => ttl().prop_map(DeadlineCall::Extend),
        2 => Just(DeadlineCall::Persist),
        2 => Just(DeadlineCall::ExpireNow),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Keep),
        Just(Change::Set),
        ttl().prop_map(Change::SetEx),
        Just(Change::SetKeepTtl),
        Just(Change::Remove),
    ]
}

fn load() -> impl Strategy<Value = Load> {
    let fails = any::<bool>;
    prop_oneof![
        1 => Just(Load::GetOrSet),
        1 => Just(Load::GetOrSetWith),
        2 => fails().prop_map(|fails| Load::GetOrTrySet { fails }),
        2 => fails().prop_map(|fails| Load::GetOrTrySetWith { fails }),
        3 => fails().prop_map(|fails| Load::GetOrTrySetWithFreshness { fails }),
        1 => Just(Load::RefreshWith),
    ]
}

fn load_ttl() -> impl Strategy<Value = LoadTtl> {
    prop_oneof![
        ttl().prop_map(LoadTtl::Duration),
        option::of(ttl()).prop_map(LoadTtl::Option),
        ttl().prop_map(LoadTtl::Closure),
        (ttl(), 0..3_u8).prop_map(|(ttl, tag)| LoadTtl::Tagged(ttl, tag)),
        (ttl(), 0..3_u8).prop_map(|(ttl, tag)| LoadTtl::TaggedBy(ttl, tag)),
    ]
}

#[cfg(feature = "serde")]
fn snapshot_call() -> impl Strategy<Value = Call> {
    use crate::calls::Restore;

    prop_oneof![
        5 => any::<bool>().prop_map(|is_compressed| Call::Snapshot { is_compressed }),
        4 => Just(Call::Restore(Restore::All)),
        1 => any::<u16>().prop_map(|missing| Call::Restore(Restore::Cut(missing))),
    ]
}

/// Without feature `serde` there are no snapshots.
#[cfg(not(feature = "serde"))]
fn snapshot_call() -> impl Strategy<Value = Call> {
    Just(Call::Iterate)
}

fn removal() -> impl Strategy<Value = Removal> {
    prop_oneof![
        2 => key().prop_map(Removal::One),
        2 => keys().prop_map(Removal::Many),
        1 => (0..2_u8).prop_map(Removal::If),
        1 => (0..2_u8).prop_map(Removal::Retain),
        2 => (0..5_u8).prop_map(Removal::Tag),
        1 => Just(Removal::All),
    ]
}

fn sweeper_call() -> impl Strategy<Value = SweeperCall> {
    prop_oneof![
        3 => Just(SweeperCall::Sweep),
        1 => Just(SweeperCall::Rotate),
        1 => Just(SweeperCall::Pause),
        1 => Just(SweeperCall::Resume),
        1 => ((0..4_u8).prop_map(Span::Ticks), any::<u8>())
            .prop_map(|(every, sample_percent)| SweeperCall::Set { every, sample_percent }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        10 => (key(), read()).prop_map(|(key, read)| Call::Read(key, read)),
        1 => keys().prop_map(Call::ReadMany),
        20 => (key(), write()).prop_map(|(key, write)| Call::Write(key, write)),
        3 => (keys(), option::of(ttl())).prop_map(|(keys, ttl)| Call::WriteMany(keys, ttl)),
        1 => (0..60_u16, ttl()).prop_map(|(keys, ttl)| Call::Fill(keys, ttl)),
        14 => (key(), deadline_call()).prop_map(|(key, call)| Call::Deadline(key, call)),
        2 => (key(), change()).prop_map(|(key, change)| Call::Compute(key, change)),
        2 => (key(), change()).prop_map(|(key, change)| Call::ComputeWith(key, change)),
        12 => (key(), load_ttl(), load()).prop_map(|(key, ttl, load)| Call::Load(key, ttl, load)),
        1 => (keys(), load_ttl()).prop_map(|(keys, ttl)| Call::LoadMany(keys, ttl)),
        8 => removal().prop_map(Call::Removal),
        2 => key().prop_map(Call::AwaitValue),
        2 => key().prop_map(Call::AwaitRemoval),
        2 => snapshot_call(),
        5 => sweeper_call().prop_map(Call::Sweeper),
        8 => (0..5_u8).prop_map(|ticks| Call::Advance(Span::Ticks(ticks))),
        3 => (0..6_u8).prop_map(|seconds| Call::Advance(Span::Seconds(seconds))),
        3 => Just(Call::Iterate),
        1 => any::<u8>().prop_map(Call::SetBound),
        1 => Just(Call::ReadSlowStreams),
        1 => Just(Call::DropSlow),
    ]
}

/// Mostly loads of two keys, with time for the backoff between them.
fn loader_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        12 => (0..2_u8, load_ttl(), load()).prop_map(|(key, ttl, load)| Call::Load(key, ttl, load)),
        2 => (0..5_u8).prop_map(|ticks| Call::Advance(Span::Ticks(ticks))),
        4 => (0..6_u8).prop_map(|seconds| Call::Advance(Span::Seconds(seconds))),
        1 => call(),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop_oneof![3 => vec(call(), 1..80), 1 => vec(loader_call(), 1..80)]
}

/// Bounds that evict, and bounds that are too high for that.
fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        3 => Just(Bound::None),
        2 => (1..12_u64).prop_map(Bound::Entries),
        1 => Just(Bound::Entries(1_000)),
        2 => (1..30_u64).prop_map(Bound::Weight),
        1 => Just(Bound::Weight(1_000_000)),
    ]
}

fn ticks(ticks: Range<u8>) -> impl Strategy<Value = Duration> {
    ticks.prop_map(|ticks| Span::Ticks(ticks).duration())
}

/// Settings of the loader methods: windows, the TTL of errors, and a factor that makes a refresh ahead of a load of a
/// nanosecond likely within the usual TTLs.
fn freshness() -> impl Strategy<Value = (Duration, Duration, Option<Duration>, f64)> {
    let seconds = || (1..16_u8).prop_map(|seconds| Span::Seconds(seconds).duration());
    let some = || prop_oneof![ticks(1..6), seconds()];
    let window = || prop_oneof![1 => Just(Duration::ZERO), 2 => some()];
    let refresh_ahead = prop_oneof![2 => Just(0.0), 1 => Just(2e8)];
    (window(), window(), option::of(some()), refresh_ahead)
}

fn settings() -> impl Strategy<Value = Settings> {
    let jitter = prop_oneof![3 => Just(0.0), 1 => Just(0.25), 1 => Just(0.9)];
    (option::of(ticks(0..5)), option::of(ticks(1..6)), jitter, freshness(), bound()).prop_map(
        |(default_ttl, time_to_idle, jitter, freshness, bound)| {
            let (stale_while_revalidate, stale_if_error, negative_ttl, refresh_ahead) = freshness;
            let jitter = if time_to_idle.is_some() { 0.0 } else { jitter };
            Settings {
                default_ttl: default_ttl.map(|ttl| jittered(ttl, jitter)),
                time_to_idle,
                jitter,
                stale_while_revalidate,
                stale_if_error,
                negative_ttl,
                refresh_ahead,
                bound,
            }
        },
    )
}

fn setup() -> impl Strategy<Value = Setup> {
    let sample = prop_oneof![Just(1.0), Just(0.5), Just(0.1)];
    let streams = (prop_oneof![1..5_usize, Just(10_000)], option::weighted(0.2, 1..9_usize));
    (settings(), 1..10_usize, any::<bool>(), sample, streams).prop_map(
        |(settings, shards, has_task, sample, (event_capacity, slow))| {
            let sweep = if has_task { Sweep::default() } else { Sweep::manual() };
            Setup {
                settings,
                shards,
                initial_capacity: 0,
                sweep: sweep.sample(sample).seed(1),
                passes: (1.0 / sample).ceil(),
                causes: vec![Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced],
                event_capacity,
                slow,
            }
        },
    )
}

#[test]
fn cache_agrees_with_the_oracle() {
    let config = config(1_000, 2_015);
    proptest!(config, |(setup in setup(), calls in calls())| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut comparison = Comparison::new(setup);
            for call in calls {
                comparison.run(call).await;
            }
            comparison.end().await;
        });
    });
}
