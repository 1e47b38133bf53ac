//! What a cache keeps: memory comes back after a mass expiry, and nothing leaks.

use std::{future::pending, ops::Range, sync::Arc, thread, time::Duration};

use fleeting::{Cache, Cause, Sweep};
use futures::FutureExt;
use tokio::{task::unconstrained, time::sleep};
use tokio_test::task::spawn;

use super::{MEMORY, alone, grown, take_turns};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_stays_in_memory() {
    take_turns();
    alone(memory_comes_back_after_mass_expiry());
    alone(what_was_asked_for_at_first_is_never_given_back());
    alone(a_subscriber_that_stops_reading_costs_what_the_stats_show());
    alone(a_burst_of_events_leaves_no_memory_behind());
    alone(nothing_is_left_of_a_cache_that_is_gone());
    alone(nothing_is_left_of_loads_that_were_given_up());
    alone(errors_that_are_kept_are_bounded());
    alone(tags_and_idle_deadlines_go_with_their_entries());
}

async fn memory_comes_back_after_mass_expiry() {
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
    assert!(sparse < full / 20, "{sparse} bytes are left of {full} for 1 % of the entries");
    for key in 0..500 {
        assert_eq!(cache.get(&(1_000_000 + key)).await, Some([key; 4]), "lost in shrinking");
        cache.expire(&(1_000_000 + key), SECOND).await;
    }
    sleep(5 * SECOND).await;
    let nothing = MEMORY.allocated().saturating_sub(empty);
    assert!(nothing < 16_384, "{nothing} bytes are left of {full} for nothing");
}

async fn what_was_asked_for_at_first_is_never_given_back() {
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

/// What a log took for a burst it gives back as that is read, also beside one who never reads.
async fn a_burst_of_events_leaves_no_memory_behind() {
    let cache: Cache<u64, u64> = Cache::builder().publish([Cause::Removed]).build();
    let (mut ring, mut lossless) = (cache.events(), cache.events_lossless(1));
    let _idle = cache.events();
    cache.set(1, 1).await;
    // What is kept of a name's figures is none of the events'.
    #[cfg(feature = "metrics")]
    fleeting::publish_metrics();
    for _ in 0..2 {
        let before = MEMORY.allocated();
        for key in 0..200_000 {
            cache.set(key, key).await;
            cache.remove(&key).await;
        }
        let full = grown(before);
        assert!(full > 200_000 * 40, "{full} bytes for 200,000 events");
        while unconstrained(ring.recv()).now_or_never().is_some() {}
        for _ in 0..199_900 {
            lossless.recv().await;
        }
        let left = grown(before);
        // The ring holds 1,024 of them for the one who never reads.
        assert!(left < 160_000, "{left} bytes of {full} for 100 events");
        for _ in 0..100 {
            lossless.recv().await;
        }
    }
}

/// A lossless subscriber that stops reading: what is in memory is what is dead or in the overflow.
async fn a_subscriber_that_stops_reading_costs_what_the_stats_show() {
    let value: Arc<[u8]> = vec![0; 100].into();
    let cache: Cache<u64, Arc<[u8]>> = Cache::builder().sweep(Sweep::default()).build();
    let mut events = cache.events_lossless(10);
    for round in 0..20 {
        for key in 0..1_000 {
            cache.set_ex(key, value.clone(), SECOND).await;
        }
        sleep(2 * SECOND).await;
        let (resident, overflow) = (cache.len(), cache.stats().overflow);
        // Writes on dead keys go to the overflow, what was dead stays.
        assert_eq!(resident + overflow + 10, 1_000 * (round + 1));
        assert_eq!(Arc::strong_count(&value), 1 + resident + overflow + 10);
    }
    for _ in 0..20_000 {
        events.recv().await.expect("every event comes");
    }
    assert_eq!((cache.len(), cache.stats().overflow), (0, 0));
    assert_eq!(Arc::strong_count(&value), 1);
}

/// On two threads at once, of the same keys: who comes and who goes meets everywhere.
async fn nothing_is_left_of_loads_that_were_given_up() {
    let rounds = if cfg!(debug_assertions) { 30_000 } else { 500_000 };
    let cache: Cache<String, u64> = Cache::new();
    let give_up = |rounds: u64| {
        for round in 0..rounds {
            let key = (round % 1_013).to_string();
            let mut load = spawn(cache.get_or_set_with(&key, SECOND, pending));
            let mut waits = spawn(cache.wait_for(&key));
            assert!(load.poll().is_pending() && waits.poll().is_pending());
            let turn = cache.compute_with(&key, async |_| pending().await);
            assert!(unconstrained(turn).now_or_never().is_none());
        }
    };
    give_up(1_000);
    let before = MEMORY.allocated();
    thread::scope(|scope| {
        let threads = [scope.spawn(|| give_up(rounds)), scope.spawn(|| give_up(rounds))];
        for thread in threads {
            thread.join().expect("it panics nowhere");
        }
    });
    let left = grown(before);
    assert!(left < 16_384, "{left} bytes are left of {} loads", 2 * rounds);
}

async fn errors_that_are_kept_are_bounded() {
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
    let more = grown(before);
    assert!(more < 65_536, "{more} bytes for {floods} errors");
}

async fn tags_and_idle_deadlines_go_with_their_entries() {
    let cache: Cache<u64, u64> = Cache::builder().shards(4).time_to_idle(SECOND).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for key in 0..50_000 {
        let tags = [format!("a name that only one has: {key}"), "of all".to_owned()];
        cache.set_tagged(key, key, 60 * SECOND, tags).await;
    }
    let full = grown(empty);
    sleep(10 * SECOND).await;
    assert_eq!(cache.len(), 0);
    let left = grown(empty);
    assert!(left < 32_768, "{left} bytes are left of {full} for nothing");
}

async fn nothing_is_left_of_a_cache_that_is_gone() {
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
        task.await.expect("it ends with the cache");
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
