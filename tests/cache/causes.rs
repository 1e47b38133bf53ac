//! Each subscription has its own causes: what it does not hear is to it as if it had never been.

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

fn heard(events: &mut LosslessEvents<u32, u32>) -> Vec<(u32, Cause)> {
    let next = || unconstrained(events.recv()).now_or_never().flatten();
    std::iter::from_fn(next).map(|event| (event.value, event.cause)).collect()
}

fn read(events: &mut Events<u32, u32>) -> Vec<Result<u32, u64>> {
    let next = || unconstrained(events.recv()).now_or_never().flatten();
    std::iter::from_fn(next)
        .map(|next| next.map(|event| event.value).map_err(|lagged| lagged.0))
        .collect()
}

/// One value leaves for each cause: 1 replaced, 2 removed, 3 expired.
async fn let_three_leave(cache: &Cache<u32, u32>) {
    cache.set(1, 1).await;
    cache.set(1, 2).await;
    cache.remove(&1).await;
    cache.set(1, 3).await;
    cache.expire_now(&1).await;
}

#[tokio::test(start_paused = true)]
async fn each_stream_hears_its_own() {
    let cache = manual();
    let mut all = cache.events_lossless(8);
    let mut removed = cache.events_lossless(8).only([Cause::Removed]);
    let mut two = cache.events_lossless(8).only([Cause::Expired, Cause::Replaced]);
    let mut ring = cache.events().only(vec![Cause::Replaced]);
    let mut none = cache.events_lossless(8).only([]);
    let_three_leave(&cache).await;
    use Cause::{Expired, Removed, Replaced};
    assert_eq!(heard(&mut all), [(1, Replaced), (2, Removed), (3, Expired)]);
    assert_eq!(heard(&mut removed), [(2, Removed)]);
    assert_eq!(heard(&mut two), [(1, Replaced), (3, Expired)]);
    assert_eq!(read(&mut ring), [Ok(1)]);
    assert_eq!(heard(&mut none), []);
    assert_eq!(cache.stats().subscribers, 5);
    drop(cache);
    assert!(none.recv().await.is_none(), "it ends as the others");
}

#[tokio::test(start_paused = true)]
async fn called_twice_both_count_and_what_is_not_published_does_not_come() {
    let cache: Cache<u32, u32> = Cache::builder().publish([Cause::Expired, Cause::Removed]).build();
    let stream = cache.events_lossless(8).only([Cause::Removed, Cause::Replaced]);
    let mut replaced = cache.events_lossless(8).only([Cause::Replaced]);
    let mut removed = stream.only([Cause::Removed, Cause::Expired]);
    let_three_leave(&cache).await;
    assert_eq!(heard(&mut removed), [(2, Cause::Removed)]);
    assert_eq!(heard(&mut replaced), []);
}

/// What waits when it is narrowed is narrowed too, also beside others who hear the same and have read on.
#[tokio::test(start_paused = true)]
async fn what_waits_is_narrowed_too() {
    let cache = manual();
    let mut late = cache.events_lossless(8);
    let mut early = cache.events_lossless(8).only([Cause::Removed]);
    let_three_leave(&cache).await;
    let_three_leave(&cache).await;
    assert_eq!(heard(&mut early).len(), 2);
    assert_eq!(late.recv().await.unwrap().cause, Cause::Replaced);
    let mut late = late.only([Cause::Removed]);
    assert_eq!(format!("{late:?}"), "LosslessEvents { unread: 2 }");
    assert_eq!(format!("{early:?}"), "LosslessEvents { unread: 0 }");
    let_three_leave(&cache).await;
    assert_eq!(heard(&mut late), [(2, Cause::Removed); 3]);
    assert_eq!(heard(&mut early), [(2, Cause::Removed)]);
}

