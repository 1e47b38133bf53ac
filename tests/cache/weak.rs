//! `WeakCache`: handles that do not keep their cache alive.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use fleeting::{Cache, Cause, DefaultHasher, Sweep, WeakCache};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::yield_now,
    time::sleep,
};

use crate::{patience::patience, wait_until::wait_until};

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

#[tokio::test(start_paused = true)]
async fn on_expired_callback_with_a_weak_handle_lets_the_cache_end() {
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
        assert!(
            cache.stats().expired > 0 && cache.len() == 1,
            "the callback writes the entry again"
        );
    }
    assert_eq!(tasks.num_alive_tasks(), 2, "the sweeper and the callback");

    let expired = cache.stats().expired;
    // Ends the old value, which may be due already: a sweep that has begun would publish it after the drop.
    cache.set_ex(1, value.clone(), 3_600 * SECOND).await;
    drop(cache);
    callback.await.expect("the callback ends with the cache");
    for _ in 0..expired + 1 {
        assert!(matches!(events.recv().await, Some(Ok(_))), "the stream had an unread event");
        assert!(lossless.recv().await.is_some(), "the stream had an unread event");
    }
    assert!(
        events.recv().await.is_none() && lossless.recv().await.is_none(),
        "the stream has ended"
    );
    drop((events, lossless));
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "every task ends with the cache");
    assert_eq!(Arc::strong_count(&value), 1, "every value is dropped with the cache");
    assert!(weak.upgrade().is_none());
}

/// Documented in `on_expired`.
#[tokio::test(start_paused = true)]
async fn on_expired_callback_with_a_handle_keeps_the_cache_alive_until_aborted() {
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
    assert!(callback.await.expect_err("the callback was aborted").is_cancelled());
    assert!(weak.upgrade().is_none());
}

/// The last other handle is dropped while the callback waits with an upgraded handle, which then is the last one.
#[tokio::test(start_paused = true)]
async fn cache_may_end_in_its_own_callback() {
    let cache: Cache<u32, u32> = Cache::new();
    let mut events = cache.events_lossless(10);
    let weak = cache.downgrade();
    let callback = {
        let weak = weak.clone();
        cache.on_expired(async move |event| {
            let cache = weak.upgrade().expect("the test still has a handle");
            sleep(10 * SECOND).await;
            assert!(cache.set_nx(event.key, 0, None).await);
        })
    };
    cache.set_ex(1, 1, SECOND).await;
    assert_eq!(events.recv().await.expect("the entry expires").key, 1);
    yield_now().await;
    drop(cache);
    assert!(weak.upgrade().is_some(), "the callback has a handle");
    callback.await.expect("the callback ends with the cache");
    assert!(events.recv().await.is_none());
    assert!(weak.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn upgraded_handle_is_a_full_handle() {
    let cache = Cache::builder().time_to_live(10 * SECOND).publish(ALL).build();
    let mut events = cache.events_lossless(10);
    let weak = cache.downgrade().clone();
    let upgraded = weak.upgrade().expect("the cache has a handle");
    upgraded.set("ada", 1).await;
    assert_eq!(cache.get("ada").await, Some(1));
    assert_eq!(cache.ttl("ada").await.as_secs(), 10, "an upgraded handle has the default TTL");

    drop(cache);
    let cache = weak.upgrade().expect("the upgraded handle keeps the cache alive");
    drop(upgraded);
    assert_eq!(cache.get("ada").await, Some(1));
    assert_eq!(events.recv().await.expect("the sweeper continues").cause, Cause::Expired);
    drop(cache);
    assert!(weak.upgrade().is_none() && weak.clone().upgrade().is_none());
    assert!(events.recv().await.is_none(), "the stream ends with the last handle");
}

#[tokio::test]
async fn shut_down_cache_can_be_upgraded() {
    let cache = Cache::new();
    let weak = cache.downgrade();
    cache.set(1, 1).await;
    cache.shutdown().await;
    assert_eq!(weak.upgrade().expect("the cache has a handle").get(&1).await, Some(1));
}

#[test]
fn weak_handle_works_outside_of_a_runtime() {
    let runtime = runtime();
    let cache: Cache<u32, u32> = runtime.block_on(async { Cache::new() });
    drop(runtime);
    let weak = cache.downgrade();
    let upgraded = weak.upgrade().expect("the cache has a handle");
    upgraded.set(1, 1).now_or_never().expect("the call needs no runtime");
    assert_eq!(cache.get(&1).now_or_never().expect("the call needs no runtime"), Some(1));
    drop((cache, upgraded));
    assert!(weak.upgrade().is_none());
}

/// Value that owns a weak handle to its cache: it does not keep the cache alive, and can't upgrade it while the cache
/// is dropped.
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
async fn values_may_own_weak_handles_to_their_cache() {
    let cache = Cache::new();
    let found = Arc::<Mutex<Vec<bool>>>::default();
    let member = || Arc::new(Member { home: cache.downgrade(), found: found.clone() });
    for key in 0..5 {
        cache.set_ex(key, member(), SECOND).await;
        cache.set(5 + key, member()).await;
    }
    sleep(3 * SECOND).await;
    assert_eq!(*found.lock().unwrap(), [true; 5], "an expiring value finds its cache");
    drop(cache);
    let found = found.lock().unwrap();
    assert_eq!(found[5..], [false; 5], "a cache that is being dropped can't be upgraded");
}

/// Value whose drop reports that it has started, and waits until it may end.
struct Slow(Sender<()>, Mutex<Receiver<()>>);

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.send(()).expect("the test waits for it");
        self.1.lock().unwrap().recv_timeout(patience()).expect("the test permits the end");
    }
}

