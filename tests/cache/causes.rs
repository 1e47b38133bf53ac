//! Causes of subscriptions: `only` limits a stream, and an event that it filters out has no effect on the stream.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Cause, Events, LosslessEvents, Sweep};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

fn manual() -> Cache<u32, u32> {
    Cache::builder().sweep(Sweep::manual().sample(1.0)).publish(ALL).event_capacity(4).build()
}

fn drain_lossless(events: &mut LosslessEvents<u32, u32>) -> Vec<(u32, Cause)> {
    let next = || unconstrained(events.recv()).now_or_never().flatten();
    std::iter::from_fn(next).map(|event| (event.value, event.cause)).collect()
}

fn drain(events: &mut Events<u32, u32>) -> Vec<Result<u32, u64>> {
    let next = || unconstrained(events.recv()).now_or_never().flatten();
    std::iter::from_fn(next)
        .map(|next| next.map(|event| event.value).map_err(|lagged| lagged.0))
        .collect()
}

/// Removes one value for each of three causes: 1 replaced, 2 removed, 3 expired.
async fn remove_three_values(cache: &Cache<u32, u32>) {
    cache.set(1, 1).await;
    cache.set(1, 2).await;
    cache.remove(&1).await;
    cache.set(1, 3).await;
    cache.expire_now(&1).await;
}

#[tokio::test(start_paused = true)]
async fn only_limits_each_stream_to_its_causes() {
    let cache = manual();
    let mut all = cache.events_lossless(8);
    let mut removed = cache.events_lossless(8).only([Cause::Removed]);
    let mut two = cache.events_lossless(8).only([Cause::Expired, Cause::Replaced]);
    let mut broadcast = cache.events().only(vec![Cause::Replaced]);
    let mut none = cache.events_lossless(8).only([]);
    remove_three_values(&cache).await;
    use Cause::{Expired, Removed, Replaced};
    assert_eq!(drain_lossless(&mut all), [(1, Replaced), (2, Removed), (3, Expired)]);
    assert_eq!(drain_lossless(&mut removed), [(2, Removed)]);
    assert_eq!(drain_lossless(&mut two), [(1, Replaced), (3, Expired)]);
    assert_eq!(drain(&mut broadcast), [Ok(1)]);
    assert_eq!(drain_lossless(&mut none), []);
    assert_eq!(cache.stats().subscribers, 5);
    drop(cache);
    assert!(none.recv().await.is_none(), "an empty stream ends like the others");
}

#[tokio::test(start_paused = true)]
async fn only_twice_intersects_the_causes_and_adds_no_unpublished_one() {
    let cache: Cache<u32, u32> = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
    let stream = cache.events_lossless(8).only([Cause::Removed, Cause::Replaced]);
    let mut replaced = cache.events_lossless(8).only([Cause::Replaced]);
    let mut removed = stream.only([Cause::Removed, Cause::Expired]);
    remove_three_values(&cache).await;
    assert_eq!(drain_lossless(&mut removed), [(2, Cause::Removed)]);
    assert_eq!(drain_lossless(&mut replaced), []);
}

/// Unread events are filtered too, even if other subscribers with the same causes have read further.
#[tokio::test(start_paused = true)]
async fn only_filters_unread_events_too() {
    let cache = manual();
    let mut late = cache.events_lossless(8);
    let mut early = cache.events_lossless(8).only([Cause::Removed]);
    remove_three_values(&cache).await;
    remove_three_values(&cache).await;
    assert_eq!(drain_lossless(&mut early).len(), 2);
    assert_eq!(late.recv().await.unwrap().cause, Cause::Replaced);
    let mut late = late.only([Cause::Removed]);
    assert_eq!(format!("{late:?}"), "LosslessEvents { unread: 2 }");
    assert_eq!(format!("{early:?}"), "LosslessEvents { unread: 0 }");
    remove_three_values(&cache).await;
    assert_eq!(drain_lossless(&mut late), [(2, Cause::Removed); 3]);
    assert_eq!(drain_lossless(&mut early), [(2, Cause::Removed)]);
}

/// A filtered-out event is not counted as overflow, does not delay the sweeper, and does not make a subscriber lag.
#[tokio::test(start_paused = true)]
async fn filtered_out_events_use_no_capacity() {
    let cache = manual();
    let mut expired = cache.events_lossless(1).only([Cause::Expired]);
    let mut broadcast = cache.events().only([Cause::Expired]);
    for value in 0..9_000 {
        cache.set(1, value).await;
    }
    cache.remove(&1).await;
    assert_eq!(cache.stats().overflow, 0);
    cache.set_ex(2, 5, Duration::ZERO).await;
    assert_eq!(cache.sweep().await.expired, 1, "filtered-out events use no capacity");
    assert_eq!(drain_lossless(&mut expired), [(5, Cause::Expired)]);
    assert_eq!(drain(&mut broadcast), [Ok(5)]);
}

/// The sweeper publishes only `Expired` events, so a stream without this cause never delays it.
#[tokio::test(start_paused = true)]
async fn lossless_stream_without_expired_never_delays_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let removed = cache.events_lossless(1).only([Cause::Removed]);
    for key in 0..500 {
        cache.set(key, key).await;
        cache.remove(&key).await;
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(3 * SECOND).await;
    assert_eq!((cache.len(), cache.stats().overflow), (0, 499));
    drop(removed);
    assert_eq!(cache.stats().overflow, 0);
}

