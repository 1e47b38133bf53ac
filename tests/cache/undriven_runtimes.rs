//! Background refreshes of a cache whose runtime, or that of the first caller, is not driven. Callers on other runtimes
//! must not wait for them forever. The caches keep real time.

use std::{
    sync::{Arc, mpsc::channel},
    thread,
    time::Duration,
};

use fleeting::{Cache, Sweep};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::patience::patience;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a cache whose runtime is not driven any more, with an expired value that is still in its stale window.
fn stale_cache_of(resting: &Runtime, stale_for: Duration) -> Cache<u32, u32> {
    let build = || Cache::builder().stale_while_revalidate(stale_for).build();
    let cache = resting.block_on(async { build() });
    cache.set_ex(1, 1, MILLISECOND).now_or_never().expect("the call needs no runtime");
    thread::sleep(2 * MILLISECOND);
    cache
}

#[test]
fn refresh_runs_on_the_runtime_of_its_caller_if_that_of_the_cache_is_not_driven() {
    let resting = current_thread();
    let cache = stale_cache_of(&resting, 3_600 * SECOND);
    let calls = async {
        let stale = cache.get_or_set_with(&1, 3_600 * SECOND, async || 2).await;
        assert_eq!(stale, 1, "the stale value is returned immediately");
        while cache.get(&1).await != Some(2) {
            sleep(MILLISECOND).await;
        }
    };
    let ended = current_thread().block_on(async { timeout(patience(), calls).await });
    ended.expect("no call waits for a runtime that is not driven");
}

#[test]
fn refresh_runs_on_the_runtime_of_its_caller_after_that_of_the_cache_has_shut_down() {
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cache = stale_cache_of(&first, 3_600 * SECOND);
    drop(first);
    let calls = async {
        assert_eq!(cache.get_or_set_with(&1, 3_600 * SECOND, async || 2).await, 1);
        while cache.get(&1).await != Some(2) {
            sleep(MILLISECOND).await;
        }
    };
    let ended = current_thread().block_on(async { timeout(patience(), calls).await });
    ended.expect("the value is refreshed");
}

#[test]
fn refresh_runs_on_a_multi_thread_runtime_of_the_cache_even_if_that_of_its_caller_shuts_down() {
    let own = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cache = stale_cache_of(&own, 3_600 * SECOND);
    // Dropped after the call, together with tasks that were spawned on it.
    let stale = current_thread()
        .block_on(async { cache.get_or_set_with(&1, 3_600 * SECOND, async || 2).await });
    assert_eq!(stale, 1, "the stale value is returned immediately");
    let refreshed = async {
        while cache.get(&1).await != Some(2) {
            sleep(MILLISECOND).await;
        }
    };
    let ended = own.block_on(async { timeout(patience(), refreshed).await });
    ended.expect("the refresh runs on the runtime of the cache");
}

/// Callers on threads without a runtime, and on runtimes without a timer, wait for a refresh as well.
#[test]
fn refresh_needs_no_timer_on_the_runtime_of_its_caller() {
    let (resting, bare) = (current_thread(), Builder::new_current_thread().build().unwrap());
    let cache = stale_cache_of(&resting, 3_600 * SECOND);
    let load = |value| cache.get_or_set_with(&1, 3_600 * SECOND, async move || value);
    assert_eq!(bare.block_on(load(2)), 1, "the stale value is returned immediately");
    let refreshed = async {
        while cache.get(&1).await != Some(2) {
            sleep(MILLISECOND).await;
        }
    };
    let ended = resting.block_on(async { timeout(patience(), refreshed).await });
    ended.expect("the refresh runs on the runtime of the cache");
}

/// A multi-thread runtime runs the refresh even if it has no timer, and a caller may wait for it.
#[test]
fn refresh_needs_no_timer_on_the_runtime_of_the_cache() {
    let bare = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let build = || {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual());
        builder.stale_while_revalidate(3_600 * SECOND).build()
    };
    let cache = bare.block_on(async { build() });
    cache.set_ex(1, 1, MILLISECOND).now_or_never().expect("the call needs no runtime");
    thread::sleep(2 * MILLISECOND);
    let begins = Arc::new(Semaphore::new(0));
    let load = {
        let begins = begins.clone();
        async move || {
            begins.acquire().await.expect("it is not closed").forget();
            2
        }
    };
    let calls = async {
        assert_eq!(cache.get_or_set_with(&1, 3_600 * SECOND, load).await, 1);
        // Not the stale value: `refresh_with` waits for the load that is running.
        let waiting = cache.refresh_with(&1, 3_600 * SECOND, async || 3);
        let (value, ()) = tokio::join!(waiting, async { begins.add_permits(1) });
        value
    };
    let refreshed = current_thread().block_on(async { timeout(patience(), calls).await });
    assert_eq!(refreshed.expect("the refresh runs"), 2);
}

/// The limit is measured by the timer of the waiter, which is paused here and therefore advances at once.
#[test]
fn waiter_loads_if_a_refresh_makes_no_progress_within_its_limit() {
    let resting = current_thread();
    let mut stale_for = SECOND / 10;
    let cache = loop {
        let cache = stale_cache_of(&resting, stale_for);
        let refresh = cache.get_or_set_with(&1, 3_600 * SECOND, async || 2);
        // The refresh is spawned, but not driven from now on.
        if resting.block_on(refresh) == 1 {
            break cache;
        }
        // On a busy machine, the stale window may end before the call.
        stale_for *= 2;
    };
    thread::sleep(2 * stale_for);

    let (sender, loaded) = channel();
    let caller = cache.clone();
    thread::spawn(move || {
        let paused = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        paused.block_on(async {
            let load = |value| caller.get_or_set_with(&1, 3_600 * SECOND, async move || value);
            let start = tokio::time::Instant::now();
            let values = tokio::join!(load(3), load(4));
            sender.send((values, start.elapsed())).expect("the test waits for it");
        });
    });
    let ((first, second), waited) = loaded.recv_timeout(patience()).expect("the callers return");
    assert_eq!(first, second, "one of the waiters loads, and the other one gets its value");
    assert!(
        waited >= 60 * SECOND && waited <= 61 * SECOND,
        "the limit is a minute, not {waited:?}"
    );

    resting.block_on(async { sleep(10 * MILLISECOND).await });
    let now = cache.get(&1).now_or_never().expect("the call needs no runtime");
    assert_eq!(now, Some(first), "the late refresh does not replace the newer value");
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}
