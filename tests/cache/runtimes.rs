//! Runtimes that are blocked, have shut down, or are not that of the cache. Most tests need real time.

use std::{
    cell::RefCell,
    env,
    pin::pin,
    process::Command,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::channel,
    },
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Sweep};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::unconstrained,
    time::{advance, sleep},
};

use crate::patience::patience;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Name of the runtime of [`thread_local_that_calls_a_cache`].
const RUNTIME: &str = "FLEETING_TEST_RUNTIME";
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn reads_are_correct_while_the_only_worker_is_blocked() {
    check_blocked_worker().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_correct_while_one_of_two_workers_is_blocked() {
    check_blocked_worker().await;
}

/// The task of the test runs on no worker, so it can read while the workers are blocked.
async fn check_blocked_worker() {
    let cache = cache();
    let mut events = cache.events_lossless(10_000);
    for key in 0..1_000 {
        cache.set_ex(key, key, SECOND / 2).await;
        cache.set_ex(1_000_000 + key, key, 3_600 * SECOND).await;
    }
    let blocked = tokio::spawn(async { thread::sleep(3 * SECOND) });
    let start = Instant::now();
    while start.elapsed() < 2 * SECOND {
        let before = start.elapsed();
        let read = cache.get(&1).await;
        assert!(read.is_none() || before < SECOND, "an expired value was read after {before:?}");
        assert_eq!(cache.get(&1_000_001).await, Some(1), "a live value was not read");
        thread::sleep(MILLISECOND);
    }
    assert_eq!(cache.live_len(), 1_000, "expiration does not depend on the sweeper");
    blocked.await.expect("the task only sleeps");
    until("the sweeper catches up", || cache.len() == 1_000).await;
    let expired =
        std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).count();
    assert_eq!(expired, 1_000, "each entry has one event, even if late");
}

#[test]
fn cache_works_after_its_runtime_has_shut_down() {
    let runtime = multi_thread();
    let (cache, mut events, mut lossless, callback) = runtime.block_on(async {
        let cache = cache();
        let callback = cache.on_expired(async |_| ());
        (cache.clone(), cache.events(), cache.events_lossless(2), callback)
    });
    cache.set(1, 1).now_or_never().expect("the call needs no runtime");
    drop(runtime);

    let now = "a call outside of a runtime never waits";
    assert_eq!(cache.get(&1).now_or_never().expect(now), Some(1));
    cache.set_ex(2, 2, 5 * MILLISECOND).now_or_never().expect(now);
    thread::sleep(10 * MILLISECOND);
    assert_eq!((cache.get(&2).now_or_never().expect(now), cache.len()), (None, 1));
    assert_eq!(events.recv().now_or_never().expect(now).unwrap().unwrap().key, 2);
    assert_eq!(lossless.recv().now_or_never().expect(now).unwrap().key, 2);
    let ended = callback.now_or_never().expect("the callback task ended with the runtime");
    assert!(ended.unwrap_err().is_cancelled(), "the callback task was cancelled");

    let other = current_thread();
    other.block_on(async {
        for key in 10..20 {
            cache.set(key, key).await;
            assert_eq!(cache.remove(&key).await, Some(key));
            assert_eq!(lossless.recv().await.unwrap().key, key);
        }
        cache.set_ex(3, 3, Duration::ZERO).await;
        assert_eq!(cache.sweep().await.expired, 1, "a manual sweep needs no task");
        assert_eq!(lossless.recv().await.unwrap().key, 3);
        cache.set_ex(4, 4, Duration::ZERO).await;
        within("shutdown returns", cache.shutdown()).await;
        assert_eq!(lossless.recv().await.unwrap().key, 4, "`shutdown` publishes due events");
        assert!(lossless.recv().await.is_none(), "the stream ends");
        assert_eq!(cache.get(&1).await, Some(1), "reads work after a shutdown");
    });
    drop(other);
    drop(cache);
    let count =
        std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).count();
    assert_eq!(count, 12, "the other stream has the same events");
}

#[test]
fn last_handle_may_be_dropped_after_the_runtime() {
    for runtime in [multi_thread(), current_thread()] {
        let value = Arc::new(());
        let (cache, mut events) = runtime.block_on(async {
            let cache: Cache<u32, Arc<()>> = Cache::builder().publish(ALL).build();
            (cache.clone(), cache.events_lossless(10))
        });
        drop(runtime);
        for key in 0..10 {
            cache.set(key, value.clone()).now_or_never().unwrap();
        }
        drop(cache);
        assert_eq!(Arc::strong_count(&value), 1, "the values were dropped with the last handle");
        assert!(events.recv().now_or_never().expect("the stream has ended").is_none());
    }
}