/// The sweeper holds the state of the cache while it examines a window, but that is not a handle.
#[test]
fn upgrade_fails_after_the_last_drop_while_the_sweeper_runs() {
    let runtime = runtime();
    let tasks = runtime.metrics();
    let ((began, begins), (end, ends)) = (channel(), channel());
    let cache = runtime.block_on(async { busy_cache() });
    let weak = cache.downgrade();
    let slow = Arc::new(Slow(began, Mutex::new(ends)));
    cache.set_ex(1, slow, SECOND / 1_000).now_or_never().expect("the call never waits");
    begins.recv_timeout(patience()).expect("the sweeper drops the value");
    drop(cache);
    let upgraded = weak.upgrade();
    end.send(()).expect("the value waits");
    assert!(upgraded.is_none(), "upgrade fails after the last handle was dropped");
    wait_until("the sweeper ends", || tasks.num_alive_tasks() == 0);
}

/// Once an upgrade has returned `None`, all later ones do; and an upgraded handle has all its values.
#[test]
fn upgrade_never_succeeds_after_it_has_failed() {
    let runtime = runtime();
    let mut races = 0;
    for round in 0_u64.. {
        races += u64::from(race(&runtime, round));
        if races >= 200 {
            return println!("{races} races in {round} rounds");
        }
        assert!(
            round < 1_000_000,
            "upgrades and drops never meet: {races} times in {round} rounds"
        );
    }
}

/// Returns whether one upgrade still got a handle during the drop of the first one, and a later one got none.
fn race(runtime: &Runtime, round: u64) -> bool {
    let value = Arc::new(());
    let cache = runtime.block_on(async { busy_cache() });
    for key in 0..100 {
        let ttl = Duration::from_micros(50 * u64::from(key));
        cache.set_ex(key, value.clone(), ttl).now_or_never().expect("the call never waits");
    }
    cache.set(100, value.clone()).now_or_never().expect("the call never waits");
    let (start, failed, dropping) =
        (Barrier::new(4), AtomicBool::new(false), AtomicBool::new(false));
    let late = AtomicUsize::new(0);
    thread::scope(|threads| {
        for thread in 0..3 {
            let weak = cache.downgrade();
            let (start, failed, dropping, late) = (&start, &failed, &dropping, &late);
            threads.spawn(move || {
                start.wait();
                for turn in 0..2_000 {
                    let (had_failed, was_dropping) = (failed.load(SeqCst), dropping.load(SeqCst));
                    let Some(cache) = weak.upgrade() else {
                        failed.store(true, SeqCst);
                        break;
                    };
                    assert!(!had_failed, "round {round}: upgrade succeeded after it had failed");
                    late.fetch_add(usize::from(was_dropping), SeqCst);
                    let cache = if turn % 2 == thread % 2 { cache.clone() } else { cache };
                    let read = cache.get(&100).now_or_never().expect("the call never waits");
                    assert!(
                        read.is_some(),
                        "round {round}: the upgraded cache has lost its values"
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
            failed.store(true, SeqCst);
        }
    });
    wait_until("the values are dropped", || Arc::strong_count(&value) == 1);
    late.into_inner() > 0 && failed.into_inner()
}

#[test]
fn weak_handle_is_send_sync_and_unpin() {
    fn is_send_sync_and_unpin<T: Send + Sync + Unpin + 'static>() {}
    is_send_sync_and_unpin::<WeakCache<String, Vec<u8>>>();

    let runtime = runtime();
    struct Plain;
    let cache: Cache<u32, Arc<Plain>> = runtime.block_on(async { Cache::new() });
    let weak: WeakCache<u32, Arc<Plain>, DefaultHasher> = cache.downgrade();
    assert_eq!(format!("{weak:?}"), "(WeakCache)");
}

/// Returns a cache whose sweeper is working most of the time.
fn busy_cache<V: Clone + Send + Sync + 'static>() -> Cache<u32, V> {
    let sweep = Sweep::default().every(SECOND / 1_000).sample(1.0);
    Cache::builder().shards(2).sweep(sweep).build()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
