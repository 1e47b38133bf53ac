//! Memory of a cache: it is freed after a mass expiry, and nothing leaks.

use std::{future::pending, ops::Range, sync::Arc, thread, time::Duration};

use fleeting::{Cache, Cause, Sweep};
use futures::FutureExt;
use tokio::{task::unconstrained, time::sleep};
use tokio_test::task::spawn;

use super::{MEMORY, allocated_since, run_paused, wait_for_turn};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn cache_memory_is_bounded() {
    wait_for_turn();
    run_paused(memory_is_freed_after_mass_expiry());
    run_paused(initial_capacity_is_never_freed());
    run_paused(clear_with_a_subscriber_allocates_in_proportion_to_the_capacity());
    run_paused(stats_show_the_memory_of_a_full_lossless_subscriber());
    run_paused(event_log_frees_its_memory_after_a_burst());
    run_paused(dropped_cache_leaks_no_memory());
    run_paused(cancelled_loads_leak_no_memory());
    run_paused(negative_ttl_errors_are_bounded_by_max_entries());
    run_paused(tags_and_idle_deadlines_are_freed_with_their_entries());
}

async fn memory_is_freed_after_mass_expiry() {
    let cache: Cache<u64, [u64; 4]> = Cache::builder().shards(4).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..50_000 {
        cache.set_ex(key, [key; 4], SECOND).await;
    }
    let full = MEMORY.allocated().saturating_sub(empty);
    for key in 0..500 {
        cache.set(1_000_000 + key, [key; 4]).await;
    }
    sleep(5 * SECOND).await;
    assert_eq!(cache.len(), 500);
    let sparse = MEMORY.allocated().saturating_sub(empty);
    assert!(sparse < full / 20, "{sparse} bytes remain of {full} for 1 % of the entries");
    for key in 0..500 {
        assert_eq!(
            cache.get(&(1_000_000 + key)).await,
            Some([key; 4]),
            "lost while the table shrank"
        );
        cache.expire(&(1_000_000 + key), SECOND).await;
    }
    sleep(5 * SECOND).await;
    let nothing = MEMORY.allocated().saturating_sub(empty);
    assert!(nothing < 16_384, "{nothing} bytes remain of {full} for an empty cache");
}

/// A step that clears a part of a shard must not cost as much as the whole shard.
async fn clear_with_a_subscriber_allocates_in_proportion_to_the_capacity() {
    let before = MEMORY.total_allocated();
    let cache: Cache<u64, u64> = Cache::builder().shards(2).initial_capacity(1 << 17).build();
    let capacity = MEMORY.total_allocated() - before;
    let _events = cache.events();
    for round in 1..=3 {
        for key in 0..1_000 {
            cache.set(key, key).await;
        }
        let before = MEMORY.total_allocated();
        cache.clear().await;
        let allocated = MEMORY.total_allocated() - before;
        let most = 4 * capacity;
        assert!(allocated < most, "{allocated} bytes in round {round}, {capacity} for the tables");
    }
}

async fn initial_capacity_is_never_freed() {
    let cache: Cache<u64, u64> = Cache::builder().initial_capacity(100_000).build();
    let reserved = MEMORY.allocated();
    for round in 0..3 {
        for key in 0..100_000 {
            cache.set_ex(key, key, SECOND).await;
        }
        if round == 1 {
            cache.clear().await;
        }
        sleep(10 * SECOND).await;
        assert_eq!(cache.len(), 0);
        let now = MEMORY.allocated();
        let (low, high) = (reserved - reserved / 20, reserved + reserved / 20);
        assert!((low..high).contains(&now), "{now} bytes after {reserved}");
    }
}

/// The event log frees the memory of a burst as the events are read, even if another subscriber never reads.
async fn event_log_frees_its_memory_after_a_burst() {
    let cache: Cache<u64, u64> = Cache::builder().publish([Cause::Removed]).build();
    let (mut ring, mut lossless) = (cache.events(), cache.events_lossless(1));
    let _idle = cache.events();
    cache.set(1, 1).await;
    // Registers the metrics of the cache before the measurement, as their memory is not part of the event
    // log.
    #[cfg(feature = "metrics")]
    fleeting::publish_metrics();
    for _ in 0..2 {
        let before = MEMORY.allocated();
        for key in 0..200_000 {
            cache.set(key, key).await;
            cache.remove(&key).await;
        }
        let full = allocated_since(before);
        assert!(full > 200_000 * 40, "{full} bytes for 200,000 events");
        while unconstrained(ring.recv()).now_or_never().is_some() {}
        for _ in 0..199_900 {
            lossless.recv().await;
        }
        let remaining = allocated_since(before);
        // The broadcast channel keeps 1,024 of them for the idle subscriber.
        assert!(remaining < 160_000, "{remaining} bytes of {full} for 100 events");
        for _ in 0..100 {
            lossless.recv().await;
        }
    }
}

