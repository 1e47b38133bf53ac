//! Concurrent calls from many threads: each is atomic, and each inserted member is removed once.

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

use crate::patience::patience;

const SECOND: Duration = Duration::from_secs(1);
const ALL_CAUSES: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

/// The numbers of pushes, expirations and removals add up, on real threads and in real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_pushed_member_is_removed_once() {
    const TASKS: u64 = 6;
    let set = ExpiringSet::builder(Duration::from_millis(30))
        .sweep_every(Duration::from_millis(5))
        .publish(ALL_CAUSES)
        .build();
    let mut events = set.events_lossless(256);
    let subscriber = tokio::spawn(async move {
        let mut removals = Vec::new();
        while let Some(event) = events.recv().await {
            removals.push((event.key, event.cause));
        }
        removals
    });
    let stop = Arc::new(AtomicBool::new(false));
    let (popped, pushes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (set, stop) = (set.clone(), stop.clone());
            let (popped, pushes) = (popped.clone(), pushes.clone());
            tokio::spawn(async move {
                let mut rng = SmallRng::seed_from_u64(task);
                let (mut pushed, mut refused, mut slow) = (0, 0, 0);
                while !stop.load(Relaxed) {
                    match rng.random_range(0..10) {
                        0 => {
                            popped.fetch_add(u64::from(set.pop().await.is_some()), Relaxed);
                        }
                        1 => {
                            let member = (task, rng.random_range(0..pushed + 1));
                            popped.fetch_add(u64::from(set.remove(&member).await), Relaxed);
                        }
                        2 => {
                            let members = set.elements().await;
                            let unique: HashSet<_> = members.iter().collect();
                            assert_eq!(unique.len(), members.len(), "a member is in the set twice");
                            sleep(Duration::from_millis(1)).await;
                        }
                        3 => {
                            let early =
                                Instant::now() - Duration::from_millis(rng.random_range(0..25));
                            set.push_at((task, pushed), early).await;
                            pushed += 1;
                            // On a busy machine the score may have expired before the push, which is then
                            // ignored.
                            refused += u64::from(early.elapsed() >= Duration::from_millis(30));
                        }
                        _ => {
                            let first = Instant::now();
                            set.push((task, pushed)).await;
                            // The second push moves the member, which is still removed once.
                            set.push((task, pushed)).await;
                            // On a busy machine, it may expire in between.
                            slow += usize::from(first.elapsed() >= Duration::from_millis(30));
                            pushed += 1;
                            pushes.fetch_add(1, Relaxed);
                        }
                    }
                }
                (pushed, refused, slow)
            })
        })
        .collect();
    let begin = Instant::now();
    while begin.elapsed() < 2 * SECOND || pushes.load(Relaxed) < 1_000 {
        assert!(begin.elapsed() < patience(), "only {pushes:?} pushes");
        sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Relaxed);
    let (mut pushed, mut refused, mut slow) = (0, 0, 0);
    for task in tasks {
        let (task_pushed, task_refused, task_slow) = task.await.unwrap();
        pushed += task_pushed;
        slow += task_slow;
        refused += task_refused;
    }
    while !set.is_empty().await {
        sleep(Duration::from_millis(10)).await;
    }
    drop(set);
    let removals = subscriber.await.unwrap();
    let unique: HashSet<_> = removals.iter().map(|(member, _)| member).collect();
    // A member that was removed between its two pushes is removed twice.
    let pushed_twice = removals.len() - unique.len();
    let reported = unique.len() as u64;
    assert!(
        (pushed - refused..=pushed).contains(&reported),
        "events for {reported} of {pushed} members, {refused} ignored"
    );
    assert!(
        pushed_twice < removals.len() / 20 + slow,
        "{pushed_twice} of {} members were removed twice, {slow} were pushed slowly",
        removals.len()
    );
    let removed = removals.iter().filter(|(_, cause)| *cause == Cause::Removed).count();
    assert_eq!(removed as u64, popped.load(Relaxed));
    println!("{pushed} pushed, {removed} removed by calls, {pushed_twice} inserted twice");
}

/// No caller sees a partially applied call.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_are_atomic() {
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
        let at_noon = set.range(noon..=noon).await;
        assert!(at_noon.len() <= 1, "more than one member at a unique score: {at_noon:?}");
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

/// Each push expires sooner than the one before, while the sweeper runs, and no call follows. If a wake-up
/// were lost, a member would stay forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_pushed_in_descending_order_are_all_swept() {
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
                        // On a busy machine the score may have expired before the push.
                        refused += u32::from(score.elapsed() >= ttl);
                        if push % 16 == task {
                            yield_now().await;
                        }
                    }
                    refused
                })
            })
            .collect();
        let mut refused = 0;
        for task in tasks {
            refused += task.await.unwrap();
        }
        for received in 0..TASKS * PUSHES - refused {
            let event = timeout(patience(), events.recv()).await;
            assert!(
                event.is_ok_and(|event| event.is_some()),
                "in round {round}, after {received} events"
            );
        }
        // Members that were pushed in time, although `elapsed` was measured too late.
        while !sets.keys().await.is_empty() {
            sleep(ttl).await;
        }
        while events.recv().now_or_never().flatten().is_some() {}
    }
}
