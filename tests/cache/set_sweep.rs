//! Another sweep for a cache that is in use.

use std::{sync::Barrier, thread, time::Duration};

use fleeting::{Cache, Sweep};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{advance, sleep},
};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn dead(cache: &Cache<u32, u32>, keys: u32) {
    for key in 0..keys {
        cache.set_ex(key, key, MS).await;
    }
    advance(2 * MS).await;
}

#[tokio::test(start_paused = true)]
async fn from_by_hand_to_by_a_task() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    dead(&cache, 100).await;
    sleep(HOUR).await;
    assert_eq!((cache.len(), cache.stats().sweeps), (100, 0));
    cache.set_sweep(Sweep::default().every(50 * MS));
    sleep(49 * MS).await;
    assert_eq!(cache.len(), 100, "the first sweep comes after a pause");
    sleep(2 * MS).await;
    assert_eq!(cache.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn from_a_task_to_by_hand() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().build();
    assert_eq!(tasks.num_alive_tasks(), 1);
    cache.set_sweep(Sweep::manual());
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "the sweeper goes on");
    dead(&cache, 100).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 100);
    assert_eq!(cache.sweep().await.expired, 100);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_an_hour_is_not_waited_for() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().sweep(Sweep::default().every(HOUR)).build();
    dead(&cache, 1).await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
    cache.set_sweep(Sweep::default().every(HOUR));
    dead(&cache, 1).await;
    sleep(HOUR / 2).await;
    assert_eq!(cache.len(), 1, "the sweeper of before goes on");
    assert_eq!(tasks.num_alive_tasks(), 1);
    sleep(HOUR).await;
    assert_eq!(cache.len(), 0);
    drop(cache);
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0, "a sweeper outlives its cache");
}

#[tokio::test(start_paused = true)]
async fn the_next_sweep_by_hand_is_set_so_too() {
    let whole = Sweep::manual().seed(1);
    let cache = Cache::builder().shards(2).sweep(whole).build();
    for key in 0..10_000 {
        cache.set_ex(key, key, if key % 10 == 0 { MS } else { HOUR }).await;
    }
    // What has moved to larger tables is looked at as a whole.
    cache.sweep().await;
    advance(2 * MS).await;
    cache.set_sweep(whole.sample(0.01));
    let some = cache.sweep().await;
    assert!((1..500).contains(&some.expired), "{some:?}");
    cache.set_sweep(whole);
    assert_eq!(cache.sweep().await.expired + some.expired, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_paused_sweeper_stays_so() {
    let cache = Cache::builder().build();
    cache.pause_sweeper();
    cache.set_sweep(Sweep::default().every(10 * MS));
    dead(&cache, 1).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 1);
    cache.resume_sweeper();
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_the_shutdown_there_is_no_sweeper() {
    let tasks = Handle::current().metrics();
    let cache = Cache::builder().build();
    cache.shutdown().await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    yield_now().await;
    assert_eq!(tasks.num_alive_tasks(), 0);
    dead(&cache, 1).await;
    sleep(HOUR).await;
    assert_eq!(cache.len(), 1);
    assert_eq!(cache.sweep().await.expired, 1);
}

/// Also in a rest, from which the sweeper is woken by who writes what dies soon.
#[tokio::test(start_paused = true)]
async fn one_that_rests_is_exchanged_too() {
    let cache = Cache::builder().build();
    sleep(60 * 1_000 * MS).await;
    cache.set_sweep(Sweep::default().every(10 * MS));
    dead(&cache, 1).await;
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
    // And rests again, and wakes again.
    sleep(60 * 1_000 * MS).await;
    dead(&cache, 1).await;
    sleep(11 * MS).await;
    assert_eq!(cache.len(), 0);
}

/// From threads that are in no runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_task_is_left() {
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
fn without_a_time_driver_it_says_so_and_changes_nothing() {
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
