//! Loader methods that take a future: borrowing, single flight with the closures, and no background refreshes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::{Builder, Cache, Sweep, Ttl};
use futures::FutureExt;
use tokio::{
    sync::Notify,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready_eq, task::spawn};

const SECOND: Duration = Duration::from_secs(1);

fn builder() -> Builder<u32, u32> {
    Cache::builder().sweep(Sweep::manual())
}

/// Future that must not be polled.
async fn unneeded<T>() -> T {
    panic!("a future that is not needed is not polled")
}

async fn run_background_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn future_of_get_or_set_may_borrow_and_is_loaded_once() {
    let cache = Cache::<String, String>::builder().time_to_live(60 * SECOND).build();
    let user = "ada".to_owned();
    let profile = async |user: &str| format!("profile of {user}");
    let loaded = cache.get_or_set(&user, None, profile(&user)).await;
    assert_eq!(loaded, "profile of ada");
    assert_eq!(cache.ttl("ada").await, Ttl::Remaining(60 * SECOND));
    assert_eq!(cache.get_or_set(&user, SECOND, unneeded()).await, loaded);
    let parse = async |text: &str| text.parse::<u32>().map(|n| n.to_string());
    let number = cache.get_or_try_set("42", |_: &String| SECOND, parse("42")).await;
    assert_eq!(number.unwrap(), "42");
    assert_eq!(cache.ttl("42").await, Ttl::Remaining(SECOND));
    assert!(cache.get_or_try_set("x", SECOND, parse("x")).await.is_err());
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.loads, stats.failed_loads), (1, 3, 1));
}

