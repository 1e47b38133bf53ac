//! Loaders: one load for all who ask, whoever leaves.

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

/// A source whose loads end when it is told so.
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

    /// Counts, waits for the gate, returns which load it was.
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
async fn a_value_is_loaded_once_and_then_there() {
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
async fn the_ttl_begins_when_the_loading_ends_and_may_be_told_by_the_value() {
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
async fn ten_thousand_callers_of_a_hundred_keys_load_a_hundred_times() {
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
async fn where_the_leader_goes_another_goes_on_with_its_own_loader() {
    let cache: Cache<u32, u32> = Cache::new();
    let (first, second, third) = (Source::new(), Source::new(), Source::new());
    let mut leader = spawn(cache.get_or_set_with(&1, MINUTE, first.loader()));
    let mut heir = spawn(cache.get_or_set_with(&1, MINUTE, second.loader()));
    let mut other = spawn(cache.get_or_set_with(&1, MINUTE, third.loader()));
    assert_pending!(leader.poll());
    assert_pending!(heir.poll());
    assert_pending!(other.poll());
    drop(leader);
    // Told, and gone before it looks: the next is told.
    assert!(heir.is_woken());
    drop(heir);
    assert!(other.is_woken());
    assert_pending!(other.poll());
    assert_eq!((first.loads(), second.loads(), third.loads()), (1, 0, 1));
    third.open();
    assert_ready_eq!(other.poll(), 1);
}

#[tokio::test]
async fn a_panic_of_the_leader_is_its_own() {
    let cache: Cache<u32, u32> = Cache::new();
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let panics = async move || {
        opened.acquire().await.unwrap().forget();
        panic!("the loader")
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
async fn an_error_reaches_all_who_wait_and_is_not_kept() {
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

/// Who waits with another type of error can't be given that one, and loads by itself.
#[tokio::test]
async fn an_error_of_another_type_is_nobody_elses() {
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

/// What is written while a value is loaded wins: those who waited get what was loaded, the cache keeps what was
/// written, and who comes after the write gets nothing older.
#[tokio::test]
async fn a_write_while_loading_wins() {
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
        let left = match write {
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
        match left {
            Some(_) => {
                assert_ready_eq!(later.poll(), 10, "{write:?}");
            }
            None => {
                assert_pending!(later.poll());
                assert_eq!(after.loads(), 0, "{write:?}: two loads of a key at a time");
            }
        }
        before.open();
        assert_ready_eq!(leader.poll(), 1, "{write:?}");
        assert_eq!(cache.get(&1).await, left, "{write:?}");
        if left.is_none() {
            assert!(later.is_woken());
            assert_pending!(later.poll());
            assert_eq!(after.loads(), 1, "{write:?}: loaded anew");
            after.open();
            assert_ready_eq!(later.poll(), 1);
            assert_eq!(cache.get(&1).await, Some(1));
        }
    }
}

#[tokio::test]
async fn a_loader_may_ask_for_other_keys_and_never_waits_for_itself() {
    let cache: Cache<u32, u32> = Cache::new();
    // For another key, and through that for its own.
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

/// Two in one task, one after the other: the second waits for the first, which goes on.
#[tokio::test]
async fn two_calls_joined_in_one_task_share_a_load() {
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
    let unasked = async || -> Result<u32, &str> { unreachable!("the error is kept") };
    assert_eq!(*cache.get_or_try_set_with(&1, MINUTE, unasked).await.unwrap_err(), "no");
    // For errors of another type there is none.
    assert_eq!(cache.get_or_set_with(&1, Duration::ZERO, async || 3).await, 3);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(cache.get_or_try_set_with(&1, MINUTE, async || Ok::<_, &str>(4)).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_an_error_that_is_kept() {
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
async fn freshness_tells_who_loaded() {
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

/// A bound and a weigher hold for what is loaded too.
#[tokio::test]
async fn what_is_loaded_keeps_the_bound() {
    let cache: Cache<u32, u32> = Cache::builder().max_entries(3).build();
    for key in 0..100 {
        assert_eq!(cache.get_or_set_with(&key, MINUTE, async move || key).await, key);
        assert!(cache.len() <= 3);
    }
    let heavy: Cache<u32, u32> = Cache::builder().max_weight(10, |_, value| *value).build();
    assert_eq!(heavy.get_or_set_with(&1, MINUTE, async || 11).await, 11);
    assert_eq!((heavy.len(), heavy.stats().evicted), (0, 1));
}

/// Dead at once: each call loads, and none loops.
#[tokio::test]
async fn what_is_loaded_dead_is_returned_and_not_kept() {
    let cache: Cache<u32, u32> = Cache::new();
    for n in 0..3 {
        assert_eq!(cache.get_or_set_with(&1, Duration::ZERO, async move || n).await, n);
    }
    assert_eq!(cache.get(&1).await, None);
}

/// Threads that give up at random: no load is lost, none is doubled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_load_at_a_time_whoever_gives_up() {
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
                    let leave = scopeguard(one);
                    assert_eq!(one.fetch_add(1, SeqCst), 0, "two loads of a key at a time");
                    yield_now().await;
                    drop(leave);
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

/// Counts down when it is dropped.
fn scopeguard(count: &AtomicU32) -> impl Drop + '_ {
    struct Leave<'a>(&'a AtomicU32);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    Leave(count)
}
