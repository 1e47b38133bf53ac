//! Events of removed members, and the wake-ups of the sweeper.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use fleeting::{Cause, ExpiringSet, ExpiringSets};
use futures::StreamExt;
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, task::spawn};

use crate::expiring::{ALL_CAUSES, SECOND, drain_causes, drain_events, one_minute_set};

#[tokio::test(start_paused = true)]
async fn each_removal_has_one_event_with_its_cause() {
    let set = one_minute_set();
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
    assert_eq!(drain_causes(&mut events), expected);
}

#[tokio::test(start_paused = true)]
async fn lossless_events_only_receives_the_given_causes() {
    let set = one_minute_set();
    let mut expired = set.events_lossless(1).only([Cause::Expired]);
    let mut removed = set.events_lossless(1).only([Cause::Removed]);
    set.extend(["a", "b", "c"]).await;
    set.pop().await;
    set.remove("b").await;
    sleep(61 * SECOND).await;
    assert_eq!(drain_causes(&mut expired), [("c", Cause::Expired)]);
    assert_eq!(drain_causes(&mut removed), [("a", Cause::Removed), ("b", Cause::Removed)]);
}

#[tokio::test(start_paused = true)]
async fn only_expired_members_are_published_by_default() {
    let set = ExpiringSet::new(SECOND);
    let mut events = set.events_lossless(100);
    set.push(1).await;
    set.push_unique_at(2, Instant::now()).await;
    set.remove(&2).await;
    set.push(3).await;
    set.clear().await;
    set.push(4).await;
    sleep(2 * SECOND).await;
    assert_eq!(drain_causes(&mut events), [(4, Cause::Expired)]);
}

