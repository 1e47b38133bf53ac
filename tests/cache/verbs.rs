//! Semantics of the methods that correspond to Redis commands, including the cases of Redis' `tests/unit/expire.tcl`.

use std::{
    hash::{BuildHasherDefault, DefaultHasher, RandomState},
    time::Duration,
};

use fleeting::{Cache, Sweep, Ttl, When};
use tokio::time::{Instant, advance};
use tokio_test::{assert_ready, task::spawn};

const SECOND: Duration = Duration::from_secs(1);

fn cache() -> Cache<String, u32> {
    Cache::builder().sweep(Sweep::manual()).build()
}

async fn cache_with(ttl: Option<Duration>) -> Cache<String, u32> {
    let cache = cache();
    match ttl {
        Some(ttl) => cache.set_ex("k".into(), 1, ttl).await,
        None => cache.set("k".into(), 1).await,
    };
    cache
}

fn remaining(seconds: u64) -> Ttl {
    Ttl::Remaining(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn value_expires_exactly_at_its_deadline() {
    let cache = cache_with(Some(10 * SECOND)).await;
    advance(10 * SECOND - Duration::from_nanos(1)).await;
    assert_eq!(cache.get("k").await, Some(1));
    assert_eq!(cache.ttl("k").await, Ttl::Remaining(Duration::from_nanos(1)));
    advance(Duration::from_nanos(1)).await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(cache.ttl("k").await, Ttl::Missing);
    assert!(!cache.contains_key("k").await);
}

/// The real clock is the subject: long TTLs are counted from the coarse clock, which may be up to 50 ms behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn value_never_lives_longer_than_its_ttl_on_the_real_clock() {
    let cache = cache();
    for seconds in [1, 4, 5, 60, 86_400] {
        let (ttl, before) = (Duration::from_secs(seconds), Instant::now());
        cache.set_ex("k".into(), 0, ttl).await;
        let Ttl::Remaining(remaining) = cache.ttl("k").await else {
            assert!(
                before.elapsed() >= ttl,
                "a value with a TTL of {ttl:?} is missing or persistent"
            );
            continue;
        };
        let elapsed = before.elapsed();
        assert!(remaining <= ttl, "{remaining:?} of {ttl:?}");
        let early = if seconds < 5 { Duration::ZERO } else { Duration::from_millis(50) };
        assert!(remaining + elapsed + early >= ttl, "{remaining:?} of {ttl:?} after {elapsed:?}");
    }
}

/// No method returns or revives an expired value that is not yet swept.
#[tokio::test(start_paused = true)]
async fn expired_unswept_value_is_missing_for_every_method() {
    let cache = cache();
    let keys = 0..18;
    for key in keys.clone() {
        cache.set_ex(key.to_string(), key, SECOND).await;
    }
    advance(SECOND).await;
    assert_eq!((cache.len(), cache.live_len()), (18, 0));
    assert_eq!(cache.iter().count() + cache.keys().count() + cache.values().count(), 0);
    assert_eq!(format!("{cache:?}"), r#"Cache "cache" {}"#);
    assert_eq!(cache.len(), 18, "iteration expires no entry");
    assert_eq!(cache.get("0").await, None);
    assert_eq!(cache.get_ex("1", SECOND).await, None);
    assert_eq!(cache.set("2".into(), 0).await, None);
    assert_eq!(cache.set_ex("3".into(), 0, SECOND).await, None);
    assert!(cache.set_nx("4".into(), 0, None).await);
    assert_eq!(cache.set_keep_ttl("5".into(), 0).await, None);
    assert_eq!(cache.ttl("5").await, Ttl::Persistent, "the TTL of an expired value is not kept");
    assert_eq!(cache.remove("6").await, None);
    assert!(!cache.contains_key("7").await);
    assert_eq!(cache.ttl("8").await, Ttl::Missing);
    assert!(!cache.expire("9", SECOND).await);
    for (key, when) in ["10", "11", "12", "13"].into_iter().zip([
        When::NoTtl,
        When::HasTtl,
        When::Later,
        When::Sooner,
    ]) {
        assert!(!cache.expire_if(key, SECOND, when).await);
    }
    assert!(!cache.expire_at("14", Instant::now() + SECOND).await);
    assert!(!cache.extend("15", SECOND).await);
    assert!(!cache.persist("16").await);
    assert_eq!(cache.expire_now("17").await, None);
    assert_eq!(cache.update("17", |v| *v).await, None);
    let mut live: Vec<String> = cache.keys().collect();
    live.sort();
    assert_eq!(live, ["2", "3", "4", "5"]);
    assert_eq!(cache.len(), 4, "each lookup removed the expired value it found");
}

#[tokio::test(start_paused = true)]
async fn contains_key_does_not_count_as_an_access() {
    let cache: Cache<String, u32> = Cache::builder().time_to_idle(10 * SECOND).build();
    cache.set("k".into(), 1).await;
    advance(6 * SECOND).await;
    assert!(cache.contains_key("k").await && !cache.contains_key("missing").await);
    assert_eq!(cache.ttl("k").await, remaining(4), "the idle deadline stays");
    advance(4 * SECOND).await;
    assert!(!cache.contains_key("k").await);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (0, 0));
}

/// The same calls lead to the same evictions: calls of `contains_key` in between change nothing.
#[tokio::test(start_paused = true)]
async fn contains_key_does_not_count_for_eviction() {
    let mut survivors = Vec::new();
    for looks in [false, true] {
        let cache: Cache<u32, u32, _> = Cache::builder()
            .max_entries(500)
            .hasher(BuildHasherDefault::<DefaultHasher>::default())
            .sweep(Sweep::default().seed(7))
            .build();
        for key in 0..2_000 {
            cache.set(key, key).await;
            cache.get(&(key / 2)).await;
            if looks {
                cache.contains_key(&(key / 3)).await;
                cache.contains_key(&key.saturating_sub(100)).await;
            }
        }
        let mut keys: Vec<_> = cache.keys().collect();
        keys.sort_unstable();
        survivors.push(keys);
    }
    assert_eq!(survivors[0], survivors[1]);
}

#[tokio::test(start_paused = true)]
async fn live_len_counts_neither_expired_entries_nor_removed_tags() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
    for key in 0..300 {
        match key % 3 {
            0 => cache.set(key, key).await,
            1 => cache.set_ex(key, key, SECOND).await,
            _ => cache.set_tagged(key, key, 60 * SECOND, ["tag"]).await,
        };
    }
    assert_eq!((cache.live_len(), cache.len()), (300, 300));
    advance(SECOND).await;
    assert_eq!((cache.live_len(), cache.len()), (200, 300));
    cache.remove_tag("tag").await;
    assert_eq!(cache.live_len(), 100);
}

