//! Event streams: one event per removal, in order, and the guarantees of each kind of stream.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleeting::{Cache, Cause, Event, LosslessEvents, Sweep};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

fn manual() -> Cache<u32, u32> {
    Cache::builder().sweep(Sweep::manual().sample(1.0)).publish(ALL).build()
}

/// Returns the unread events without waiting.
fn drain<V>(events: &mut LosslessEvents<u32, V>) -> Vec<Arc<Event<u32, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

fn drain_fields(events: &mut LosslessEvents<u32, u32>) -> Vec<(u32, u32, Cause)> {
    drain(events).iter().map(|event| (event.key, event.value, event.cause)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_removal_has_one_event_with_its_cause() {
    let cache = manual();
    let mut events = cache.events_lossless(100);
    cache.set(1, 10).await;
    cache.set(1, 11).await;
    cache.set_keep_ttl(1, 12).await;
    cache.update(&1, |v| *v = 13).await;
    cache.get_ex(&1, SECOND).await;
    cache.remove(&1).await;
    cache.remove(&1).await;
    cache.set_ex(2, 20, SECOND).await;
    cache.expire_now(&2).await;
    cache.set_ex(3, 30, SECOND).await;
    advance(SECOND).await;
    cache.sweep().await;
    cache.sweep().await;
    cache.set(4, 40).await;
    cache.clear().await;
    use Cause::{Expired, Removed, Replaced};
    assert_eq!(
        drain_fields(&mut events),
        [
            (1, 10, Replaced),
            (1, 11, Replaced),
            (1, 13, Removed),
            (2, 20, Expired),
            (3, 30, Expired),
            (4, 40, Removed),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn default_causes_are_expired_and_evicted() {
    let cache: Cache<u32, u32> = Cache::new();
    let mut events = cache.events_lossless(100);
    cache.set(1, 10).await;
    cache.set(1, 11).await;
    cache.remove(&1).await;
    cache.set(2, 20).await;
    cache.clear().await;
    cache.set(3, 30).await;
    cache.expire_now(&3).await;
    assert_eq!(drain_fields(&mut events), [(3, 30, Cause::Expired)]);
}

/// Each method that finds an expired value publishes its event once, before any event of a new value.
#[tokio::test(start_paused = true)]
async fn expired_event_precedes_events_of_the_new_value() {
    let call = async |cache: &Cache<u32, u32>, method: u32| match method {
        0 => drop(cache.get(&1).await),
        1 => drop(cache.get_ex(&1, SECOND).await),
        2 => drop(cache.set(1, 2).await),
        3 => drop(cache.set_ex(1, 2, SECOND).await),
        4 => drop(cache.set_nx(1, 2, None).await),
        5 => drop(cache.set_keep_ttl(1, 2).await),
        6 => drop(cache.remove(&1).await),
        7 => drop(cache.contains_key(&1).await),
        8 => drop(cache.ttl(&1).await),
        9 => drop(cache.expire(&1, SECOND).await),
        10 => drop(cache.expire_if(&1, SECOND, fleeting::When::HasTtl).await),
        11 => drop(cache.expire_at(&1, Instant::now() + SECOND).await),
        12 => drop(cache.extend(&1, SECOND).await),
        13 => drop(cache.persist(&1).await),
        14 => drop(cache.expire_now(&1).await),
        15 => drop(cache.update(&1, |_| ()).await),
        16 => cache.clear().await,
        17 => drop(cache.sweep().await),
        _ => cache.shutdown().await,
    };
    for method in 0..=18 {
        let cache = manual();
        let mut events = cache.events_lossless(100);
        cache.set_ex(1, 1, SECOND).await;
        let deadline = Instant::now() + SECOND;
        advance(3 * SECOND).await;
        call(&cache, method).await;
        cache.set(1, 3).await;
        cache.set(1, 4).await;
        let events = drain(&mut events);
        let first = &events[0];
        assert_eq!((first.value, first.cause), (1, Cause::Expired), "method {method}");
        assert_eq!(first.deadline, Some(deadline), "method {method}");
        assert_eq!(first.lag(), Some(2 * SECOND), "method {method}");
        let is_repeated = events[1..].iter().any(|event| event.cause == Cause::Expired);
        assert!(!is_repeated, "method {method}: the event was published twice");
    }
}

#[tokio::test(start_paused = true)]
async fn event_has_deadline_time_and_lag() {
    let cache = manual();
    let mut events = cache.events_lossless(100);
    let start = Instant::now();
    cache.set_ex(1, 1, 10 * SECOND).await;
    advance(3 * SECOND).await;
    cache.expire_now(&1).await;
    cache.set_ex(2, 2, 10 * SECOND).await;
    cache.remove(&2).await;
    cache.set(3, 3).await;
    cache.remove(&3).await;
    cache.set(4, 4).await;
    cache.expire_now(&4).await;
    let when: Vec<_> = drain(&mut events)
        .iter()
        .map(|event| {
            assert_eq!(event.at, start + 3 * SECOND);
            (event.key, event.deadline.map(|deadline| deadline - start), event.lag())
        })
        .collect();
    let zero = Some(Duration::ZERO);
    assert_eq!(
        when,
        [
            (1, Some(3 * SECOND), zero),
            (2, Some(13 * SECOND), None),
            (3, None, None),
            (4, Some(3 * SECOND), zero),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_lagged_is_woken_by_the_next_event() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).event_capacity(5).build();
    let mut slow = cache.events();
    let mut prompt = cache.events();
    for key in 0..12 {
        cache.set(key, key).await;
        cache.expire_now(&key).await;
        assert_eq!(prompt.recv().await.unwrap().unwrap().key, key);
    }
    assert_eq!(slow.recv().await.unwrap().unwrap_err().0, 7);
    for key in 7..12 {
        assert_eq!(slow.recv().await.unwrap().unwrap().key, key);
    }
    let mut waits = spawn(slow.recv());
    assert_pending!(waits.poll());
    cache.set(50, 50).await;
    cache.expire_now(&50).await;
    assert!(waits.is_woken());
    assert_eq!(assert_ready!(waits.poll()).unwrap().unwrap().key, 50);
    let message = fleeting::Lagged(7).to_string();
    assert_eq!(message, "the subscriber lagged behind and missed 7 events");
}

#[tokio::test(start_paused = true)]
async fn subscriber_receives_events_after_its_subscription() {
    let cache = manual();
    let mut early = cache.events_lossless(10);
    cache.set(1, 1).await;
    cache.remove(&1).await;
    let mut late = cache.events_lossless(10);
    cache.set(2, 2).await;
    cache.remove(&2).await;
    assert_eq!(drain_fields(&mut early).len(), 2);
    assert_eq!(drain_fields(&mut late), [(2, 2, Cause::Removed)]);
    assert_eq!(cache.stats().subscribers, 2);
    drop((early, late));
    assert_eq!(cache.stats().subscribers, 0);
}

/// Each waiting stream is woken, and dropping one does not affect the others.
#[tokio::test(start_paused = true)]
async fn all_subscribers_receive_the_same_events() {
    let cache: Cache<u32, u32> = Cache::new();
    let mut tasks = Vec::new();
    for i in 0..50 {
        let mut events = cache.events();
        let mut lossless = cache.events_lossless(1);
        if i % 5 == 0 {
            drop(cache.events());
        }
        tasks.push(tokio::spawn(async move {
            let mut keys = Vec::new();
            while let Some(event) = events.recv().await {
                assert_eq!(lossless.recv().await.unwrap(), event.clone().unwrap());
                keys.push(event.unwrap().key);
            }
            keys
        }));
    }
    for key in 0..20 {
        cache.set_ex(key, key, SECOND / 20 * key).await;
    }
    sleep(3 * SECOND).await;
    drop(cache);
    for task in tasks {
        let mut keys = task.await.unwrap();
        keys.sort_unstable();
        assert_eq!(keys, (0..20).collect::<Vec<_>>());
    }
}

/// The guarantees of a lossless stream: readers and writers continue, expired values stay unreadable and in memory,
/// `stats` reports the overflow, and every event is received in order in the end.
#[tokio::test(start_paused = true)]
async fn full_lossless_stream_delays_only_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let mut events = cache.events_lossless(10);
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(cache.len(), 990, "the sweeper removed as many as the stream had capacity for");
    assert_eq!((cache.live_len(), cache.stats().overflow), (0, 0));
    for key in 0..1_000 {
        assert_eq!(cache.get(&key).await, None);
        if key == 499 {
            assert_eq!(
                cache.stats().overflow + cache.len(),
                990,
                "an event caused by a reader is overflow"
            );
        }
    }
    assert_eq!((cache.len(), cache.stats().overflow), (0, 990));
    for round in 0..3 {
        for key in 0..1_000 {
            cache.set_ex(key, key + round, SECOND).await;
        }
    }
    cache.remove(&5).await;
    assert_eq!(cache.stats().overflow, 990 + 2_000 + 1);
    sleep(60 * SECOND).await;
    assert_eq!(cache.len(), 999, "the stream is still full");

    let mut last: Vec<Option<(u32, Cause)>> = vec![None; 1_000];
    let mut count = 0;
    while count < 1_000 + 2_000 + 1 + 999 {
        let event = events.recv().await.unwrap();
        let expected = match last[event.key as usize] {
            None => (event.key, Cause::Expired),
            Some((value, Cause::Expired)) if value == event.key => (event.key, Cause::Replaced),
            Some((_, Cause::Replaced)) if event.value == event.key + 1 => {
                (event.key + 1, Cause::Replaced)
            }
            Some((_, Cause::Replaced)) if event.key == 5 => (event.key + 2, Cause::Removed),
            _ => (event.key + 2, Cause::Expired),
        };
        assert_eq!((event.value, event.cause), expected, "of key {}", event.key);
        last[event.key as usize] = Some(expected);
        count += 1;
    }
    assert_eq!((cache.len(), cache.stats().overflow), (0, 0));
    assert_pending!(spawn(events.recv()).poll());
}

/// A subscriber may write even if its own stream is full.
#[tokio::test(start_paused = true)]
async fn lossless_subscriber_may_write() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let mut events = cache.events_lossless(1);
    for key in 0..100 {
        cache.set_ex(key, 0, SECOND).await;
    }
    let mut expired = 0;
    while expired < 300 {
        let event = events.recv().await.unwrap();
        if event.cause == Cause::Expired {
            expired += 1;
            if event.value < 2 {
                cache.set_ex(event.key, event.value + 1, SECOND).await;
                cache.set_ex(1_000 + event.key, 9, 3_600 * SECOND).await;
                cache.set_ex(1_000 + event.key, 9, 3_600 * SECOND).await;
            }
        }
    }
    assert_eq!(cache.live_len(), 100);
}

/// A manual sweep never waits for a subscriber, which may be the task that called it.
#[tokio::test(start_paused = true)]
async fn manual_sweep_stops_at_a_full_lossless_stream_and_reports_held_back() {
    let cache = manual();
    let mut events = cache.events_lossless(4);
    for key in 0..10 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (4, true, 6));
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (0, true, 6));
    assert_eq!(drain(&mut events).len(), 4);
    assert_eq!(cache.sweep().await.expired, 4);
    assert_eq!(drain(&mut events).len(), 4);
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (2, false, 0));
    assert_eq!(drain(&mut events).len(), 2);
}

/// When the full stream is dropped, the sweeper resumes immediately.
#[tokio::test(start_paused = true)]
async fn dropping_a_full_lossless_stream_resumes_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::new();
    let stuck = cache.events_lossless(1);
    let mut prompt = cache.events_lossless(1_000);
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(10 * SECOND).await;
    assert_eq!((cache.len(), drain(&mut prompt).len()), (99, 1));
    drop(stuck);
    sleep(SECOND).await;
    assert_eq!((cache.len(), drain(&mut prompt).len()), (0, 99));
}

