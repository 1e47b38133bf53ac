//! Who waits for an event: whose waker is called and whose is not, wakers that misbehave, and readers who have so
//! much to read that they never wait.

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

async fn leave(cache: &Cache<u32, u32>, key: u32) {
    cache.set(key, key).await;
    cache.remove(&key).await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_or_goes_wakes_nobody() {
    let cache = cache();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(1);
    let (mut ring, mut all) = (spawn(events.recv()), spawn(lossless.recv()));
    assert_pending!(ring.poll());
    assert_pending!(all.poll());
    let others = (cache.events(), cache.events_lossless(1), cache.events().only([]));
    drop(others);
    assert!(!ring.is_woken() && !all.is_woken());
    leave(&cache, 1).await;
    assert!(ring.is_woken() && all.is_woken());
    assert_eq!(assert_ready!(ring.poll()).unwrap().unwrap().key, 1);
}

/// The last one who polled is woken, once.
#[tokio::test(start_paused = true)]
async fn the_last_waker_counts() {
    let cache = cache();
    let mut events = cache.events();
    let (mut first, mut second) = (spawn(()), spawn(()));
    first.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    second.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    second.enter(|cx, _| assert_pending!(Pin::new(&mut events).poll_next(cx)));
    leave(&cache, 1).await;
    assert!(!first.is_woken() && second.is_woken());
}

/// A waker that panics; the count is of those that were woken.
struct Bomb(Arc<AtomicUsize>);

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
        panic!("the panic of this test");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_loses_no_other_wake() {
    let cache = cache();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut streams: Vec<_> = (0..10).map(|_| cache.events()).collect();
    let mut lossless: Vec<_> = (0..10).map(|_| cache.events_lossless(4)).collect();
    let mut wait = || {
        let waker = Waker::from(Arc::new(Bomb(woken.clone())));
        let mut cx = Context::from_waker(&waker);
        for events in &mut streams {
            while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        }
        for events in &mut lossless {
            while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        }
    };
    wait();
    leave(&cache, 1).await;
    assert_eq!(woken.swap(0, Relaxed), 20, "by a verb, which has no part in it");
    wait();
    cache.shutdown().await;
    assert_eq!(woken.load(Relaxed), 20, "by the end");
}

/// A waker that calls the cache when it is called and when it is dropped, which would not return if a lock were held,
/// and then panics.
struct Caller(Cache<u32, u32>, Arc<AtomicUsize>);

impl Caller {
    fn call(&self) {
        let mut events = self.0.events_lossless(1).only([Cause::Expired]);
        unconstrained(self.0.set(77, 7)).now_or_never().expect("no call waits");
        unconstrained(self.0.expire_now(&77)).now_or_never().expect("no call waits");
        let event = unconstrained(events.recv()).now_or_never().flatten();
        assert!(event.is_none_or(|event| event.key == 77), "none is told after the end");
        assert!(self.0.stats().subscribers > 0);
        self.1.fetch_add(1, Relaxed);
    }
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.call();
        if !std::thread::panicking() {
            panic!("the panic of this test");
        }
    }
}

/// Wakers are woken and dropped without a lock, and their panics are nobody else's.
#[tokio::test(start_paused = true)]
async fn a_waker_may_call_the_cache_and_panic() {
    let cache = cache();
    let calls = Arc::new(AtomicUsize::new(0));
    // The stream has the only one.
    let arm = |events: &mut fleeting::LosslessEvents<u32, u32>| {
        let caller = Waker::from(Arc::new(Caller(cache.clone(), calls.clone())));
        let mut cx = Context::from_waker(&caller);
        while Pin::new(&mut *events).poll_next(&mut cx).is_ready() {}
        let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(caller)));
        assert!(panic.is_ok(), "it is the stream's now");
    };
    let mut events = cache.events_lossless(8).only([Cause::Removed]);
    arm(&mut events);
    leave(&cache, 1).await;
    assert_eq!(calls.swap(0, Relaxed), 2, "woken and dropped");

    arm(&mut events);
    let mut other = spawn(events.next());
    assert_pending!(other.poll());
    drop(other);
    assert_eq!(calls.swap(0, Relaxed), 1, "another took its place");

    arm(&mut events);
    let events = events.only([]);
    assert_eq!(calls.swap(0, Relaxed), 0, "it waits elsewhere");
    drop(events);
    assert_eq!(calls.swap(0, Relaxed), 1, "dropped with the stream");

    let mut events = cache.events_lossless(8);
    arm(&mut events);
    cache.shutdown().await;
    assert_eq!(calls.swap(0, Relaxed), 2, "woken at the end, and dropped");
}

