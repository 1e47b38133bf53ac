//! Calls of `ExpiringSet`, `ExpiringSets` and `SortedSet`.

use std::time::Duration;

use fleeting::{ExpiringSet, ExpiringSets, InsertIf, SortedSet};
use tokio::time::{Instant, advance};

use crate::cancel::{Parts, calls, has_effect, with_effects};

const SECOND: Duration = Duration::from_secs(1);

fn parts<T: std::fmt::Debug>(members: &[T]) -> Parts {
    Parts::from([("members".to_owned(), format!("{members:?}"))])
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_an_expiring_set_has_its_whole_effect_or_none() {
    // Scores must not precede the start of the clock.
    advance(100 * SECOND).await;
    let changes = calls! { expiring_set: ExpiringSet<u32>;
        expiring_set.push(9), expiring_set.push(1), expiring_set.push_at(9, Instant::now() - SECOND),
        expiring_set.push_unique_at(9, Instant::now()), expiring_set.extend(0..300), expiring_set.pop(),
        expiring_set.remove(&1), expiring_set.remove_range(..), expiring_set.clear(),
    };
    let reads = calls! { expiring_set: ExpiringSet<u32>;
        expiring_set.elements(), expiring_set.range(..), expiring_set.peek(), expiring_set.score(&1),
        expiring_set.contains(&1), expiring_set.len(), expiring_set.is_empty(),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        let new = async || {
            let set = ExpiringSet::new(5 * SECOND);
            for member in 0..4 {
                set.push_at(member, Instant::now() - member * SECOND).await;
            }
            set
        };
        let observe = async |set: &ExpiringSet<u32>| parts(&set.elements().await);
        has_effect(effect, name, new, async |set| call(set).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_sets_by_key_has_its_whole_effect_or_none() {
    advance(100 * SECOND).await;
    let changes = calls! { sets: ExpiringSets<u32, u32>;
        sets.push(0, 9), sets.push(7, 9), sets.push_at(0, 9, Instant::now() - SECOND),
        sets.push_unique_at(0, 9, Instant::now()), sets.extend(0, 0..300), sets.pop(&0), sets.pop(&1),
        sets.remove(&0, &1), sets.remove_range(&0, ..), sets.clear(&0),
    };
    let reads = calls! { sets: ExpiringSets<u32, u32>;
        sets.elements(&0), sets.range(&0, ..), sets.peek(&0), sets.score(&0, &1), sets.contains(&0, &1), sets.len(&0),
        sets.is_empty(&0), sets.keys(), sets.sets(),
    };
    for (effect, name, call) in with_effects(changes, reads) {
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
        has_effect(effect, name, new, async |sets| call(sets).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_of_a_sorted_set_has_its_whole_effect_or_none() {
    let changes = calls! { sorted_set: SortedSet<u32, u32>;
        sorted_set.insert(7, 9), sorted_set.insert(7, 1),
        sorted_set.extend((0..300).map(|member| (member, member))),
        sorted_set.insert_if(7, 1, InsertIf::Present), sorted_set.increment(5, 1), sorted_set.increment(5, 9),
        sorted_set.remove(&1), sorted_set.remove_range(1..3), sorted_set.remove_ranks(..2), sorted_set.pop_first(),
        sorted_set.pop_last(), sorted_set.clear(),
    };
    let reads = calls! { sorted_set: SortedSet<u32, u32>;
        sorted_set.score(&1), sorted_set.rank(&1), sorted_set.contains(&1), sorted_set.first(), sorted_set.last(),
        sorted_set.range(..), sorted_set.ranks(..), sorted_set.count(..), sorted_set.len(), sorted_set.is_empty(),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        let new = async || {
            let set = SortedSet::new();
            set.extend((0..4).map(|member| (member, member))).await;
            set
        };
        let observe = async |set: &SortedSet<u32, u32>| parts(&set.range(..).await);
        has_effect(effect, name, new, async |set| call(set).await, observe).await;
    }
}