/// A value that every subscriber has read is dropped.
#[tokio::test(start_paused = true)]
async fn value_read_by_all_subscribers_is_dropped() {
    let value = Arc::new(());
    let cache: Cache<u32, Arc<()>> = Cache::new();
    let mut events = cache.events_lossless(8);
    cache.set(1, value.clone()).await;
    cache.expire_now(&1).await;
    assert_eq!(Arc::strong_count(&value), 2, "the stream owns the value");
    drop(events.recv().await);
    assert_eq!(Arc::strong_count(&value), 1);
    cache.set(1, value.clone()).await;
    cache.expire_now(&1).await;
    drop(events);
    assert_eq!(Arc::strong_count(&value), 1, "no subscriber is left");
}

#[tokio::test(start_paused = true)]
async fn streams_end_after_their_unread_events_with_the_last_handle() {
    let cache = manual();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(1);
    for key in 0..5 {
        cache.set(key, key).await;
        cache.remove(&key).await;
    }
    drop(cache);
    for key in 0..5 {
        assert_eq!(events.recv().await.unwrap().unwrap().key, key);
        assert_eq!(lossless.recv().await.unwrap().key, key);
    }
    assert!(events.recv().await.is_none() && lossless.recv().await.is_none());
    assert!(events.recv().await.is_none() && lossless.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn recv_is_cancel_safe() {
    let cache = manual();
    let mut events = cache.events_lossless(10);
    for key in 0..10 {
        let _ = tokio::time::timeout(SECOND, events.recv()).await.unwrap_err();
        cache.set(key, key).await;
        cache.remove(&key).await;
        drop(events.recv());
        assert_eq!(events.recv().await.unwrap().key, key);
    }
}

#[tokio::test(start_paused = true)]
async fn on_expired_receives_all_events_despite_a_panic() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = received.clone();
    let task = cache.on_expired(async move |event| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        log.lock().unwrap().push((event.key, event.cause));
        assert_ne!(event.key, 2, "the panic of this test");
    });
    cache.set(9, 9).await;
    cache.remove(&9).await;
    for key in 1..=4 {
        cache.set_ex(key, key, SECOND * key).await;
    }
    sleep(6 * SECOND).await;
    let expected: Vec<_> = (1..=4).map(|key| (key, Cause::Expired)).collect();
    assert_eq!(*received.lock().unwrap(), expected);
    assert!(!task.is_finished());
    drop(cache);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn aborted_on_expired_callback_does_not_delay_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::new();
    let task = cache.on_expired(async |_| std::future::pending().await);
    tokio::task::yield_now().await;
    assert_eq!(cache.stats().subscribers, 1);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(cache.stats().subscribers, 0);
}

#[tokio::test]
#[should_panic(expected = "the capacity of lossless events must be at least 1, got 0")]
async fn events_lossless_with_capacity_zero_panics() {
    let cache: Cache<u32, u32> = Cache::new();
    let _ = cache.events_lossless(0);
}
