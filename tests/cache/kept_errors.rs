//! Errors kept by `negative_ttl`, and the backoff of refreshes: lifetime, discarding, and bound.

use std::{
    hash::{BuildHasherDefault, Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::{Cache, Op, Sweep};
use futures::FutureExt;
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, task::spawn};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

type Task = Box<dyn FnOnce() + Send>;

/// Closure that the weigher runs once, in the middle of a write.
static IN_WEIGHER: Mutex<Option<Task>> = Mutex::new(None);

/// A load fails while a write to its key is running: the write discards the error.
#[tokio::test(start_paused = true)]
async fn error_of_a_load_that_fails_during_a_write_is_not_kept() {
    for method in 0..3 {
        let weigher = |_: &u32, _: &u32| {
            let in_weigher = IN_WEIGHER.lock().unwrap().take();
            if let Some(in_weigher) = in_weigher {
                in_weigher();
            }
            1
        };
        let cache: Cache<u32, u32> =
            Cache::builder().negative_ttl(MINUTE).max_weight(100, weigher).build();
        let gate = Arc::new(Semaphore::new(0));
        let (opened, loading) = (gate.clone(), cache.clone());
        // Records a failure of another key first, so that each write has to check for failures to discard.
        let fails = async || Err::<u32, _>("no");
        assert!(cache.get_or_try_set_with(&2, MINUTE, fails).await.is_err());
        let mut load = spawn(
            async move {
                let fails = async move || {
                    opened.acquire().await.unwrap().forget();
                    Err::<u32, _>("no")
                };
                loading.get_or_try_set_with(&1, MINUTE, fails).await
            }
            .boxed(),
        );
        assert_pending!(load.poll());
        *IN_WEIGHER.lock().unwrap() = Some(Box::new(move || {
            gate.add_permits(1);
            assert!(assert_ready!(load.poll()).is_err());
        }));
        // With a TTL of zero, so that the next call has to load again.
        match method {
            0 => _ = cache.set_ex(1, 1, Duration::ZERO).await,
            1 => assert!(cache.set_nx(1, 1, Some(Duration::ZERO)).await),
            _ => _ = cache.set_tagged(1, 1, Duration::ZERO, ["tag"]).await,
        }
        assert!(IN_WEIGHER.lock().unwrap().is_none(), "the load failed during the write");
        let load = async || Ok::<_, &str>(2);
        assert_eq!(cache.get_or_try_set_with(&1, MINUTE, load).await, Ok(2), "method {method}");
    }
}

#[tokio::test(start_paused = true)]
async fn kept_error_survives_calls_that_do_not_write() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
    assert!(cache.get_or_try_set_with(&1, MINUTE, async || Err::<u32, _>("no")).await.is_err());
    assert_eq!(cache.compute(&1, |_| Op::Keep).await, None);
    assert_eq!(cache.compute_with(&1, async |_| Op::Keep).await, None);
    assert_eq!((cache.get(&1).await, cache.update(&1, |_| ()).await), (None, None));
    assert!(!cache.expire(&1, MINUTE).await);
    let load = async || Ok::<_, &str>(2);
    assert!(cache.get_or_try_set_with(&1, MINUTE, load).await.is_err(), "the error is kept");
}

/// All keys have one hash, so only their values tell their errors apart.
#[tokio::test(start_paused = true)]
async fn kept_error_is_found_by_a_borrowed_key_and_by_no_other_with_its_hash() {
    let builder = Cache::<String, u32>::builder().hasher(BuildHasherDefault::<SameHash>::default());
    let cache = builder.negative_ttl(MINUTE).build();
    for key in ["ada", "grace"] {
        for error in [key, "the error is kept"] {
            let load = async move || Err::<u32, _>(error);
            assert_eq!(*cache.get_or_try_set_with(key, MINUTE, load).await.unwrap_err(), key);
        }
    }
    let load = async || Ok::<_, &str>(2);
    assert_eq!(cache.get_or_try_set_with("alan", MINUTE, load).await, Ok(2));
}

/// A key whose `Eq` panics on demand.
#[derive(Clone, Debug)]
struct Panicking(u32, Arc<AtomicBool>);

impl PartialEq for Panicking {
    fn eq(&self, other: &Self) -> bool {
        assert!(!self.1.load(SeqCst), "the panic of this test");
        self.0 == other.0
    }
}

