//! Loader methods: single flight, cancellation, errors, and precedence of writes.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use fleeting::{Cache, Freshness, Ttl};
use futures::FutureExt;
use tokio::{
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task::spawn};

const MINUTE: Duration = Duration::from_secs(60);

/// Source whose loads finish when the test permits it.
#[derive(Clone)]
struct Source {
    loads: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl Source {
    fn new() -> Self {
        Self { loads: Arc::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    fn open(&self) {
        self.gate.add_permits(1);
    }

    fn loads(&self) -> u32 {
        self.loads.load(SeqCst)
    }

    /// Counts the load, waits for a permit, and returns the number of the load.
    async fn load(self) -> u32 {
        let number = self.loads.fetch_add(1, SeqCst) + 1;
        self.gate.acquire().await.unwrap().forget();
        number
    }

    fn loader(&self) -> impl FnOnce() -> futures::future::BoxFuture<'static, u32> + Send + 'static {
        let source = self.clone();
        move || source.load().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn get_or_set_with_loads_a_value_once_and_caches_it() {
    let cache: Cache<String, u32> = Cache::new();
    let minute = MINUTE;
    assert_eq!(cache.get_or_set_with("k", minute, async || 1).await, 1);
    assert_eq!(cache.get_or_set_with("k", minute, async || unreachable!()).await, 1);
    assert_eq!(cache.ttl("k").await, Ttl::Remaining(minute));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.loads, stats.failed_loads), (1, 1, 1, 0));
    advance(minute).await;
    assert_eq!(cache.get_or_set_with("k", minute, async || 2).await, 2);
}

#[tokio::test(start_paused = true)]
async fn ttl_of_a_loaded_value_starts_when_the_load_ends() {
    let cache: Cache<u32, Duration> = Cache::new();
    let ttl = |value: &Duration| *value;
    let slow = async || {
        sleep(MINUTE).await;
        Duration::from_secs(7)
    };
    cache.get_or_set_with(&1, ttl, slow).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(Duration::from_secs(7)));
    assert_eq!(cache.stats().load_time, MINUTE);
}

#[tokio::test(start_paused = true)]
async fn single_flight_runs_one_load_per_key_for_many_callers() {
    let cache: Cache<u32, u32> = Cache::new();
    let loads = Arc::new(AtomicU32::new(0));
    let mut callers = JoinSet::new();
    for caller in 0..10_000 {
        let (cache, loads) = (cache.clone(), loads.clone());
        callers.spawn(async move {
            let key = caller % 100;
            let load = async move || {
                loads.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(10)).await;
                key + 1
            };
            assert_eq!(cache.get_or_set_with(&key, MINUTE, load).await, key + 1);
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    assert_eq!(loads.load(SeqCst), 100);
    assert_eq!(cache.len(), 100);
}

#[tokio::test]
async fn waiter_takes_over_with_its_own_loader_if_the_leader_is_cancelled() {
    let cache: Cache<u32, u32> = Cache::new();
    let (first, second, third) = (Source::new(), Source::new(), Source::new());
    let mut leader = spawn(cache.get_or_set_with(&1, MINUTE, first.loader()));
    let mut second_waiter = spawn(cache.get_or_set_with(&1, MINUTE, second.loader()));
    let mut other = spawn(cache.get_or_set_with(&1, MINUTE, third.loader()));
    assert_pending!(leader.poll());
    assert_pending!(second_waiter.poll());
    assert_pending!(other.poll());
    drop(leader);
    // Notified and cancelled before it is polled: the next waiter is notified.
    assert!(second_waiter.is_woken());
    drop(second_waiter);
    assert!(other.is_woken());
    assert_pending!(other.poll());
    assert_eq!((first.loads(), second.loads(), third.loads()), (1, 0, 1));
    third.open();
    assert_ready_eq!(other.poll(), 1);
}

#[tokio::test]
async fn waiter_that_is_kept_unpolled_does_not_hold_up_the_others() {
    let cache: Cache<u32, u32> = Cache::new();
    let (first, second, third) = (Source::new(), Source::new(), Source::new());
    let mut leader = spawn(cache.get_or_set_with(&1, MINUTE, first.loader()));
    let mut unpolled = spawn(cache.get_or_set_with(&1, MINUTE, second.loader()));
    let mut other = spawn(cache.get_or_set_with(&1, MINUTE, third.loader()));
    assert_pending!(leader.poll());
    assert_pending!(unpolled.poll());
    assert_pending!(other.poll());
    drop(leader);
    assert!(other.is_woken(), "only the waiter that is not polled was woken");
    third.open();
    assert_ready_eq!(other.poll(), 1);
    assert_ready_eq!(unpolled.poll(), 1);
    assert_eq!((first.loads(), second.loads(), third.loads()), (1, 0, 1));
}

/// A waiter that finds a written value when its turn comes ends the flight with it. `refresh_with` accepts only loads.
#[tokio::test]
async fn refresh_with_loads_although_the_call_it_joined_found_a_written_value() {
    let cache: Cache<u32, u32> = Cache::new();
    let (first, second, third) = (Source::new(), Source::new(), Source::new());
    let mut leader = spawn(cache.refresh_with(&1, MINUTE, first.loader()));
    let mut waiter = spawn(cache.get_or_set_with(&1, MINUTE, second.loader()));
    assert_pending!(leader.poll());
    assert_pending!(waiter.poll());
    cache.set(1, 10).await;
    let mut refresh = spawn(cache.refresh_with(&1, MINUTE, third.loader()));
    assert_pending!(refresh.poll());
    drop(leader);
    assert_ready_eq!(waiter.poll(), 10);
    third.open();
    assert_ready_eq!(refresh.poll(), 1);
    assert_eq!((first.loads(), second.loads(), third.loads()), (1, 0, 1));
    assert_eq!(cache.get(&1).await, Some(1));
}

#[tokio::test]
async fn panic_of_the_leader_does_not_reach_its_waiters() {
    let cache: Cache<u32, u32> = Cache::new();
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let panics = async move || {
        opened.acquire().await.unwrap().forget();
        panic!("panic of the loader")
    };
    let mut leader =
        spawn(AssertUnwindSafe(cache.get_or_set_with(&1, MINUTE, panics)).catch_unwind());
    let mut waits = spawn(cache.get_or_set_with(&1, MINUTE, async || 2));
    assert_pending!(leader.poll());
    assert_pending!(waits.poll());
    gate.add_permits(1);
    assert!(assert_ready!(leader.poll()).is_err());
    assert_ready_eq!(waits.poll(), 2);
}

#[tokio::test]
async fn error_of_get_or_try_set_with_reaches_all_waiters_and_is_not_kept() {
    let cache: Cache<u32, u32> = Cache::new();
    let source = Source::new();
    let fails = || {
        let source = source.clone();
        async move || Err::<u32, String>(format!("failure {}", source.load().await))
    };
    let mut leader = spawn(cache.get_or_try_set_with(&1, MINUTE, fails()));
    let mut waits = spawn(cache.get_or_try_set_with(&1, MINUTE, fails()));
    assert_pending!(leader.poll());
    assert_pending!(waits.poll());
    source.open();
    let first = assert_ready!(leader.poll()).unwrap_err();
    let same = assert_ready!(waits.poll()).unwrap_err();
    assert!(Arc::ptr_eq(&first, &same));
    source.open();
    let second = cache.get_or_try_set_with(&1, MINUTE, fails()).await.unwrap_err();
    assert_eq!((first.as_str(), second.as_str()), ("failure 1", "failure 2"));
    assert_eq!((cache.len(), cache.stats().failed_loads), (0, 2));
}

/// A waiter with another error type cannot be given the error, and runs its own loader.
#[tokio::test]
async fn waiter_with_another_error_type_runs_its_own_loader() {
    let cache: Cache<u32, u32> = Cache::new();
    let source = Source::new();
    let loader = source.loader();
    let fails = async move || Err::<u32, String>(loader().await.to_string());
    let mut leader = spawn(cache.get_or_try_set_with(&1, MINUTE, fails));
    let mut other = spawn(cache.get_or_try_set_with(&1, MINUTE, async || Ok::<_, u8>(7)));
    let mut infallible = spawn(cache.get_or_set_with(&1, MINUTE, async || 8));
    assert_pending!(leader.poll());
    assert_pending!(other.poll());
    assert_pending!(infallible.poll());
    source.open();
    assert!(assert_ready!(leader.poll()).is_err());
    assert_ready_eq!(other.poll(), Ok(7));
    assert_ready_eq!(infallible.poll(), 7);
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Set,
    SetNx,
    Remove,
    Clear,
    Compute,
    ComputeRemove,
    ComputeWith,
    ComputeWithRemove,
    RemoveMany,
    ExpireNow,
    SetMany,
    Tagged,
}

#[tokio::test]
async fn remove_if_and_retain_do_not_affect_the_load_of_a_missing_key() {
    let cache: Cache<u32, u32> = Cache::new();
    for key in [1, 2] {
        let source = Source::new();
        let mut load = spawn(cache.get_or_set_with(&key, MINUTE, source.loader()));
        assert_pending!(load.poll());
        match key {
            1 => assert_eq!(cache.remove_if(|_, _| true).await, 0),
            _ => assert_eq!(cache.retain(|_, _| false).await, 1),
        }
        source.open();
        assert_ready_eq!(load.poll(), 1);
        drop(load);
        assert_eq!(cache.get(&key).await, Some(1));
    }
}

/// A write during a load takes precedence: current waiters get the loaded value, the cache keeps the written one, and
/// later callers never get an older one.
#[tokio::test]
async fn write_during_a_load_takes_precedence() {
    use Write::*;
    let removing = [Remove, RemoveMany, ExpireNow, Clear, ComputeRemove, ComputeWithRemove];
    let setting = [Set, SetNx, Compute, ComputeWith, SetMany, Tagged];
    let writes = removing.into_iter().chain(setting);
    for (write, bounded) in writes.flat_map(|write| [(write, false), (write, true)]) {
        let builder = Cache::<u32, u32>::builder();
        let cache = if bounded { builder.max_entries(10).build() } else { builder.build() };
        let (before, after) = (Source::new(), Source::new());
        let mut leader = spawn(cache.get_or_set_with(&1, MINUTE, before.loader()));
        assert_pending!(leader.poll());
        let expected = match write {
            Set => (cache.set(1, 10).await, Some(10)).1,
            SetNx => cache.set_nx(1, 10, None).await.then_some(10),
            SetMany => (cache.set_many([(1, 10)], None).await, Some(10)).1,
            Tagged => (cache.set_tagged(1, 10, MINUTE, ["tag"]).await, Some(10)).1,
            Compute => cache.compute(&1, |_| fleeting::Op::Set(10)).await,
            ComputeRemove => cache.compute(&1, |_| fleeting::Op::Remove).await,
            ComputeWith => cache.compute_with(&1, async |_| fleeting::Op::Set(10)).await,
            ComputeWithRemove => cache.compute_with(&1, async |_| fleeting::Op::Remove).await,
            RemoveMany => (cache.remove_many([&1]).await, None).1,
            ExpireNow => cache.expire_now(&1).await,
            Remove => cache.remove(&1).await,
            Clear => (cache.clear().await, None).1,
        };
        let mut later = spawn(cache.get_or_set_with(&1, MINUTE, after.loader()));
        match expected {
            Some(_) => {
                assert_ready_eq!(later.poll(), 10, "{write:?}");
            }
            None => {
                assert_pending!(later.poll());
                assert_eq!(after.loads(), 0, "{write:?}: two loads of a key run at a time");
            }
        }
        before.open();
        assert_ready_eq!(leader.poll(), 1, "{write:?}");
        assert_eq!(cache.get(&1).await, expected, "{write:?}");
        if expected.is_none() {
            assert!(later.is_woken());
            assert_pending!(later.poll());
            assert_eq!(after.loads(), 1, "{write:?}: the value is loaded again");
            after.open();
            assert_ready_eq!(later.poll(), 1);
            assert_eq!(cache.get(&1).await, Some(1));
        }
    }
}

#[tokio::test]
async fn loader_may_request_other_keys_and_never_waits_for_itself() {
    let cache: Cache<u32, u32> = Cache::new();
    // The loader requests another key, whose loader requests the first key.
    let (a, b) = (cache.clone(), cache.clone());
    let outer = async move || {
        let middle = async move || {
            let inner = async || 1;
            10 + b.get_or_set_with(&1, MINUTE, inner).await
        };
        100 + a.get_or_set_with(&2, MINUTE, middle).await
    };
    let mut call = spawn(cache.get_or_set_with(&1, MINUTE, outer));
    assert_ready_eq!(call.poll(), 111);
    drop(call);
    assert_eq!((cache.get(&1).await, cache.get(&2).await), (Some(111), Some(11)));
}

/// Both calls run in one task: the second waits for the first, which makes progress.
#[tokio::test]
async fn joined_calls_in_one_task_share_one_load() {
    let cache: Cache<u32, u32> = Cache::new();
    let loads = AtomicU32::new(0);
    let loads: &'static AtomicU32 = Box::leak(Box::new(loads));
    let load = async move || {
        yield_now().await;
        loads.fetch_add(1, SeqCst)
    };
    let (a, b) = tokio::join!(
        cache.get_or_set_with(&1, MINUTE, load),
        cache.get_or_set_with(&1, MINUTE, load),
    );
    assert_eq!((a, b, loads.load(SeqCst)), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn errors_are_kept_for_the_negative_ttl() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).max_entries(10).build();
    let fails = async || Err::<u32, _>("no");
    assert!(cache.get_or_try_set_with(&1, MINUTE, fails).await.is_err());
    advance(MINUTE - Duration::from_nanos(1)).await;
    let must_not_run = async || -> Result<u32, &str> { unreachable!("the error is kept") };
    assert_eq!(*cache.get_or_try_set_with(&1, MINUTE, must_not_run).await.unwrap_err(), "no");
    // A call with another error type does not see the kept error.
    assert_eq!(cache.get_or_set_with(&1, Duration::ZERO, async || 3).await, 3);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(cache.get_or_try_set_with(&1, MINUTE, async || Ok::<_, &str>(4)).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn write_or_removal_discards_the_kept_error() {
    for write in 0..4 {
        let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
        assert!(cache.get_or_try_set_with(&1, MINUTE, async || Err::<u32, _>("no")).await.is_err());
        match write {
            0 => _ = cache.remove(&1).await,
            1 => cache.clear().await,
            2 => _ = cache.set_ex(1, 1, Duration::ZERO).await,
            _ => _ = cache.compute(&1, |_| fleeting::Op::Remove).await,
        }
        let load = async || Ok::<_, &str>(4);
        assert_eq!(cache.get_or_try_set_with(&1, MINUTE, load).await, Ok(4), "{write}");
    }
}

#[tokio::test]
async fn get_or_try_set_with_freshness_is_loaded_for_leader_and_waiters_and_then_fresh() {
    let cache: Cache<u32, u32> = Cache::new();
    let source = Source::new();
    let loader = || {
        let loader = source.loader();
        async move || Ok::<_, Infallible>(loader().await)
    };
    let mut leader = spawn(cache.get_or_try_set_with_freshness(&1, MINUTE, loader()));
    let mut waits = spawn(cache.get_or_try_set_with_freshness(&1, MINUTE, loader()));
    assert_pending!(leader.poll());
    assert_pending!(waits.poll());
    source.open();
    assert_ready_eq!(leader.poll(), Ok((1, Freshness::Loaded)));
    assert_ready_eq!(waits.poll(), Ok((1, Freshness::Loaded)));
    let mut hit = spawn(cache.get_or_try_set_with_freshness(&1, MINUTE, loader()));
    assert_ready_eq!(hit.poll(), Ok((1, Freshness::Fresh)));
}

/// Bounds and weighers apply to loaded values too.
#[tokio::test]
async fn loaded_values_stay_within_the_bound() {
    let cache: Cache<u32, u32> = Cache::builder().max_entries(3).build();
    for key in 0..100 {
        assert_eq!(cache.get_or_set_with(&key, MINUTE, async move || key).await, key);
        assert!(cache.len() <= 3);
    }
    let heavy: Cache<u32, u32> = Cache::builder().max_weight(10, |_, value| *value).build();
    assert_eq!(heavy.get_or_set_with(&1, MINUTE, async || 11).await, 11);
    assert_eq!((heavy.len(), heavy.stats().evicted), (0, 1));
}

/// With a TTL of zero each call loads once and does not loop.
#[tokio::test]
async fn value_loaded_with_a_ttl_of_zero_is_returned_and_not_kept() {
    let cache: Cache<u32, u32> = Cache::new();
    for n in 0..3 {
        assert_eq!(cache.get_or_set_with(&1, Duration::ZERO, async move || n).await, n);
    }
    assert_eq!(cache.get(&1).await, None);
}

/// Callers on several threads are cancelled at random: no load is lost, and no two run at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_load_runs_at_a_time_if_callers_are_cancelled() {
    let cache: Cache<u32, u32> = Cache::new();
    let running = Arc::new([const { AtomicU32::new(0) }; 4]);
    let mut tasks = JoinSet::new();
    for task in 0..8_u32 {
        let (cache, running) = (cache.clone(), running.clone());
        tasks.spawn(async move {
            for round in 0..2_000_u32 {
                let key = (task + round) % 4;
                let running = running.clone();
                let load = async move || {
                    let one = &running[key as usize];
                    let guard = decrement_on_drop(one);
                    assert_eq!(one.fetch_add(1, SeqCst), 0, "two loads of a key run at a time");
                    yield_now().await;
                    drop(guard);
                    round
                };
                let call = cache.get_or_set_with(&key, Duration::ZERO, load);
                let mut call = std::pin::pin!(call);
                for _ in 0..(task + round) % 7 {
                    if call.as_mut().now_or_never().is_some() {
                        break;
                    }
                    yield_now().await;
                }
                if round % 16 == 0 {
                    cache.remove(&key).await;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

/// Returns a guard that decrements `count` when it is dropped.
fn decrement_on_drop(count: &AtomicU32) -> impl Drop + '_ {
    struct DecrementOnDrop<'a>(&'a AtomicU32);
    impl Drop for DecrementOnDrop<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    DecrementOnDrop(count)
}

/// `None` is the default TTL, as for `set`, in all loader methods.
#[tokio::test(start_paused = true)]
async fn ttl_of_none_is_the_default_ttl() {
    let hour = 60 * MINUTE;
    let cache = Cache::<u32, u32>::builder().time_to_live(hour).build();
    cache.get_or_set_with(&1, None, async || 1).await;
    cache.get_or_try_set_with(&2, None, async || Ok::<_, &str>(2)).await.unwrap();
    cache.get_or_try_set_with_freshness(&3, None, async || Ok::<_, &str>(3)).await.unwrap();
    for key in 1..=3 {
        assert_eq!(cache.ttl(&key).await, Ttl::Remaining(hour), "{key}");
    }
    cache.get_or_set_with(&4, Some(MINUTE), async || 4).await;
    assert_eq!(cache.ttl(&4).await, Ttl::Remaining(MINUTE));

    let without_default: Cache<u32, u32> = Cache::new();
    without_default.get_or_set_with(&1, None, async || 1).await;
    assert_eq!(without_default.ttl(&1).await, Ttl::Persistent);
}

#[tokio::test(start_paused = true)]
async fn default_ttl_of_a_loaded_value_has_jitter() {
    let builder = Cache::<u32, u32>::builder().time_to_live(100 * MINUTE).jitter(0.5);
    let cache = builder.sweep(fleeting::Sweep::manual().seed(1)).build();
    let mut ttls = std::collections::BTreeSet::new();
    for key in 0..20 {
        cache.get_or_set_with(&key, None, async || 1).await;
        let Ttl::Remaining(ttl) = cache.ttl(&key).await else { panic!("persistent") };
        assert!(ttl > 50 * MINUTE && ttl <= 100 * MINUTE, "{ttl:?}");
        ttls.insert(ttl);
    }
    assert!(ttls.len() > 10, "{ttls:?}");
}
