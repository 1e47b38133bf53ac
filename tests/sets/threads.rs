//! Calls from many threads at once: each is whole, and what comes leaves once.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cause, ExpiringSet, ExpiringSets};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

/// Pushes, expirations, removals and what is left add up, on real threads and in real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_that_comes_leaves_once() {
    const TASKS: u64 = 6;
    let set = ExpiringSet::builder(Duration::from_millis(30))
        .sweep_every(Duration::from_millis(5))
        .publish(ALL)
        .build();
    let mut events = set.events_lossless(256);
    let witness = tokio::spawn(async move {
        let mut left = Vec::new();
        while let Some(event) = events.recv().await {
            left.push((event.key, event.cause));
        }
        left
    });
    let stop = Arc::new(AtomicBool::new(false));
    let (popped, pushes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (set, stop) = (set.clone(), stop.clone());
            let (popped, pushes) = (popped.clone(), pushes.clone());
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(task);
                let (mut pushed, mut late) = (0, 0);
                while !stop.load(Relaxed) {
                    match random.random_range(0..10) {
                        0 => {
                            popped.fetch_add(u64::from(set.pop().await.is_some()), Relaxed);
                        }
                        1 => {
                            let member = (task, random.random_range(0..pushed + 1));
                            popped.fetch_add(u64::from(set.remove(&member).await), Relaxed);
                        }
                        2 => {
                            let members = set.elements().await;
                            let unique: HashSet<_> = members.iter().collect();
                            assert_eq!(unique.len(), members.len(), "a member is there twice");
                            sleep(Duration::from_millis(1)).await;
                        }
                        3 => {
                            let early =
                                Instant::now() - Duration::from_millis(random.random_range(0..25));
                            set.push_at((task, pushed), early).await;
                            pushed += 1;
                            // On a busy machine it may have been dead when it came, and so refused.
                            late += u64::from(early.elapsed() >= Duration::from_millis(30));
                        }
                        _ => {
                            set.push((task, pushed)).await;
                            // Again: it moves, and leaves once.
                            set.push((task, pushed)).await;
                            pushed += 1;
                            pushes.fetch_add(1, Relaxed);
                        }
                    }
                }
                (pushed, late)
            })
        })
        .collect();
    let begin = Instant::now();
    while begin.elapsed() < 2 * SECOND || pushes.load(Relaxed) < 1_000 {
        assert!(begin.elapsed() < 300 * SECOND, "only {pushes:?} are pushed");
        sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Relaxed);
    let (mut pushed, mut late) = (0, 0);
    for task in tasks {
        let (its_pushed, its_late) = task.await.unwrap();
        pushed += its_pushed;
        late += its_late;
    }
    while !set.is_empty().await {
        sleep(Duration::from_millis(10)).await;
    }
    drop(set);
    let left = witness.await.unwrap();
    let unique: HashSet<_> = left.iter().map(|(member, _)| member).collect();
    // A member that left between its two pushes came twice.
    let twice = left.len() - unique.len();
    let told = unique.len() as u64;
    assert!((pushed - late..=pushed).contains(&told), "{told} of {pushed} told, {late} came late");
    assert!(twice < left.len() / 20, "{twice} of {} left twice", left.len());
    let removed = left.iter().filter(|(_, cause)| *cause == Cause::Removed).count();
    assert_eq!(removed as u64, popped.load(Relaxed));
    println!("{pushed} pushed, {removed} taken, {twice} came twice");
}

/// Nobody sees a part of what one call does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_are_atomic_against_each_other() {
    let set = ExpiringSet::new(3_600 * SECOND);
    let noon = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let changes: Vec<_> = (0..2)
        .map(|task: u64| {
            let (set, stop) = (set.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    set.push_unique_at(1_000 + task, noon).await;
                    set.extend(100 * task..100 * task + 100).await;
                    set.remove_range(Instant::now() - SECOND..).await;
                    set.push_unique_at(1_000 + task, noon).await;
                }
            })
        })
        .collect();
    for _ in 0..2_000 {
        let alone = set.range(noon..=noon).await;
        assert!(alone.len() <= 1, "two at a score that is to be unique: {alone:?}");
        let members = set.elements().await;
        for task in 0..2 {
            let own = members.iter().filter(|m| (100 * task..100 * task + 100).contains(*m));
            let own = own.count();
            assert!(own == 0 || own == 100, "{own} of 100");
        }
        yield_now().await;
    }
    stop.store(true, Relaxed);
    for change in changes {
        change.await.unwrap();
    }
}

/// Each push comes sooner than the one before, while the sweeper is at work; nobody calls after it. Whatever alarm
/// was lost, something would stay for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pushes_out_of_order_are_all_swept() {
    const TASKS: u32 = 4;
    const PUSHES: u32 = 100;
    let ttl = Duration::from_millis(20);
    let sets = ExpiringSets::builder(ttl).sweep_every(Duration::from_millis(1)).shards(8).build();
    let mut events = sets.events_lossless(10_000);
    for round in 0..20 {
        let start = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let sets = sets.clone();
                tokio::spawn(async move {
                    let mut refused = 0;
                    for push in 0..PUSHES {
                        let score = start + Duration::from_micros(100) * (PUSHES - push);
                        sets.push_at(push % 40, (task, push), score).await;
                        // On a busy machine it may have been dead when it came.
                        refused += u32::from(score.elapsed() >= ttl);
                        if push % 16 == task {
                            yield_now().await;
                        }
                    }
                    refused
                })
            })
            .collect();
        let mut late = 0;
        for task in tasks {
            late += task.await.unwrap();
        }
        for left in 0..TASKS * PUSHES - late {
            let event = timeout(60 * SECOND, events.recv()).await;
            assert!(event.is_ok_and(|event| event.is_some()), "in round {round}, after {left}");
        }
        // Those that came just in time, though it was late when they were asked.
        while !sets.keys().await.is_empty() {
            sleep(ttl).await;
        }
        while events.recv().now_or_never().flatten().is_some() {}
    }
}
