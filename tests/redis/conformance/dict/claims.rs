//! Claims and their leases.

use std::time::Duration;

use fleeting::Ttl;
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    Claim, Dict, Embedded, LONG, MILLI, NONE, OnRedis,
    entries::{dict_with_due, soon, wait_for_tasks},
    entry,
};

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        claimed_entry_is_exclusive_until_its_lease_expires,
        ack_removes_the_entry,
        only_the_latest_claim_on_an_entry_can_be_acked,
        dropped_claim_returns_the_entry,
        leaked_claim_is_delivered_again_after_its_lease,
        extend_changes_the_end_of_the_lease,
        lease_of_zero_expires_immediately,
        every_change_of_the_entry_makes_its_claim_void,
    }
}

/// Longer than the first backoff of one second with its jitter. The second backoff is twice as long.
const BACKOFF: Duration = Duration::from_millis(1_600);

fn keys<C: Claim>(claims: &[C]) -> Vec<&str> {
    claims.iter().map(|claim| &claim.key()[..]).collect()
}

async fn claimed_entry_is_exclusive_until_its_lease_expires<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b", "c"]).await;
    let claims = dict.claim_expired(2, soon()).await;
    assert_eq!(keys(&claims), ["a", "b"]);
    assert_eq!((*claims[1].value(), dict.get("a").await), (1, Some(0)));
    assert_eq!(format!("{:?}", claims[1]), "Claim { key: \"b\", value: 1, .. }");
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.take_expired(9).await, [entry("c", 2)]);
    assert_eq!(keys(&dict.claim_expired(9, soon()).await), [""; 0]);
    assert_eq!(dict.len().await, 2);
    sleep(soon() + MILLI).await;
    let mut again = dict.take_expired(9).await;
    again.sort();
    assert_eq!(again, [entry("a", 0), entry("b", 1)]);
    for claim in claims {
        assert!(!claim.ack().await, "another caller has taken the entry");
    }
}

async fn ack_removes_the_entry<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b"]).await;
    let mut claims = dict.claim_expired(9, soon()).await;
    assert!(claims.pop().unwrap().ack().await);
    assert_eq!(dict.get("a").await, Some(0));
    assert_eq!(dict.get("b").await, None);
    // An ack after the end of the lease, before another caller got the entry.
    sleep(soon() + MILLI).await;
    dict.set("c".into(), 2, Duration::ZERO).await;
    assert_eq!(dict.take_expired(0).await, NONE);
    assert!(claims.pop().unwrap().ack().await);
    assert_eq!(dict.take_expired(9).await, [entry("c", 2)]);
    assert!(dict.is_empty().await);
}

async fn only_the_latest_claim_on_an_entry_can_be_acked<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a"]).await;
    let first = dict.next_claim(MILLI).await;
    sleep(2 * MILLI).await;
    // Even if the later claim was returned.
    drop(dict.next_claim(LONG).await);
    wait_for_tasks().await;
    assert!(!first.ack().await);
    let first = dict.next_claim(MILLI).await;
    sleep(2 * MILLI).await;
    let second = dict.next_claim(LONG).await;
    assert!(!first.extend(Duration::ZERO).await);
    drop(first);
    wait_for_tasks().await;
    let more = dict.claim_expired(9, LONG).await;
    assert!(more.is_empty(), "the void claim returns nothing");
    assert!(second.ack().await);
    assert!(dict.is_empty().await);
}

async fn dropped_claim_returns_the_entry<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b"]).await;
    drop(dict.claim_expired(1, LONG).await);
    sleep(BACKOFF).await;
    let mut claims = dict.claim_expired(9, LONG).await;
    claims.sort_by_key(|claim| claim.key().clone());
    assert_eq!(keys(&claims), ["a", "b"]);
    let mut claims = claims.into_iter();
    // An ack that is dropped before its first poll.
    drop(claims.next().unwrap().ack());
    sleep(2 * BACKOFF).await;
    assert_eq!(dict.take_expired(9).await, [entry("a", 0)]);
    // A panic, and an aborted task.
    let claim = claims.next().unwrap();
    let task = tokio::spawn(async move {
        let _claim = claim;
        panic!("expected panic of the worker");
    });
    assert!(task.await.is_err());
    let claim = dict.next_claim(LONG).await;
    let task = tokio::spawn(async move {
        let _claim = claim;
        std::future::pending::<()>().await;
    });
    yield_now().await;
    assert!(dict.claim_expired(9, LONG).await.is_empty());
    task.abort();
    assert!(task.await.is_err());
    sleep(2 * BACKOFF).await;
    assert_eq!(dict.take_expired(9).await, [entry("b", 1)]);
}