#[tokio::test(start_paused = true)]
async fn future_shares_single_flight_with_a_closure() {
    let cache = builder().build();
    let notify = Arc::new(Notify::new());
    let notified = notify.clone();
    let mut leader = spawn(cache.get_or_set_with(&1, SECOND, async move || {
        notified.notified().await;
        1
    }));
    let mut waiter = spawn(cache.get_or_set(&1, SECOND, unneeded()));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    notify.notify_one();
    assert_ready_eq!(leader.poll(), 1);
    assert_ready_eq!(waiter.poll(), 1);

    let mut leader = spawn(cache.get_or_set(&2, SECOND, async {
        notify.notified().await;
        2
    }));
    let mut waiter = spawn(cache.get_or_set_with(&2, SECOND, unneeded));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    notify.notify_one();
    assert_ready_eq!(leader.poll(), 2);
    assert_ready_eq!(waiter.poll(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiter_continues_with_its_own_future_if_the_leader_is_cancelled_or_panics() {
    let cache = builder().build();
    let mut leader = spawn(cache.get_or_set(&1, SECOND, std::future::pending()));
    let mut waiter = spawn(cache.get_or_set(&1, SECOND, async { 2 }));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    drop(leader);
    assert_ready_eq!(waiter.poll(), 2);

    let notify = Notify::new();
    let panics = async {
        notify.notified().await;
        panic!("the panic of this test")
    };
    let call = cache.get_or_set(&3, SECOND, panics);
    let mut leader = spawn(std::panic::AssertUnwindSafe(call).catch_unwind());
    let mut waiter = spawn(cache.get_or_set(&3, SECOND, async { 4 }));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    notify.notify_one();
    assert!(tokio_test::assert_ready!(leader.poll()).is_err());
    assert_ready_eq!(waiter.poll(), 4);
}

#[tokio::test(start_paused = true)]
async fn future_that_requests_its_own_key_does_not_wait_for_itself() {
    let cache = builder().build();
    let inner = cache.get_or_set(&1, SECOND, async { 1 });
    assert_eq!(cache.get_or_set(&1, SECOND, async { inner.await + 1 }).await, 2);
    assert_eq!(cache.get(&1).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn write_takes_precedence_over_the_future() {
    let cache = builder().build();
    let notify = Notify::new();
    let mut load = spawn(cache.get_or_set(&1, SECOND, async {
        notify.notified().await;
        1
    }));
    assert_pending!(load.poll());
    cache.set(1, 9).await;
    notify.notify_one();
    assert_ready_eq!(load.poll(), 1);
    assert_eq!(cache.get(&1).await, Some(9));
}

/// A value in its stale-while-revalidate window counts as missing, and is returned only within `stale_if_error`.
#[tokio::test(start_paused = true)]
async fn stale_value_is_returned_by_get_or_try_set_only_within_stale_if_error() {
    let windows = |revalidate: u32, error: u32| {
        builder().stale_while_revalidate(revalidate * SECOND).stale_if_error(error * SECOND)
    };
    for (cache, expected) in
        [(windows(10, 10).build(), Ok(1)), (windows(10, 0).build(), Err(Arc::new("down")))]
    {
        cache.set_ex(1, 1, SECOND).await;
        advance(2 * SECOND).await;
        let failed = cache.get_or_try_set(&1, SECOND, async { Err("down") }).await;
        assert_eq!(failed, expected);
        assert_eq!(cache.get_or_set(&1, SECOND, async { 2 }).await, 2);
        assert_eq!(cache.get(&1).await, Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_ahead_does_not_apply_to_futures() {
    let cache = builder().refresh_ahead(1e9).build();
    let slow = async {
        sleep(SECOND).await;
        1
    };
    cache.get_or_set(&1, 60 * SECOND, slow).await;
    for _ in 0..100 {
        assert_eq!(cache.get_or_set(&1, SECOND, unneeded()).await, 1);
    }
    run_background_tasks().await;
    assert_eq!(cache.stats().loads, 1);
}

#[tokio::test(start_paused = true)]
async fn future_waits_for_a_background_refresh_and_loads_if_it_fails() {
    for (outcome, loads, expected) in [(Ok(2), 1, 2), (Err("down"), 2, 3)] {
        let cache = builder().stale_while_revalidate(100 * SECOND).build();
        cache.set_ex(1, 1, SECOND).await;
        advance(SECOND).await;
        let refresh = async move || {
            sleep(10 * SECOND).await;
            outcome
        };
        assert_eq!(cache.get_or_try_set_with(&1, 60 * SECOND, refresh).await, Ok(1));
        let own = cache.get_or_try_set(&1, SECOND, async { Ok::<_, &str>(3) });
        assert_eq!(own.await, Ok(expected));
        assert_eq!(cache.stats().loads, loads);
    }
}

#[tokio::test(start_paused = true)]
async fn negative_ttl_applies_to_futures() {
    let cache = builder().negative_ttl(10 * SECOND).build();
    let fails = async { Err::<u32, _>("no") };
    assert!(cache.get_or_try_set(&1, SECOND, fails).await.is_err());
    let kept = cache.get_or_try_set(&1, SECOND, unneeded::<Result<u32, &str>>()).await;
    assert_eq!(*kept.unwrap_err(), "no");
    advance(10 * SECOND).await;
    assert_eq!(cache.get_or_try_set(&1, SECOND, async { Ok::<_, &str>(1) }).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn refresh_with_replaces_a_live_value() {
    let cache = builder().build();
    assert_eq!(cache.refresh_with(&1, SECOND, async || 1).await, 1);
    assert_eq!(cache.refresh_with(&1, 2 * SECOND, async || 2).await, 2);
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(2 * SECOND));
    assert_eq!(cache.stats().loads, 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_refresh_with_calls_share_one_load() {
    let cache = builder().build();
    cache.set(1, 1).await;
    let (notify, loads) = (Notify::new(), AtomicU32::new(0));
    let load = async || {
        loads.fetch_add(1, SeqCst);
        notify.notified().await;
        2
    };
    let mut first = spawn(cache.refresh_with(&1, SECOND, load));
    let mut second = spawn(cache.refresh_with(&1, SECOND, load));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    // Other calls get the live value.
    assert_eq!(cache.get(&1).await, Some(1));
    assert_eq!(cache.get_or_set_with(&1, SECOND, unneeded).await, 1);
    notify.notify_one();
    assert_ready_eq!(first.poll(), 2);
    assert_ready_eq!(second.poll(), 2);
    assert_eq!((loads.load(SeqCst), cache.get(&1).await), (1, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn refresh_with_continues_with_its_own_loader_if_the_leader_is_cancelled() {
    let cache = builder().build();
    cache.set(1, 1).await;
    let mut leader = spawn(cache.refresh_with(&1, SECOND, std::future::pending));
    let mut waiter = spawn(cache.refresh_with(&1, SECOND, async || 2));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    drop(leader);
    assert_ready_eq!(waiter.poll(), 2);
    assert_eq!(cache.get(&1).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn write_takes_precedence_over_refresh_with() {
    let cache = builder().build();
    cache.set(1, 1).await;
    let notify = Notify::new();
    let mut refresh = spawn(cache.refresh_with(&1, SECOND, async || {
        notify.notified().await;
        2
    }));
    assert_pending!(refresh.poll());
    cache.set(1, 9).await;
    // This call came after the write, and gets a value that was loaded after it.
    let mut later = spawn(cache.refresh_with(&1, SECOND, async || 3));
    assert_pending!(later.poll());
    notify.notify_one();
    assert_ready_eq!(refresh.poll(), 2);
    assert_eq!(cache.get(&1).await, Some(9));
    assert_ready_eq!(later.poll(), 3);
    assert_eq!(cache.get(&1).await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn loader_of_refresh_with_may_request_its_own_key() {
    let cache = builder().build();
    cache.set(1, 1).await;
    let inner = async || cache.refresh_with(&1, SECOND, async || 2).await + 1;
    assert_eq!(cache.refresh_with(&1, SECOND, inner).await, 3);
    assert_eq!(cache.get(&1).await, Some(3));
}

/// All calls can be awaited in a spawned task, with borrowed data of that task.
#[tokio::test(start_paused = true)]
async fn calls_can_be_awaited_in_a_spawned_task() {
    let cache = Cache::<String, usize>::builder().time_to_live(60 * SECOND).build();
    let handle = cache.clone();
    let task = tokio::spawn(async move {
        let key = "ada".to_owned();
        let len = async |text: &str| text.len();
        let first = handle.get_or_set(&key, None, len(&key)).await;
        let second = handle.get_or_try_set(&key, None, async { Ok::<_, &str>(9) }).await;
        let third = handle.refresh_with(&key, None, async || 4).await;
        let load = async |missing: Vec<String>| vec![(missing[0].clone(), 5)];
        let many = handle.get_many_or_set_with([key.clone(), "bob".to_owned()], None, load).await;
        (first, second, third, many)
    });
    assert_eq!(task.await.unwrap(), (3, Ok(3), 4, vec![Some(4), Some(5)]));
    for key in ["ada", "bob"] {
        assert!(matches!(cache.ttl(key).await, Ttl::Remaining(_)), "{key}");
    }
}
