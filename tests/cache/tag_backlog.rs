//! Entries removed by a tag, and lossless subscribers without capacity.

use std::time::Duration;

use fleeting::{Cache, Cause};
use tokio::time::sleep;

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
