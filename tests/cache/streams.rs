//! The streams: one event a departure, in order, and what each stream promises of loss.

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

/// What has come by now, without waiting.
fn heard<V>(events: &mut LosslessEvents<u32, V>) -> Vec<Arc<Event<u32, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

fn told(events: &mut LosslessEvents<u32, u32>) -> Vec<(u32, u32, Cause)> {
    heard(events).iter().map(|event| (event.key, event.value, event.cause)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_departure_has_one_event_with_its_cause() {
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
        told(&mut events),
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
async fn by_default_only_expired_and_evicted_are_sent() {
    let cache: Cache<u32, u32> = Cache::new();
    let mut events = cache.events_lossless(100);
    cache.set(1, 10).await;
    cache.set(1, 11).await;
    cache.remove(&1).await;
    cache.set(2, 20).await;
    cache.clear().await;
    cache.set(3, 30).await;
    cache.expire_now(&3).await;
    assert_eq!(told(&mut events), [(3, 30, Cause::Expired)]);
}

/// Every verb that meets a dead value sends its event, once, before anything of a new value.
#[tokio::test(start_paused = true)]
async fn the_dead_comes_before_the_new_whoever_meets_it() {
    let met = async |cache: &Cache<u32, u32>, verb: u32| match verb {
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
    for verb in 0..=18 {
        let cache = manual();
        let mut events = cache.events_lossless(100);
        cache.set_ex(1, 1, SECOND).await;
        let deadline = Instant::now() + SECOND;
        advance(3 * SECOND).await;
        met(&cache, verb).await;
        cache.set(1, 3).await;
        cache.set(1, 4).await;
        let events = heard(&mut events);
        let first = &events[0];
        assert_eq!((first.value, first.cause), (1, Cause::Expired), "verb {verb}");
        assert_eq!(first.deadline, Some(deadline), "verb {verb}");
        assert_eq!(first.lag(), Some(2 * SECOND), "verb {verb}");
        let again = events[1..].iter().any(|event| event.cause == Cause::Expired);
        assert!(!again, "verb {verb} told of it twice");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_says_when() {
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
    let when: Vec<_> = heard(&mut events)
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
async fn a_slow_subscriber_is_told_what_it_missed() {
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
async fn a_subscriber_hears_what_happens_after_it_came() {
    let cache = manual();
    let mut early = cache.events_lossless(10);
    cache.set(1, 1).await;
    cache.remove(&1).await;
    let mut late = cache.events_lossless(10);
    cache.set(2, 2).await;
    cache.remove(&2).await;
    assert_eq!(told(&mut early).len(), 2);
    assert_eq!(told(&mut late), [(2, 2, Cause::Removed)]);
    assert_eq!(cache.stats().subscribers, 2);
    drop((early, late));
    assert_eq!(cache.stats().subscribers, 0);
}

/// Every stream that waits is woken; dropping one of them harms no other.
#[tokio::test(start_paused = true)]
async fn many_subscribers_hear_the_same() {
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

/// The promise of the lossless stream, whole: readers and writers go on, the dead stay unreadable and
/// in memory, the overflow is what `stats` says, and in the end every event comes, in order.
#[tokio::test(start_paused = true)]
async fn a_lossless_subscriber_that_stops_reading_holds_back_only_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let mut events = cache.events_lossless(10);
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(cache.len(), 990, "the sweeper let as many leave as there was room for");
    assert_eq!((cache.live_len(), cache.stats().overflow), (0, 0));
    for key in 0..1_000 {
        assert_eq!(cache.get(&key).await, None);
        if key == 499 {
            assert_eq!(cache.stats().overflow + cache.len(), 990, "met by a reader, it waits");
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
    assert_eq!(cache.len(), 999, "still no room for the sweeper");

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

/// A subscriber may write, even where its own stream is full.
#[tokio::test(start_paused = true)]
async fn a_subscriber_may_write() {
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

/// A sweep by hand never waits for the subscriber that may be the very task that called it.
#[tokio::test(start_paused = true)]
async fn a_manual_sweep_is_held_back_and_says_so() {
    let cache = manual();
    let mut events = cache.events_lossless(4);
    for key in 0..10 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (4, true, 6));
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (0, true, 6));
    assert_eq!(heard(&mut events).len(), 4);
    assert_eq!(cache.sweep().await.expired, 4);
    assert_eq!(heard(&mut events).len(), 4);
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (2, false, 0));
    assert_eq!(heard(&mut events).len(), 2);
}

/// With one full stream gone the sweeper goes on at once.
#[tokio::test(start_paused = true)]
async fn dropping_the_slow_subscriber_lets_the_sweeper_go() {
    let cache: Cache<u32, u32> = Cache::new();
    let stuck = cache.events_lossless(1);
    let mut prompt = cache.events_lossless(1_000);
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(10 * SECOND).await;
    assert_eq!((cache.len(), heard(&mut prompt).len()), (99, 1));
    drop(stuck);
    sleep(SECOND).await;
    assert_eq!((cache.len(), heard(&mut prompt).len()), (0, 99));
}

/// Nothing keeps a value alive that every subscriber has read.
#[tokio::test(start_paused = true)]
async fn what_is_read_is_let_go() {
    let value = Arc::new(());
    let cache: Cache<u32, Arc<()>> = Cache::new();
    let mut events = cache.events_lossless(8);
    cache.set(1, value.clone()).await;
    cache.expire_now(&1).await;
    assert_eq!(Arc::strong_count(&value), 2, "in the stream");
    drop(events.recv().await);
    assert_eq!(Arc::strong_count(&value), 1);
    cache.set(1, value.clone()).await;
    cache.expire_now(&1).await;
    drop(events);
    assert_eq!(Arc::strong_count(&value), 1, "nobody will read it");
}

#[tokio::test(start_paused = true)]
async fn streams_end_with_the_last_handle_after_what_they_hold() {
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
async fn a_callback_hears_what_expires_and_survives_its_own_panic() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
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
    assert_eq!(*seen.lock().unwrap(), expected);
    assert!(!task.is_finished());
    drop(cache);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_aborted_callback_holds_nothing_back() {
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
async fn no_capacity() {
    let cache: Cache<u32, u32> = Cache::new();
    let _ = cache.events_lossless(0);
}
