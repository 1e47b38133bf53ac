//! Memory of sets: proportional to their members, and freed with them.

use std::time::Duration;

use fleeting::{ExpiringSet, ExpiringSets, SortedSet};
use tokio::time::{Instant, sleep};

use super::{MEMORY, allocated_since, run_paused, wait_for_turn};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn set_memory_is_bounded() {
    wait_for_turn();
    run_paused(idle_set_frees_its_memory());
    run_paused(idle_sets_free_their_memory());
    run_paused(steady_flow_of_members_uses_constant_memory());
    run_paused(removals_free_memory());
    run_paused(dropped_sets_leak_no_memory());
}

fn name(n: u32) -> String {
    format!("a member with a name that is not short, {n}")
}

async fn idle_set_frees_its_memory() {
    let set = ExpiringSet::new(10 * SECOND);
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    set.extend((0..50_000).map(name)).await;
    let full = allocated_since(empty);
    let later = Instant::now() + 20 * SECOND;
    for n in 0..500 {
        set.push_at(name(100 * n), later + n * SECOND / 1_000).await;
    }
    sleep(11 * SECOND).await;
    let sparse = allocated_since(empty);
    assert!(sparse < full / 20, "{sparse} bytes remain of {full} for 1 % of the members");
    assert_eq!(set.len().await, 500);
    assert_eq!(set.peek().await, Some(name(0)));
    sleep(20 * SECOND).await;
    let nothing = allocated_since(empty);
    assert!(nothing < 4_096, "{nothing} bytes remain of {full} for nothing");
}

async fn idle_sets_free_their_memory() {
    let sets = ExpiringSets::builder(10 * SECOND).shards(8).build();
    sleep(SECOND).await;
    let empty = MEMORY.allocated();
    for n in 0..50_000 {
        sets.push(name(n / 10), n).await;
    }
    let full = allocated_since(empty);
    println!("{} bytes for each of 5,000 sets of 10", full / 5_000);
    sleep(9 * SECOND).await;
    sets.push(name(7), 1).await;
    sleep(2 * SECOND).await;
    let one = allocated_since(empty);
    assert!(one < 8 * 4_096, "{one} bytes remain of {full} for one set");
    assert_eq!(sets.keys().await, [name(7)]);
    sleep(10 * SECOND).await;
    let nothing = allocated_since(empty);
    assert!(nothing < 8 * 4_096, "{nothing} bytes remain of {full} for nothing");
}

async fn steady_flow_of_members_uses_constant_memory() {
    let set = ExpiringSet::new(SECOND);
    let mut high = 0;
    for n in 0..40_000_u64 {
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

async fn removals_free_memory() {
    let set = SortedSet::new();
    let empty = MEMORY.allocated();
    for n in 0..50_000 {
        set.insert(n % 1_000, name(n)).await;
    }
    let full = allocated_since(empty);
    set.remove_range(10..).await;
    assert!(
        allocated_since(empty) < full / 20,
        "by a range, {} bytes remain of {full}",
        allocated_since(empty)
    );
    for n in 0..50_000 {
        set.insert(n % 1_000, name(n)).await;
    }
    while set.len().await > 500 {
        set.pop_last().await;
    }
    assert!(
        allocated_since(empty) < full / 20,
        "one by one, {} bytes remain of {full}",
        allocated_since(empty)
    );
    set.clear().await;
    assert!(
        allocated_since(empty) < 4_096,
        "{} bytes remain of {full} for nothing",
        allocated_since(empty)
    );
}

async fn dropped_sets_leak_no_memory() {
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
    assert!(allocated_since(before) < 4_096, "{} bytes leaked", allocated_since(before));
}
