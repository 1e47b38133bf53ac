//! Caches and limiters in programs without a runtime: in a `static`, in constructors that are not async, on executors
//! other than Tokio's. The real clock is the subject: the background thread has no other.

#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/wait_until.rs"]
mod wait_until;

mod resolver;
mod single_flight;
mod thread;

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use fleeting::{Cache, Cause, Limit, RateLimiter};

use crate::{patience::patience, wait_until::wait_until};

const MINUTE: Duration = Duration::from_secs(60);

static SESSIONS: LazyLock<Cache<String, u64>> =
    LazyLock::new(|| Cache::builder().max_entries(1_000).background_thread().build());

#[test]
fn static_cache_serves_one_runtime_after_the_other() {
    for number in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let before = SESSIONS.set(format!("static{number}"), number).await;
            assert_eq!(before, None);
        });
        drop(runtime);
        assert_eq!(SESSIONS.sync().get(&format!("static{number}")), Some(number));
    }
}

#[test]
fn entries_expire_are_swept_and_reach_callbacks_without_a_runtime() {
    let cache = Cache::builder().background_thread().build();
    let (sender, expired) = mpsc::channel();
    cache.on_expired(async move |event| {
        let thread = std::thread::current().name().map(ToOwned::to_owned);
        sender.send((event.key, event.value, thread)).expect("the test listens");
    });
    let cache = cache.sync();
    cache.set_ex("ada", 42, Duration::from_millis(5));
    cache.set_ex("bob", 43, MINUTE);
    let event = expired.recv_timeout(patience()).expect("the callback runs");
    assert_eq!(event, ("ada", 42, Some("fleeting".to_owned())));
    assert_eq!((cache.get("ada"), cache.get("bob")), (None, Some(43)));
    assert_eq!(cache.len(), 1, "the sweeper has removed the entry");
}

#[test]
fn background_refresh_runs_on_the_thread() {
    let cache = Cache::builder().background_thread().stale_while_revalidate(MINUTE).build();
    let runs = Arc::new(AtomicU64::new(0));
    let get = async || {
        let runs = runs.clone();
        let load = async move || {
            let run = runs.fetch_add(1, SeqCst);
            (run, std::thread::current().name().map(ToOwned::to_owned))
        };
        cache.get_or_set_with("key", Duration::from_millis(5), load).await
    };
    assert_eq!(futures::executor::block_on(get()).0, 0);
    wait_until("the value is stale", || cache.sync().get("key").is_none());
    // The runtime of the caller ends before the refresh does: the cache does not need it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    assert_eq!(runtime.expect("a runtime").block_on(get()).0, 0);
    wait_until("the value is refreshed", || runs.load(SeqCst) >= 2);
    wait_until("the new value is stored", || {
        futures::executor::block_on(get()).1.as_deref() == Some("fleeting")
    });
}

#[test]
fn async_methods_work_on_another_executor() {
    let cache = Cache::builder().background_thread().publish([Cause::Expired]).build();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).background_thread().build();
    futures::executor::block_on(async {
        let mut events = cache.events_lossless(16);
        cache.set_ex("ada", 42, Duration::from_millis(5)).await;
        assert_eq!(events.recv().await.expect("the entry expires").key, "ada");
        assert!(limiter.check("ada").await.is_ok());
        assert!(limiter.check("ada").await.is_err());
        assert_eq!(cache.remove_if(|_, _| true).await, 0);
    });
}

#[tokio::test(start_paused = true)]
async fn clock_of_the_thread_is_real_time_also_in_a_paused_runtime() {
    let cache = Cache::builder().background_thread().build();
    cache.set_ex("ada", 42, MINUTE).await;
    tokio::time::advance(MINUTE * 2).await;
    assert_eq!(cache.get("ada").await, Some(42));
}

#[test]
fn panic_outside_of_a_runtime_names_the_background_thread() {
    let cache = std::panic::catch_unwind(Cache::<u64, u64>::new).expect_err("there is no runtime");
    let limiter = || RateLimiter::<u64>::new(Limit::per_second(1));
    let limiter = std::panic::catch_unwind(limiter).expect_err("there is no runtime");
    for panic in [cache, limiter] {
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains("background_thread()"), "{text}");
    }
}

#[test]
fn limiter_forgets_idle_keys_without_a_runtime() {
    let limit = Limit::new(1, Duration::from_millis(20));
    let limiter = RateLimiter::builder().limit(limit).background_thread().build();
    let permit = limiter.sync().check("ada").expect("the first call passes");
    assert!(limiter.sync().check("ada").is_err() || limiter.sync().peek("ada").remaining() == 0);
    limiter.sync().refund(permit);
    assert!(limiter.sync().check("bob").is_ok());
    assert_eq!(limiter.stats().keys, 2);
    wait_until("the keys are swept", || limiter.stats().keys == 0);
}