/// What is filtered out is no overflow, holds nothing back, and is no lag.
#[tokio::test(start_paused = true)]
async fn what_is_filtered_out_takes_no_room() {
    let cache = manual();
    let mut expired = cache.events_lossless(1).only([Cause::Expired]);
    let mut ring = cache.events().only([Cause::Expired]);
    for value in 0..9_000 {
        cache.set(1, value).await;
    }
    cache.remove(&1).await;
    assert_eq!(cache.stats().overflow, 0);
    cache.set_ex(2, 5, Duration::ZERO).await;
    assert_eq!(cache.sweep().await.expired, 1, "there was room for it");
    assert_eq!(heard(&mut expired), [(5, Cause::Expired)]);
    assert_eq!(read(&mut ring), [Ok(5)]);
}

/// The sweeper sends nothing to who does not hear what expires, and waits for nobody else.
#[tokio::test(start_paused = true)]
async fn who_does_not_hear_what_expires_holds_nothing_back() {
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

/// A sweeper that waits for a full stream goes on when that one does not hear what expires any more.
#[tokio::test(start_paused = true)]
async fn narrowing_the_slow_subscriber_lets_the_sweeper_go() {
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
async fn what_is_filtered_out_wakes_nobody() {
    let cache = manual();
    let mut removed = cache.events().only([Cause::Removed]);
    let mut lossless = cache.events_lossless(1).only([Cause::Removed]);
    let (mut ring, mut other) = (spawn(removed.recv()), spawn(lossless.recv()));
    assert_pending!(ring.poll());
    assert_pending!(other.poll());
    for value in 0..100 {
        cache.set(1, value).await;
    }
    cache.expire_now(&1).await;
    assert!(!ring.is_woken() && !other.is_woken());
    cache.set(1, 1).await;
    cache.remove(&1).await;
    assert!(ring.is_woken() && other.is_woken());
}

/// A stream that was polled before it is narrowed still wakes its task.
#[tokio::test(start_paused = true)]
async fn who_waits_while_it_is_narrowed_is_woken() {
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
    assert_eq!(heard(&mut events), [(2, Cause::Removed)]);
}

/// What it missed before is told; what it would not have heard is not counted from then on.
#[tokio::test(start_paused = true)]
async fn what_was_missed_before_is_still_told() {
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
    assert_eq!(read(&mut events), [Err(2), Ok(6)]);
}

/// Counts its clones.
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Relaxed);
        Self(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cloned_for_causes_that_no_stream_hears() {
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
    assert_eq!(replace().await, 2, "one for each that is told");
    let narrow = wide.only([Cause::Expired, Cause::Removed]);
    assert_eq!(replace().await, 1);
    let narrow = narrow.only([Cause::Expired]);
    assert_eq!(replace().await, 0);
    drop(narrow);
    assert_eq!(replace().await, 0);
    callback.abort();
}

#[tokio::test(start_paused = true)]
async fn a_callback_hears_what_expires_whatever_is_published() {
    let publish: [&[Cause]; 4] = [&[], &[Cause::Removed], &[Cause::Replaced, Cause::Removed], &ALL];
    for causes in publish {
        let cache: Cache<u32, u32> = Cache::builder().publish(causes.iter().copied()).build();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let mut other = cache.events_lossless(100);
        cache.on_expired(async move |event| log.lock().unwrap().push((event.key, event.cause)));
        cache.set_ex(1, 1, SECOND).await;
        cache.set(2, 2).await;
        cache.expire_now(&2).await;
        sleep(3 * SECOND).await;
        let expected = [(2, Cause::Expired), (1, Cause::Expired)];
        assert_eq!(*seen.lock().unwrap(), expected, "published: {causes:?}");
        let told = heard(&mut other).len();
        assert_eq!(told, if causes.len() == 4 { 2 } else { 0 }, "of others only those");
    }
}

/// A callback that is stuck queues nothing that it would not be called for.
#[tokio::test(start_paused = true)]
async fn a_callback_queues_nothing_but_what_expires() {
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
