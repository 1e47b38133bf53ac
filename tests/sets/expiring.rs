//! Expiry, order, settings and handles of expiring sets.

use std::{pin::Pin, sync::Arc, time::Duration};

use fleeting::{Cause, Event, ExpiringSet, ExpiringSets, LosslessEvents};
use futures::FutureExt;
use tokio::{
    task::{unconstrained, yield_now},
    time::{Instant, advance, sleep},
};

pub(super) const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);
pub(super) const ALL_CAUSES: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

pub(super) fn one_minute_set() -> ExpiringSet<&'static str> {
    ExpiringSet::builder(60 * SECOND).publish(ALL_CAUSES).build()
}

/// Returns the events received so far, without waiting.
pub(super) fn drain_events<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

pub(super) fn drain_causes<K: Copy, V>(events: &mut LosslessEvents<K, V>) -> Vec<(K, Cause)> {
    drain_events(events).iter().map(|event| (event.key, event.cause)).collect()
}

#[tokio::test(start_paused = true)]
async fn member_expires_exactly_at_its_ttl_in_every_call() {
    let finds_member = async |set: &ExpiringSet<&'static str>, call: u32| match call {
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
        for (age, is_live) in [(60 * SECOND - NANOSECOND, true), (60 * SECOND, false)] {
            let set = one_minute_set();
            set.push("ada").await;
            advance(age).await;
            assert_eq!(
                finds_member(&set, call).await,
                is_live,
                "call {call} at the age of {age:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn future_score_expires_later_and_expired_score_is_ignored() {
    let set = one_minute_set();
    let mut events = set.events_lossless(10);
    let now = Instant::now();
    set.push_at("the future", now + 30 * SECOND).await;
    set.push_at("almost too old", now - 60 * SECOND + NANOSECOND).await;
    set.push_at("too old", now - 60 * SECOND).await;
    set.push_at("far too old", now - 600 * SECOND).await;
    assert_eq!(set.elements().await, ["almost too old", "the future"]);
    assert!(drain_events(&mut events).is_empty(), "a push with an expired score sends no event");
    advance(90 * SECOND - NANOSECOND).await;
    assert_eq!(set.elements().await, ["the future"]);
    advance(NANOSECOND).await;
    assert!(set.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn push_at_an_expired_score_removes_the_existing_member_as_expired() {
    let set = one_minute_set();
    let mut events = set.events_lossless(10);
    let old = Instant::now() - 61 * SECOND;
    set.push("ada").await;
    set.push_at("ada", old).await;
    assert!(set.is_empty().await);
    let events = drain_events(&mut events);
    assert_eq!((events.len(), events[0].key, events[0].cause), (1, "ada", Cause::Expired));
    assert_eq!(events[0].deadline, Some(old + 60 * SECOND));
    assert_eq!(events[0].lag(), Some(SECOND));
}

#[tokio::test(start_paused = true)]
async fn member_whose_deadline_overflows_never_expires() {
    let endless = ExpiringSet::new(Duration::MAX);
    endless.push("ada").await;
    let set = one_minute_set();
    set.push_at("bob", Instant::now() + Duration::from_secs(1 << 36)).await;
    sleep(100 * 365 * 86_400 * SECOND).await;
    assert_eq!((endless.len().await, set.len().await), (1, 1));
    assert_eq!(endless.pop().await, Some("ada"));
}

#[tokio::test(start_paused = true)]
async fn zero_ttl_keeps_only_members_with_future_scores() {
    let set = ExpiringSet::new(Duration::ZERO);
    set.push(1).await;
    set.push_at(2, Instant::now() + SECOND).await;
    assert_eq!(set.elements().await, [2]);
    advance(SECOND).await;
    assert!(set.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn equal_scores_keep_push_order_and_push_moves_a_member() {
    let set = one_minute_set();
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
async fn push_unique_at_replaces_only_members_with_the_same_score() {
    let set = one_minute_set();
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
    assert_eq!(drain_causes(&mut events), [("a", Replaced), ("c", Replaced), ("b", Replaced)]);
}

#[tokio::test(start_paused = true)]
async fn lookups_accept_borrowed_members_and_keys() {
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
async fn inverted_and_empty_ranges_contain_no_members() {
    let set = one_minute_set();
    let now = Instant::now();
    set.push("ada").await;
    assert!(set.range(now + SECOND..now).await.is_empty());
    assert_eq!(set.remove_range(now + SECOND..now).await, 0);
    assert_eq!(set.range(now..=now).await, ["ada"]);
    assert!(set.range(now..now).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn set_is_dropped_with_its_last_member_by_every_call() {
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
    assert_eq!(sets.sets().await, 0, "no set was created");
    fill().await;
    advance(60 * SECOND).await;
    assert_eq!((sets.peek("k").await, sets.sets().await), (None, 0));
    assert_eq!((sets.len("k").await, sets.is_empty("other").await), (0, true));
}

#[test]
fn build_outside_of_a_runtime_panics_with_the_name() {
    let message = |build: fn()| {
        let panic = std::panic::catch_unwind(build).unwrap_err();
        *panic.downcast::<String>().expect("the panic has a message")
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
fn build_without_a_time_driver_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { drop(ExpiringSet::<u32>::new(SECOND)) });
}

#[tokio::test]
async fn invalid_settings_panic_in_their_setters() {
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
async fn debug_shows_name_and_ttl() {
    let set = ExpiringSet::<u32>::builder(SECOND).name("visitors").build();
    assert_eq!(format!("{set:?}"), r#"ExpiringSet { name: "visitors", ttl: 1s, .. }"#);
    let sets = ExpiringSets::<u32, u32>::new(SECOND);
    assert_eq!(format!("{sets:?}"), r#"ExpiringSets { name: "expiring sets", ttl: 1s, .. }"#);
}

/// A task that only calls the set must not starve other tasks.
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

/// A set uses the clock of its runtime in every caller, and works after that runtime has shut down.
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

/// A read removes a bounded number of expired members; the others are left to the sweeper, and are not returned.
#[tokio::test(start_paused = true)]
async fn reads_after_a_mass_expiration_return_live_members_only() {
    const MANY: u32 = 10_000;
    let set = ExpiringSet::builder(60 * SECOND).publish(ALL_CAUSES).build();
    let mut events = set.events_lossless(4 * MANY as usize);
    set.extend(0..MANY).await;
    advance(30 * SECOND).await;
    set.extend(MANY..2 * MANY).await;
    // Without a yield, the sweeper does not run.
    for step in 0..2 {
        advance(30 * SECOND).await;
        let live = if step == 0 { MANY } else { 0 };
        for _ in 0..3 {
            assert_eq!(set.len().await, live as usize);
            assert_eq!(set.peek().await, (live > 0).then_some(MANY));
            assert_eq!(set.elements().await, Vec::from_iter(2 * MANY - live..2 * MANY));
            assert_eq!(set.range(..Instant::now() - 60 * SECOND).await, [0; 0]);
            assert_eq!(set.score(&(MANY - 1)).await, None);
            assert_eq!(set.contains(&(2 * MANY - 1)).await, live > 0);
        }
    }
    // Changes find no expired member either, and each has one event.
    assert_eq!(set.pop().await, None);
    sleep(SECOND).await;
    let keys: Vec<_> = drain_events(&mut events).iter().map(|event| event.key).collect();
    assert_eq!(keys, Vec::from_iter(0..2 * MANY));
}

/// Expired members are removed in batches. Between them the lock is free, so no other caller waits for a mass
/// expiration.
#[tokio::test(start_paused = true)]
async fn each_change_after_a_mass_expiration_lets_other_calls_through() {
    const MANY: u32 = 10_000;
    const BATCH: usize = 1_024;
    type Call<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
    let set = ExpiringSet::builder(60 * SECOND).build();
    let sets = ExpiringSets::builder(60 * SECOND).shards(1).build();
    let calls: [fn(&ExpiringSet<u32>) -> Call<'_>; 5] = [
        |set| Box::pin(set.push(MANY)),
        |set| Box::pin(set.extend([MANY])),
        |set| Box::pin(async { assert_eq!(set.pop().await, None) }),
        |set| Box::pin(async { assert!(!set.remove(&1).await) }),
        |set| Box::pin(async { assert_eq!(set.remove_range(..).await, 0) }),
    ];
    let mut events = set.events_lossless(MANY as usize);
    for call in calls {
        set.extend(0..MANY).await;
        advance(60 * SECOND).await;
        let swept = drain_events(&mut events).len();
        let mut call = call(&set);
        assert!((&mut call).now_or_never().is_none());
        assert_eq!(drain_events(&mut events).len(), BATCH);
        assert_eq!(set.len().now_or_never(), Some(0));
        call.await;
        assert_eq!(drain_events(&mut events).len(), MANY as usize - swept - BATCH);
        set.clear().await;
    }
    type Start = fn(&ExpiringSets<u8, u32>) -> Call<'_>;
    let calls: [Start; 6] = [
        |sets| Box::pin(sets.push(1, MANY)),
        |sets| Box::pin(async { assert_eq!(sets.pop(&1).await, None) }),
        |sets| Box::pin(async { assert!(!sets.remove(&1, &1).await) }),
        |sets| Box::pin(async { assert_eq!(sets.len(&1).await, 0) }),
        |sets| Box::pin(async { assert_eq!(sets.keys().await, [2]) }),
        |sets| Box::pin(async { assert_eq!(sets.sets().await, 1) }),
    ];
    let mut events = sets.events_lossless(MANY as usize);
    for call in calls {
        sets.extend(1, 0..MANY).await;
        advance(60 * SECOND).await;
        let swept = drain_events(&mut events).len();
        sets.push(2, 2).await;
        let mut call = call(&sets);
        assert!((&mut call).now_or_never().is_none());
        assert_eq!(drain_events(&mut events).len(), BATCH);
        assert_eq!(sets.pop(&2).now_or_never(), Some(Some(2)));
        sets.push(2, 2).await;
        call.await;
        sets.clear(&1).await;
        sets.clear(&2).await;
        assert_eq!(drain_events(&mut events).len(), MANY as usize - swept - BATCH);
    }
}
