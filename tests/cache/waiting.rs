//! Subscribers that wait for events: wakers are called exactly when necessary, misbehaving wakers do no harm, and
//! readers with many events yield.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Wake, Waker},
};

use fleeting::{Cache, Cause, Sweep};
use futures::{FutureExt, Stream, StreamExt};
use tokio::task::{unconstrained, yield_now};
use tokio_test::{assert_pending, assert_ready, task::spawn};

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];
const MANY: u32 = 100_000;

fn cache() -> Cache<u32, u32> {
    Cache::builder().sweep(Sweep::manual()).publish(ALL).build()
}

async fn remove_one(cache: &Cache<u32, u32>, key: u32) {
    cache.set(key, key).await;
    cache.remove(&key).await;
}

#[tokio::test(start_paused = true)]
async fn subscribing_and_dropping_wakes_no_other_subscriber() {
    let cache = cache();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(1);
    let (mut broadcast, mut all) = (spawn(events.recv()), spawn(lossless.recv()));
    assert_pending!(broadcast.poll());
    assert_pending!(all.poll());
    let others = (cache.events(), cache.events_lossless(1), cache.events().only([]));
    drop(others);
    assert!(!broadcast.is_woken() && !all.is_woken());
    remove_one(&cache, 1).await;
    assert!(broadcast.is_woken() && all.is_woken());
    assert_eq!(assert_ready!(broadcast.poll()).unwrap().unwrap().key, 1);
}

/// Only the last waker polled is woken, and only once.
#[tokio::test(start_paused = true)]
async fn only_the_last_polled_waker_is_woken() {
    let cache = cache();
    let mut events = cache.events();
    let (mut first, mut second) = (spawn(()), spawn(()));
    first.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    second.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    second.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    remove_one(&cache, 1).await;
    assert!(!first.is_woken() && second.is_woken());
}

/// Waker that panics; the counter is the number of its wakes.
struct PanickingWaker(Arc<AtomicUsize>);

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
        panic!("the panic of this test");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_waker_loses_no_other_wake() {
    let cache = cache();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut streams: Vec<_> = (0..10).map(|_| cache.events()).collect();
    let mut lossless: Vec<_> = (0..10).map(|_| cache.events_lossless(4)).collect();
    let mut wait = || {
        let waker = Waker::from(Arc::new(PanickingWaker(woken.clone())));
        let mut cx = Context::from_waker(&waker);
        for events in &mut streams {
            while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        }
        for events in &mut lossless {
            while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        }
    };
    wait();
    remove_one(&cache, 1).await;
    assert_eq!(woken.swap(0, Relaxed), 20, "each waker is woken although the others panic");
    wait();
    cache.shutdown().await;
    assert_eq!(woken.load(Relaxed), 20, "each waker is woken by the end of the stream");
}

/// Waker that calls the cache when it is woken and when it is dropped, which would deadlock under a lock, and then
/// panics.
struct CallingWaker(Cache<u32, u32>, Arc<AtomicUsize>);

impl CallingWaker {
    fn call(&self) {
        let mut events = self.0.events_lossless(1).only([Cause::Expired]);
        unconstrained(self.0.set(77, 7)).now_or_never().expect("no call waits");
        unconstrained(self.0.expire_now(&77)).now_or_never().expect("no call waits");
        let event = unconstrained(events.recv()).now_or_never().flatten();
        assert!(event.is_none_or(|event| event.key == 77), "no event is received after the end");
        assert!(self.0.stats().subscribers > 0);
        self.1.fetch_add(1, Relaxed);
    }
}

impl Wake for CallingWaker {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

impl Drop for CallingWaker {
    fn drop(&mut self) {
        self.call();
        if !std::thread::panicking() {
            panic!("the panic of this test");
        }
    }
}

/// Wakers are woken and dropped without a lock, and their panics do not reach other code.
#[tokio::test(start_paused = true)]
async fn wakers_may_call_the_cache_and_panic() {
    let cache = cache();
    let calls = Arc::new(AtomicUsize::new(0));
    // The stream has the only clone of the waker.
    let arm = |events: &mut fleeting::LosslessEvents<u32, u32>| {
        let caller = Waker::from(Arc::new(CallingWaker(cache.clone(), calls.clone())));
        let mut cx = Context::from_waker(&caller);
        while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(caller)));
        assert!(panic.is_ok(), "the stream owns the waker");
    };
    let mut events = cache.events_lossless(8).only([Cause::Removed]);
    arm(&mut events);
    remove_one(&cache, 1).await;
    assert_eq!(calls.swap(0, Relaxed), 2, "the waker is woken and dropped");

    arm(&mut events);
    let mut other = spawn(events.next());
    assert_pending!(other.poll());
    drop(other);
    assert_eq!(calls.swap(0, Relaxed), 1, "the waker is replaced by another one");

    arm(&mut events);
    let events = events.only([]);
    assert_eq!(calls.swap(0, Relaxed), 0, "the waker waits on another stream");
    drop(events);
    assert_eq!(calls.swap(0, Relaxed), 1, "the waker is dropped with the stream");

    let mut events = cache.events_lossless(8);
    arm(&mut events);
    cache.shutdown().await;
    assert_eq!(calls.swap(0, Relaxed), 2, "the waker is woken at the end, and dropped");
}

