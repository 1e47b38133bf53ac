//! Memory retained by event streams: an event is dropped when its last subscriber has read it, and not only with the
//! next event.

use std::sync::{Arc, Weak};

use fleeting::{Cache, Cause, Events, LosslessEvents, Sweep};
use futures::{FutureExt, StreamExt};
use tokio::task::unconstrained;

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

type ValueCache = Cache<u32, Arc<u32>>;

fn cache(capacity: usize) -> ValueCache {
    Cache::builder().sweep(Sweep::manual()).publish(ALL).event_capacity(capacity).build()
}

/// Inserts and removes `count` values, so that each one has a `Removed` event.
async fn remove_values(cache: &ValueCache, count: u32) -> Vec<Weak<u32>> {
    let mut values = Vec::new();
    for key in 0..count {
        let value = Arc::new(key);
        values.push(Arc::downgrade(&value));
        cache.set(key, value).await;
        cache.remove(&key).await;
    }
    values
}

fn count_alive(values: &[Weak<u32>]) -> usize {
    values.iter().filter(|value| value.strong_count() > 0).count()
}

/// Reads at most `count` events, and returns how many there were.
fn read(events: &mut Events<u32, Arc<u32>>, count: usize) -> usize {
    let next = || unconstrained(events.next()).now_or_never().flatten();
    std::iter::from_fn(next).take(count).inspect(|event| assert!(event.is_ok())).count()
}

fn read_lossless(events: &mut LosslessEvents<u32, Arc<u32>>, count: usize) -> usize {
    let next = || unconstrained(events.next()).now_or_never().flatten();
    std::iter::from_fn(next).take(count).count()
}

#[tokio::test(start_paused = true)]
async fn event_is_dropped_when_its_last_subscriber_has_read_it() {
    let cache = cache(2_000);
    let (mut first, mut second) = (cache.events(), cache.events());
    let values = remove_values(&cache, 1_000).await;
    assert_eq!((read(&mut first, 1_000), count_alive(&values)), (1_000, 1_000));
    assert_eq!((read(&mut second, 400), count_alive(&values)), (400, 600));
    assert_eq!((read(&mut second, 1_000), count_alive(&values)), (600, 0));

    let mut lossless = [cache.events_lossless(1), cache.events_lossless(1_000)];
    let values = remove_values(&cache, 1_000).await;
    assert_eq!((read(&mut first, 1_000), read(&mut second, 1_000)), (1_000, 1_000));
    assert_eq!(read_lossless(&mut lossless[0], 700), 700);
    assert_eq!(count_alive(&values), 1_000);
    assert_eq!((read_lossless(&mut lossless[1], 500), count_alive(&values)), (500, 500));
    drop(lossless);
    assert_eq!(count_alive(&values), 0, "no subscriber is left for the other events");
}

/// A stream positioned at an event it filters out does not retain events that others have read.
#[tokio::test(start_paused = true)]
async fn idle_stream_retains_only_events_of_its_causes() {
    let cache = cache(10);
    let _stuck = cache.events_lossless(1).only([Cause::Replaced]);
    let mut removed = cache.events_lossless(1).only([Cause::Removed]);
    let (old, new) = (Arc::new(1), Arc::new(2));
    cache.set(5_000, old.clone()).await;
    cache.set(5_000, new).await;
    let values = remove_values(&cache, 1_000).await;
    assert_eq!(count_alive(&values), 1_000);
    assert_eq!((read_lossless(&mut removed, 1_000), count_alive(&values)), (1_000, 0));
    assert_eq!(Arc::strong_count(&old), 2, "the event is unread");
}

/// A broadcast stream retains as many events as its capacity, regardless of reads.
#[tokio::test(start_paused = true)]
async fn broadcast_stream_retains_at_most_event_capacity() {
    for capacity in [1, 5, 64, 100] {
        let cache = cache(capacity);
        let idle = cache.events();
        let mut others = [cache.events(), cache.events()];
        let values = remove_values(&cache, 1_000).await;
        assert_eq!(count_alive(&values), capacity);
        for other in &mut others {
            assert!(
                matches!(other.recv().await, Some(Err(missed)) if missed.0 == 1_000 - capacity as u64)
            );
            assert_eq!(read(other, 1_000), capacity);
        }
        assert_eq!(count_alive(&values), capacity);
        drop(idle);
        assert_eq!(count_alive(&values), 0);
    }
}

/// Events that `only` filters out are dropped immediately.
#[tokio::test(start_paused = true)]
async fn only_drops_the_unread_events_it_filters_out() {
    let cache = cache(2_000);
    let (broadcast, lossless) = (cache.events(), cache.events_lossless(1));
    let values = remove_values(&cache, 1_000).await;
    let broadcast = broadcast.only([Cause::Expired]);
    assert_eq!(count_alive(&values), 1_000);
    let lossless = lossless.only([Cause::Replaced]);
    assert_eq!(count_alive(&values), 0);
    drop((broadcast, lossless));
}

/// The same with concurrent writers: when all events are read, all values are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_of_concurrent_writers_are_dropped_once_read() {
    let cache = cache(100_000);
    let mut streams = [cache.events(), cache.events()];
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { remove_values(&cache, 10_000).await })
        })
        .collect();
    let mut values = Vec::new();
    for writer in writers {
        values.extend(writer.await.unwrap());
    }
    // Two writers may use the same key: the second one replaces the value of the first.
    let received = read(&mut streams[0], 100_000);
    assert_eq!(received, 40_000, "one event per removal");
    assert_eq!(read(&mut streams[1], 100_000), 40_000);
    assert_eq!(count_alive(&values), 0);
}
