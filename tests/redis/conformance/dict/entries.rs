//! Deadlines of entries, and callers that take or await due entries.

use std::{sync::Arc, time::Duration};

use fleeting::Ttl;
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::Mutex,
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{Claim, Dict, Embedded, LONG, MILLI, NONE, OnRedis, entry};
use crate::{clock::ms, patience::patience};

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        due_entry_is_readable_until_it_is_taken,
        take_expired_returns_the_oldest_deadline_first,
        take_expired_keeps_the_order_of_thousands_of_entries,
        entry_without_a_deadline_is_never_due,
        due_entry_may_get_a_new_deadline,
        methods_take_borrowed_keys_and_clones_share_one_dict,
        next_expired_waits_for_the_earliest_deadline,
        next_expired_finds_an_earlier_deadline_set_while_it_waits,
        next_expired_and_next_claim_serve_waiters_in_fifo_order,
        concurrent_takes_and_claims_deliver_each_entry_once,
    }
}

/// A short TTL or lease, but long enough that a busy machine completes the calls of a test before it ends.
pub(super) fn soon() -> Duration {
    ms(300)
}

/// Waits for the tasks that return dropped claims.
pub(super) async fn wait_for_tasks() {
    yield_now().await;
    sleep(ms(50)).await;
}

pub(super) async fn dict_with_due<D: Dict, const N: usize>(keys: [&str; N]) -> D {
    let dict = D::empty().await;
    for (key, value) in keys.into_iter().zip(0..) {
        assert_eq!(dict.set(key.into(), value, Duration::ZERO).await, None);
    }
    dict
}

async fn due_entry_is_readable_until_it_is_taken<D: Dict>() {
    let dict = D::empty().await;
    assert_eq!(dict.set("a".into(), 1, soon()).await, None);
    assert_eq!(dict.take_expired(9).await, NONE);
    let Ttl::Remaining(remaining) = dict.ttl("a").await else { panic!("the entry has a deadline") };
    assert!(remaining <= soon() && remaining > Duration::ZERO, "{remaining:?}");
    sleep(soon() + MILLI).await;
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.get("a").await, Some(1));
    assert!(dict.contains_key("a").await);
    assert_eq!(dict.take_expired(0).await, NONE);
    assert_eq!(dict.take_expired(9).await, [entry("a", 1)]);
    assert_eq!(dict.get("a").await, None);
    assert_eq!(dict.ttl("a").await, Ttl::Missing);
    assert!(!dict.contains_key("a").await);
    assert_eq!(dict.take_expired(9).await, NONE);
}

async fn take_expired_returns_the_oldest_deadline_first<D: Dict>() {
    let dict = dict_with_due::<D, _>(["c", "a", "b", "d"]).await;
    sleep(MILLI).await;
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.set("c".into(), 7, Duration::ZERO).await, Some(0));
    let taken = dict.take_expired(3).await;
    assert_eq!(taken, [entry("b", 2), entry("d", 3), entry("a", 1)]);
    assert_eq!(dict.take_expired(usize::MAX).await, [entry("c", 7)]);
}

async fn take_expired_keeps_the_order_of_thousands_of_entries<D: Dict>() {
    let mut random = SmallRng::seed_from_u64(7);
    let dict = D::empty().await;
    let mut known = Vec::new();
    for key in 0..3_000_u32 {
        let ttl = Duration::from_secs(3_600) + random.random_range(0..1_000_000) * MILLI;
        dict.set(key.to_string(), key, ttl).await;
        known.push((ttl, key));
    }
    // Makes half of them due, one after the other.
    known.sort();
    for (_, key) in &known[..1_500] {
        assert!(dict.set_timeout(&key.to_string(), Duration::ZERO).await);
    }
    sleep(MILLI).await;
    let mut taken = Vec::new();
    for (max, all) in [(1, 1), (9, 10), (90, 100), (900, 1_000), (9_000, 1_500)] {
        let batch = dict.take_expired(max).await;
        taken.extend(batch.into_iter().map(|(_, value)| value));
        assert_eq!(taken.len(), all);
    }
    let expected: Vec<_> = known[..1_500].iter().map(|(_, key)| *key).collect();
    assert_eq!(taken, expected);
    assert_eq!(dict.len().await, 1_500);
}

async fn entry_without_a_deadline_is_never_due<D: Dict>() {
    let dict = D::empty().await;
    dict.set("never".into(), 1, Duration::MAX).await;
    dict.set("a".into(), 2, soon()).await;
    assert!(dict.remove_timeout("a").await);
    assert!(!dict.remove_timeout("a").await, "it has no deadline");
    assert!(!dict.remove_timeout("never").await, "it has no deadline");
    assert!(!dict.remove_timeout("missing").await);
    assert!(!dict.set_timeout("missing", soon()).await);
    sleep(soon() + MILLI).await;
    assert_eq!(dict.take_expired(9).await, NONE);
    assert_eq!(dict.ttl("never").await, Ttl::Persistent);
    assert_eq!(dict.ttl("a").await, Ttl::Persistent);
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [entry("a", 2)]);
    assert_eq!(dict.len().await, 1);
}

