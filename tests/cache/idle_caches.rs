//! Idle caches: their sweepers sleep until the next deadline, and tick no more often than entries expire.

use std::time::Duration;

use fleeting::Cache;
use tokio::time::{Instant, sleep, sleep_until};

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn idle_cache_is_hardly_ever_swept() {
    let cache = Cache::new();
    cache.set(1, 1).await;
    sleep(10 * SECOND).await;
    let first = cache.stats().sweeps;
    assert!(first <= 20, "{first} sweeps in the first ten seconds");
    sleep(600 * SECOND).await;
    let later = cache.stats().sweeps - first;
    assert!(later <= 60, "{later} sweeps in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn cache_is_swept_as_often_as_its_entries_expire_and_on_time() {
    let (cache, start) = (Cache::new(), Instant::now());
    for minute in 1..=10 {
        cache.set_ex(minute, minute, minute * 60 * SECOND).await;
    }
    for minute in 1..=10 {
        let deadline = start + minute * 60 * SECOND;
        sleep_until(deadline - TICK).await;
        assert_eq!(cache.len(), 11 - minute as usize, "before the end of minute {minute}");
        sleep_until(deadline + TICK).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(cache.len(), 10 - minute as usize, "after minute {minute}");
    }
    let sweeps = cache.stats().sweeps;
    assert!(sweeps <= 150, "{sweeps} sweeps for ten expirations in ten minutes");
}

/// A sweeper that sleeps is woken by a write of an entry that is due before it would wake.
#[tokio::test(start_paused = true)]
async fn sleeping_sweeper_is_woken_by_an_earlier_deadline() {
    let cache = Cache::new();
    cache.set_ex(1, 1, 3_600 * SECOND).await;
    for _ in 0..20 {
        sleep(97 * SECOND).await;
        cache.set_ex(2, 2, SECOND).await;
        sleep(SECOND).await;
        sleep(TICK).await;
        assert_eq!(cache.len(), 1, "the entry was removed within a tick of its deadline");
    }
}
