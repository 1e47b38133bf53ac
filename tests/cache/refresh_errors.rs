//! Failures of background refreshes: the hook `on_refresh_error`, and the log.

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::Freshness;
use futures::FutureExt;
use tokio::time::{advance, sleep};
use tracing::Level;

use crate::{
    freshness::{builder, load, run_background_tasks},
    log::Log,
};

const SECOND: Duration = Duration::from_secs(1);

/// Failures that `on_refresh_error` has reported, as text.
type Reported = Arc<Mutex<Vec<(u32, String)>>>;

/// Hook that records its calls.
fn record_in(reported: &Reported) -> impl Fn(&u32, &dyn Debug) + Send + Sync + use<> {
    let reported = reported.clone();
    move |key, error| reported.lock().unwrap().push((*key, format!("{error:?}")))
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_gets_the_key_and_the_error() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let reported = Reported::default();
    let builder = builder().name("rates").stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    assert_eq!(load(&cache, 1, Err("the source is down")).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    let errors = [(1, r#""the source is down""#.to_owned())];
    assert_eq!(*reported.lock().unwrap(), errors);
    let lines = log.lines("background refresh failed");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN", "cache=\"rates\"", "error=", "the source is down"] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    // No refresh is started during the backoff, and a refresh that succeeds is not reported.
    assert_eq!(load(&cache, 1, Err("still down")).await, Ok((1, Freshness::Stale)));
    advance(SECOND).await;
    assert_eq!(load(&cache, 1, Ok(2)).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(*reported.lock().unwrap(), errors);
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_names_a_panic_and_a_timeout() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let reported = Reported::default();
    let builder = builder().stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    cache.set_many([(1, 1), (2, 2), (3, 3)], Some(SECOND)).await;
    advance(SECOND).await;
    cache.get_or_set_with(&1, SECOND, async || panic!("the panic of this test")).await;
    cache.get_or_set_with(&2, SECOND, async || panic!("panic {}", 2)).await;
    cache.get_or_set_with(&3, SECOND, std::future::pending::<u32>).await;
    sleep(61 * SECOND).await;
    let texts = [
        (1, "panicked: the panic of this test".to_owned()),
        (2, "panicked: panic 2".to_owned()),
        (3, "timed out after 60s, the timeout of background refreshes".to_owned()),
    ];
    assert_eq!(*reported.lock().unwrap(), texts);
    assert_eq!(log.lines("background refresh failed").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn on_refresh_error_is_not_called_for_loads_that_callers_wait_for() {
    let reported = Reported::default();
    let builder = builder().stale_if_error(1_000 * SECOND).stale_while_revalidate(SECOND);
    let cache = builder.on_refresh_error(record_in(&reported)).build();
    assert!(load(&cache, 1, Err("down")).await.is_err());
    cache.set_ex(1, 1, SECOND).await;
    advance(3 * SECOND).await;
    assert_eq!(load(&cache, 1, Err("down")).await, Ok((1, Freshness::Stale)));
    run_background_tasks().await;
    assert!(reported.lock().unwrap().is_empty());
}

/// The hook runs under no lock: it may call the cache, and waiters do not wait for it.
#[tokio::test(start_paused = true)]
async fn on_refresh_error_may_call_the_cache() {
    let own: Arc<Mutex<Option<fleeting::WeakCache<u32, u32>>>> = Arc::default();
    let in_hook = own.clone();
    let hook = move |key: &u32, _: &dyn Debug| {
        let cache = in_hook.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
        cache.set_ex(*key, 9, SECOND).now_or_never().unwrap();
    };
    let builder = builder().stale_while_revalidate(1_000 * SECOND).on_refresh_error(hook);
    let cache = builder.build();
    *own.lock().unwrap() = Some(cache.downgrade());
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    load(&cache, 1, Err("down")).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(9));
}

#[tokio::test(start_paused = true)]
async fn panic_of_on_refresh_error_is_logged() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let builder = builder().name("hot").stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(|_, _| panic!("the panic of this test")).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    load(&cache, 1, Err("down")).await.unwrap();
    run_background_tasks().await;
    let errors = log.lines("on_refresh_error hook panicked");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("ERROR") && errors[0].contains("cache=\"hot\""), "{}", errors[0]);
    // The refresh is retried as after any failure.
    advance(SECOND).await;
    load(&cache, 1, Ok(2)).await.unwrap();
    run_background_tasks().await;
    assert_eq!(cache.get(&1).await, Some(2));
}

/// Error whose `Debug` panics.
struct DebugPanics;

impl Debug for DebugPanics {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the panic of this test")
    }
}

#[tokio::test(start_paused = true)]
async fn error_whose_debug_panics_is_reported() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let builder = builder().stale_while_revalidate(1_000 * SECOND);
    let cache = builder.on_refresh_error(move |_, _| _ = counter.fetch_add(1, SeqCst)).build();
    cache.set_ex(1, 1, SECOND).await;
    advance(SECOND).await;
    let fails = async || Err::<u32, _>(DebugPanics);
    assert!(matches!(cache.get_or_try_set_with(&1, SECOND, fails).await, Ok(1)));
    run_background_tasks().await;
    assert_eq!(calls.load(SeqCst), 1);
    assert_eq!(log.lines("the Debug of the error panicked").len(), 1);
}