async fn due_entry_may_get_a_new_deadline<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b"]).await;
    assert!(dict.set_timeout("a", soon()).await);
    assert_eq!(dict.set("b".into(), 7, soon()).await, Some(1));
    assert_eq!(dict.take_expired(9).await, NONE);
    sleep(soon() + MILLI).await;
    assert_eq!(dict.take_expired(9).await, [entry("a", 0), entry("b", 7)]);
}

async fn methods_take_borrowed_keys_and_clones_share_one_dict<D: Dict>() {
    let dict = D::empty().await;
    let clone = dict.clone();
    for key in ["", "ada", "}:{", "7", "é\n\"", "null"] {
        assert!(dict.is_empty().await);
        clone.set(key.into(), 1, LONG).await;
        assert_eq!(dict.get(key).await, Some(1));
        assert_eq!(dict.remove(key).await, Some(1), "{key}");
        assert_eq!(clone.remove(key).await, None);
        clone.set(key.into(), 1, Duration::ZERO).await;
        assert_eq!(dict.take_expired(9).await, [entry(key, 1)]);
    }
    for key in 0..2_000 {
        clone.set(key.to_string(), key, Duration::MAX).await;
    }
    assert_eq!(dict.len().await, 2_000);
    dict.clear().await;
    assert!(clone.is_empty().await);
    assert_eq!(clone.get("7").await, None);
}

async fn next_expired_waits_for_the_earliest_deadline<D: Dict>() {
    let dict = D::empty().await;
    let start = Instant::now();
    dict.set("b".into(), 2, 2 * soon()).await;
    dict.set("a".into(), 1, soon()).await;
    dict.set("never".into(), 0, Duration::MAX).await;
    assert_eq!(dict.next_expired().await, entry("a", 1));
    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
    let claim = dict.next_claim(LONG).await;
    assert_eq!(claim.key(), "b");
    let passed = start.elapsed();
    assert!(passed >= 2 * soon() && passed < 3 * soon(), "{passed:?}");
    assert!(claim.ack().await);
    assert!(timeout(soon(), dict.next_expired()).await.is_err());
    assert_eq!(dict.len().await, 1);
}

async fn next_expired_finds_an_earlier_deadline_set_while_it_waits<D: Dict>() {
    let dict = D::empty().await;
    dict.set("late".into(), 1, LONG).await;
    let waiter = dict.clone();
    let waiter = tokio::spawn(async move { waiter.next_expired().await });
    sleep(soon()).await;
    dict.set("soon".into(), 2, Duration::ZERO).await;
    let found = timeout(patience(), waiter).await.expect("the waiter finds the entry in time");
    assert_eq!(found.unwrap(), entry("soon", 2));
}

async fn next_expired_and_next_claim_serve_waiters_in_fifo_order<D: Dict>() {
    let dict = D::empty().await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for id in 0..6_u32 {
        let (dict, served) = (dict.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            let key = if id % 2 == 0 {
                dict.next_expired().await.0
            } else {
                let claim = dict.next_claim(LONG).await;
                let key = claim.key().clone();
                assert!(claim.ack().await);
                key
            };
            served.lock().await.push((id, key));
        }));
        sleep(5 * MILLI).await;
    }
    // Cancelled waiters take nothing, and the next ones take their places.
    tasks.remove(2).abort();
    tasks.remove(0).abort();
    for key in ["a", "b", "c", "d"] {
        dict.set(key.into(), 0, Duration::ZERO).await;
        wait_for_tasks().await;
    }
    join_all(tasks).await;
    let mut served = served.lock().await;
    // The next waiter may be recorded before an ack completes.
    served.sort();
    let expected = [(1, "a"), (3, "b"), (4, "c"), (5, "d")];
    assert_eq!(*served, expected.map(|(id, key)| (id, key.to_owned())));
}

async fn concurrent_takes_and_claims_deliver_each_entry_once<D: Dict>() {
    let dict = D::empty().await;
    for key in 0..1_000 {
        dict.set(key.to_string(), key, Duration::ZERO).await;
    }
    let tasks = (0..8).map(|id| {
        let dict = dict.clone();
        tokio::spawn(async move {
            let mut taken = Vec::new();
            while !dict.is_empty().await {
                match id % 2 {
                    0 => {
                        let batch = dict.take_expired(7).await;
                        taken.extend(batch.into_iter().map(|(_, value)| value));
                    }
                    _ => {
                        for claim in dict.claim_expired(7, LONG).await {
                            taken.push(*claim.value());
                            assert!(claim.ack().await);
                        }
                    }
                }
            }
            taken
        })
    });
    let taken = join_all(tasks.collect::<Vec<_>>()).await;
    let mut taken: Vec<_> = taken.into_iter().flat_map(|taken| taken.unwrap()).collect();
    taken.sort();
    assert_eq!(taken, (0..1_000).collect::<Vec<_>>());
}