impl Eq for Panicking {}

impl Hash for Panicking {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.0);
    }
}

/// An error whose `Drop` panics.
#[derive(Debug)]
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("the panic of this test");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_eq_leaves_kept_errors_usable() {
    let cache: Cache<Panicking, u32> = Cache::builder().negative_ttl(MINUTE).build();
    let panics = Arc::new(AtomicBool::new(false));
    let key = |n| Panicking(n, panics.clone());
    let fails = async || Err::<u32, _>("no");
    for n in 0..1_000 {
        assert!(cache.get_or_try_set_with(&key(n), MINUTE, fails).await.is_err());
    }
    panics.store(true, SeqCst);
    for n in 0..1_000 {
        let key = key(n);
        let load = AssertUnwindSafe(cache.get_or_try_set_with(&key, MINUTE, fails));
        assert!(load.catch_unwind().await.is_err());
    }
    panics.store(false, SeqCst);
    let load = async || Ok::<_, &str>(2);
    for n in 0..1_000 {
        assert!(cache.get_or_try_set_with(&key(n), MINUTE, load).await.is_err(), "it is kept");
        cache.set_ex(key(n), 1, Duration::ZERO).await;
        assert_eq!(cache.get_or_try_set_with(&key(n), MINUTE, load).await, Ok(2));
    }
}

#[tokio::test(start_paused = true)]
async fn write_discards_an_error_whose_drop_panics() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
    let fails = async || Err::<u32, _>(PanicsInDrop);
    let returned = cache.get_or_try_set_with(&1, MINUTE, fails).await;
    // The cache holds the last reference.
    drop(returned);
    cache.set_ex(1, 1, Duration::ZERO).await;
    let load = async || Ok::<_, &str>(2);
    assert_eq!(cache.get_or_try_set_with(&1, MINUTE, load).await, Ok(2));
}

#[derive(Default)]
struct SameHash;

impl Hasher for SameHash {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        7
    }
}

/// A live value has a kept error if a refresh ahead of its deadline has failed.
#[tokio::test(start_paused = true)]
async fn write_to_a_live_value_or_its_removal_discards_the_error_of_its_refresh() {
    for method in 0..4 {
        let cache: Cache<u32, u32> = Cache::builder()
            .sweep(Sweep::manual().seed(1))
            .refresh_ahead(1e12)
            .negative_ttl(MINUTE)
            .build();
        // Loads take no time, which counts as a nanosecond. So a refresh is due at almost any time before the deadline.
        assert_eq!(cache.get_or_set_with(&1, SECOND, async || 1).await, 1);
        while cache.stats().failed_loads == 0 {
            let fails = async || Err::<u32, _>("no");
            assert_eq!(cache.get_or_try_set_with(&1, SECOND, fails).await, Ok(1));
            tokio::task::yield_now().await;
        }
        match method {
            0 => assert_eq!(cache.update(&1, |value| *value += 1).await, Some(())),
            1 => assert_eq!(cache.remove_if(|_, _| true).await, 1),
            2 => assert_eq!(cache.retain(|_, _| false).await, 1),
            _ => _ = cache.remove(&1).await,
        }
        advance(SECOND).await;
        let load = async || Ok::<_, &str>(3);
        assert_eq!(cache.get_or_try_set_with(&1, SECOND, load).await, Ok(3), "method {method}");
    }
}

#[tokio::test(start_paused = true)]
async fn kept_error_survives_writes_to_other_keys() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
    for key in 0..1_000 {
        let fails = async || Err::<u32, _>("no");
        assert!(cache.get_or_try_set_with(&key, MINUTE, fails).await.is_err());
    }
    for key in 1_000..10_000 {
        cache.set(key, 1).await;
    }
    for key in 0..1_000 {
        let load = async || Ok::<_, &str>(2);
        let kept = cache.get_or_try_set_with(&key, MINUTE, load).await;
        assert!(kept.is_err(), "the error of key {key} is kept");
    }
}

