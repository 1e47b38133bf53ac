//! Entries removed by a tag, and lossless subscribers without capacity.

use std::time::Duration;

use fleeting::{Cache, Cause, Sweep};
use tokio::time::{advance, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const ENTRIES: usize = 5_000;
const CAPACITY: usize = 16;

#[tokio::test(start_paused = true)]
async fn sweeper_respects_the_capacity_of_a_lossless_subscriber_after_remove_tag() {
    let cache = Cache::builder().shards(2).publish([Cause::Removed, Cause::Expired]).build();
    let mut events = cache.events_lossless(CAPACITY);
    for key in 0..ENTRIES {
        cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
    }
    cache.remove_tag("all").await;
    sleep(5 * SECOND).await;
    assert_eq!(cache.stats().overflow, 0, "the sweeper waits for the subscriber");
    let mut received = 0;
    while received < ENTRIES {
        let event = events.recv().await.expect("the cache has a handle");
        assert_eq!((event.cause, event.value), (Cause::Removed, event.key));
        received += 1;
        assert!(cache.stats().overflow == 0, "after {received} events");
    }
    sleep(5 * SECOND).await;
    assert!(cache.is_empty());
}

#[tokio::test(start_paused = true)]
async fn values_removed_by_a_tag_are_freed_while_a_subscriber_of_another_cause_never_reads() {
    let cache = Cache::builder().shards(2).publish([Cause::Expired]).build();
    let _events = cache.events_lossless(CAPACITY);
    for key in 0..ENTRIES {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(5 * SECOND).await;
    assert!(cache.len() > ENTRIES / 2, "the sweeper waits for the subscriber");
    for key in ENTRIES..2 * ENTRIES {
        cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
    }
    cache.remove_tag("all").await;
    sleep(5 * SECOND).await;
    assert!(cache.len() <= ENTRIES, "{} entries are left", cache.len());
}

/// Within the budget of one of the sweepers, only the first pass of a sweep is complete.
#[tokio::test(start_paused = true)]
async fn entries_expire_while_a_subscriber_of_removed_tags_never_reads() {
    for sweep in [Sweep::default(), Sweep::default().budget(1e-15)] {
        let builder = Cache::builder().shards(2).sweep(sweep);
        let cache = builder.publish([Cause::Removed, Cause::Expired]).build();
        let _removed = cache.events_lossless(CAPACITY).only([Cause::Removed]);
        let mut expired = cache.events().only([Cause::Expired]);
        for key in 0..ENTRIES {
            cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
        }
        cache.remove_tag("all").await;
        sleep(5 * SECOND).await;
        assert!(cache.len() > ENTRIES / 2, "the sweeper waits for the subscriber");
        for key in ENTRIES..ENTRIES + 100 {
            cache.set_ex(key, key, SECOND).await;
        }
        for _ in 0..100 {
            let event = timeout(10 * SECOND, expired.recv()).await.expect("the entries expire");
            let event = event.unwrap().unwrap();
            assert!(event.lag().unwrap() <= SECOND / 5, "{:?}", event.lag());
        }
        assert_eq!(cache.stats().overflow, 0);
        let sweeps = cache.stats().sweeps;
        sleep(SECOND).await;
        assert!(cache.stats().sweeps >= sweeps + 5, "each tick has a sweep");
    }
}

/// The sweeper would rest after 300 ticks without work.
#[tokio::test(start_paused = true)]
async fn removal_by_a_tag_continues_when_a_subscriber_reads_after_a_long_time() {
    let cache = Cache::builder().shards(2).publish([Cause::Removed]).build();
    let mut removed = cache.events_lossless(CAPACITY);
    for key in 0..ENTRIES {
        cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
    }
    cache.remove_tag("all").await;
    sleep(300 * SECOND).await;
    for _ in 0..ENTRIES {
        timeout(SECOND, removed.recv()).await.expect("the removal continues");
    }
    sleep(SECOND).await;
    assert!(cache.is_empty());
}

/// The subscriber reads so often that the sweeper never waits for long.
#[tokio::test(start_paused = true)]
async fn entries_expire_while_a_slow_subscriber_of_removed_tags_reads() {
    let cache = Cache::builder().shards(2).publish([Cause::Removed, Cause::Expired]).build();
    let mut removed = cache.events_lossless(2).only([Cause::Removed]);
    let mut expired = cache.events().only([Cause::Expired]);
    for key in 0..ENTRIES {
        cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
    }
    cache.remove_tag("all").await;
    let reader = tokio::spawn(async move {
        for _ in 0..ENTRIES {
            assert_eq!(removed.recv().await.unwrap().cause, Cause::Removed);
            sleep(SECOND / 1_000).await;
        }
    });
    cache.set_ex(ENTRIES, 0, SECOND).await;
    let event = timeout(10 * SECOND, expired.recv()).await.expect("the entry expires");
    let event = event.unwrap().unwrap();
    assert!(event.lag().unwrap() <= SECOND / 5, "{:?}", event.lag());
    assert!(!reader.is_finished(), "the tagged entries are not removed yet");
    reader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sweep_expires_entries_while_a_subscriber_of_removed_tags_is_full() {
    let cache = Cache::builder()
        .shards(2)
        .sweep(Sweep::manual())
        .publish([Cause::Removed, Cause::Expired])
        .build();
    let _removed = cache.events_lossless(1).only([Cause::Removed]);
    for key in 0..ENTRIES {
        cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
    }
    for key in ENTRIES..ENTRIES + 100 {
        cache.set_ex(key, key, SECOND).await;
    }
    cache.remove_tag("all").await;
    advance(SECOND).await;
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back), (100, true));
    assert_eq!(cache.len(), ENTRIES - 1, "one removal fits into the capacity");
}

/// The removal of the tag has ended the stale windows of half of the values, which depart as expired.
#[tokio::test(start_paused = true)]
async fn subscriber_that_never_reads_holds_only_its_own_cause_back() {
    for cause in [Cause::Removed, Cause::Expired] {
        let builder = Cache::builder().shards(2).stale_if_error(SECOND * 3_600);
        let cache = builder.publish([Cause::Removed, Cause::Expired]).build();
        let mut events = cache.events_lossless(CAPACITY).only([cause]);
        for key in 0..ENTRIES {
            cache.set_tagged(key, key, SECOND, ["all"]).await;
        }
        advance(SECOND).await;
        for key in ENTRIES..2 * ENTRIES {
            cache.set_tagged(key, key, SECOND * 3_600, ["all"]).await;
        }
        cache.remove_tag("all").await;
        sleep(5 * SECOND).await;
        assert_eq!((cache.len(), cache.stats().overflow), (ENTRIES - CAPACITY, 0), "{cause:?}");
        // A later removal of a tag is not held back, either.
        for key in 0..10 {
            cache.set_tagged(3 * ENTRIES + key, key, SECOND * 3_600, ["more"]).await;
        }
        cache.remove_tag("more").await;
        sleep(5 * SECOND).await;
        let more = if cause == Cause::Removed { 10 } else { 0 };
        assert_eq!(cache.len(), ENTRIES - CAPACITY + more, "{cause:?}");
        for received in 0..ENTRIES + more {
            let event = timeout(SECOND, events.recv()).await.expect("the removal continues");
            assert_eq!(event.unwrap().cause, cause);
            assert_eq!(cache.stats().overflow, 0, "after {received} events");
        }
        sleep(SECOND).await;
        assert!(cache.is_empty(), "{cause:?}");
    }
}

/// The subscriber reads one event per second, which frees little of its capacity at each tick.
#[tokio::test(start_paused = true)]
async fn entries_expire_while_a_subscriber_receives_stale_ones_with_a_removed_tag() {
    let builder = Cache::builder().shards(2).stale_if_error(10 * SECOND);
    let cache = builder.publish([Cause::Expired]).build();
    let mut events = cache.events_lossless(CAPACITY);
    cache.set_ex(ENTRIES, 0, 2 * SECOND).await;
    sleep(5 * SECOND).await;
    for key in 0..ENTRIES {
        cache.set_tagged(key, key, SECOND, ["all"]).await;
    }
    sleep(2 * SECOND).await;
    cache.remove_tag("all").await;
    sleep(4 * SECOND).await;
    assert!(cache.len() > ENTRIES / 2, "the sweeper waits for the subscriber");
    sleep(2 * SECOND).await;
    let mut received = 0;
    while events.recv().await.expect("the cache has a handle").key != ENTRIES {
        received += 1;
        sleep(SECOND / 100).await;
    }
    assert!(received <= 3 * CAPACITY, "it was removed after {received} others");
}
