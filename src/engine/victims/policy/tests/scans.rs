//! Tests of scans, and of changes of the hot set: the deterministic part of `cargo bench --bench hit_ratio -- scans`.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{super::Policy, Shard};

#[test]
fn scan_of_any_length_costs_few_hits() {
    for scanned in [1_000, 10_000, 50_000] {
        let mut shard = Shard::new(1_000);
        let mut random = SmallRng::seed_from_u64(5);
        let mut popular = || (20_000_f64).powf(random.random::<f64>()) as u64;
        shard.replay((0..50_000).map(|_| popular()));
        let before = shard.replay((0..20_000).map(|_| popular()));
        shard.replay(100_000..100_000 + scanned);
        let after = shard.replay((0..2_000).map(|_| popular()));
        assert!(after > before - 5.0, "{before:.1} % before {scanned}, {after:.1} after");
    }
}

/// Reads keys while the shard fills up: 30 % of all keys, each about seven times. Then adds keys that occur once.
/// Returns the share of the read keys that are still resident, in percent.
fn share_of_hot_keys_kept(bound: u64, one_off_keys: u64, is_hot: impl Fn(u64) -> bool) -> f64 {
    let mut shard = Shard::new(bound as usize);
    let mut random = SmallRng::seed_from_u64(bound);
    let (mut hot, mut read) = (Vec::new(), HashSet::new());
    for key in 0..bound {
        shard.request(key, u64::MAX);
        if is_hot(key) {
            hot.push(key);
        }
        for _ in 0..2 + u64::from(key % 10 == 0) {
            if !hot.is_empty() {
                let key = hot[random.random_range(0..hot.len())];
                assert!(
                    shard.request(key, u64::MAX),
                    "nothing is evicted before the shard is full"
                );
                read.insert(key);
            }
        }
    }
    (1_000_000..1_000_000 + one_off_keys).for_each(|key| _ = shard.request(key, u64::MAX));
    let survivors = read.iter().filter(|key| shard.buckets.contains_key(key)).count();
    100.0 * survivors as f64 / read.len() as f64
}

#[test]
fn hot_keys_of_a_young_cache_stay() {
    for bound in [100, 1_000, 10_000] {
        for percent in [20, 40, 100, 200] {
            let one_off_keys = bound * percent / 100;
            let inserted_first =
                share_of_hot_keys_kept(bound, one_off_keys, |key| key < bound * 3 / 10);
            let spread = share_of_hot_keys_kept(bound, one_off_keys, |key| key % 10 < 3);
            assert!(
                inserted_first >= 95.0 && spread >= 95.0,
                "{inserted_first:.1} % and {spread:.1} % of the hot keys stay: bound {bound}, {percent} % new keys"
            );
        }
    }
}

#[test]
fn key_that_was_never_read_is_evicted_first_from_a_tiny_shard() {
    for unread in 0..3 {
        for seed in 0..100 {
            let mut shard = Shard::new(3);
            shard.policy = Policy::new(seed);
            (0..3).for_each(|key| _ = shard.request(key, u64::MAX));
            for _ in 0..10 {
                (0..3)
                    .filter(|key| *key != unread)
                    .for_each(|key| _ = shard.request(key, u64::MAX));
            }
            shard.request(1_000, u64::MAX);
            assert_eq!(shard.evicted, [unread], "seed {seed}");
        }
    }
}

#[test]
fn hot_keys_stay_when_a_scan_is_the_first_to_fill_the_cache() {
    for is_burst in [true, false] {
        let mut shard = Shard::new(1_000);
        let rounds = if is_burst { 1 } else { 10 };
        for _ in 0..rounds {
            for key in 0..100 {
                (0..11 / rounds).for_each(|_| _ = shard.request(key, u64::MAX));
            }
        }
        shard.replay(1_000_000..1_010_000);
        let survivors = (0..100).filter(|key| shard.buckets.contains_key(key)).count();
        assert!(survivors >= 95, "{survivors} of 100 stay, read in bursts: {is_burst}");
    }
}

#[test]
fn hot_keys_stay_during_a_scan_after_earlier_traffic() {
    // 300 of 1,000 entries are hot; one request in ten is of a key that occurs once, or one in three of a colder key.
    for is_mixed in [false, true] {
        for times in [2, 3, 5] {
            let mut shard = Shard::new(1_000);
            let mut random = SmallRng::seed_from_u64(8);
            shard.replay((0..60_000).map(|i| match i {
                _ if is_mixed && i % 3 == 0 => 100_000 + random.random_range(0..3_000),
                _ if !is_mixed && i % 10 == 0 => 500_000 + i,
                _ => random.random_range(0..300),
            }));
            shard.replay(1_000_000..1_000_000 + times * 1_000);
            let survivors = (0..300).filter(|key| shard.buckets.contains_key(key)).count();
            assert!(
                survivors >= 270,
                "{survivors} of 300 stay after {times} x the bound, mixed: {is_mixed}"
            );
        }
    }
}

