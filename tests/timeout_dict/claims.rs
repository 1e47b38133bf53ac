//! Claims: an entry is not delivered to others until its lease ends or it is given back, and an ack removes
//! it.

use std::{future::pending, time::Duration};

use super::due::{dict_with_due, keys};
use fleeting::{Claim, TimeoutDict, Ttl};
use futures::{FutureExt, future::join_all};
use tokio::time::{Instant, advance};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

#[tokio::test(start_paused = true)]
async fn claimed_entry_is_not_delivered_to_others_until_the_lease_ends() {
    let dict = dict_with_due(["a", "b", "c"]).await;
    let claims = dict.claim_expired(2, SECOND).await;
    assert_eq!(keys(&claims), ["a", "b"]);
    assert_eq!((claims[1].value(), dict.get("a").await), (&1, Some(0)));
    assert_eq!(format!("{:?}", claims[1]), "Claim { key: \"b\", value: 1, .. }");
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.take_expired(9).await, [("c", 2)]);
    advance(SECOND - NANO).await;
    assert_eq!(keys(&dict.claim_expired(9, SECOND).await), [""; 0]);
    advance(NANO).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0), ("b", 1)]);
    for claim in claims {
        assert!(!claim.ack().await, "another call has taken it");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_later_of_two_claims_can_be_acked() {
    let dict = dict_with_due(["a"]).await;
    let first = dict.next_claim(SECOND).await;
    advance(SECOND).await;
    let second = dict.next_claim(SECOND).await;
    assert!(!first.extend(SECOND).await);
    drop(first);
    assert!(
        dict.claim_expired(9, SECOND).await.is_empty(),
        "the first claim is void and gives nothing back"
    );
    assert!(second.ack().await);
    assert!(dict.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn dropped_claim_of_claim_expired_gives_its_entry_back() {
    let dict = dict_with_due(["a", "b"]).await;
    drop(dict.claim_expired(1, SECOND).await);
    assert_eq!(dict.get("a").await, Some(0));
    // Longer than the backoff.
    advance(4 * SECOND).await;
    let claims = dict.claim_expired(9, 100 * SECOND).await;
    assert_eq!(keys(&claims), ["b", "a"], "a failed entry follows those that are already due");
    let mut claims = claims.into_iter().rev();
    // A future that is dropped before it is polled gives the entry back, too.
    drop(claims.next().unwrap().ack());
    advance(4 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0)]);
    // So do a panic and an aborted task.
    let claim = claims.next().unwrap();
    let task = tokio::spawn(async move {
        let _claim = claim;
        panic!("panic of the test, during work");
    });
    assert!(task.await.is_err());
    let claim = dict.next_claim(100 * SECOND).await;
    let task = tokio::spawn(async move {
        let _claim = claim;
        pending::<()>().await;
    });
    advance(10 * SECOND).await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    task.abort();
    assert!(task.await.is_err());
    advance(10 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("b", 1)]);
}

#[tokio::test(start_paused = true)]
async fn leaked_claim_is_delivered_again_when_the_lease_ends() {
    let dict = dict_with_due(["a", "b"]).await;
    dict.claim_expired(1, SECOND).await.into_iter().for_each(std::mem::forget);
    dict.claim_expired(1, Duration::MAX).await.into_iter().for_each(std::mem::forget);
    let start = Instant::now();
    assert_eq!(dict.next_expired().await, ("a", 0));
    assert_eq!(start.elapsed(), SECOND);
    advance(1_000_000 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [], "a lease that overflows never ends");
    assert_eq!(dict.remove("b").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn extend_moves_the_end_of_the_lease() {
    let dict = dict_with_due(["a"]).await;
    let claim = dict.next_claim(SECOND).await;
    advance(SECOND / 2).await;
    assert!(claim.extend(2 * SECOND).await);
    advance(2 * SECOND - NANO).await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    advance(NANO).await;
    // The lease has ended, but no caller has taken the entry.
    dict.set("b", 1, Duration::ZERO).await;
    assert_eq!(dict.take_expired(0).await, []);
    assert!(claim.extend(SECOND).await);
    assert_eq!(dict.take_expired(9).await, [("b", 1)]);
    // An earlier end than before is possible, too.
    assert!(claim.extend(Duration::MAX).await);
    assert!(claim.extend(Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [("a", 0)]);
    assert!(!claim.extend(SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn zero_lease_ends_immediately() {
    let dict = dict_with_due(["a", "b"]).await;
    let first = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(keys(&first), ["a", "b"], "each entry once per call");
    let second = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(keys(&second), ["a", "b"]);
    assert!(!join_all(first.into_iter().map(Claim::ack)).await.contains(&true));
    assert!(!join_all(second.into_iter().map(Claim::ack)).await.contains(&false));
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_entry_make_its_claim_void() {
    type Dict = TimeoutDict<&'static str, usize>;
    let changes: [fn(&Dict) -> bool; 5] = [
        |dict| dict.set("a", 7, SECOND).now_or_never().unwrap().is_some(),
        |dict| dict.set_timeout("a", SECOND).now_or_never().unwrap(),
        |dict| dict.remove_timeout("a").now_or_never().unwrap(),
        |dict| dict.remove("a").now_or_never().unwrap().is_some(),
        |dict| dict.clear().now_or_never().is_some(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for lease_has_ended in [false, true] {
            let dict = dict_with_due(["a"]).await;
            let mut claims = vec![];
            claims.extend(dict.claim_expired(9, SECOND).await);
            if lease_has_ended {
                advance(SECOND).await;
                assert_eq!(dict.take_expired(0).await, []);
            }
            assert!(change(&dict));
            let before = (dict.get("a").await, dict.ttl("a").await);
            let claim = claims.pop().unwrap();
            assert!(!claim.extend(1_000 * SECOND).await);
            match lease_has_ended {
                true => drop(claim),
                false => assert!(!claim.ack().await),
            }
            assert_eq!((dict.get("a").await, dict.ttl("a").await), before, "change {index}");
            // A new entry of the same key does not belong to the claim.
            dict.set("a", 9, Duration::ZERO).await;
            assert_eq!(dict.take_expired(9).await, [("a", 9)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn void_claim_does_not_affect_an_entry_in_the_same_slot() {
    let dict = dict_with_due(["a"]).await;
    let claim = dict.next_claim(SECOND).await;
    dict.remove("a").await;
    dict.set("b", 1, Duration::ZERO).await;
    let other = dict.next_claim(SECOND).await;
    assert!(!claim.ack().await);
    assert!(other.ack().await);
}