#[tokio::test(start_paused = true)]
async fn set_returns_the_previous_live_value() {
    let cache = cache();
    assert_eq!(cache.set("k".into(), 1).await, None);
    assert_eq!(cache.set("k".into(), 2).await, Some(1));
    assert_eq!(cache.set_ex("k".into(), 3, SECOND).await, Some(2));
    assert_eq!(cache.set_keep_ttl("k".into(), 4).await, Some(3));
    assert_eq!(cache.remove("k").await, Some(4));
    assert_eq!(cache.remove("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn set_discards_the_ttl() {
    let cache = cache_with(Some(SECOND)).await;
    cache.set("k".into(), 2).await;
    assert_eq!(cache.ttl("k").await, Ttl::Persistent);
    advance(100 * SECOND).await;
    assert_eq!(cache.get("k").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn set_uses_the_default_ttl() {
    let cache: Cache<String, u32> = Cache::builder().time_to_live(5 * SECOND).build();
    cache.set("set".into(), 1).await;
    cache.set_nx("nx".into(), 1, None).await;
    cache.set_keep_ttl("keep".into(), 1).await;
    cache.set_ex("ex".into(), 1, SECOND).await;
    for (key, seconds) in [("set", 5), ("nx", 5), ("keep", 5), ("ex", 1)] {
        assert_eq!(cache.ttl(key).await, remaining(seconds), "{key}");
    }
    advance(3 * SECOND).await;
    cache.set_keep_ttl("set".into(), 2).await;
    assert_eq!(cache.ttl("set").await, remaining(2));
    cache.set("set".into(), 3).await;
    assert_eq!(cache.ttl("set").await, remaining(5));
}

#[tokio::test(start_paused = true)]
async fn set_nx_writes_only_without_a_live_value() {
    let cache = cache_with(Some(SECOND)).await;
    assert!(!cache.set_nx("k".into(), 2, Some(9 * SECOND)).await);
    assert_eq!((cache.get("k").await, cache.ttl("k").await), (Some(1), remaining(1)));
    advance(SECOND).await;
    assert!(cache.set_nx("k".into(), 2, Some(9 * SECOND)).await);
    assert_eq!((cache.get("k").await, cache.ttl("k").await), (Some(2), remaining(9)));
    assert!(cache.set_nx("new".into(), 3, None).await);
    assert_eq!(cache.ttl("new").await, Ttl::Persistent);
}

#[tokio::test(start_paused = true)]
async fn get_ex_restarts_the_ttl() {
    let cache = cache_with(Some(10 * SECOND)).await;
    for _ in 0..5 {
        advance(9 * SECOND).await;
        assert_eq!(cache.get_ex("k", 10 * SECOND).await, Some(1));
    }
    advance(10 * SECOND).await;
    assert_eq!(cache.get_ex("k", 10 * SECOND).await, None);
    let cache = cache_with(None).await;
    cache.get_ex("k", SECOND).await;
    assert_eq!(cache.ttl("k").await, remaining(1), "a persistent value gets the TTL too");
}

#[tokio::test(start_paused = true)]
async fn expire_lengthens_and_shortens_the_ttl() {
    for (old, new) in [(Some(10), 20), (Some(20), 10), (None, 10)] {
        let cache = cache_with(old.map(Duration::from_secs)).await;
        assert!(cache.expire("k", Duration::from_secs(new)).await);
        assert_eq!(cache.ttl("k").await, remaining(new));
    }
    assert!(!cache().expire("missing", SECOND).await);
}

/// Same table as in Redis 7: for `GT` and `LT`, a persistent value has an infinite TTL.
#[tokio::test(start_paused = true)]
async fn expire_if_has_the_conditions_of_redis() {
    let infinite = Duration::MAX;
    let ten = Some(10);
    let cases = [
        (When::NoTtl, None, 5 * SECOND, true),
        (When::NoTtl, ten, 5 * SECOND, false),
        (When::HasTtl, None, 5 * SECOND, false),
        (When::HasTtl, ten, 5 * SECOND, true),
        (When::Later, None, 20 * SECOND, false),
        (When::Later, ten, 20 * SECOND, true),
        (When::Later, ten, 10 * SECOND, false),
        (When::Later, ten, 5 * SECOND, false),
        (When::Later, ten, infinite, true),
        (When::Later, None, infinite, false),
        (When::Sooner, None, 20 * SECOND, true),
        (When::Sooner, ten, 20 * SECOND, false),
        (When::Sooner, ten, 10 * SECOND, false),
        (When::Sooner, ten, 5 * SECOND, true),
        (When::Sooner, ten, infinite, false),
        (When::Sooner, None, infinite, false),
    ];
    for (when, old, new, holds) in cases {
        let cache = cache_with(old.map(Duration::from_secs)).await;
        let before = cache.ttl("k").await;
        assert_eq!(cache.expire_if("k", new, when).await, holds, "{when:?} {old:?} {new:?}");
        let after = match (holds, new) {
            (false, _) => before,
            (true, Duration::MAX) => Ttl::Persistent,
            (true, _) => Ttl::Remaining(new),
        };
        assert_eq!(cache.ttl("k").await, after, "{when:?} {old:?} {new:?}");
    }
    for when in [When::NoTtl, When::HasTtl, When::Later, When::Sooner] {
        assert!(!cache().expire_if("missing", SECOND, when).await);
    }
}

#[tokio::test(start_paused = true)]
async fn expire_at_sets_the_deadline_to_an_instant() {
    let cache = cache_with(None).await;
    assert!(cache.expire_at("k", Instant::now() + 7 * SECOND).await);
    assert_eq!(cache.ttl("k").await, remaining(7));
    assert!(cache.expire_at("k", Instant::now()).await, "the value was live");
    assert_eq!(cache.get("k").await, None, "a deadline of now has passed");
    let cache = cache_with(None).await;
    assert!(cache.expire_at("k", Instant::now() - 100 * SECOND).await);
    assert_eq!(cache.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn extend_adds_to_the_remaining_ttl() {
    let cache = cache_with(Some(10 * SECOND)).await;
    advance(4 * SECOND).await;
    assert!(cache.extend("k", 3 * SECOND).await);
    assert_eq!(cache.ttl("k").await, remaining(9));
    assert!(!cache.extend("missing", SECOND).await);
    let cache = cache_with(None).await;
    assert!(!cache.extend("k", SECOND).await);
    assert_eq!(cache.ttl("k").await, Ttl::Persistent);
}

#[tokio::test(start_paused = true)]
async fn persist_removes_the_deadline() {
    let cache = cache_with(Some(SECOND)).await;
    assert!(cache.persist("k").await);
    assert!(!cache.persist("k").await);
    assert!(!cache.persist("missing").await);
    advance(100 * SECOND).await;
    assert_eq!(cache.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn ttl_of_zero_expires_immediately() {
    let cache = cache();
    assert_eq!(cache.set_ex("k".into(), 1, Duration::ZERO).await, None);
    assert_eq!((cache.len(), cache.get("k").await), (1, None));
    cache.set("k".into(), 2).await;
    assert!(cache.expire("k", Duration::ZERO).await);
    assert_eq!(cache.get("k").await, None);
    cache.set("k".into(), 3).await;
    assert_eq!(cache.get_ex("k", Duration::ZERO).await, Some(3));
    assert_eq!(cache.get("k").await, None);
    let cache: Cache<&str, u32> = Cache::builder().time_to_live(Duration::ZERO).build();
    cache.set("k", 1).await;
    assert!(!cache.contains_key("k").await);
}

#[tokio::test(start_paused = true)]
async fn overflowing_deadline_is_persistent() {
    for ttl in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)] {
        let cache = cache_with(Some(ttl)).await;
        assert_eq!(cache.ttl("k").await, Ttl::Persistent, "{ttl:?}");
        cache.expire("k", SECOND).await;
        assert!(cache.extend("k", ttl).await);
        assert_eq!(cache.ttl("k").await, Ttl::Persistent, "{ttl:?}");
    }
    let hundred_years = Duration::from_secs(100 * 365 * 86_400);
    let cache = cache_with(Some(hundred_years)).await;
    assert_eq!(cache.ttl("k").await, Ttl::Remaining(hundred_years));
}

#[tokio::test(start_paused = true)]
async fn update_keeps_the_ttl() {
    let cache = cache_with(Some(10 * SECOND)).await;
    advance(SECOND).await;
    assert_eq!(cache.update("k", |v| std::mem::replace(v, 5)).await, Some(1));
    assert_eq!((cache.get("k").await, cache.ttl("k").await), (Some(5), remaining(9)));
    assert_eq!(cache.update("missing", |v| *v).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_is_atomic() {
    let cache = cache_with(None).await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move {
                for _ in 0..5_000 {
                    cache.update("k", |v| *v += 1).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(cache.get("k").await, Some(20_001));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_nx_has_one_winner() {
    let cache: Cache<u32, usize> = Cache::new();
    let tasks: Vec<_> = (0..8)
        .map(|me| {
            let cache = cache.clone();
            tokio::spawn(async move {
                let mut won = 0;
                for key in 0..2_000 {
                    won += usize::from(cache.set_nx(key, me, Some(60 * SECOND)).await);
                }
                won
            })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        won += task.await.unwrap();
    }
    assert_eq!(won, 2_000);
}

#[tokio::test(start_paused = true)]
async fn expire_now_removes_the_value_and_returns_it() {
    let cache = cache_with(Some(10 * SECOND)).await;
    assert_eq!(cache.expire_now("k").await, Some(1));
    assert_eq!(cache.expire_now("k").await, None);
    assert_eq!((cache.get("k").await, cache.len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn clear_removes_all_entries() {
    let cache = cache();
    for i in 0..1_000 {
        cache.set(i.to_string(), i).await;
    }
    cache.clear().await;
    assert!(cache.is_empty());
    assert_eq!(cache.get("7").await, None);
    cache.set("7".into(), 7).await;
    assert_eq!(cache.get("7").await, Some(7));
}

/// The loop may call the cache, because no lock is held between two items.
#[tokio::test(start_paused = true)]
async fn iter_holds_no_lock_and_skips_expired_values() {
    let cache = cache();
    for i in 0..1_000 {
        cache.set_ex(i.to_string(), i, if i % 2 == 0 { SECOND } else { 9 * SECOND }).await;
    }
    advance(SECOND).await;
    let mut count = 0;
    for (key, value) in cache.iter() {
        assert_eq!(value % 2, 1);
        cache.remove(&key).await;
        cache.set_ex(key, value, Duration::ZERO).await;
        count += 1;
    }
    assert_eq!(count, 500);
}

/// A value that expires after its shard was cloned is not returned either.
#[tokio::test(start_paused = true)]
async fn iter_skips_values_that_expire_during_the_iteration() {
    let cache: Cache<u32, u32> = Cache::builder().shards(2).sweep(Sweep::manual()).build();
    for i in 0..100 {
        cache.set_ex(i, i, SECOND).await;
    }
    let mut entries = cache.iter();
    assert!(entries.next().is_some());
    advance(SECOND).await;
    assert!(entries.next().is_none());
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_cache() {
    let cache = cache();
    let other = cache.clone();
    cache.set("k".into(), 1).await;
    assert_eq!(other.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn debug_output_is_bounded_and_shows_remaining_ttls() {
    let cache = cache();
    cache.set_ex("k".into(), 1, 3 * SECOND).await;
    assert_eq!(format!("{cache:?}"), r#"Cache "cache" {"k": 1 (expires in 3s)}"#);
    for i in 0..10_000 {
        cache.set(i.to_string(), i).await;
    }
    let shown = format!("{cache:?}");
    assert!(shown.len() < 1_000 && shown.ends_with(", ..}"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn stats_count_each_call() {
    let cache: Cache<String, u32> = Cache::builder().sweep(Sweep::manual().sample(1.0)).build();
    cache.set("k".into(), 1).await;
    cache.get("k").await;
    cache.get_ex("k", SECOND).await;
    cache.get("missing").await;
    cache.set("k".into(), 2).await;
    cache.remove("k").await;
    cache.set_ex("x".into(), 2, Duration::ZERO).await;
    cache.get("x").await;
    cache.set_ex("y".into(), 2, Duration::ZERO).await;
    let report = cache.sweep().await;
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (2, 2));
    assert_eq!((stats.replaced, stats.removed), (1, 1));
    assert_eq!((stats.expired, stats.resident), (2, 0));
    assert_eq!((stats.sweeps, stats.last_sweep), (1, Some(report)));
    assert_eq!(stats.hit_ratio(), 0.5);
}

/// Handles work outside of a runtime.
#[test]
fn handles_work_without_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cache = runtime.block_on(async { cache_with(None).await });
    drop(runtime);
    assert_eq!(assert_ready!(spawn(cache.get("k")).poll()), Some(1));
    drop(cache.on_expired(async |_| {}));
}

#[test]
#[should_panic(expected = "must be built inside of a Tokio runtime")]
fn build_panics_outside_of_a_runtime() {
    let _ = Cache::<u8, u8>::new();
}

#[test]
#[should_panic(expected = "shards must be 1 to 65536, got 0")]
fn shards_of_zero_panic() {
    let _ = Cache::<u8, u8>::builder().shards(0);
}

#[test]
#[should_panic(expected = "initial_capacity must be at most isize::MAX, got 18446744073709551615")]
fn impossible_initial_capacity_panics() {
    drop(Cache::<u32, u32>::builder().initial_capacity(usize::MAX));
}

#[test]
#[should_panic(expected = "event_capacity must be at least 1, got 0")]
fn event_capacity_of_zero_panics() {
    let _ = Cache::<u8, u8>::builder().event_capacity(0);
}

#[tokio::test(start_paused = true)]
async fn any_number_of_shards_works() {
    for shards in [1, 2, 3, 7, 64, 100, 4_096] {
        let cache: Cache<u32, u32, _> =
            Cache::builder().shards(shards).hasher(RandomState::new()).build();
        for i in 0..1_000 {
            cache.set_ex(i, i, SECOND).await;
        }
        assert_eq!(cache.live_len(), 1_000);
        advance(3 * SECOND).await;
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(cache.len(), 0, "{shards} shards");
    }
}
