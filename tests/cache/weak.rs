//! Handles that do not keep their cache alive.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, DefaultHasher, Sweep, WeakCache};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::yield_now,
    time::sleep,
};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(120);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

#[tokio::test(start_paused = true)]
async fn a_callback_with_a_weak_handle_works_on_its_cache_and_lets_it_end() {
    let tasks = Handle::current().metrics();
    let value = Arc::new(());
    let cache: Cache<u32, Arc<()>> = Cache::builder().publish(ALL).build();
    let (mut events, mut lossless) = (cache.events(), cache.events_lossless(100));
    let weak = cache.downgrade();
    let callback = cache.on_expired({
        let (weak, value) = (weak.clone(), value.clone());
        async move |event| {
            let Some(cache) = weak.upgrade() else { return };
            cache.set_ex(event.key, value, SECOND).await;
        }
    });
    cache.set_ex(1, value.clone(), SECOND).await;
    for _ in 0..5 {
        sleep(2 * SECOND + SECOND / 2).await;
        assert!(cache.stats().expired > 0 && cache.len() == 1, "it is not put in again");
    }
    assert_eq!(tasks.num_alive_tasks(), 2, "the sweeper and the callback");

    let expired = cache.stats().expired;
    drop(cache);
    callback.await.expect("it ends with the cache");
    for _ in 0..expired {
        assert!(matches!(events.recv().await, Some(Ok(_))), "the stream held it");
        assert!(lossless.recv().await.is_some(), "the stream held it");
    }
    assert!(events.recv().await.is_none() && lossless.recv().await.is_none(), "it has ended");
    drop((events, lossless));
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "a task outlives the cache");
    assert_eq!(Arc::strong_count(&value), 1, "a value outlives the cache");
    assert!(weak.upgrade().is_none());
}

/// What the docs of `on_expired` warn of.
#[tokio::test(start_paused = true)]
async fn a_callback_that_owns_its_cache_keeps_it_until_it_is_aborted() {
    let cache: Cache<u32, u32> = Cache::new();
    let weak = cache.downgrade();
    let owner = cache.clone();
    let callback = cache.on_expired(async move |event| {
        owner.set_ex(event.key, 0, SECOND).await;
    });
    drop(cache);
    sleep(3_600 * SECOND).await;
    assert!(!callback.is_finished() && weak.upgrade().is_some());
    callback.abort();
    assert!(callback.await.expect_err("it was aborted").is_cancelled());
    assert!(weak.upgrade().is_none());
}

/// The last handle is dropped while the callback, which has upgraded, still waits: then it is the last.
#[tokio::test(start_paused = true)]
async fn a_cache_may_end_in_its_own_callback() {
    let cache: Cache<u32, u32> = Cache::new();
    let mut events = cache.events_lossless(10);
    let weak = cache.downgrade();
    let callback = {
        let weak = weak.clone();
        cache.on_expired(async move |event| {
            let cache = weak.upgrade().expect("the test holds it still");
            sleep(10 * SECOND).await;
            assert!(cache.set_nx(event.key, 0, None).await);
        })
    };
    cache.set_ex(1, 1, SECOND).await;
    assert_eq!(events.recv().await.expect("it expires").key, 1);
    yield_now().await;
    drop(cache);
    assert!(weak.upgrade().is_some(), "the callback holds it");
    callback.await.expect("it ends with the cache");
    assert!(events.recv().await.is_none());
    assert!(weak.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_handle_is_one_of_the_cache() {
    let cache = Cache::builder().time_to_live(10 * SECOND).publish(ALL).build();
    let mut events = cache.events_lossless(10);
    let weak = cache.downgrade().clone();
    let again = weak.upgrade().expect("the cache lives");
    again.set("ada", 1).await;
    assert_eq!(cache.get("ada").await, Some(1));
    assert_eq!(cache.ttl("ada").await.as_secs(), 10, "it gives the default TTL");

    drop(cache);
    let cache = weak.upgrade().expect("a handle that was upgraded keeps it alive");
    drop(again);
    assert_eq!(cache.get("ada").await, Some(1));
    assert_eq!(events.recv().await.expect("the sweeper goes on").cause, Cause::Expired);
    drop(cache);
    assert!(weak.upgrade().is_none() && weak.clone().upgrade().is_none());
    assert!(events.recv().await.is_none(), "the stream ends with the last handle");
}

#[tokio::test]
async fn a_cache_that_was_shut_down_is_still_there() {
    let cache = Cache::new();
    let weak = cache.downgrade();
    cache.set(1, 1).await;
    cache.shutdown().await;
    assert_eq!(weak.upgrade().expect("it has a handle").get(&1).await, Some(1));
}

#[test]
fn it_works_where_no_runtime_is() {
    let runtime = runtime();
    let cache: Cache<u32, u32> = runtime.block_on(async { Cache::new() });
    drop(runtime);
    let weak = cache.downgrade();
    let again = weak.upgrade().expect("the cache lives");
    again.set(1, 1).now_or_never().expect("no runtime is needed");
    assert_eq!(cache.get(&1).now_or_never().expect("no runtime is needed"), Some(1));
    drop((cache, again));
    assert!(weak.upgrade().is_none());
}

/// A value that knows its cache, as it may: it keeps nothing alive, and in its drop there is no cache any more.
struct Member {
    home: WeakCache<u32, Arc<Member>>,
    found: Arc<Mutex<Vec<bool>>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        let found = self.home.upgrade().is_some();
        self.found.lock().unwrap().push(found);
    }
}

#[tokio::test(start_paused = true)]
async fn values_may_know_their_cache() {
    let cache = Cache::new();
    let found = Arc::<Mutex<Vec<bool>>>::default();
    let member = || Arc::new(Member { home: cache.downgrade(), found: found.clone() });
    for key in 0..5 {
        cache.set_ex(key, member(), SECOND).await;
        cache.set(5 + key, member()).await;
    }
    sleep(3 * SECOND).await;
    assert_eq!(*found.lock().unwrap(), [true; 5], "what expires finds its cache");
    drop(cache);
    let found = found.lock().unwrap();
    assert_eq!(found[5..], [false; 5], "a cache was found that is being dropped");
}

/// Its drop says that it has begun, and waits until it may end.
struct Slow(Sender<()>, Mutex<Receiver<()>>);

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.send(()).expect("the test waits");
        self.1.lock().unwrap().recv_timeout(PATIENCE).expect("the test lets it end");
    }
}