/// The sweeper task may be cancelled in the middle of any step.
#[test]
fn runtime_may_shut_down_while_other_threads_use_the_cache() {
    let runtime = multi_thread();
    let cache = runtime.block_on(async { cache() });
    let stop = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..4)
        .map(|user| {
            let (cache, stop) = (cache.clone(), stop.clone());
            thread::spawn(move || {
                let mut key = user;
                while !stop.load(Relaxed) {
                    key += 4;
                    cache.set_ex(key % 1_000, key, MILLISECOND).now_or_never().unwrap();
                    cache.get(&((key + 500) % 1_000)).now_or_never().unwrap();
                }
            })
        })
        .collect();
    thread::sleep(100 * MILLISECOND);
    runtime.shutdown_background();
    thread::sleep(100 * MILLISECOND);
    stop.store(true, Relaxed);
    for user in users {
        user.join().expect("no thread panics");
    }
    thread::sleep(2 * MILLISECOND);
    current_thread().block_on(within("shutdown returns", cache.shutdown()));
    assert_eq!(cache.len(), 0, "shutdown removes all expired entries");
}

/// Documented in `Cache`: a cache uses the clock of the runtime it was built on.
#[test]
fn cache_of_a_multi_thread_runtime_uses_real_time_on_a_paused_one() {
    let runtime = multi_thread();
    let cache = runtime.block_on(async { cache() });
    let paused = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    paused.block_on(async {
        let begin = Instant::now();
        cache.set_ex(1, 1, 600 * SECOND).await;
        cache.set_ex(2, 2, 20 * MILLISECOND).await;
        advance(3_600 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(1), "the hour passed only on the paused runtime");
        let remaining = cache.ttl(&1).await.as_secs();
        let late = begin.elapsed().as_secs() as i64 + 1;
        assert!((600 - late..=600).contains(&remaining), "{remaining} s left of 600");
        thread::sleep(30 * MILLISECOND);
        assert_eq!(cache.get(&2).await, None, "30 ms of real time have passed");
    });
}

#[test]
fn cache_of_a_current_thread_runtime_uses_its_clock_elsewhere() {
    let paused = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let cache = paused.block_on(async { cache() });
    cache.set_ex(1, 1, 600 * SECOND).now_or_never().expect("the call needs no runtime");
    current_thread().block_on(async {
        assert_eq!(cache.get(&1).await, Some(1), "no time passed on the paused runtime");
    });
    paused.block_on(advance(3_600 * SECOND));
    current_thread().block_on(async {
        assert_eq!(cache.get(&1).await, None, "an hour passed on the runtime of the cache");
    });
}

/// Documented in `Cache`: a `static` cache belongs to the runtime of the first test that uses it.
#[test]
fn static_cache_loses_its_sweeper_and_clock_with_the_first_test() {
    static CACHE: LazyLock<Cache<u32, u32>> = LazyLock::new(cache);

    let test = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    test().block_on(async {
        CACHE.set_ex(1, 1, SECOND).await;
        sleep(2 * SECOND).await;
        assert!(CACHE.is_empty(), "the sweeper runs during the first test");
        CACHE.set_ex(2, 2, SECOND).await;
    });
    test().block_on(async {
        CACHE.set_ex(3, 3, SECOND).await;
        sleep(60 * SECOND).await;
        assert_eq!(CACHE.len(), 2, "the sweeper has ended with the first test");
        assert_eq!(CACHE.get(&3).await, Some(3), "the clock stands still");
    });
}

/// Uses the solution that the guide shows.
#[test]
fn static_cache_with_its_own_runtime_works_in_every_test() {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(multi_thread);
    static CACHE: LazyLock<Cache<u32, u32>> = LazyLock::new(|| {
        let _inside = RUNTIME.enter();
        cache()
    });

    for (test, paused) in [(0, false), (1, true), (2, false)] {
        let mut runtime = Builder::new_current_thread();
        runtime.enable_all().start_paused(paused).build().unwrap().block_on(async {
            let mut events = CACHE.events_lossless(10);
            let (sender, keys) = channel();
            let callback = CACHE.on_expired(async move |event| {
                sender.send(event.key).expect("the receiver exists")
            });
            CACHE.set_ex(test, test, 20 * MILLISECOND).await;
            assert_eq!(events.recv().await.expect("the cache has a handle").key, test);
            assert_eq!(keys.recv_timeout(patience()), Ok(test));
            assert!(CACHE.is_empty(), "the sweeper runs");
            callback.abort();
        });
    }
}

