//! User code that panics in a call that has removed an entry: the event of that entry waits for no other call.

use std::panic::AssertUnwindSafe;

use fleeting::{Cache, Sweep};
use futures::FutureExt;
use tokio_test::{assert_pending, assert_ready, task::spawn};

use super::SECOND;

#[tokio::test(start_paused = true)]
async fn panic_of_compute_does_not_delay_the_event_of_an_entry_removed_by_tag() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).publish([]).build();
    cache.set_tagged(1, 1, SECOND, ["tag"]).await;
    let mut removal = spawn(cache.expired(&1));
    assert_pending!(removal.poll());
    cache.remove_tag("tag").await;
    let compute = cache.compute(&1, |_| panic!("the panic of this test"));
    assert!(AssertUnwindSafe(compute).catch_unwind().await.is_err());
    assert!(removal.is_woken());
    assert_eq!(assert_ready!(removal.poll()).unwrap().value, 1);
}

#[tokio::test(start_paused = true)]
async fn panic_of_update_does_not_delay_the_event_of_an_evicted_entry() {
    let cache = weighing_cache();
    cache.set(1, 5).await;
    cache.set(2, 5).await;
    let mut eviction = spawn(cache.expired(&2));
    assert_pending!(eviction.poll());
    let update = cache.update(&1, |weight| {
        *weight = 10;
        panic!("the panic of this test")
    });
    let updated: Result<Option<()>, _> = AssertUnwindSafe(update).catch_unwind().await;
    assert!(updated.is_err());
    assert_eq!((cache.len(), cache.weight()), (1, 10));
    assert!(eviction.is_woken());
    assert_eq!(assert_ready!(eviction.poll()).unwrap().value, 5);
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_weigher_does_not_delay_the_event_of_the_updated_entry() {
    let cache = weighing_cache();
    cache.set(1, 5).await;
    let mut eviction = spawn(cache.expired(&1));
    assert_pending!(eviction.poll());
    let update = cache.update(&1, |weight| *weight = 7);
    assert!(AssertUnwindSafe(update).catch_unwind().await.is_err());
    assert!(eviction.is_woken());
    assert_eq!(assert_ready!(eviction.poll()).unwrap().value, 7);
}

/// The write removes an expired entry, since the cache is full, and is weighed then.
#[tokio::test(start_paused = true)]
async fn panic_of_a_write_does_not_delay_the_event_of_an_expired_entry() {
    let cache = weighing_cache();
    cache.set(1, 5).await;
    cache.set_ex(2, 5, SECOND).await;
    let mut expiry = spawn(cache.expired(&2));
    assert_pending!(expiry.poll());
    tokio::time::advance(SECOND).await;
    let compute = cache.compute(&1, |_| panic!("the panic of this test"));
    assert!(AssertUnwindSafe(compute).catch_unwind().await.is_err());
    assert!(expiry.is_woken());
    assert_eq!(assert_ready!(expiry.poll()).unwrap().value, 5);
}

/// Returns a cache of 10 units whose weigher panics at a value of 7.
fn weighing_cache() -> Cache<u32, u32> {
    let weigher = |_: &u32, weight: &u32| {
        assert!(*weight != 7, "the panic of this test");
        *weight
    };
    Cache::builder().sweep(Sweep::manual()).max_weight(10, weigher).publish([]).build()
}