/// The cache has no sweeper task that could do it.
#[tokio::test(start_paused = true)]
async fn manual_sweep_removes_expired_errors() {
    let cache: Cache<u32, u32> =
        Cache::builder().negative_ttl(MINUTE).sweep(Sweep::manual().sample(1.0)).build();
    let error = Arc::new(());
    for key in 0..1_000 {
        let error = error.clone();
        let fails = async move || Err::<u32, _>(error);
        assert!(cache.get_or_try_set_with(&key, MINUTE, fails).await.is_err());
    }
    assert_eq!(Arc::strong_count(&error), 1_001);
    advance(MINUTE).await;
    cache.sweep().await;
    assert_eq!(Arc::strong_count(&error), 1);
}

/// A sweeper without entries rests, and its rests are longer than the lifetime of the error.
#[tokio::test(start_paused = true)]
async fn resting_sweeper_removes_expired_errors_in_time() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(3 * SECOND).build();
    sleep(10 * MINUTE).await;
    for n in 0..20 {
        let error = Arc::new(());
        let kept = error.clone();
        let fails = async move || Err::<u32, _>(kept);
        assert!(cache.get_or_try_set_with(&n, MINUTE, fails).await.is_err());
        sleep(3 * SECOND - MS).await;
        assert_eq!(Arc::strong_count(&error), 2);
        sleep(101 * MS).await;
        assert_eq!(Arc::strong_count(&error), 1);
        sleep(37 * SECOND).await;
    }
}

/// A subscriber that does not read holds back the removal of expired values, but not that of errors.
#[tokio::test(start_paused = true)]
async fn full_subscriber_does_not_hold_back_the_removal_of_expired_errors() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(3 * SECOND).build();
    let _unread = cache.events_lossless(1);
    for n in 0..100 {
        cache.set_ex(n, n, SECOND).await;
    }
    let error = Arc::new(());
    let kept = error.clone();
    let fails = async move || Err::<u32, _>(kept);
    assert!(cache.get_or_try_set_with(&100, MINUTE, fails).await.is_err());
    sleep(4 * SECOND).await;
    assert!(!cache.is_empty(), "the sweep is held back");
    assert_eq!(Arc::strong_count(&error), 1);
}

#[tokio::test]
async fn kept_errors_have_no_task_of_their_own() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
    assert!(cache.get_or_try_set_with(&1, MINUTE, async || Err::<u32, _>("no")).await.is_err());
    assert_eq!(tasks(), before + 1, "the sweeper of the cache");
    cache.shutdown().await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks(), before);
}

/// Counts as a failed refresh, as any other panic in it does: the next one starts after a backoff.
#[tokio::test(start_paused = true)]
async fn panic_of_a_weigher_in_a_refresh_delays_the_next_refresh() {
    let loads = Arc::new(AtomicU32::new(0));
    let weigher = |_: &u32, value: &u32| {
        assert!(*value < 10, "the panic of this test");
        1
    };
    let cache: Cache<u32, u32> = Cache::builder()
        .sweep(Sweep::manual())
        .stale_while_revalidate(1_000 * SECOND)
        .max_weight(100, weigher)
        .build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    for _ in 0..10 {
        let loads = loads.clone();
        let load = async move || loads.fetch_add(1, SeqCst) + 10;
        assert_eq!(cache.get_or_set_with(&1, SECOND, load).await, 1);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(loads.load(SeqCst), 1);
    advance(SECOND).await;
    assert_eq!(cache.get_or_set_with(&1, SECOND, async || 2).await, 1);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(cache.get(&1).await, Some(2));
}

/// No more errors than `max_entries` are kept, or 10,000 with `max_weight`, and not many fewer.
#[tokio::test(start_paused = true)]
async fn kept_errors_are_bounded() {
    let builder = || Cache::<u32, u32>::builder().negative_ttl(MINUTE);
    let caches = [1, 100, 5_000].map(|max| (builder().max_entries(max), max));
    for (builder, max) in caches.into_iter().chain([(builder().max_weight(5, |_, _| 1), 10_000)]) {
        let cache = builder.build();
        let error = Arc::new(());
        for key in 0..20_000 {
            let error = error.clone();
            let fails = async move || Err::<u32, _>(error);
            assert!(cache.get_or_try_set_with(&key, MINUTE, fails).await.is_err());
            let load = async || Ok::<_, Arc<()>>(2);
            assert!(cache.get_or_try_set_with(&key, MINUTE, load).await.is_err(), "it is kept");
        }
        let kept = Arc::strong_count(&error) - 1;
        assert!((max * 9 / 10..=max).contains(&kept), "{kept} of {max}");
    }
}