/// Counts the turns of another task until `reader` is done.
async fn count_turns_of_another_task(reader: impl Future<Output = u32> + Send + 'static) -> u32 {
    let turns = Arc::new(AtomicU32::new(0));
    let count = turns.clone();
    let reader = tokio::spawn(reader);
    let other = tokio::spawn(async move {
        loop {
            count.fetch_add(1, Relaxed);
            yield_now().await;
        }
    });
    assert_eq!(reader.await.unwrap(), MANY);
    other.abort();
    turns.load(Relaxed)
}

#[tokio::test]
async fn reader_of_many_events_yields() {
    let cache: Cache<u32, u32> =
        Cache::builder().publish(ALL).event_capacity(MANY as usize).build();
    let (mut broadcast, mut lossless) = (cache.events(), cache.events_lossless(1));
    let (ring_stream, lossless_stream) = (cache.events(), cache.events_lossless(1));
    for key in 0..MANY {
        remove_one(&cache, key).await;
    }
    drop(cache);
    let in_order = |read: u32, key: u32| {
        assert_eq!(key, read, "a call that yields takes no event");
        read + 1
    };
    let turns = [
        count_turns_of_another_task(async move {
            let mut read = 0;
            while let Some(event) = broadcast.recv().await {
                read = in_order(read, event.unwrap().key);
            }
            read
        })
        .await,
        count_turns_of_another_task(async move {
            let mut read = 0;
            while let Some(event) = lossless.recv().await {
                read = in_order(read, event.key);
            }
            read
        })
        .await,
        count_turns_of_another_task(async move {
            let read = AtomicU32::new(0);
            let each = ring_stream.for_each(async |event| {
                read.store(in_order(read.load(Relaxed), event.unwrap().key), Relaxed);
            });
            each.await;
            read.into_inner()
        })
        .await,
        count_turns_of_another_task(async move {
            let read = AtomicU32::new(0);
            let each = lossless_stream.for_each(async |event| {
                read.store(in_order(read.load(Relaxed), event.key), Relaxed);
            });
            each.await;
            read.into_inner()
        })
        .await,
    ];
    assert!(turns.iter().all(|turns| *turns >= MANY / 256), "{turns:?}");
}

/// A callback that never waits yields to other tasks, as a reader does.
#[tokio::test]
async fn on_expired_callback_that_never_waits_yields() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
    let called = Arc::new(AtomicU32::new(0));
    let count = called.clone();
    let callback = cache.on_expired(async move |_| {
        count.fetch_add(1, Relaxed);
    });
    unconstrained(async {
        for key in 0..MANY {
            cache.set(key, key).await;
            cache.expire_now(&key).await;
        }
    })
    .await;
    drop(cache);
    let turns = count_turns_of_another_task(async move {
        callback.await.unwrap();
        called.load(Relaxed)
    })
    .await;
    assert!(turns >= MANY / 256, "{turns}");
}

/// Events keep the order of the removals, although all have the same time and other tasks read streams concurrently.
#[tokio::test(start_paused = true)]
async fn reading_streams_concurrently_keeps_the_order_of_events() {
    let cache = cache();
    let mut events = cache.events_lossless(1);
    let (looked, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let reader = std::thread::spawn({
        let (cache, looked, done) = (cache.clone(), looked.clone(), done.clone());
        move || {
            while done.load(Relaxed) == 0 {
                cache.stats();
                looked.fetch_add(1, Relaxed);
            }
        }
    });
    let mut key = 0;
    while key < 20_000 || looked.load(Relaxed) < 1_000 {
        unconstrained(remove_one(&cache, key)).await;
        key += 1;
    }
    done.store(1, Relaxed);
    reader.join().unwrap();
    for key in 0..key {
        assert_eq!(unconstrained(events.recv()).await.unwrap().key, key);
    }
}

/// A call that is pending because its budget is spent has taken no event, although there is one.
#[tokio::test(start_paused = true)]
async fn recv_with_a_spent_budget_takes_no_event() {
    let cache = cache();
    let mut events = cache.events_lossless(1);
    for key in 0..1_000 {
        unconstrained(remove_one(&cache, key)).await;
    }
    let mut read = 0;
    while read < 1_000 {
        let spent = std::iter::from_fn(|| events.recv().now_or_never().flatten())
            .zip(read..)
            .inspect(|(event, key)| assert_eq!(event.key, *key))
            .count() as u32;
        assert!((1..=256).contains(&spent), "{spent} calls in one turn");
        read += spent;
        // A call dropped before it is polled has taken none either.
        drop(events.recv());
        yield_now().await;
    }
    assert!(unconstrained(events.recv()).now_or_never().is_none());
}