/// A lossless subscriber that stops reading keeps in memory exactly the expired entries and the overflow.
async fn stats_show_the_memory_of_a_full_lossless_subscriber() {
    let value: Arc<[u8]> = vec![0; 100].into();
    let cache: Cache<u64, Arc<[u8]>> = Cache::builder().sweep(Sweep::default()).build();
    let mut events = cache.events_lossless(10);
    for round in 0..20 {
        for key in 0..1_000 {
            cache.set_ex(key, value.clone(), SECOND).await;
        }
        sleep(2 * SECOND).await;
        let (resident, overflow) = (cache.len(), cache.stats().overflow);
        // Events of writes to expired keys go to the overflow; other expired entries stay resident.
        assert_eq!(resident + overflow + 10, 1_000 * (round + 1));
        assert_eq!(Arc::strong_count(&value), 1 + resident + overflow + 10);
    }
    for _ in 0..20_000 {
        events.recv().await.expect("every event is delivered");
    }
    assert_eq!((cache.len(), cache.stats().overflow), (0, 0));
    assert_eq!(Arc::strong_count(&value), 1);
}

/// Two threads load and cancel the same keys concurrently, so that every interleaving is likely.
async fn cancelled_loads_leak_no_memory() {
    let rounds = if cfg!(debug_assertions) { 10_000 } else { 500_000 };
    let cache: Cache<String, u64> = Cache::new();
    let cancel_loads = |rounds: u64| {
        for round in 0..rounds {
            let key = (round % 1_013).to_string();
            let mut load = spawn(cache.get_or_set_with(&key, SECOND, pending));
            let mut waits = spawn(cache.wait_for(&key));
            assert!(load.poll().is_pending() && waits.poll().is_pending());
            let turn = cache.compute_with(&key, async |_| pending().await);
            assert!(unconstrained(turn).now_or_never().is_none());
        }
    };
    cancel_loads(1_000);
    let before = MEMORY.allocated();
    thread::scope(|scope| {
        let threads = [scope.spawn(|| cancel_loads(rounds)), scope.spawn(|| cancel_loads(rounds))];
        for thread in threads {
            thread.join().expect("no thread panics");
        }
    });
    let remaining = allocated_since(before);
    assert!(remaining < 16_384, "{remaining} bytes remain of {} loads", 2 * rounds);
}

async fn negative_ttl_errors_are_bounded_by_max_entries() {
    let floods = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let cache: Cache<u64, u64> =
        Cache::builder().negative_ttl(3_600 * SECOND).max_entries(1_000).build();
    let flood = async |keys: Range<u64>| {
        for key in keys {
            let fails = async || Err::<u64, _>([0_u8; 100]);
            assert!(cache.get_or_try_set_with(&key, SECOND, fails).await.is_err());
        }
    };
    flood(0..10_000).await;
    let before = MEMORY.allocated();
    flood(10_000..10_000 + floods).await;
    let more = allocated_since(before);
    assert!(more < 65_536, "{more} bytes for {floods} errors");
}

async fn tags_and_idle_deadlines_are_freed_with_their_entries() {
    let cache: Cache<u64, u64> = Cache::builder().shards(4).time_to_idle(SECOND).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..50_000 {
        let tags = [format!("unique tag {key}"), "common tag".to_owned()];
        cache.set_tagged(key, key, 60 * SECOND, tags).await;
    }
    let full = allocated_since(empty);
    sleep(10 * SECOND).await;
    assert_eq!(cache.len(), 0);
    let remaining = allocated_since(empty);
    assert!(remaining < 32_768, "{remaining} bytes remain of {full} for an empty cache");
}

async fn dropped_cache_leaks_no_memory() {
    let round = async || {
        let cache: Cache<u64, Vec<u8>> = Cache::new();
        let mut events = cache.events();
        let lossless = cache.events_lossless(10);
        let task = cache.on_expired(async |_| ());
        for key in 0..10_000 {
            cache.set_ex(key, vec![0; 10], SECOND).await;
        }
        sleep(3 * SECOND / 2).await;
        drop((cache, lossless));
        while events.recv().await.is_some() {}
        drop(events);
        task.await.expect("the task ends with the cache");
        tokio::task::yield_now().await;
    };
    round().await;
    let before = MEMORY.allocated();
    for _ in 0..5 {
        round().await;
    }
    let after = MEMORY.allocated();
    assert!(after < before + 4_096, "{} bytes leaked", after.saturating_sub(before));
}