/// How often another task had its turn until `reader` was done.
async fn turns_beside(reader: impl Future<Output = u32> + Send + 'static) -> u32 {
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
async fn a_reader_of_much_gives_others_their_turn() {
    let cache: Cache<u32, u32> =
        Cache::builder().publish(ALL).event_capacity(MANY as usize).build();
    let (mut ring, mut lossless) = (cache.events(), cache.events_lossless(1));
    let (ring_stream, lossless_stream) = (cache.events(), cache.events_lossless(1));
    for key in 0..MANY {
        leave(&cache, key).await;
    }
    drop(cache);
    let in_order = |read: u32, key: u32| {
        assert_eq!(key, read, "nothing is taken by a call that gave others their turn");
        read + 1
    };
    let turns = [
        turns_beside(async move {
            let mut read = 0;
            while let Some(event) = ring.recv().await {
                read = in_order(read, event.unwrap().key);
            }
            read
        })
        .await,
        turns_beside(async move {
            let mut read = 0;
            while let Some(event) = lossless.recv().await {
                read = in_order(read, event.key);
            }
            read
        })
        .await,
        turns_beside(async move {
            let read = AtomicU32::new(0);
            let each = ring_stream.for_each(async |event| {
                read.store(in_order(read.load(Relaxed), event.unwrap().key), Relaxed);
            });
            each.await;
            read.into_inner()
        })
        .await,
        turns_beside(async move {
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

/// A callback that never waits leaves others their turn, as the reader does.
#[tokio::test]
async fn a_callback_that_never_waits_gives_others_their_turn() {
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
    let turns = turns_beside(async move {
        callback.await.unwrap();
        called.load(Relaxed)
    })
    .await;
    assert!(turns >= MANY / 256, "{turns}");
}

/// In the order in which they left, though they all did so at one instant, and others look at the streams meanwhile.
#[tokio::test(start_paused = true)]
async fn who_looks_at_a_stream_changes_no_order() {
    let cache = cache();
    let mut events = cache.events_lossless(1);
    let (looked, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let looks = std::thread::spawn({
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
        unconstrained(leave(&cache, key)).await;
        key += 1;
    }
    done.store(1, Relaxed);
    looks.join().unwrap();
    for key in 0..key {
        assert_eq!(unconstrained(events.recv()).await.unwrap().key, key);
    }
}

/// A call that is pending because its task has had its turn has taken nothing, though there is something.
#[tokio::test(start_paused = true)]
async fn a_spent_budget_takes_nothing() {
    let cache = cache();
    let mut events = cache.events_lossless(1);
    for key in 0..1_000 {
        unconstrained(leave(&cache, key)).await;
    }
    let mut read = 0;
    while read < 1_000 {
        let spent = std::iter::from_fn(|| events.recv().now_or_never().flatten())
            .zip(read..)
            .inspect(|(event, key)| assert_eq!(event.key, *key))
            .count() as u32;
        assert!((1..=256).contains(&spent), "{spent} in one turn");
        read += spent;
        // So is one that is dropped before it is polled.
        drop(events.recv());
        yield_now().await;
    }
    assert!(unconstrained(events.recv()).now_or_never().is_none());
}