/// While it is at a window, the sweeper holds the cache. That is nobody's handle.
#[test]
fn a_sweeper_at_work_brings_no_cache_back() {
    let runtime = runtime();
    let tasks = runtime.metrics();
    let ((began, begins), (end, ends)) = (channel(), channel());
    let cache = runtime.block_on(async { busy() });
    let weak = cache.downgrade();
    let slow = Arc::new(Slow(began, Mutex::new(ends)));
    cache.set_ex(1, slow, SECOND / 1_000).now_or_never().expect("it waits for nothing");
    begins.recv_timeout(PATIENCE).expect("the sweeper drops it");
    drop(cache);
    let again = weak.upgrade();
    end.send(()).expect("it waits");
    assert!(again.is_none(), "a cache is back after its last handle was dropped");
    until("the sweeper ends", || tasks.num_alive_tasks() == 0);
}

/// `None` is for ever, whoever saw it; and what was upgraded is whole.
#[test]
fn upgrades_race_with_the_last_drop() {
    let runtime = runtime();
    let mut met = 0;
    for round in 0_u64.. {
        met += u64::from(race(&runtime, round));
        if met >= 200 {
            return println!("{met} races in {round} rounds");
        }
        assert!(round < 1_000_000, "upgrades and drops never meet: {met} times in {round} rounds");
    }
}

/// Tells whether an upgrade still got a handle when the first one was being dropped, and a later one none.
fn race(runtime: &Runtime, round: u64) -> bool {
    let value = Arc::new(());
    let cache = runtime.block_on(async { busy() });
    for key in 0..100 {
        let ttl = Duration::from_micros(50 * u64::from(key));
        cache.set_ex(key, value.clone(), ttl).now_or_never().expect("it waits for nothing");
    }
    cache.set(100, value.clone()).now_or_never().expect("it waits for nothing");
    let (start, gone, dropping) = (Barrier::new(4), AtomicBool::new(false), AtomicBool::new(false));
    let late = AtomicUsize::new(0);
    thread::scope(|threads| {
        for thread in 0..3 {
            let weak = cache.downgrade();
            let (start, gone, dropping, late) = (&start, &gone, &dropping, &late);
            threads.spawn(move || {
                start.wait();
                for turn in 0..2_000 {
                    let (was_gone, was_dropping) = (gone.load(SeqCst), dropping.load(SeqCst));
                    let Some(cache) = weak.upgrade() else {
                        gone.store(true, SeqCst);
                        break;
                    };
                    assert!(!was_gone, "round {round}: it is back");
                    late.fetch_add(usize::from(was_dropping), SeqCst);
                    let cache = if turn % 2 == thread % 2 { cache.clone() } else { cache };
                    let read = cache.get(&100).now_or_never().expect("it waits for nothing");
                    assert!(
                        read.is_some(),
                        "round {round}: a handle of a cache that has lost its values"
                    );
                    if was_dropping && turn % 4 == 0 {
                        break;
                    }
                }
            });
        }
        let weak = cache.downgrade();
        start.wait();
        (0..round % 512).for_each(|_| spin_loop());
        dropping.store(true, SeqCst);
        drop(cache);
        if weak.upgrade().is_none() {
            gone.store(true, SeqCst);
        }
    });
    until("the values are dropped", || Arc::strong_count(&value) == 1);
    late.into_inner() > 0 && gone.into_inner()
}

#[test]
fn a_weak_handle_goes_anywhere() {
    fn goes_anywhere<T: Send + Sync + Unpin + 'static>() {}
    goes_anywhere::<WeakCache<String, Vec<u8>>>();

    let runtime = runtime();
    struct Plain;
    let cache: Cache<u32, Arc<Plain>> = runtime.block_on(async { Cache::new() });
    let weak: WeakCache<u32, Arc<Plain>, DefaultHasher> = cache.downgrade();
    assert_eq!(format!("{weak:?}"), "(WeakCache)");
}

/// A cache whose sweeper is at work most of the time.
fn busy<V: Clone + Send + Sync + 'static>() -> Cache<u32, V> {
    let sweep = Sweep::default().every(SECOND / 1_000).sample(1.0);
    Cache::builder().shards(2).sweep(sweep).build()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(SECOND / 1_000);
    }
}
