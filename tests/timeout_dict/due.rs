//! What is due: when, in which order, and readable until it is taken.

use std::{hash::RandomState, panic::AssertUnwindSafe, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

pub(super) async fn due<const N: usize>(
    keys: [&'static str; N],
) -> TimeoutDict<&'static str, usize> {
    let dict = TimeoutDict::new();
    for (value, key) in keys.into_iter().enumerate() {
        dict.set(key, value, Duration::ZERO).await;
    }
    dict
}

pub(super) fn keys<K: Clone, V>(claims: &[Claim<K, V>]) -> Vec<K> {
    claims.iter().map(|claim| claim.key().clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_due_stays_readable_until_it_is_taken() {
    let dict = TimeoutDict::new();
    dict.set("a", 1, SECOND).await;
    advance(SECOND - NANO).await;
    assert_eq!(dict.take_expired(9).await, []);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(NANO));
    advance(NANO).await;
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    advance(1_000 * SECOND).await;
    assert_eq!((dict.get("a").await, dict.contains_key("a").await), (Some(1), true));
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.take_expired(9).await, [("a", 1)]);
    assert_eq!((dict.get("a").await, dict.ttl("a").await), (None, Ttl::Missing));
    assert_eq!(dict.take_expired(9).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_deadline_comes_first_and_equal_ones_as_they_were_set() {
    let dict = TimeoutDict::new();
    for key in ["c", "a", "b", "d"] {
        dict.set(key, (), SECOND).await;
    }
    dict.set("late", (), 2 * SECOND).await;
    dict.set("soon", (), Duration::ZERO).await;
    // Set anew, it comes behind its equals.
    assert!(dict.set_timeout("a", SECOND).await);
    dict.set("c", (), SECOND).await;
    advance(2 * SECOND).await;
    let mut taken: Vec<_> = dict.take_expired(4).await;
    taken.extend(dict.take_expired(usize::MAX).await);
    let taken: Vec<_> = taken.into_iter().map(|(key, ())| key).collect();
    assert_eq!(taken, ["soon", "b", "d", "a", "c", "late"]);
    assert_eq!(dict.take_expired(0).await, []);
}

#[tokio::test(start_paused = true)]
async fn many_entries_come_in_order() {
    let mut random = SmallRng::seed_from_u64(1);
    let dict = TimeoutDict::with_hasher(RandomState::new());
    let mut known = vec![None; 20_000];
    for round in 0..3 {
        for (key, known) in known.iter_mut().enumerate() {
            let ttl = random.random_range(0..1_000_000);
            match random.random_range(0..4) {
                0 if round > 0 => {
                    assert_eq!(dict.remove(&key).await.is_some(), known.take().is_some());
                }
                1 if round > 0 => {
                    let is_there = dict.set_timeout(&key, Duration::from_nanos(ttl)).await;
                    assert_eq!(is_there, known.replace(ttl).is_some());
                    if !is_there {
                        *known = None;
                    }
                }
                _ => {
                    let replaced = dict.set(key, key, Duration::from_nanos(ttl)).await;
                    assert_eq!(replaced.is_some(), known.replace(ttl).is_some());
                }
            }
        }
    }
    advance(SECOND).await;
    let mut left: Vec<_> =
        known.iter().enumerate().filter_map(|(k, ttl)| Some((*ttl.as_ref()?, k))).collect();
    left.sort_by_key(|(ttl, _)| *ttl);
    assert_eq!(dict.len().await, left.len());
    for some in left.chunks(1_000) {
        let taken = dict.take_expired(1_000).await;
        let order: Vec<_> = taken.into_iter().map(|(key, _)| known[key].unwrap()).collect();
        assert_eq!(order, some.iter().map(|(ttl, _)| *ttl).collect::<Vec<_>>());
    }
    assert!(dict.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn without_a_deadline_nothing_is_due() {
    let dict = TimeoutDict::new();
    dict.set("never", 1, Duration::MAX).await;
    dict.set("a", 2, SECOND).await;
    assert!(dict.remove_timeout("a").await);
    assert!(!dict.remove_timeout("a").await, "it has none");
    assert!(!dict.remove_timeout("missing").await);
    assert!(!dict.set_timeout("missing", SECOND).await);
    advance(1_000_000 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, []);
    assert_eq!((dict.ttl("never").await, dict.ttl("a").await), (Ttl::Persistent, Ttl::Persistent));
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [("a", 2)]);
    assert_eq!(dict.len().await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_may_get_a_new_deadline() {
    let dict = due(["a", "b"]).await;
    assert!(dict.set_timeout("a", SECOND).await);
    assert_eq!(dict.set("b", 7, SECOND).await, Some(1));
    assert_eq!(dict.take_expired(9).await, []);
    advance(SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0), ("b", 7)]);
}

#[tokio::test(start_paused = true)]
async fn look_ups_take_borrowed_keys_and_clones_are_one() {
    let dict: TimeoutDict<String, String> = TimeoutDict::default();
    let clone = dict.clone();
    clone.set("key".into(), "value".into(), SECOND).await;
    assert_eq!(dict.get("key").await.as_deref(), Some("value"));
    assert_eq!(format!("{dict:?}"), "TimeoutDict { len: 1, .. }");
    assert_eq!(dict.remove("key").await.as_deref(), Some("value"));
    assert_eq!((clone.remove("key").await, clone.is_empty().await), (None, true));
    clone.set("key".into(), "value".into(), SECOND).await;
    dict.clear().await;
    assert_eq!((clone.len().await, clone.get("key").await), (0, None));
}

/// The real clock is the subject.
#[test]
fn needs_no_runtime_but_to_wait() {
    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("it does not wait")
    }
    let dict = TimeoutDict::new();
    now(dict.set("a", 1, Duration::from_millis(5)));
    now(dict.set("b", 2, Duration::from_secs(1_000)));
    assert_eq!(now(dict.take_expired(9)), []);
    std::thread::sleep(Duration::from_millis(6));
    let claims = now(dict.claim_expired(9, SECOND));
    assert_eq!(keys(&claims), ["a"]);
    for claim in claims {
        assert!(now(claim.retry_in(Duration::ZERO)));
    }
    assert_eq!(now(dict.next_expired()), ("a", 1));
    let waits = AssertUnwindSafe(dict.next_expired()).catch_unwind();
    assert!(now(waits).is_err(), "the docs say that it panics");
    assert_eq!(now(dict.get("b")), Some(2));
}
