//! What sets keep: no more than their members need, and nothing of those that are gone.

use std::time::Duration;

use fleeting::{ExpiringSet, ExpiringSets, SortedSet};
use tokio::time::{Instant, sleep};

use super::{MEMORY, alone, grown, take_turns};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_stays_in_memory() {
    take_turns();
    alone(an_idle_set_gives_its_memory_back());
    alone(idle_sets_give_their_memory_back());
    alone(a_set_that_goes_on_takes_no_more());
    alone(removal_gives_memory_back());
    alone(nothing_is_left_of_sets_that_are_gone());
}

fn name(n: u32) -> String {
    format!("a member whose name is not short, {n}")
}

async fn an_idle_set_gives_its_memory_back() {
    let set = ExpiringSet::new(10 * SECOND);
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    set.extend((0..50_000).map(name)).await;
    let full = grown(empty);
    let later = Instant::now() + 20 * SECOND;
    for n in 0..500 {
        set.push_at(name(100 * n), later + n * SECOND / 1_000).await;
    }
    sleep(11 * SECOND).await;
    let sparse = grown(empty);
    assert!(sparse < full / 20, "{sparse} bytes are left of {full} for 1 % of the members");
    assert_eq!(set.len().await, 500);
    assert_eq!(set.peek().await, Some(name(0)));
    sleep(20 * SECOND).await;
    let nothing = grown(empty);
    assert!(nothing < 4_096, "{nothing} bytes are left of {full} for nothing");
}

async fn idle_sets_give_their_memory_back() {
    let sets = ExpiringSets::builder(10 * SECOND).shards(8).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for n in 0..50_000 {
        sets.push(name(n / 10), n).await;
    }
    let full = grown(empty);
    println!("{} bytes for each of 5,000 sets of 10", full / 5_000);
    sleep(9 * SECOND).await;
    sets.push(name(7), 1).await;
    sleep(2 * SECOND).await;
    let one = grown(empty);
    assert!(one < 8 * 4_096, "{one} bytes are left of {full} for one set");
    assert_eq!(sets.keys().await, [name(7)]);
    sleep(10 * SECOND).await;
    let nothing = grown(empty);
    assert!(nothing < 8 * 4_096, "{nothing} bytes are left of {full} for nothing");
}

async fn a_set_that_goes_on_takes_no_more() {
    let set = ExpiringSet::new(SECOND);
    let mut high = 0;
    for n in 0..100_000_u64 {
        set.push(n).await;
        set.push(n / 2).await;
        tokio::time::advance(SECOND / 1_000).await;
        if n == 10_000 {
            high = MEMORY.allocated();
        }
    }
    let now = MEMORY.allocated();
    assert!(now < high + high / 10, "{now} bytes after {high}");
}

async fn removal_gives_memory_back() {
    let set = SortedSet::new();
    let empty = MEMORY.allocated();
    for n in 0..50_000 {
        set.insert(n % 1_000, name(n)).await;
    }
    let full = grown(empty);
    set.remove_range(10..).await;
    assert!(grown(empty) < full / 20, "by a range, {} bytes are left of {full}", grown(empty));
    for n in 0..50_000 {
        set.insert(n % 1_000, name(n)).await;
    }
    while set.len().await > 500 {
        set.pop_last().await;
    }
    assert!(grown(empty) < full / 20, "one by one, {} bytes are left of {full}", grown(empty));
    set.clear().await;
    assert!(grown(empty) < 4_096, "{} bytes are left of {full} for nothing", grown(empty));
}

async fn nothing_is_left_of_sets_that_are_gone() {
    let round = async || {
        let set = ExpiringSet::new(SECOND);
        let sets = ExpiringSets::new(SECOND);
        let (mut events, lossless) = (set.events(), sets.events_lossless(10));
        for n in 0..10_000 {
            set.push(name(n)).await;
            sets.push(n % 100, name(n)).await;
        }
        sleep(3 * SECOND / 2).await;
        set.extend((0..1_000).map(name)).await;
        drop((set, sets, lossless));
        while events.recv().await.is_some() {}
        drop(events);
        tokio::task::yield_now().await;
    };
    round().await;
    let before = MEMORY.allocated();
    for _ in 0..5 {
        round().await;
    }
    assert!(grown(before) < 4_096, "{} bytes leaked", grown(before));
}
