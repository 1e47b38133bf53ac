//! What the docs of `ExpiringSet` and `ExpiringSets` promise, each a test.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::channel,
    },
    time::Duration,
};

use fleeting::{Cause, Event, ExpiringSet, ExpiringSets, LosslessEvents};
use futures::{FutureExt, StreamExt};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);
const ALL: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

fn minute() -> ExpiringSet<&'static str> {
    ExpiringSet::builder(60 * SECOND).publish(ALL).build()
}

/// What has come by now, without waiting.
fn heard<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| events.recv().now_or_never().flatten()).collect()
}

fn told<K: Copy, V>(events: &mut LosslessEvents<K, V>) -> Vec<(K, Cause)> {
    heard(events).iter().map(|event| (event.key, event.cause)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_member_dies_at_exactly_its_ttl_for_every_call() {
    let alive = async |set: &ExpiringSet<&'static str>, call: u32| match call {
        0 => set.len().await == 1,
        1 => set.elements().await == ["ada"],
        2 => set.range(..).await == ["ada"],
        3 => set.peek().await == Some("ada"),
        4 => set.pop().await == Some("ada"),
        5 => set.remove("ada").await,
        6 => set.remove_range(..).await == 1,
        7 => set.contains("ada").await,
        8 => set.score("ada").await.is_some(),
        _ => !set.is_empty().await,
    };
    for call in 0..10 {
        for (age, lives) in [(60 * SECOND - NANOSECOND, true), (60 * SECOND, false)] {
            let set = minute();
            set.push("ada").await;
            advance(age).await;
            assert_eq!(alive(&set, call).await, lives, "call {call} at the age of {age:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_future_lives_longer_and_the_old_is_refused() {
    let set = minute();
    let mut events = set.events_lossless(10);
    let now = Instant::now();
    set.push_at("the future", now + 30 * SECOND).await;
    set.push_at("just not too old", now - 60 * SECOND + NANOSECOND).await;
    set.push_at("too old", now - 60 * SECOND).await;
    set.push_at("far too old", now - 600 * SECOND).await;
    assert_eq!(set.elements().await, ["just not too old", "the future"]);
    assert!(heard(&mut events).is_empty(), "what is refused is refused silently");
    advance(90 * SECOND - NANOSECOND).await;
    assert_eq!(set.elements().await, ["the future"]);
    advance(NANOSECOND).await;
    assert!(set.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_pushed_to_its_death_leaves() {
    let set = minute();
    let mut events = set.events_lossless(10);
    let old = Instant::now() - 61 * SECOND;
    set.push("ada").await;
    set.push_at("ada", old).await;
    assert!(set.is_empty().await);
    let events = heard(&mut events);
    assert_eq!((events.len(), events[0].key, events[0].cause), (1, "ada", Cause::Expired));
    assert_eq!(events[0].deadline, Some(old + 60 * SECOND));
    assert_eq!(events[0].lag(), Some(SECOND));
}

#[tokio::test(start_paused = true)]
async fn what_overflows_never_dies() {
    let endless = ExpiringSet::new(Duration::MAX);
    endless.push("ada").await;
    let set = minute();
    set.push_at("bob", Instant::now() + Duration::from_secs(1 << 36)).await;
    sleep(100 * 365 * 86_400 * SECOND).await;
    assert_eq!((endless.len().await, set.len().await), (1, 1));
    assert_eq!(endless.pop().await, Some("ada"));
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_leaves_only_the_future() {
    let set = ExpiringSet::new(Duration::ZERO);
    set.push(1).await;
    set.push_at(2, Instant::now() + SECOND).await;
    assert_eq!(set.elements().await, [2]);
    advance(SECOND).await;
    assert!(set.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn equal_scores_keep_the_order_of_pushing_and_a_push_moves() {
    let set = minute();
    set.extend(["a", "b", "c"]).await;
    set.push("a").await;
    assert_eq!(set.elements().await, ["b", "c", "a"]);
    let later = Instant::now() + SECOND;
    set.push_at("b", later).await;
    assert_eq!(set.elements().await, ["c", "a", "b"]);
    assert_eq!(set.score("b").await, Some(later));
    assert_eq!(set.len().await, 3);
}

#[tokio::test(start_paused = true)]
async fn unique_by_score_replaces_only_what_is_there() {
    let set = minute();
    let mut events = set.events_lossless(10);
    let noon = Instant::now();
    set.extend(["a", "b", "c"]).await;
    set.push_at("later", noon + NANOSECOND).await;
    set.push_at("earlier", noon - NANOSECOND).await;
    set.push_unique_at("b", noon).await;
    assert_eq!(set.elements().await, ["earlier", "b", "later"]);
    set.push_unique_at("later", noon).await;
    assert_eq!(set.elements().await, ["earlier", "later"]);
    use Cause::Replaced;
    assert_eq!(told(&mut events), [("a", Replaced), ("c", Replaced), ("b", Replaced)]);
}

#[tokio::test(start_paused = true)]
async fn members_are_found_by_borrowed_forms() {
    let set: ExpiringSet<String> = ExpiringSet::new(SECOND);
    set.push("ada".to_owned()).await;
    assert!(set.contains("ada").await);
    assert!(set.remove("ada").await && !set.remove("ada").await);
    let sets: ExpiringSets<String, String> = ExpiringSets::new(SECOND);
    sets.push("k".to_owned(), "ada".to_owned()).await;
    assert!(sets.contains("k", "ada").await && !sets.contains("other", "ada").await);
    assert!(sets.remove("k", "ada").await);
}

#[tokio::test(start_paused = true)]
async fn no_range_is_an_error() {
    let set = minute();
    let now = Instant::now();
    set.push("ada").await;
    assert!(set.range(now + SECOND..now).await.is_empty());
    assert_eq!(set.remove_range(now + SECOND..now).await, 0);
    assert_eq!(set.range(now..=now).await, ["ada"]);
    assert!(set.range(now..now).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_departure_has_one_event_with_its_cause() {
    let set = minute();
    let mut events = set.events_lossless(100);
    set.extend(["a", "b", "c", "d", "e"]).await;
    set.pop().await;
    set.remove("b").await;
    set.remove("b").await;
    set.push("c").await;
    advance(SECOND).await;
    set.push("e").await;
    advance(59 * SECOND).await;
    set.len().await;
    set.clear().await;
    use Cause::{Expired, Removed};
    let expected = [("a", Removed), ("b", Removed), ("d", Expired), ("c", Expired), ("e", Removed)];
    assert_eq!(told(&mut events), expected);
}

#[tokio::test(start_paused = true)]
async fn by_default_only_what_expires_is_told() {
    let set = ExpiringSet::new(SECOND);
    let mut events = set.events_lossless(100);
    set.push(1).await;
    set.push_unique_at(2, Instant::now()).await;
    set.remove(&2).await;
    set.push(3).await;
    set.clear().await;
    set.push(4).await;
    sleep(2 * SECOND).await;
    assert_eq!(told(&mut events), [(4, Cause::Expired)]);
}

/// Whoever meets a dead member tells of it, once, before anything of the member's next life.
#[tokio::test(start_paused = true)]
async fn the_old_life_ends_before_the_new_one_begins() {
    let meet = async |set: &ExpiringSet<&'static str>, call: u32| match call {
        0 => set.push("ada").await,
        1 => set.push_at("ada", Instant::now()).await,
        2 => set.push_unique_at("ada", Instant::now()).await,
        3 => set.extend(["ada"]).await,
        4 => drop(set.remove("ada").await),
        5 => set.clear().await,
        _ => drop(set.pop().await),
    };
    for call in 0..7 {
        let set =
            ExpiringSet::builder(60 * SECOND).sweep_every(3_600 * SECOND).publish(ALL).build();
        let mut events = set.events_lossless(100);
        set.push("ada").await;
        let deadline = Instant::now() + 60 * SECOND;
        // The first sweep is in time, and its next one is not.
        set.push_at("eve", Instant::now() - 59 * SECOND).await;
        sleep(2 * SECOND).await;
        advance(70 * SECOND).await;
        meet(&set, call).await;
        set.push("ada").await;
        set.remove("ada").await;
        let events = heard(&mut events);
        let events: Vec<_> = events.iter().filter(|event| event.key == "ada").collect();
        assert_eq!((events[0].cause, events[0].deadline), (Cause::Expired, Some(deadline)));
        assert_eq!(events[0].lag(), Some(12 * SECOND), "call {call}");
        let later = events[1..].iter().map(|event| event.cause);
        assert_eq!(later.collect::<Vec<_>>(), [Cause::Removed], "call {call}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_set_tells_in_time_and_sweeps_no_more_often_than_it_may() {
    let set = ExpiringSet::builder(10 * SECOND).sweep_every(SECOND / 2).build();
    let mut events = set.events_lossless(10_000);
    for n in 0..1_000 {
        set.push(n).await;
        advance(SECOND / 100).await;
    }
    sleep(30 * SECOND).await;
    let events = heard(&mut events);
    assert!(events.iter().map(|event| event.key).eq(0..1_000));
    let lag = events.iter().filter_map(|event| event.lag()).max().unwrap();
    assert!(lag <= SECOND / 2 + SECOND / 100, "{lag:?}");
    let sweeps: HashSet<_> = events.iter().map(|event| event.at).collect();
    assert!((15..=22).contains(&sweeps.len()), "{} sweeps in 10 s", sweeps.len());
}

/// A death that comes sooner than all others wakes the sweeper, also one by another handle's doing.
#[tokio::test(start_paused = true)]
async fn the_sweeper_knows_of_a_sooner_death() {
    let set = ExpiringSet::new(3_600 * SECOND);
    let mut events = set.events_lossless(10);
    set.push("late").await;
    sleep(SECOND).await;
    set.push_at("soon", Instant::now() - 3_599 * SECOND).await;
    let event = events.recv().await.unwrap();
    assert_eq!((event.key, event.lag().unwrap() < SECOND / 5), ("soon", true));
    assert_eq!(events.recv().await.unwrap().key, "late");
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_sleeps_where_nothing_dies() {
    let parks = || Handle::current().metrics().worker_park_count(0);
    let set = minute();
    let sets: ExpiringSets<u32, u32> = ExpiringSets::new(86_400 * SECOND);
    set.push_at("in a day", Instant::now() + 86_400 * SECOND).await;
    sets.push(1, 1).await;
    sleep(SECOND).await;
    let before = parks();
    sleep(80_000 * SECOND).await;
    assert!(parks() - before < 20, "{} wakes in a day in which nobody died", parks() - before);
    assert_eq!((set.len().await, sets.sets().await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_told_what_it_missed() {
    let set = ExpiringSet::builder(SECOND).event_capacity(4).build();
    let mut slow = set.events();
    set.extend(0..10).await;
    sleep(2 * SECOND).await;
    assert_eq!(slow.next().await.unwrap().unwrap_err().0, 6);
    assert_eq!(slow.next().await.unwrap().unwrap().key, 6);
}

/// The promise of the lossless stream, whole: calls go on, the dead are not seen, and every event comes.
#[tokio::test(start_paused = true)]
async fn a_lossless_subscriber_that_stops_reading_holds_back_only_the_sweeper() {
    let value = Arc::new(());
    let set: ExpiringSet<(u32, Held)> = ExpiringSet::new(SECOND);
    let mut events = set.events_lossless(10);
    let member = |n: u32| (n, Held(value.clone()));
    set.extend((0..1_000).map(member)).await;
    sleep(60 * SECOND).await;
    assert_eq!(Arc::strong_count(&value), 1_001, "as many left as there was room for, and wait");
    assert_eq!(set.overflow(), 0);
    assert_eq!(set.len().await, 0, "what is dead is not seen");
    assert_eq!(set.overflow(), 990, "what a call meets goes to the overflow");
    set.extend((1_000..1_500).map(member)).await;
    assert_eq!(set.len().await, 500);
    sleep(60 * SECOND).await;
    assert_eq!(set.overflow(), 990, "still no room for the sweeper");
    for n in 0..1_500 {
        assert_eq!(events.recv().await.unwrap().key.0, n);
    }
    assert_pending!(spawn(events.recv()).poll());
    assert_eq!((set.overflow(), Arc::strong_count(&value)), (0, 1));
}

/// Counts itself.
#[derive(Clone)]
#[derive(Debug)]
struct Held(#[allow(dead_code)] Arc<()>);

impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Held {}

impl std::hash::Hash for Held {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[tokio::test(start_paused = true)]
async fn dropping_the_slow_subscriber_lets_the_sweeper_go() {
    let sets = ExpiringSets::new(SECOND);
    let stuck = sets.events_lossless(1);
    let mut prompt = sets.events_lossless(1_000);
    for n in 0..100 {
        sets.push(n % 7, n).await;
    }
    sleep(10 * SECOND).await;
    assert_eq!(heard(&mut prompt).len(), 1);
    drop(stuck);
    sleep(SECOND).await;
    assert_eq!(heard(&mut prompt).len(), 99);
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_ends_the_task_and_the_streams() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let set = ExpiringSet::builder(60 * SECOND).publish(ALL).build();
    let sets: ExpiringSets<u32, u32> = ExpiringSets::new(SECOND);
    let (mut events, mut lossless) = (set.events(), set.events_lossless(1));
    let mut of_sets = sets.events_lossless(1);
    assert_eq!(tasks(), before + 2);
    set.extend([1, 2, 3]).await;
    set.clear().await;
    drop((set.clone(), sets.clone()));
    sleep(SECOND).await;
    assert_eq!(tasks(), before + 2, "a handle is left of each");
    drop((set, sets));
    for n in 1..=3 {
        assert_eq!(events.recv().await.unwrap().unwrap().key, n);
        assert_eq!(lossless.recv().await.unwrap().key, n);
    }
    assert!(events.recv().await.is_none() && lossless.recv().await.is_none());
    assert!(of_sets.recv().await.is_none());
    yield_now().await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_sets_are_one_task_and_tell_in_time() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let sets = ExpiringSets::new(10 * SECOND);
    let mut events = sets.events_lossless(100_000);
    for key in 0..5_000_u32 {
        sets.push(key, 1).await;
        sets.push(key, 2).await;
        advance(SECOND / 1_000).await;
    }
    assert_eq!(tasks(), before + 1);
    assert_eq!(sets.sets().await, 5_000);
    sleep(SECOND).await;
    // Its last member will die later than the sweeper was told at first.
    for key in 0..5_000 {
        sets.push(key, 3).await;
    }
    sleep(11 * SECOND).await;
    let told = heard(&mut events);
    let lag = told.iter().filter_map(|event| event.lag()).max().unwrap();
    assert!(lag <= SECOND / 5, "{lag:?}");
    let mut by_key: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    told.iter().for_each(|event| by_key.entry(event.key).or_default().push(event.value));
    assert_eq!(by_key.len(), 5_000);
    assert!(by_key.values().all(|members| *members == [1, 2, 3]));
    assert!(sets.keys().await.is_empty());
    assert_eq!(sets.sets().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_set_leaves_with_its_last_member_whoever_takes_it() {
    let sets: ExpiringSets<&str, u32> = ExpiringSets::new(60 * SECOND);
    let fill = async || sets.extend("k", [1, 2]).await;
    fill().await;
    assert_eq!(
        (sets.pop("k").await, sets.pop("k").await, sets.sets().await),
        (Some(1), Some(2), 0)
    );
    fill().await;
    assert!(sets.remove("k", &1).await && sets.sets().await == 1);
    assert!(sets.remove("k", &2).await && sets.sets().await == 0);
    fill().await;
    sets.clear("k").await;
    assert_eq!(sets.sets().await, 0);
    fill().await;
    sets.push_at("k", 1, Instant::now() - 60 * SECOND).await;
    sets.push_at("k", 2, Instant::now() - 60 * SECOND).await;
    assert_eq!(sets.sets().await, 0);
    sets.push_at("k", 2, Instant::now() - 60 * SECOND).await;
    sets.extend("k", []).await;
    assert_eq!(sets.sets().await, 0, "nothing began");
    fill().await;
    advance(60 * SECOND).await;
    assert_eq!((sets.peek("k").await, sets.sets().await), (None, 0));
    assert_eq!((sets.len("k").await, sets.is_empty("other").await), (0, true));
}

#[test]
fn outside_of_a_runtime_it_says_so() {
    let message = |build: fn()| {
        let panic = std::panic::catch_unwind(build).unwrap_err();
        *panic.downcast::<String>().expect("a message")
    };
    for (name, message) in [
        ("expiring set", message(|| drop(ExpiringSet::<u32>::new(SECOND)))),
        ("expiring sets", message(|| drop(ExpiringSets::<u32, u32>::new(SECOND)))),
    ] {
        assert!(message.starts_with(&format!("{name:?} must be built inside of a Tokio runtime")));
    }
}

#[test]
#[should_panic(expected = "timers are disabled")]
fn without_a_time_driver_it_panics_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { drop(ExpiringSet::<u32>::new(SECOND)) });
}

#[tokio::test]
async fn bad_settings_panic_in_their_setters() {
    let message =
        |set: fn()| *std::panic::catch_unwind(set).unwrap_err().downcast::<String>().unwrap();
    let every = message(|| drop(ExpiringSet::<u32>::builder(SECOND).sweep_every(Duration::ZERO)));
    assert_eq!(every, "sweep_every must be longer than zero, got 0ns");
    let capacity = message(|| drop(ExpiringSet::<u32>::builder(SECOND).event_capacity(0)));
    assert_eq!(capacity, "event_capacity must be at least 1, got 0");
    let shards = message(|| drop(ExpiringSets::<u32, u32>::builder(SECOND).shards(0)));
    assert_eq!(shards, "shards must be 1 to 65536, got 0");
}

#[tokio::test]
async fn handles_show_what_they_are() {
    let set = ExpiringSet::<u32>::builder(SECOND).name("visitors").build();
    assert_eq!(format!("{set:?}"), r#"ExpiringSet { name: "visitors", ttl: 1s, .. }"#);
    let sets = ExpiringSets::<u32, u32>::new(SECOND);
    assert_eq!(format!("{sets:?}"), r#"ExpiringSets { name: "expiring sets", ttl: 1s, .. }"#);
}

/// A task that only ever calls must not starve the others.
#[tokio::test]
async fn calls_take_part_in_the_cooperative_budget() {
    let set = ExpiringSet::new(SECOND);
    let calls = tokio::spawn(async move {
        for n in 0_u64.. {
            set.push(n % 100).await;
        }
    });
    for _ in 0..10 {
        yield_now().await;
    }
    calls.abort();
    assert!(calls.await.unwrap_err().is_cancelled());
}

/// A set keeps the time of its runtime, wherever it is called from, and outlives it.
#[test]
fn handles_work_outside_of_their_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let home = runtime();
    let set = home.block_on(async { ExpiringSet::new(3_600 * SECOND) });
    runtime().block_on(set.push(1));
    set.push(2).now_or_never().unwrap();
    drop(home);
    set.push(3).now_or_never().unwrap();
    assert_eq!(set.elements().now_or_never().unwrap(), [1, 2, 3]);
}

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
                let mut pushed = 0;
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
                pushed
            })
        })
        .collect();
    let begin = Instant::now();
    while begin.elapsed() < 2 * SECOND || pushes.load(Relaxed) < 1_000 {
        assert!(begin.elapsed() < 300 * SECOND, "only {pushes:?} are pushed");
        sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Relaxed);
    let mut pushed = 0;
    for task in tasks {
        pushed += task.await.unwrap();
    }
    while !set.is_empty().await {
        sleep(Duration::from_millis(10)).await;
    }
    drop(set);
    let left = witness.await.unwrap();
    let unique: HashSet<_> = left.iter().map(|(member, _)| member).collect();
    // A member that left between its two pushes came twice.
    let twice = left.len() - unique.len();
    assert_eq!(unique.len() as u64, pushed, "something left without an event");
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

// Members and keys that misbehave.

/// How many calls until one panics, for each trait; 0 for never.
#[derive(Default)]
struct Fuses {
    hash: AtomicU64,
    eq: AtomicU64,
    clone: AtomicU64,
    drop: AtomicU64,
}

/// Panics where a fuse of its says so.
struct Moody {
    id: u64,
    fuses: Arc<Fuses>,
}

fn burn(fuse: &AtomicU64) {
    if std::thread::panicking() || fuse.load(Relaxed) == 0 {
        return;
    }
    assert!(fuse.fetch_sub(1, Relaxed) > 1, "the panic of this test");
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        burn(&self.fuses.clone);
        Self { id: self.id, fuses: self.fuses.clone() }
    }
}

impl PartialEq for Moody {
    fn eq(&self, other: &Self) -> bool {
        burn(&self.fuses.eq);
        self.id == other.id
    }
}

impl Eq for Moody {}

impl std::hash::Hash for Moody {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        burn(&self.fuses.hash);
        self.id.hash(state);
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        burn(&self.fuses.drop);
    }
}

/// Every call, at each comparison, hash and clone that it makes, heard of and not: nothing is lost without
/// an event, and the sets go on.
#[tokio::test(start_paused = true)]
async fn what_panics_leaves_the_sets_whole() {
    type Fuse = fn(&Fuses) -> &AtomicU64;
    let fuses: [Fuse; 3] = [|f| &f.hash, |f| &f.eq, |f| &f.clone];
    let mut panics = 0;
    for call in 0..10 {
        for fuse in fuses {
            for calls in 1..12 {
                for heard in [false, true] {
                    panics += u32::from(try_call(call, fuse, calls, heard).await);
                }
            }
        }
    }
    assert!(panics > 80, "only {panics} calls panicked");
}

async fn try_call(call: u32, fuse: fn(&Fuses) -> &AtomicU64, calls: u64, is_heard: bool) -> bool {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Moody { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(60 * SECOND).shards(1).publish(ALL).build();
    let mut events = is_heard.then(|| sets.events_lossless(1_000));
    let noon = Instant::now();
    for id in 0..20 {
        sets.push_at(new(id % 2), new(id), noon + (id as u32 / 4) * SECOND).await;
    }
    if call == 9 {
        advance(62 * SECOND).await;
    }
    fuse(&fuses).store(calls, Relaxed);
    let act = async {
        match call {
            0 => sets.push(new(0), new(7)).await,
            1 => sets.push_at(new(0), new(4), noon + 9 * SECOND).await,
            2 => sets.push_unique_at(new(0), new(4), noon + SECOND).await,
            3 => drop(sets.pop(&new(0)).await),
            4 => drop(sets.remove(&new(0), &new(4)).await),
            5 => drop(sets.remove_range(&new(0), ..noon + 2 * SECOND).await),
            6 => drop(sets.elements(&new(1)).await),
            7 => drop(sets.keys().await),
            8 => sets.extend(new(0), [new(100), new(4), new(101)]).await,
            _ => drop(sets.len(&new(0)).await),
        }
    };
    let panicked = std::panic::AssertUnwindSafe(act).catch_unwind().await.is_err();
    fuse(&fuses).store(0, Relaxed);

    // Heard or there: nothing is gone without a word.
    let mut known: HashSet<u64> = HashSet::new();
    for key in 0..2 {
        known.extend(sets.elements(&new(key)).await.iter().map(|member| member.id));
    }
    if let Some(events) = &mut events {
        known.extend(heard(events).iter().map(|event| event.value.id));
        let expected = (0..20).filter(|id| !known.contains(id)).collect::<Vec<_>>();
        assert!(expected.is_empty(), "{expected:?} are gone: call {call}, at {calls}");
    }
    for id in 0..40 {
        sets.push(new(id % 3), new(id)).await;
    }
    assert_eq!(sets.sets().await, 3);
    sleep(70 * SECOND).await;
    assert_eq!(sets.sets().await, 0, "the sets are not usable any more");
    panicked
}

/// The sweeper clones keys for its events; where that panics, it is there again at its next sweep.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_panics_is_made_up_for() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Moody { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(SECOND).shards(4).build();
    let mut events = sets.events_lossless(1_000);
    for id in 0..100 {
        sets.push(new(id % 10), new(id)).await;
    }
    fuses.clone.store(3, Relaxed);
    sleep(10 * SECOND).await;
    assert_eq!(fuses.clone.load(Relaxed), 0, "nothing panicked");
    let ids: HashSet<u64> = heard(&mut events).iter().map(|event| event.value.id).collect();
    assert_eq!(ids.len(), 100);
    assert_eq!(sets.sets().await, 0);
}

/// One of twenty panics as it is dropped: no other is lost with it, and the sweeper lives.
#[tokio::test(start_paused = true)]
async fn a_drop_that_panics_takes_no_other_with_it() {
    for way in 0..4 {
        for is_heard in [false, true] {
            let (bad, good) = (Arc::new(Fuses::default()), Arc::new(Fuses::default()));
            let set = ExpiringSet::builder(SECOND).publish(ALL).build();
            let mut events = is_heard.then(|| set.events_lossless(100));
            for id in 0..20 {
                let fuses = if id == 7 { &bad } else { &good };
                set.push(Moody { id, fuses: fuses.clone() }).await;
            }
            bad.drop.store(1, Relaxed);
            let act = async {
                match way {
                    0 => sleep(3 * SECOND).await,
                    1 => {
                        advance(2 * SECOND).await;
                        set.len().await;
                    }
                    2 => set.clear().await,
                    _ => drop(set.remove_range(..).await),
                }
            };
            let _ = std::panic::AssertUnwindSafe(act).catch_unwind().await;
            let count = events.as_mut().map(|events| {
                let events = std::iter::from_fn(|| events.recv().now_or_never().flatten());
                let drop_one = |event| {
                    let drop = std::panic::AssertUnwindSafe(|| drop(event));
                    let _ = std::panic::catch_unwind(drop);
                };
                events.map(drop_one).count()
            });
            assert!(count.is_none_or(|count| count == 20));
            drop(events);
            assert_eq!(Arc::strong_count(&good), 1, "way {way}: some are not dropped");
            bad.drop.store(0, Relaxed);
            set.push(Moody { id: 1, fuses: good.clone() }).await;
            sleep(3 * SECOND).await;
            assert_eq!(Arc::strong_count(&good), 1, "the sweeper is dead");
        }
    }
}

/// A member that calls its set as it is dropped.
#[derive(Clone)]
struct Caller(u32, Home);

type Home = Arc<Mutex<Option<ExpiringSet<Caller>>>>;

impl Drop for Caller {
    fn drop(&mut self) {
        let home = self.1.lock().map(|home| home.clone());
        if let Ok(Some(set)) = home {
            set.overflow();
            set.contains(&Caller(9_999, Home::default())).now_or_never();
        }
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Caller {}

impl std::hash::Hash for Caller {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn what_is_dropped_may_call_the_set() {
    for is_heard in [false, true] {
        // A lock that is taken twice waits for ever: the watchdog is this thread.
        let (done, watch) = channel();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
                let home = Home::default();
                let set = ExpiringSet::builder(60 * SECOND).publish(ALL).build();
                let events = is_heard.then(|| set.events());
                *home.lock().unwrap() = Some(set.clone());
                let new = |n: u32| Caller(n, home.clone());
                for _ in 0..2 {
                    set.extend((0..300).map(new)).await;
                    set.push(new(7)).await;
                    set.push_at(new(8), Instant::now() - 60 * SECOND).await;
                    set.push_at(new(8), Instant::now() - 60 * SECOND).await;
                    set.push_unique_at(new(300), Instant::now()).await;
                    set.extend((0..300).map(new)).await;
                    set.remove(&new(5)).await;
                    set.pop().await;
                    set.remove_range(..Instant::now()).await;
                    sleep(70 * SECOND).await;
                    set.extend((0..300).map(new)).await;
                    advance(70 * SECOND).await;
                    set.push(new(1)).await;
                    set.clear().await;
                }
                home.lock().unwrap().take();
                drop(events);
            });
            done.send(()).unwrap();
        });
        watch.recv_timeout(300 * SECOND).expect("the set waits for itself");
    }
}
