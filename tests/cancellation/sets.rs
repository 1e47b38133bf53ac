//! Calls of `ExpiringSet`, `ExpiringSets` and `SortedSet`.

use std::time::Duration;

use fleeting::{ExpiringSet, ExpiringSets, InsertIf, SortedSet};
use tokio::time::{Instant, advance};

use crate::cancel::{Effect, Parts, calls, has_effect};

const SECOND: Duration = Duration::from_secs(1);

fn parts<T: std::fmt::Debug>(members: &[T]) -> Parts {
    Parts::from([("members".to_owned(), format!("{members:?}"))])
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_an_expiring_set_has_its_whole_effect_or_none() {
    // Scores must not precede the start of the clock.
    advance(100 * SECOND).await;
    let calls = calls! { set: ExpiringSet<u32>;
        set.push(9), set.push(1), set.push_at(9, Instant::now() - SECOND), set.push_unique_at(9, Instant::now()),
        set.extend(0..300), set.elements(), set.range(..), set.peek(), set.pop(), set.remove(&1),
        set.remove_range(..), set.score(&1), set.contains(&1), set.len(), set.is_empty(), set.clear(),
    };
    for (name, call) in calls {
        let new = async || {
            let set = ExpiringSet::new(5 * SECOND);
            for member in 0..4 {
                set.push_at(member, Instant::now() - member * SECOND).await;
            }
            set
        };
        let observe = async |set: &ExpiringSet<u32>| parts(&set.elements().await);
        has_effect(Effect::Whole, name, new, async |set| call(set).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_sets_by_key_has_its_whole_effect_or_none() {
    advance(100 * SECOND).await;
    let calls = calls! { sets: ExpiringSets<u32, u32>;
        sets.push(0, 9), sets.push(7, 9), sets.push_at(0, 9, Instant::now() - SECOND),
        sets.push_unique_at(0, 9, Instant::now()), sets.extend(0, 0..300), sets.elements(&0), sets.range(&0, ..),
        sets.peek(&0), sets.pop(&0), sets.pop(&1), sets.remove(&0, &1), sets.remove_range(&0, ..),
        sets.score(&0, &1), sets.contains(&0, &1), sets.len(&0), sets.is_empty(&0), sets.clear(&0), sets.keys(),
        sets.sets(),
    };
    for (name, call) in calls {
        let new = async || {
            let sets = ExpiringSets::new(5 * SECOND);
            sets.extend(0, 0..4).await;
            sets.push(1, 1).await;
            sets
        };
        let observe = async |sets: &ExpiringSets<u32, u32>| {
            let mut found = Vec::new();
            for key in [0, 1, 7] {
                found.push((key, sets.elements(&key).await));
            }
            parts(&found)
        };
        has_effect(Effect::Whole, name, new, async |sets| call(sets).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_a_sorted_set_has_its_whole_effect_or_none() {
    let calls = calls! { set: SortedSet<u32, u32>;
        set.insert(7, 9), set.insert(7, 1), set.extend((0..300).map(|member| (member, member))),
        set.insert_if(7, 1, InsertIf::Present), set.increment(5, 1), set.increment(5, 9), set.score(&1),
        set.rank(&1), set.contains(&1), set.first(), set.last(), set.range(..), set.ranks(..), set.count(..),
        set.remove(&1), set.remove_range(1..3), set.remove_ranks(..2), set.pop_first(), set.pop_last(), set.len(),
        set.is_empty(), set.clear(),
    };
    for (name, call) in calls {
        let new = async || {
            let set = SortedSet::new();
            set.extend((0..4).map(|member| (member, member))).await;
            set
        };
        let observe = async |set: &SortedSet<u32, u32>| parts(&set.range(..).await);
        has_effect(Effect::Whole, name, new, async |set| call(set).await, observe).await;
    }
}
