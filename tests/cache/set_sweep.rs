//! `set_sweep` on a running cache.

use std::{sync::Barrier, thread, time::Duration};

use fleeting::{Cache, Sweep};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{advance, sleep},
};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn set_expired(cache: &Cache<u32, u32>, keys: u32) {
    for key in 0..keys {
        cache.set_ex(key, key, MS).await;
    }
    advance(2 * MS).await;
}

#[tokio::test(start_paused = true)]
async fn set_sweep_from_manual_starts_a_task() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    set_expired(&cache, 100).await;
    sleep(HOUR).await;
    assert_eq!((cache.len(), cache.stats().sweeps), (100, 0));
    cache.set_sweep(Sweep::default().every(50 * MS));
    sleep(49 * MS).await;
    assert_eq!(cache.len(), 100, "the first sweep comes after one interval");
    sleep(2 * MS).await;
    assert_eq!(cache.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn set_sweep_to_manual_stops_the_task() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().build();
    assert_eq!(tasks.num_alive_tasks(), 1);
    cache.set_sweep(Sweep::manual());
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "the sweeper task has stopped");
    set_expired(&cache, 100).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 100);
    assert_eq!(cache.sweep().await.expired, 100);
}

#[tokio::test(start_paused = true)]
async fn set_sweep_does_not_wait_for_the_previous_interval() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().sweep(Sweep::default().every(HOUR)).build();
    set_expired(&cache, 1).await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
    cache.set_sweep(Sweep::default().every(HOUR));
    set_expired(&cache, 1).await;
    sleep(HOUR / 2).await;
    assert_eq!(cache.len(), 1, "the previous sweeper has stopped");
    assert_eq!(tasks.num_alive_tasks(), 1);
    sleep(HOUR).await;
    assert_eq!(cache.len(), 0);
    drop(cache);
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "the sweeper ends with its cache");
}

#[tokio::test(start_paused = true)]
async fn set_sweep_applies_to_the_next_manual_sweep() {
    let whole = Sweep::manual().seed(1);
    let cache = Cache::builder().shards(2).sweep(whole).build();
    for key in 0..10_000 {
        cache.set_ex(key, key, if key % 10 == 0 { MS } else { HOUR }).await;
    }
    // This first sweep examines the entries that were moved to larger tables.
    cache.sweep().await;
    advance(2 * MS).await;
    cache.set_sweep(whole.sample(0.01));
    let some = cache.sweep().await;
    assert!((1..500).contains(&some.expired), "{some:?}");
    cache.set_sweep(whole);
    assert_eq!(cache.sweep().await.expired + some.expired, 1_000);
}

#[tokio::test(start_paused = true)]
async fn set_sweep_leaves_a_paused_sweeper_paused() {
    let cache = Cache::builder().build();
    cache.pause_sweeper();
    cache.set_sweep(Sweep::default().every(10 * MS));
    set_expired(&cache, 1).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 1);
    cache.resume_sweeper();
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn set_sweep_after_shutdown_starts_no_task() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().build();
    cache.shutdown().await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0);
    set_expired(&cache, 1).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 1);
    assert_eq!(cache.sweep().await.expired, 1);
}

/// The resting sweeper is woken by a write that expires soon.
#[tokio::test(start_paused = true)]
async fn set_sweep_replaces_a_resting_sweeper() {
    let cache = Cache::builder().build();
    sleep(60 * 1_000 * MS).await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    set_expired(&cache, 1).await;
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
    // The new sweeper rests and wakes again in the same way.
    sleep(60 * 1_000 * MS).await;
    set_expired(&cache, 1).await;
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
}

/// The calls come from threads outside of any runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_set_sweep_calls_leave_one_task() {
    let tasks = Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    let cache = Cache::<u32, u32>::new();
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 1..=4 {
            let (cache, barrier) = (&cache, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for n in 1..=200 {
                    cache.set_sweep(Sweep::default().every(n * thread * MS));
                }
            });
        }
    });
    while tasks.num_alive_tasks() > before + 1 {
        yield_now().await;
    }
    cache.set_ex(1, 1, MS).await;
    while !cache.is_empty() {
        sleep(MS).await;
    }
    cache.set_sweep(Sweep::manual());
    while tasks.num_alive_tasks() > before {
        yield_now().await;
    }
}

#[test]
fn set_sweep_without_a_time_driver_panics_and_changes_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let cache = Cache::builder().sweep(Sweep::manual()).build();
        cache.set_ex(1, 1, Duration::ZERO).await;
        let set = std::panic::AssertUnwindSafe(|| cache.set_sweep(Sweep::default()));
        assert!(std::panic::catch_unwind(set).is_err());
        assert_eq!(cache.sweep().await.expired, 1);
        cache.set_sweep(Sweep::manual());
    });
}
