//! Iterators over entries whose deadlines change during the iteration.

use std::time::Duration;

use fleeting::Cache;
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const ENTRIES: u32 = 1_000;

#[tokio::test(start_paused = true)]
async fn entry_whose_ttl_is_removed_during_the_iteration_is_returned_exactly_once() {
    let cache = Cache::builder().shards(2).time_to_live(10 * SECOND).build();
    check(cache, async |cache, key| assert!(cache.persist(&key).await)).await;
}

#[tokio::test(start_paused = true)]
async fn entry_whose_deadline_is_extended_during_the_iteration_is_returned_exactly_once() {
    let cache = Cache::builder().shards(2).time_to_live(10 * SECOND).build();
    check(cache, async |cache, key| assert!(cache.expire(&key, 60 * SECOND).await)).await;
}

#[tokio::test(start_paused = true)]
async fn entry_that_is_replaced_during_the_iteration_is_returned_exactly_once() {
    let cache = Cache::builder().shards(2).time_to_live(10 * SECOND).build();
    check(cache, async |cache, key| {
        assert!(cache.set_ex(key, key, 60 * SECOND).await.is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn entry_whose_idle_time_restarts_during_the_iteration_is_returned_exactly_once() {
    let cache = Cache::builder().shards(2).time_to_idle(10 * SECOND).build();
    check(cache, async |cache, key| assert_eq!(cache.get(&key).await, Some(key))).await;
}

/// Prolongs entries that would expire during an iteration, before they do.
async fn check(cache: Cache<u32, u32>, prolong: impl AsyncFn(&Cache<u32, u32>, u32)) {
    for key in 0..ENTRIES {
        cache.set(key, key).await;
    }
    let (mut entries, mut keys, mut values) = (cache.iter(), cache.keys(), cache.values());
    let mut returned = [
        vec![entries.next().expect("all entries are live").0],
        vec![keys.next().expect("all entries are live")],
        vec![values.next().expect("all entries are live")],
    ];
    advance(5 * SECOND).await;
    for key in 0..ENTRIES {
        prolong(&cache, key).await;
    }
    advance(6 * SECOND).await;
    returned[0].extend(entries.map(|(key, _)| key));
    returned[1].extend(keys);
    returned[2].extend(values);
    for mut returned in returned {
        returned.sort_unstable();
        assert!(returned.iter().copied().eq(0..ENTRIES), "{} of {ENTRIES}", returned.len());
    }
}

#[tokio::test(start_paused = true)]
async fn entry_that_expires_or_is_removed_after_its_shard_was_copied_is_not_returned() {
    let cache = Cache::builder().shards(1).build();
    for key in 0..ENTRIES {
        cache.set_ex(key, key, SECOND * (1 + key % 3)).await;
    }
    let mut keys = cache.keys();
    let first = keys.next().expect("all entries are live");
    // The removed ones among those that have expired must not be found again.
    for key in (0..ENTRIES).step_by(3).filter(|key| key % 2 == 0) {
        cache.remove(&key).await;
    }
    advance(SECOND).await;
    let rest = keys.inspect(|key| assert_ne!(key % 3, 0, "{key} has expired")).count();
    let live = (0..ENTRIES).filter(|key| key % 3 != 0 && *key != first).count();
    assert_eq!(rest, live);
}
