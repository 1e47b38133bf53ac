//! One load for many keys: `get_many_or_set_with`.

use std::{sync::Arc, time::Duration};

use fleeting::{Builder, Cache, Sweep, Ttl};
use futures::FutureExt;
use tokio::{sync::Notify, time::advance};
use tokio_test::{assert_pending, assert_ready_eq, task::spawn};

const SECOND: Duration = Duration::from_secs(1);

fn builder() -> Builder<u32, u32> {
    Cache::builder().sweep(Sweep::manual())
}

/// Returns ten times each key.
async fn tenfold(keys: Vec<u32>) -> Vec<(u32, u32)> {
    keys.into_iter().map(|key| (key, 10 * key)).collect()
}

#[tokio::test(start_paused = true)]
async fn get_many_or_set_with_loads_missing_keys_by_one_call_in_their_order() {
    let cache = builder().time_to_live(60 * SECOND).build();
    cache.set(2, 2).await;
    let load = async |missing: Vec<u32>| {
        assert_eq!(missing, [3, 1, 4]);
        // Key 4 is not returned, and key 9 was not requested.
        vec![(9, 90), (1, 10), (3, 30)]
    };
    let values = cache.get_many_or_set_with([3, 2, 1, 3, 4], None, load).await;
    assert_eq!(values, [Some(30), Some(2), Some(10), Some(30), None]);
    assert_eq!(cache.get_many(&[1, 3, 4, 9]).await, [Some(10), Some(30), None, None]);
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(60 * SECOND));
    assert_eq!((cache.stats().loads, cache.len()), (1, 3));
    let unneeded = async |_: Vec<u32>| unreachable!("all keys are live");
    assert_eq!(cache.get_many_or_set_with([1, 2], SECOND, unneeded).await, [Some(10), Some(2)]);
    let none = async |_: Vec<u32>| unreachable!("there are no keys");
    assert!(cache.get_many_or_set_with([], SECOND, none).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ttl_closure_gets_each_value() {
    let cache = builder().build();
    let ttl = |value: &u32| *value * SECOND;
    cache.get_many_or_set_with([1, 2], ttl, tenfold).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND));
    assert_eq!(cache.ttl(&2).await, Ttl::Remaining(20 * SECOND));
}

/// Two calls with the same keys: each loads its part, and neither waits for the other before it has loaded.
#[tokio::test(start_paused = true)]
async fn keys_that_another_call_loads_are_not_loaded_again() {
    let cache = builder().build();
    let notify = Notify::new();
    let mut first = spawn(cache.get_many_or_set_with([1, 2], SECOND, async |missing| {
        assert_eq!(missing, [1, 2]);
        notify.notified().await;
        tenfold(missing).await
    }));
    let mut second = spawn(cache.get_many_or_set_with([2, 3], SECOND, async |missing| {
        assert_eq!(missing, [3]);
        tenfold(missing).await
    }));
    let mut single = spawn(cache.get_or_set(&1, SECOND, async { unreachable!() }));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(single.poll());
    assert_eq!(cache.get(&3).await, Some(30));
    notify.notify_one();
    assert_ready_eq!(first.poll(), vec![Some(10), Some(20)]);
    assert_ready_eq!(second.poll(), vec![Some(20), Some(30)]);
    assert_ready_eq!(single.poll(), 10);
}

#[tokio::test(start_paused = true)]
async fn key_that_the_loader_did_not_return_is_loaded_by_its_other_waiters() {
    let cache = builder().build();
    let notify = Notify::new();
    let mut leader = spawn(cache.get_many_or_set_with([1], SECOND, async |_| {
        notify.notified().await;
        vec![]
    }));
    let unneeded = async |_: Vec<u32>| unreachable!("the other call has asked the source");
    let mut many = spawn(cache.get_many_or_set_with([1], SECOND, unneeded));
    let mut single = spawn(cache.get_or_set(&1, SECOND, async { 7 }));
    assert_pending!(leader.poll());
    assert_pending!(many.poll());
    assert_pending!(single.poll());
    notify.notify_one();
    assert_ready_eq!(leader.poll(), vec![None]);
    assert_ready_eq!(many.poll(), vec![None]);
    assert_ready_eq!(single.poll(), 7);
}

/// A cancelled leader is replaced by one call of the waiter's loader, with all the keys that lost their leaders.
#[tokio::test(start_paused = true)]
async fn waiter_loads_all_keys_of_a_cancelled_call_at_once() {
    let cache = builder().build();
    let hang = async |_: Vec<u32>| std::future::pending().await;
    let mut leader = spawn(cache.get_many_or_set_with([1, 2, 3], SECOND, hang));
    let mut waiter = spawn(cache.get_many_or_set_with([3, 2, 1], SECOND, async |missing| {
        assert_eq!(missing, [3, 2, 1]);
        tenfold(missing).await
    }));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    drop(leader);
    assert_ready_eq!(waiter.poll(), vec![Some(30), Some(20), Some(10)]);
    assert_eq!(cache.len(), 3);
}