/// Fills a cache, reads some of its entries in turns, and then adds keys that occur once, after a get or not. Returns
/// the share of the read entries that stay, in percent.
fn share_left_by_a_scan(
    bound: u64,
    hot: u64,
    reads: u64,
    times: u64,
    is_warm: bool,
    seed: u64,
) -> f64 {
    let mut shard = Shard::new(bound as usize);
    shard.policy = Policy::new(seed);
    let mut random = SmallRng::seed_from_u64(seed);
    if is_warm {
        let recent = |random: &mut SmallRng| (4.0 * bound as f64).powf(random.random::<f64>());
        shard.replay((0..8 * bound).map(|_| 10_000_000 + recent(&mut random) as u64));
    }
    let mut keys: Vec<u64> = (0..bound).collect();
    if seed.is_multiple_of(2) {
        for i in (1..keys.len()).rev() {
            keys.swap(i, random.random_range(0..=i));
        }
    }
    shard.replay(keys.into_iter());
    let hot = bound * hot / 100;
    (0..reads).for_each(|_| _ = shard.replay(0..hot));
    shard.replay(1_000_000..1_000_000 + times * bound);
    let survivors = (0..hot).filter(|key| shard.buckets.contains_key(key)).count();
    100.0 * survivors as f64 / hot as f64
}

/// Asserts that a scan leaves at least this share of each hot set. `scans` are the reads of a key and the length of the
/// scan, in multiples of the bound.
fn assert_scans_leave(least: f64, hot_shares: &[u64], scans: &[(u64, u64)], is_warm: bool) {
    for bound in [100, 1_000] {
        for hot in hot_shares {
            for (reads, times) in scans {
                for seed in 1..=2 {
                    let share = share_left_by_a_scan(bound, *hot, *reads, *times, is_warm, seed);
                    assert!(
                        share >= least,
                        "{share:.1} % of {hot} % hot entries stay: bound {bound}, {reads} reads, scan of {times} x the \
                         bound, seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn scan_of_any_length_leaves_a_hot_set_of_any_size() {
    let scans = [(1, 2), (1, 20), (2, 5), (5, 1), (20, 20)];
    assert_scans_leave(95.0, &[5, 10, 20, 30, 50, 70, 90], &scans, false);
}

#[test]
fn scan_after_other_traffic_leaves_most_of_a_hot_set() {
    assert_scans_leave(90.0, &[10, 20, 30, 50], &[(3, 2), (3, 20), (10, 5)], true);
}

#[test]
fn new_hot_set_displaces_the_old_one() {
    for old in [20, 50, 90] {
        for (new, one_off_keys) in [(10, false), (10, true), (40, false), (40, true), (70, false)] {
            let mut shard = Shard::new(1_000);
            shard.replay(0..1_000);
            (0..10).for_each(|_| _ = shard.replay(0..10 * old));
            let mut requests = (0..).map(|i| match i % 2 {
                0 if one_off_keys => 1_000_000 + i,
                _ => 10_000 + i % (10 * new + 1),
            });
            shard.replay(requests.by_ref().take(4_000));
            let hits = shard.replay(requests.take(1_000).filter(|key| *key < 1_000_000));
            assert!(
                hits >= 85.0,
                "{hits:.1} % hits: {old} % hot before, {new} % after, one-off keys: {one_off_keys}"
            );
        }
    }
}

/// Zipf-distributed keys, interrupted by scans: a tenth of the trace of docs/hit-ratio.md. quick_cache has 36.3, 51.6,
/// 58.0 and 60.0 %.
#[test]
fn repeated_scans_cost_few_hits() {
    for (bound, least) in [(139, 35.0), (696, 51.0), (1_393, 57.2), (3_484, 60.0)] {
        let mut random = SmallRng::seed_from_u64(12);
        let mut sums = vec![0.0];
        sums.extend((1..=2_000).scan(0.0, |sum, rank| {
            *sum += f64::from(rank).powf(-0.9);
            Some(*sum)
        }));
        let mut trace = Vec::new();
        for round in 0..7 {
            trace.extend((0..4_000).map(|_| {
                let at = random.random::<f64>() * sums[2_000];
                sums.partition_point(|sum| *sum <= at) as u64
            }));
            trace.extend(1_000_000 + round * 2_000..1_000_000 + (round + 1) * 2_000);
        }
        let hits = Shard::new(bound).replay(trace.into_iter());
        assert!(hits > least, "{hits:.1} % with {bound} entries");
    }
}
