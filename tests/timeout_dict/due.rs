//! Due entries: their deadlines and order, and that they stay readable until taken.

use std::{hash::RandomState, panic::AssertUnwindSafe, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

pub(super) async fn dict_with_due<const N: usize>(
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
async fn due_entry_stays_readable_until_it_is_taken() {
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
async fn take_expired_returns_oldest_deadlines_first_and_equal_ones_in_set_order() {
    let dict = TimeoutDict::new();
    for key in ["c", "a", "b", "d"] {
        dict.set(key, (), SECOND).await;
    }
    dict.set("late", (), 2 * SECOND).await;
    dict.set("soon", (), Duration::ZERO).await;
    // Setting the same deadline again moves the entry behind its equals.
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
async fn many_entries_are_taken_in_deadline_order() {
    let mut rng = SmallRng::seed_from_u64(1);
    let dict = TimeoutDict::with_hasher(RandomState::new());
    let mut ttls = vec![None; 20_000];
    for round in 0..3 {
        for (key, expected_ttl) in ttls.iter_mut().enumerate() {
            let ttl = rng.random_range(0..1_000_000);
            match rng.random_range(0..4) {
                0 if round > 0 => {
                    assert_eq!(dict.remove(&key).await.is_some(), expected_ttl.take().is_some());
                }
                1 if round > 0 => {
                    let exists = dict.set_timeout(&key, Duration::from_nanos(ttl)).await;
                    assert_eq!(exists, expected_ttl.replace(ttl).is_some());
                    if !exists {
                        *expected_ttl = None;
                    }
                }
                _ => {
                    let replaced = dict.set(key, key, Duration::from_nanos(ttl)).await;
                    assert_eq!(replaced.is_some(), expected_ttl.replace(ttl).is_some());
                }
            }
        }
    }
    advance(SECOND).await;
    let mut left: Vec<_> =
        ttls.iter().enumerate().filter_map(|(k, ttl)| Some((*ttl.as_ref()?, k))).collect();
    left.sort_by_key(|(ttl, _)| *ttl);
    assert_eq!(dict.len().await, left.len());
    for chunk in left.chunks(1_000) {
        let taken = dict.take_expired(1_000).await;
        let order: Vec<_> = taken.into_iter().map(|(key, _)| ttls[key].unwrap()).collect();
        assert_eq!(order, chunk.iter().map(|(ttl, _)| *ttl).collect::<Vec<_>>());
    }
    assert!(dict.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn due_entry_accepts_a_new_deadline() {
    let dict = dict_with_due(["a", "b"]).await;
    assert!(dict.set_timeout("a", SECOND).await);
    assert_eq!(dict.set("b", 7, SECOND).await, Some(1));
    assert_eq!(dict.take_expired(9).await, []);
    advance(SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0), ("b", 7)]);
}

#[tokio::test(start_paused = true)]
async fn lookups_accept_borrowed_keys_and_clones_share_one_dictionary() {
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

/// Uses the real clock, as there is no runtime.
#[test]
fn only_waiting_needs_a_runtime() {
    fn ready<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("the call does not wait")
    }
    let dict = TimeoutDict::new();
    ready(dict.set("b", 2, Duration::from_secs(1_000)));
    assert_eq!(ready(dict.take_expired(9)), []);
    ready(dict.set("a", 1, Duration::from_millis(5)));
    std::thread::sleep(Duration::from_millis(6));
    let claims = ready(dict.claim_expired(9, SECOND));
    assert_eq!(keys(&claims), ["a"]);
    for claim in claims {
        assert!(ready(claim.retry_in(Duration::ZERO)));
    }
    assert_eq!(ready(dict.next_expired()), ("a", 1));
    let waits = AssertUnwindSafe(dict.next_expired()).catch_unwind();
    assert!(ready(waits).is_err(), "a wait outside of a runtime panics");
    assert_eq!(ready(dict.get("b")), Some(2));
}