/// The loader is called at most once, so a flight that loses its leader later yields no value.
#[tokio::test(start_paused = true)]
async fn key_whose_leader_is_cancelled_after_the_loader_ran_is_none() {
    let cache = builder().build();
    let mut leader = spawn(cache.get_or_set(&1, SECOND, std::future::pending()));
    assert_pending!(leader.poll());
    let mut many = spawn(cache.get_many_or_set_with([1, 2], SECOND, tenfold));
    assert_pending!(many.poll());
    let mut other = spawn(cache.get_or_set(&1, SECOND, async { 7 }));
    assert_pending!(other.poll());
    drop(leader);
    assert_ready_eq!(many.poll(), vec![None, Some(20)]);
    assert_ready_eq!(other.poll(), 7);
}

#[tokio::test(start_paused = true)]
async fn write_takes_precedence_over_a_bulk_load() {
    let cache = builder().build();
    let notify = Notify::new();
    let mut load = spawn(cache.get_many_or_set_with([1, 2], SECOND, async |missing| {
        notify.notified().await;
        tenfold(missing).await
    }));
    assert_pending!(load.poll());
    cache.set(1, 9).await;
    notify.notify_one();
    assert_ready_eq!(load.poll(), vec![Some(10), Some(20)]);
    assert_eq!(cache.get_many(&[1, 2]).await, [Some(9), Some(20)]);
}

/// The result of the superseded load is of no use to a call that begins after the write. The key is loaded with the
/// others when that load has ended. In the meantime, another call may load those.
#[tokio::test(start_paused = true)]
async fn call_after_a_write_loads_keys_whose_loads_the_write_superseded() {
    let cache = builder().build();
    let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let load_after = |notify: &Arc<Notify>, value| {
        let notify = notify.clone();
        async move || {
            notify.notified().await;
            value
        }
    };
    let mut superseded = spawn(cache.get_or_set_with(&2, SECOND, load_after(&first, 2)));
    assert_pending!(superseded.poll());
    assert_eq!(cache.remove(&2).await, None);
    let mut calls = 0;
    let mut bulk = spawn(cache.get_many_or_set_with([1, 2, 3], SECOND, async |missing| {
        calls += 1;
        assert_eq!(missing, [2, 3]);
        tenfold(missing).await
    }));
    assert_pending!(bulk.poll());
    let mut single = spawn(cache.get_or_set_with(&1, SECOND, load_after(&second, 7)));
    assert_pending!(single.poll(), "it leads the load of 1");
    first.notify_one();
    assert_ready_eq!(superseded.poll(), 2);
    assert!(bulk.is_woken());
    assert_pending!(bulk.poll(), "it waits for the load of 1");
    second.notify_one();
    assert_ready_eq!(single.poll(), 7);
    assert_ready_eq!(bulk.poll(), vec![Some(7), Some(20), Some(30)]);
    drop(bulk);
    assert_eq!(calls, 1);
    assert_eq!(cache.get_many(&[1, 2, 3]).await, [Some(7), Some(20), Some(30)]);
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_loader_reaches_only_its_caller() {
    let cache = builder().build();
    let notify = Notify::new();
    let panics = async |_: Vec<u32>| {
        notify.notified().await;
        panic!("the panic of this test")
    };
    let call = cache.get_many_or_set_with([1], SECOND, panics);
    let mut leader = spawn(std::panic::AssertUnwindSafe(call).catch_unwind());
    let mut waiter = spawn(cache.get_many_or_set_with([1], SECOND, tenfold));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    notify.notify_one();
    assert!(tokio_test::assert_ready!(leader.poll()).is_err());
    assert_ready_eq!(waiter.poll(), vec![Some(10)]);
}

#[tokio::test(start_paused = true)]
async fn loader_may_request_its_own_keys() {
    let cache = builder().build();
    let load = async |missing: Vec<u32>| {
        assert_eq!(cache.get_or_set(&1, SECOND, async { 7 }).await, 7);
        let inner = cache.get_many_or_set_with([2, 3], SECOND, tenfold).await;
        assert_eq!(inner, [Some(20), Some(30)]);
        assert_eq!(cache.get(&2).await, None, "the value of the inner call is not stored");
        tenfold(missing).await
    };
    let values = cache.get_many_or_set_with([1, 2], SECOND, load).await;
    assert_eq!(values, [Some(10), Some(20)]);
    assert_eq!(cache.len(), 3);
}

/// Stale values count as missing.
#[tokio::test(start_paused = true)]
async fn stale_values_are_loaded_in_the_call() {
    let cache = builder().stale_while_revalidate(100 * SECOND).build();
    cache.set_many([(1, 1), (2, 2)], Some(SECOND)).await;
    advance(SECOND).await;
    let values = cache.get_many_or_set_with([1, 2], SECOND, tenfold).await;
    assert_eq!(values, [Some(10), Some(20)]);
}