/// A sweeper that waits for a full stream continues when this stream no longer has the cause `Expired`.
#[tokio::test(start_paused = true)]
async fn only_on_a_full_stream_resumes_the_sweeper() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    let stuck = cache.events_lossless(1);
    for key in 0..100 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(10 * SECOND).await;
    assert_eq!(cache.len(), 99);
    let _stuck = stuck.only([Cause::Removed]);
    sleep(SECOND).await;
    assert_eq!(cache.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn filtered_out_events_wake_no_subscriber() {
    let cache = manual();
    let mut removed = cache.events().only([Cause::Removed]);
    let mut lossless = cache.events_lossless(1).only([Cause::Removed]);
    let (mut broadcast, mut lossless) = (spawn(removed.recv()), spawn(lossless.recv()));
    assert_pending!(broadcast.poll());
    assert_pending!(lossless.poll());
    for value in 0..100 {
        cache.set(1, value).await;
    }
    cache.expire_now(&1).await;
    assert!(!broadcast.is_woken() && !lossless.is_woken());
    cache.set(1, 1).await;
    cache.remove(&1).await;
    assert!(broadcast.is_woken() && lossless.is_woken());
}

/// A stream that was polled before `only` still wakes its task.
#[tokio::test(start_paused = true)]
async fn only_on_a_polled_stream_still_wakes_its_task() {
    let cache = manual();
    let mut events = cache.events_lossless(4);
    let mut task = spawn(());
    task.enter(|cx, _| {
        assert_pending!(std::pin::pin!(events.recv()).poll(cx));
        events = std::mem::replace(&mut events, cache.events_lossless(1)).only([Cause::Removed]);
    });
    cache.set(1, 1).await;
    cache.set(1, 2).await;
    assert!(!task.is_woken());
    cache.remove(&1).await;
    assert!(task.is_woken());
    assert_eq!(drain_lossless(&mut events), [(2, Cause::Removed)]);
}

/// Events missed before `only` are reported; filtered-out events are not counted after it.
#[tokio::test(start_paused = true)]
async fn events_missed_before_only_are_still_reported() {
    let cache = manual();
    let events = cache.events();
    for value in 0..7 {
        cache.set(1, value).await;
    }
    let mut events = events.only([Cause::Removed]);
    for value in 0..7 {
        cache.set(1, value).await;
    }
    cache.remove(&1).await;
    assert_eq!(drain(&mut events), [Err(2), Ok(6)]);
}

/// Value that counts its clones.
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Relaxed);
        Self(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn values_are_not_cloned_for_causes_without_a_stream() {
    let clones = Arc::new(AtomicUsize::new(0));
    let cache: Cache<u32, Counted> = Cache::builder().publish(ALL).build();
    let callback = cache.on_expired(async |_| ());
    let wide = cache.events_lossless(8);
    let replace = async || {
        cache.set(1, Counted(clones.clone())).await;
        cache.set(1, Counted(clones.clone())).await;
        cache.remove(&1).await;
        clones.swap(0, Relaxed)
    };
    assert_eq!(replace().await, 2, "one clone per published event");
    let narrow = wide.only([Cause::Expired, Cause::Removed]);
    assert_eq!(replace().await, 1);
    let narrow = narrow.only([Cause::Expired]);
    assert_eq!(replace().await, 0);
    drop(narrow);
    assert_eq!(replace().await, 0);
    callback.abort();
}

#[tokio::test(start_paused = true)]
async fn on_expired_receives_expired_events_regardless_of_publish() {
    let publish: [&[Cause]; 4] = [&[], &[Cause::Removed], &[Cause::Replaced, Cause::Removed], &ALL];
    for causes in publish {
        let cache: Cache<u32, u32> = Cache::builder().publish(causes.iter().copied()).build();
        let received_by_callback = Arc::new(Mutex::new(Vec::new()));
        let log = received_by_callback.clone();
        let mut other = cache.events_lossless(100);
        cache.on_expired(async move |event| log.lock().unwrap().push((event.key, event.cause)));
        cache.set_ex(1, 1, SECOND).await;
        cache.set(2, 2).await;
        cache.expire_now(&2).await;
        sleep(3 * SECOND).await;
        let expected = [(2, Cause::Expired), (1, Cause::Expired)];
        assert_eq!(*received_by_callback.lock().unwrap(), expected, "published: {causes:?}");
        let received = drain_lossless(&mut other).len();
        assert_eq!(
            received,
            if causes.len() == 4 { 2 } else { 0 },
            "the stream has only published causes"
        );
    }
}

/// A stuck callback queues no events of other causes.
#[tokio::test(start_paused = true)]
async fn on_expired_queues_no_events_of_other_causes() {
    let cache: Cache<u32, u32> = Cache::builder().publish(ALL).build();
    cache.on_expired(async |_| std::future::pending().await);
    cache.set_ex(0, 0, SECOND).await;
    advance(SECOND).await;
    sleep(SECOND).await;
    for value in 0..10_000 {
        cache.set(1, value).await;
    }
    assert_eq!(cache.stats().overflow, 0);
}