#[test]
fn on_expired_may_be_called_outside_of_a_runtime() {
    let runtime = multi_thread();
    let cache = runtime.block_on(async { cache() });
    let (sender, keys) = channel();
    cache.on_expired(async move |event| {
        sleep(MILLISECOND).await;
        sender.send(event.key).expect("the receiver exists");
    });
    cache.set_ex(1, 1, MILLISECOND).now_or_never().expect("the call needs no runtime");
    assert_eq!(
        keys.recv_timeout(patience()),
        Ok(1),
        "the callback runs on the runtime of the cache"
    );
    drop(cache);
    assert!(keys.recv_timeout(patience()).is_err(), "the callback ends with the cache");
}

#[test]
fn build_without_a_time_driver_panics_and_leaves_no_task() {
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.worker_threads(1).build().unwrap();
        let built =
            runtime.block_on(async { std::panic::catch_unwind(|| drop(Cache::<u32, u32>::new())) });
        let panic = built.expect_err("the runtime has no time driver");
        let message = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
        assert!(message.contains("enable_time"), "the message names the remedy: {message}");
        assert_eq!(runtime.metrics().num_alive_tasks(), 0, "no task is left");
    }
}

#[tokio::test(start_paused = true)]
async fn stream_that_has_ended_does_not_hold_a_sweep_back() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    let _ended = cache.events_lossless(1);
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    cache.shutdown().await;
    cache.set_ex(2, 2, SECOND).await;
    advance(SECOND).await;
    let report = cache.sweep().await;
    assert_eq!((report.expired, report.held_back, cache.len()), (1, false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_shutdown_calls_all_return() {
    for _ in 0..50 {
        let cache = cache();
        let mut events = cache.events_lossless(1);
        for key in 0..500 {
            cache.set_ex(key, key, Duration::ZERO).await;
        }
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let cache = cache.clone();
                tokio::spawn(async move { cache.shutdown().await })
            })
            .collect();
        for task in tasks {
            within("each shutdown returns", task).await.unwrap();
        }
        assert_eq!(cache.len(), 0, "all expired entries were removed");
        let mut received = 0;
        while within("the stream ends", events.recv()).await.is_some() {
            received += 1;
        }
        assert_eq!(received, 500, "each expired entry has one event");
        cache.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_expired_callback_may_call_shutdown() {
    let cache = cache();
    let calls = Arc::new(AtomicUsize::new(0));
    let (all_set, are_set) = tokio::sync::oneshot::channel();
    let ender = Arc::new(Mutex::new(Some((cache.clone(), are_set))));
    let count = calls.clone();
    let callback = cache.on_expired(async move |_| {
        count.fetch_add(1, Relaxed);
        let ender = ender.lock().unwrap().take();
        if let Some((cache, are_set)) = ender {
            // On a busy machine, a sweep may come between two of the calls below.
            are_set.await.unwrap();
            cache.shutdown().await;
        }
    });
    for key in 0..100 {
        cache.set_ex(key, key, Duration::ZERO).await;
    }
    all_set.send(()).unwrap();
    within("the callback ends", callback).await.unwrap();
    assert_eq!(calls.load(Relaxed), 100, "the callback receives all due events before it ends");
    assert_eq!(cache.len(), 0);
}

#[tokio::test]
async fn shutdown_works_from_another_runtime() {
    let cache = cache();
    let other = cache.clone();
    let (done, ended) = channel();
    thread::spawn(move || {
        current_thread().block_on(other.shutdown());
        done.send(()).expect("the test waits for it");
    });
    // This runtime is running, so its sweeper can be stopped.
    until("the shutdown returns", || ended.try_recv().is_ok()).await;
    assert!(cache.events().recv().await.is_none(), "the streams of the cache have ended");
}

/// A `current_thread` runtime runs its tasks only during `block_on`, so an aborted task may never end.
#[test]
fn shutdown_does_not_wait_for_a_runtime_that_is_not_running() {
    let resting = current_thread();
    let cache = resting.block_on(async { cache() });
    let mut events = cache.events_lossless(1);
    cache.set_ex(1, 1, Duration::ZERO).now_or_never().expect("the call needs no runtime");
    let ended = current_thread()
        .block_on(async { tokio::time::timeout(patience(), cache.shutdown()).await });
    assert!(ended.is_ok(), "shutdown does not wait for a task that is not running");
    let event = events.recv().now_or_never().expect("it was `shutdown` publishes due events");
    assert_eq!(event.unwrap().key, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_caches_leave_no_task() {
    let metrics = Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for round in 0..1_000_u32 {
        let cache = cache();
        cache.on_expired(async |_| ());
        cache.set_ex(round, round, MILLISECOND).await;
        if round % 3 == 0 {
            cache.shutdown().await;
        }
        if round % 50 == 0 {
            sleep(5 * MILLISECOND).await;
        }
    }
    until("the tasks end", || metrics.num_alive_tasks() == before).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_concurrent_caches_leave_no_task() {
    let caches: Vec<_> = (0..1_000).map(|_| cache()).collect();
    let metrics = Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 1_000, "one sweeper per cache");
    sleep(30 * MILLISECOND).await;
    drop(caches);
    until("the tasks end", || metrics.num_alive_tasks() == 0).await;
}

/// The reason why the methods are `async`.
#[tokio::test]
async fn task_whose_calls_are_all_hits_yields() {
    let cache = cache();
    cache.set(1, 1).await;
    let ticks = Arc::new(AtomicUsize::new(0));
    let count = ticks.clone();
    let ticker = tokio::spawn(async move {
        loop {
            sleep(MILLISECOND).await;
            count.fetch_add(1, Relaxed);
        }
    });
    let hits = tokio::spawn(async move {
        for _ in 0..3_000_000 {
            assert_eq!(cache.get(&1).await, Some(1));
        }
    });
    let start = Instant::now();
    hits.await.expect("the task does not panic");
    let (ticks, elapsed) = (ticks.load(Relaxed), start.elapsed());
    ticker.abort();
    // The task yields after 128 units of budget, each of which pays for some 61 calls.
    let least = 20.min(elapsed.as_millis() as usize / 20);
    assert!(ticks >= least, "a task of 1 ms had {ticks} turns in {elapsed:?}");
}

/// The guide says that this aborts. Tokio's clock of tests looks for the runtime in a thread-local of its own, which is
/// gone by then, and panics. A cache of a multi-thread runtime does not ask it.
#[test]
fn call_from_the_destructor_of_a_thread_local_aborts_only_on_the_clock_of_tests() {
    for (runtime, has_aborted) in [("current_thread", true), ("multi_thread", false)] {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "runtimes::thread_local_that_calls_a_cache", "--ignored"])
            .args(["--nocapture"])
            .env(RUNTIME, runtime)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(output.contains("thread ends"), "{runtime}: {output}");
        assert_eq!(!child.status.success(), has_aborted, "{runtime}: {output}");
    }
}

#[test]
#[ignore = "it is started by the test above, in a process of its own"]
fn thread_local_that_calls_a_cache() {
    struct CallsOnDrop(Cache<u32, u32>);
    impl Drop for CallsOnDrop {
        fn drop(&mut self) {
            let mut call = pin!(unconstrained(self.0.set_ex(1, 2, 60 * SECOND)));
            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    thread_local!(static LAST: RefCell<Option<CallsOnDrop>> = const { RefCell::new(None) });
    let runtime = match env::var(RUNTIME).as_deref() {
        Ok("multi_thread") => multi_thread(),
        _ => current_thread(),
    };
    let cache = runtime.block_on(async { cache() });
    let runtime = Arc::new(runtime);
    let (its_cache, its_runtime) = (cache.clone(), runtime.clone());
    let thread = thread::spawn(move || {
        // In this order: the thread-local that is used first is dropped last.
        LAST.set(Some(CallsOnDrop(its_cache.clone())));
        its_runtime.block_on(its_cache.set(1, 1));
        println!("thread ends");
    });
    // `thread::scope` would wait only for the closure; `join` waits for the destructors of thread-locals, too.
    thread.join().expect("the thread does not panic");
    assert_eq!(runtime.block_on(cache.get(&1)), Some(2));
}

fn cache() -> Cache<u32, u32> {
    let sweep = Sweep::default().every(5 * MILLISECOND).sample(1.0);
    Cache::builder().shards(4).sweep(sweep).publish(ALL).build()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(patience(), future).await;
    ended.unwrap_or_else(|_| panic!("timed out: {what}"))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            sleep(MILLISECOND).await;
        }
    })
    .await;
}