/// Every call first removes expired members: the `Expired` event is sent once, and before any event of the
/// same member's next insertion.
#[tokio::test(start_paused = true)]
async fn expired_event_precedes_events_of_the_next_insertion() {
    let call_method = async |set: &ExpiringSet<&'static str>, call: u32| match call {
        0 => set.push("ada").await,
        1 => set.push_at("ada", Instant::now()).await,
        2 => set.push_unique_at("ada", Instant::now()).await,
        3 => set.extend(["ada"]).await,
        4 => drop(set.remove("ada").await),
        5 => set.clear().await,
        _ => drop(set.pop().await),
    };
    for call in 0..7 {
        let set = ExpiringSet::builder(60 * SECOND)
            .sweep_every(3_600 * SECOND)
            .publish(ALL_CAUSES)
            .build();
        let mut events = set.events_lossless(100);
        set.push("ada").await;
        let deadline = Instant::now() + 60 * SECOND;
        // "eve" expires in 1 s, which triggers a sweep; the next one is an hour later, too late for "ada".
        set.push_at("eve", Instant::now() - 59 * SECOND).await;
        sleep(2 * SECOND).await;
        advance(70 * SECOND).await;
        call_method(&set, call).await;
        set.push("ada").await;
        set.remove("ada").await;
        let events = drain_events(&mut events);
        let events: Vec<_> = events.iter().filter(|event| event.key == "ada").collect();
        assert_eq!((events[0].cause, events[0].deadline), (Cause::Expired, Some(deadline)));
        assert_eq!(events[0].lag(), Some(12 * SECOND), "call {call}");
        let later = events[1..].iter().map(|event| event.cause);
        assert_eq!(later.collect::<Vec<_>>(), [Cause::Removed], "call {call}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_set_sends_events_in_time_and_respects_sweep_every() {
    let set = ExpiringSet::builder(10 * SECOND).sweep_every(SECOND / 2).build();
    let mut events = set.events_lossless(10_000);
    for n in 0..1_000 {
        set.push(n).await;
        advance(SECOND / 100).await;
    }
    sleep(30 * SECOND).await;
    let events = drain_events(&mut events);
    assert!(events.iter().map(|event| event.key).eq(0..1_000));
    let lag = events.iter().filter_map(|event| event.lag()).max().unwrap();
    assert!(lag <= SECOND / 2 + SECOND / 100, "{lag:?}");
    let sweeps: HashSet<_> = events.iter().map(|event| event.at).collect();
    assert!((15..=22).contains(&sweeps.len()), "{} sweeps in 10 s", sweeps.len());
}

/// A member that expires sooner than all others wakes the sweeper, even if it is pushed through another
/// handle.
#[tokio::test(start_paused = true)]
async fn sweeper_wakes_for_a_member_that_expires_sooner() {
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
async fn sweeper_sleeps_while_no_member_expires() {
    let parks = || Handle::current().metrics().worker_park_count(0);
    let set = one_minute_set();
    let sets: ExpiringSets<u32, u32> = ExpiringSets::new(86_400 * SECOND);
    set.push_at("in a day", Instant::now() + 86_400 * SECOND).await;
    sets.push(1, 1).await;
    sleep(SECOND).await;
    let before = parks();
    sleep(80_000 * SECOND).await;
    assert!(
        parks() - before < 20,
        "{} wake-ups in a day without expired members",
        parks() - before
    );
    assert_eq!((set.len().await, sets.sets().await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn slow_subscriber_receives_lagged_with_the_number_of_missed_events() {
    let set = ExpiringSet::builder(SECOND).event_capacity(4).build();
    let mut slow = set.events();
    set.extend(0..10).await;
    sleep(2 * SECOND).await;
    assert_eq!(slow.next().await.unwrap().unwrap_err().0, 6);
    assert_eq!(slow.next().await.unwrap().unwrap().key, 6);
}

/// The contract of lossless streams: calls are not delayed, expired members are not returned, and no event is
/// lost.
#[tokio::test(start_paused = true)]
async fn full_lossless_subscriber_delays_only_the_sweeper() {
    let value = Arc::new(());
    let set: ExpiringSet<(u32, CountedMember)> = ExpiringSet::new(SECOND);
    let mut events = set.events_lossless(10);
    let member = |n: u32| (n, CountedMember(value.clone()));
    set.extend((0..1_000).map(member)).await;
    sleep(60 * SECOND).await;
    assert_eq!(
        Arc::strong_count(&value),
        1_001,
        "the swept members are in the stream, the others wait"
    );
    assert_eq!(set.overflow(), 0);
    assert_eq!(set.len().await, 0, "expired members are not counted");
    assert_eq!(set.overflow(), 990, "members removed by a call go to the overflow");
    set.extend((1_000..1_500).map(member)).await;
    assert_eq!(set.len().await, 500);
    sleep(60 * SECOND).await;
    assert_eq!(set.overflow(), 990, "the sweeper is still blocked");
    for n in 0..1_500 {
        assert_eq!(events.recv().await.unwrap().key.0, n);
    }
    assert_pending!(spawn(events.recv()).poll());
    assert_eq!((set.overflow(), Arc::strong_count(&value)), (0, 1));
}

/// Member whose instances are counted by its `Arc`.
#[derive(Clone, Debug)]
struct CountedMember(#[allow(dead_code)] Arc<()>);

impl PartialEq for CountedMember {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CountedMember {}

impl std::hash::Hash for CountedMember {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// More members than the sweeper removes under one lock.
#[tokio::test(start_paused = true)]
async fn one_sweep_removes_all_expired_members() {
    let value = Arc::new(());
    let set = ExpiringSet::builder(SECOND).sweep_every(60 * SECOND).build();
    let sets = ExpiringSets::builder(SECOND).sweep_every(60 * SECOND).build();
    for n in 0..5_000 {
        set.push((n, CountedMember(value.clone()))).await;
        sets.push("one", (n, CountedMember(value.clone()))).await;
    }
    sleep(2 * SECOND).await;
    assert_eq!(Arc::strong_count(&value), 1, "expired members are left for the next sweep");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_full_lossless_subscriber_resumes_the_sweeper() {
    let sets = ExpiringSets::new(SECOND);
    let slow = sets.events_lossless(1);
    let mut prompt = sets.events_lossless(1_000);
    for n in 0..100 {
        sets.push(n % 7, n).await;
    }
    sleep(10 * SECOND).await;
    assert_eq!(drain_events(&mut prompt).len(), 1);
    drop(slow);
    sleep(SECOND).await;
    assert_eq!(drain_events(&mut prompt).len(), 99);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_stops_the_sweeper_and_ends_the_streams() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let set = ExpiringSet::builder(60 * SECOND).publish(ALL_CAUSES).build();
    let sets: ExpiringSets<u32, u32> = ExpiringSets::new(SECOND);
    let (mut events, mut lossless) = (set.events(), set.events_lossless(1));
    let mut sets_events = sets.events_lossless(1);
    assert_eq!(tasks(), before + 2);
    set.extend([1, 2, 3]).await;
    set.clear().await;
    drop((set.clone(), sets.clone()));
    sleep(SECOND).await;
    assert_eq!(tasks(), before + 2, "each has one handle left");
    drop((set, sets));
    for n in 1..=3 {
        assert_eq!(events.recv().await.unwrap().unwrap().key, n);
        assert_eq!(lossless.recv().await.unwrap().key, n);
    }
    assert!(events.recv().await.is_none() && lossless.recv().await.is_none());
    assert!(sets_events.recv().await.is_none());
    yield_now().await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_sets_share_one_sweeper_and_send_events_in_time() {
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
    // The last member of each set expires later than the schedule recorded at first.
    for key in 0..5_000 {
        sets.push(key, 3).await;
    }
    sleep(11 * SECOND).await;
    let events = drain_events(&mut events);
    let lag = events.iter().filter_map(|event| event.lag()).max().unwrap();
    assert!(lag <= SECOND / 5, "{lag:?}");
    let mut by_key: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    events.iter().for_each(|event| by_key.entry(event.key).or_default().push(event.value));
    assert_eq!(by_key.len(), 5_000);
    assert!(by_key.values().all(|members| *members == [1, 2, 3]));
    assert!(sets.keys().await.is_empty());
    assert_eq!(sets.sets().await, 0);
}
