//! Duration of the wait for loads: a caller accepts each load that began after its own call.

use std::time::Duration;

use fleeting::{Cache, Freshness, Sweep};
use futures::{FutureExt, future::BoxFuture};
use tokio::time::sleep;
use tokio_test::{assert_pending, assert_ready_eq, task::spawn};

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn load_slowly() -> u32 {
    sleep(10 * MILLISECOND).await;
    1
}

async fn load_many_slowly(missing: Vec<u32>) -> Vec<(u32, u32)> {
    let value = load_slowly().await;
    missing.into_iter().map(|key| (key, value)).collect()
}

type Call = fn(Cache<u32, u32>) -> BoxFuture<'static, ()>;

const CALLS: [(&str, Call); 6] = [
    ("get_or_set_with", |cache| {
        async move { _ = cache.get_or_set_with(&1, MINUTE, load_slowly).await }.boxed()
    }),
    ("get_or_try_set_with", |cache| {
        let load = async || Ok::<_, &str>(load_slowly().await);
        async move { assert!(cache.get_or_try_set_with(&1, MINUTE, load).await.is_ok()) }.boxed()
    }),
    ("get_or_set", |cache| {
        async move { _ = cache.get_or_set(&1, MINUTE, load_slowly()).await }.boxed()
    }),
    ("get_or_try_set", |cache| {
        let load = async || Ok::<_, &str>(load_slowly().await);
        async move { assert!(cache.get_or_try_set(&1, MINUTE, load()).await.is_ok()) }.boxed()
    }),
    ("refresh_with", |cache| {
        async move { _ = cache.refresh_with(&1, MINUTE, load_slowly).await }.boxed()
    }),
    ("get_many_or_set_with", |cache| {
        async move {
            let values = cache.get_many_or_set_with([2, 1], MINUTE, load_many_slowly).await;
            assert_eq!(values, [Some(1), Some(1)]);
        }
        .boxed()
    }),
];

/// Each time that a load ends, another caller begins the next one, and the key is removed before the first caller looks
/// it up again.
#[tokio::test(start_paused = true)]
async fn caller_waits_for_at_most_two_loads_although_the_key_is_removed_again_and_again() {
    for (name, call) in CALLS {
        let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
        let mut other = spawn(cache.get_or_set_with(&1, MINUTE, load_slowly));
        assert_pending!(other.poll());
        cache.remove(&1).await;
        let mut caller = spawn(call(cache.clone()));
        assert_pending!(caller.poll());
        let mut ended_loads = 0;
        loop {
            sleep(10 * MILLISECOND).await;
            assert_ready_eq!(other.poll(), 1);
            ended_loads += 1;
            other = spawn(cache.get_or_set_with(&1, MINUTE, load_slowly));
            assert_pending!(other.poll());
            cache.remove(&1).await;
            // The calls of a bulk load yield.
            let is_ready = (0..10).any(|_| caller.poll().is_ready());
            if is_ready {
                break;
            }
            assert!(ended_loads < 2, "{name} waits for a third load");
        }
    }
}

/// A load that a cancelled caller has handed over began after each call that waits for it.
#[tokio::test(start_paused = true)]
async fn load_that_a_waiter_takes_over_is_accepted_by_all_that_waited() {
    let cache: Cache<u32, u32> = Cache::builder().sweep(Sweep::manual()).build();
    let hang = std::future::pending::<u32>;
    let mut leader = spawn(cache.get_or_set_with(&1, MINUTE, hang));
    assert_pending!(leader.poll());
    cache.remove(&1).await;
    let load = async || Ok::<_, &str>(load_slowly().await);
    let call = || spawn(cache.get_or_try_set_with_freshness(&1, MINUTE, load));
    let (mut second, mut third) = (call(), call());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    drop(leader);
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    sleep(10 * MILLISECOND).await;
    assert_ready_eq!(second.poll(), Ok((1, Freshness::Loaded)));
    assert_ready_eq!(third.poll(), Ok((1, Freshness::Loaded)));
    assert_eq!(cache.stats().loads, 1);
}