async fn leaked_claim_is_delivered_again_after_its_lease<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b"]).await;
    let start = Instant::now();
    for lease in [soon(), Duration::MAX] {
        let claims = dict.claim_expired(1, lease).await;
        claims.into_iter().for_each(std::mem::forget);
    }
    assert_eq!(dict.next_expired().await, entry("a", 0));
    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
    assert_eq!(dict.take_expired(9).await, NONE, "an endless lease never expires");
    assert_eq!(dict.remove("b").await, Some(1));
}

async fn extend_changes_the_end_of_the_lease<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a"]).await;
    let claim = dict.next_claim(soon()).await;
    assert!(claim.extend(3 * soon()).await);
    sleep(soon() + MILLI).await;
    assert!(dict.claim_expired(9, soon()).await.is_empty());
    sleep(2 * soon()).await;
    // The lease has expired, but no other caller has the entry.
    dict.set("b".into(), 1, Duration::ZERO).await;
    assert_eq!(dict.take_expired(0).await, NONE);
    assert!(claim.extend(LONG).await);
    assert_eq!(dict.take_expired(9).await, [entry("b", 1)]);
    // A lease can be shortened, too.
    assert!(claim.extend(Duration::MAX).await);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert!(claim.extend(Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [entry("a", 0)]);
    assert!(!claim.extend(LONG).await);
}

async fn lease_of_zero_expires_immediately<D: Dict>() {
    let dict = dict_with_due::<D, _>(["a", "b"]).await;
    let first = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(keys(&first), ["a", "b"], "one call returns each entry once");
    let second = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(second.len(), 2);
    for claim in first {
        assert!(!claim.ack().await);
    }
    for claim in second {
        assert!(claim.ack().await);
    }
}

async fn every_change_of_the_entry_makes_its_claim_void<D: Dict>() {
    for change in 0..6 {
        for is_expired in [false, true] {
            let dict = dict_with_due::<D, _>(["a"]).await;
            let lease = match (is_expired, change) {
                (true, _) => MILLI,
                // As endless as the new deadline, so that both have the same score.
                (false, 2 | 5) => Duration::MAX,
                (false, _) => LONG,
            };
            let mut claims = dict.claim_expired(9, lease).await;
            if is_expired {
                sleep(2 * MILLI).await;
            }
            match change {
                0 => assert_eq!(dict.set("a".into(), 7, LONG).await, Some(0)),
                1 => assert!(dict.set_timeout("a", LONG).await),
                2 => assert!(dict.remove_timeout("a").await),
                3 => assert_eq!(dict.remove("a").await, Some(0)),
                4 => dict.clear().await,
                _ => assert!(dict.set_timeout("a", Duration::MAX).await),
            }
            let value = dict.get("a").await;
            let is_persistent = dict.ttl("a").await == Ttl::Persistent;
            let claim = claims.pop().unwrap();
            assert!(!claim.extend(1_000 * LONG).await);
            if is_expired {
                drop(claim);
                wait_for_tasks().await;
            } else {
                assert!(!claim.ack().await);
            }
            assert_eq!(dict.get("a").await, value, "change {change}");
            assert_eq!(dict.ttl("a").await == Ttl::Persistent, is_persistent);
            assert_eq!(dict.take_expired(9).await, NONE);
            // The claim has no effect on a new entry of the key.
            dict.set("a".into(), 9, Duration::ZERO).await;
            assert_eq!(dict.take_expired(9).await, [entry("a", 9)]);
        }
    }
}
