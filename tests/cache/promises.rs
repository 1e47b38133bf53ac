//! Promises of the docs about calls that meet: stale values, kept errors, futures that are not polled, shutdowns.

use std::{future::Future, pin::pin, time::Duration};

use fleeting::{Cache, Cause, Op};
use futures::FutureExt;
use tokio::{
    spawn,
    task::yield_now,
    time::{advance, sleep, timeout},
};

use crate::{clock::ms, patience::patience};

const HOUR: Duration = Duration::from_secs(3_600);

/// A cache with a stale window and kept errors.
fn forgiving() -> Cache<u64, u64> {
    Cache::builder().stale_if_error(HOUR).negative_ttl(HOUR).build()
}

async fn fails() -> Result<u64, &'static str> {
    Err("no")
}

#[tokio::test(start_paused = true)]
async fn values_in_a_stale_window_are_left_by_expire_and_remove_if_and_not_by_expire_now_and_clear()
{
    for way in 0..4 {
        let cache = forgiving();
        cache.set_ex(1, 7, HOUR).await;
        match way {
            0 => assert!(cache.expire(&1, Duration::ZERO).await),
            1 => {
                assert!(cache.expire(&1, Duration::ZERO).await);
                assert_eq!(cache.remove_if(|_, _| true).await, 0);
            }
            2 => assert_eq!(cache.expire_now(&1).await, Some(7)),
            _ => {
                assert!(cache.expire(&1, Duration::ZERO).await);
                cache.clear().await;
            }
        }
        assert_eq!(cache.get(&1).await, None);
        let loaded = cache.get_or_try_set_with(&1, HOUR, fails).await;
        assert_eq!(loaded.ok(), (way < 2).then_some(7), "way {way}");
    }
}

#[tokio::test(start_paused = true)]
async fn kept_error_is_left_by_expire_and_not_by_expire_now() {
    for ends in [false, true] {
        let cache: Cache<u64, u64> = Cache::builder().negative_ttl(HOUR).build();
        assert!(cache.get_or_try_set_with(&1, HOUR, fails).await.is_err());
        if ends {
            cache.expire_now(&1).await;
        } else {
            assert!(!cache.expire(&1, Duration::ZERO).await);
        }
        let loaded = cache.get_or_try_set_with(&1, HOUR, async || Ok::<_, &str>(1)).await;
        assert_eq!(loaded.ok(), ends.then_some(1));
    }
}

/// Asserts that a call of a key ends only after another one, which is kept without being polled, is dropped.
async fn assert_blocked_until_dropped(kept: impl Future, other: impl Future<Output = u64>) {
    let mut other = pin!(other);
    {
        let mut kept = Box::pin(kept);
        assert!(kept.as_mut().now_or_never().is_none());
        assert!(timeout(patience(), &mut other).await.is_err());
    }
    assert_eq!(timeout(patience(), other).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn leader_that_is_not_polled_blocks_its_key_until_it_is_dropped() {
    let cache: Cache<u64, u64> = Cache::new();
    let slow = async || {
        sleep(ms(1)).await;
        1
    };
    let kept = cache.get_or_set_with(&1, HOUR, slow);
    assert_blocked_until_dropped(kept, cache.get_or_set_with(&1, HOUR, async || 2)).await;
    let kept = cache.compute_with(&3, async |_| {
        sleep(ms(1)).await;
        Op::Set(1)
    });
    let other = async {
        cache.compute_with(&3, async |_| Op::Set(2)).await;
        cache.get(&3).await.unwrap()
    };
    assert_blocked_until_dropped(kept, other).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_a_removal_end_with_the_shutdown() {
    let cache: Cache<u64, u64> = Cache::new();
    cache.set_ex(1, 7, HOUR).await;
    cache.set_ex(2, 8, HOUR * 2).await;
    cache.pause_sweeper();
    let waiting = [1, 2].map(|key| {
        let cache = cache.clone();
        spawn(async move { cache.expired(&key).await })
    });
    yield_now().await;
    advance(HOUR).await;
    // The shutdown removes what has expired by now.
    cache.shutdown().await;
    let [expired, live] = waiting;
    assert_eq!(expired.await.unwrap().unwrap().cause, Cause::Expired);
    assert!(live.await.unwrap().is_none());
    assert_eq!(cache.get(&2).await, Some(8));
    assert!(timeout(HOUR / 2, cache.expired(&2)).await.unwrap().is_none());
}

#[cfg(feature = "serde")]
#[tokio::test(start_paused = true)]
async fn restore_counts_entries_that_a_full_cache_has_evicted() {
    let all: Cache<u64, u64> = Cache::new();
    all.set_many((0..100).map(|n| (n, n)), None).await;
    let mut snapshot = Vec::new();
    all.snapshot(&mut snapshot).await.unwrap();
    let few: Cache<u64, u64> = Cache::builder().max_entries(10).build();
    assert_eq!(few.restore(&snapshot[..]).await.unwrap(), 100);
    assert_eq!(few.len(), 10);
}

/// The size of a value, next to which that of the rest of a future is small.
const LARGE: usize = 16_384;

#[tokio::test]
async fn futures_of_large_values_are_at_most_three_times_as_large() {
    let cache: Cache<u64, [u8; LARGE]> = Cache::new();
    let load = async || [0; LARGE];
    let try_load = async || Ok::<_, ()>([0; LARGE]);
    let sizes = [
        ("get", size_of_val(&cache.get(&1))),
        ("set_ex", size_of_val(&cache.set_ex(1, [0; LARGE], HOUR))),
        ("compute", size_of_val(&cache.compute(&1, |_| Op::Keep))),
        ("compute_with", size_of_val(&cache.compute_with(&1, async |_| Op::Keep))),
        ("get_or_set_with", size_of_val(&cache.get_or_set_with(&1, HOUR, load))),
        ("get_or_try_set_with", size_of_val(&cache.get_or_try_set_with(&1, HOUR, try_load))),
        ("get_or_set", size_of_val(&cache.get_or_set(&1, HOUR, load()))),
        ("refresh_with", size_of_val(&cache.refresh_with(&1, HOUR, load))),
    ];
    for (name, size) in sizes {
        println!("{name}: {:.2}", size as f64 / LARGE as f64);
    }
    for (name, size) in sizes {
        assert!(size < 3 * LARGE + 2_048, "{name}: {size}");
    }
}
