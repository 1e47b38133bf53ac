//! Failed attempts, their backoff, and entries that become dead letters.

use std::{mem::forget, time::Duration};

use fleeting::Ttl;
use futures::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep, timeout};

use super::{Claim, Dict, Embedded, LONG, NONE, OnRedis, entry};
use crate::clock::ms;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        failing_entry_does_not_block_others,
        dropped_claim_is_due_again_after_a_doubling_backoff,
        retry_in_sets_the_delay,
        entry_becomes_a_dead_letter_after_max_attempts_failures,
        claim_made_void_by_set_timeout_has_failed,
        take_dead_returns_the_oldest_dead_letters_first,
        attempts_restart_at_one_after_set_revive_and_ack,
        expired_claim_may_still_ack_a_dead_letter,
        entry_is_due_immediately_after_an_expired_lease_despite_a_dropped_claim,
        concurrent_take_dead_returns_each_dead_letter_once,
    }
}

/// First backoff: short for a fast test, but long enough that a busy machine completes a few calls in it.
fn first() -> Duration {
    ms(100)
}

async fn dict_with_due<D: Dict>(max_attempts: u32, keys: &[&str]) -> D {
    let dict = D::with_retries(first(), 4 * first(), max_attempts).await;
    for (value, key) in (0..).zip(keys) {
        dict.set(key.to_string(), value, Duration::ZERO).await;
    }
    dict
}

/// Waits for the tasks that return dropped claims.
async fn wait_for_tasks() {
    sleep(ms(30)).await;
}

/// Ends a claim in one of the ways that are not an ack, and makes its entry due again.
async fn fail<D: Dict>(dict: &D, claim: D::Claim, ending: u32) {
    let key = claim.key().clone();
    match ending {
        0 => drop(claim),
        1 => assert!(claim.retry_in(Duration::ZERO).await),
        2 => drop(claim.ack()),
        3 => drop(claim.retry_in(LONG)),
        _ => {
            assert!(claim.extend(Duration::ZERO).await);
            forget(claim);
        }
    }
    wait_for_tasks().await;
    // Skips the backoff.
    if let Ttl::Remaining(_) = dict.ttl(&key).await
        && ending != 4
    {
        assert!(dict.set_timeout(&key, Duration::ZERO).await);
    }
}

const ENDINGS: u32 = 5;

async fn failing_entry_does_not_block_others<D: Dict>() {
    let dict = dict_with_due::<D>(u32::MAX, &["failing", "healthy"]).await;
    let mut attempts = 0;
    let work = async {
        loop {
            let job = dict.next_claim(LONG).await;
            if *job.key() == "healthy" {
                job.ack().await;
            } else {
                attempts += 1;
                assert_eq!(job.attempts(), attempts);
            }
        }
    };
    assert!(timeout(3 * first(), work).await.is_err());
    assert_eq!(dict.get("healthy").await, None);
    assert!((1..=4).contains(&attempts), "{attempts} attempts");
}

async fn dropped_claim_is_due_again_after_a_doubling_backoff<D: Dict>() {
    let dict = dict_with_due::<D>(u32::MAX, &["a"]).await;
    for attempts in 1..5 {
        let claim = dict.next_claim(LONG).await;
        assert_eq!(claim.attempts(), attempts);
        let dropped = Instant::now();
        drop(claim);
        wait_for_tasks().await;
        let backoff = first() * 2_u32.pow(attempts - 1).min(4);
        let Ttl::Remaining(remaining) = dict.ttl("a").await else { panic!() };
        assert!(remaining <= 3 * backoff / 2, "{remaining:?} of {backoff:?}");
        assert!(remaining + dropped.elapsed() >= backoff / 2, "{remaining:?} of {backoff:?}");
        assert!(dict.claim_expired(9, LONG).await.is_empty());
        assert_eq!(dict.take_expired(9).await, NONE);
    }
    // `set_timeout` applies during a backoff, too.
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.next_claim(LONG).await.attempts(), 5);
}

async fn retry_in_sets_the_delay<D: Dict>() {
    let dict = dict_with_due::<D>(u32::MAX, &["a", "b"]).await;
    let mut claims = dict.claim_expired(9, LONG).await;
    assert!(claims.pop().unwrap().retry_in(Duration::MAX).await);
    assert_eq!(dict.ttl("b").await, Ttl::Persistent, "an endless delay makes the entry persistent");
    let start = Instant::now();
    assert!(claims.pop().unwrap().retry_in(3 * first()).await);
    assert!(dict.claim_expired(9, LONG).await.is_empty());
    let claim = dict.next_claim(LONG).await;
    assert!(start.elapsed() >= 3 * first(), "{:?}", start.elapsed());
    assert_eq!((&claim.key()[..], claim.attempts()), ("a", 2));
    // A void claim.
    dict.set("a".into(), 7, Duration::ZERO).await;
    assert!(!claim.retry_in(LONG).await);
    // A claim whose lease has expired, but whose entry no other caller has.
    let claim = dict.next_claim(ms(1)).await;
    assert_eq!(claim.attempts(), 1);
    sleep(ms(2)).await;
    assert!(claim.retry_in(LONG).await);
    assert_eq!(dict.take_expired(9).await, NONE);
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.next_claim(LONG).await.attempts(), 2);
}

async fn entry_becomes_a_dead_letter_after_max_attempts_failures<D: Dict>() {
    let endings = (0..ENDINGS).map(async |ending| {
        let dict = dict_with_due::<D>(3, &["a", "b"]).await;
        dict.set("b".into(), 1, Duration::MAX).await;
        for attempts in 1..=3 {
            assert_eq!(dict.dead_len().await, 0);
            let claim = dict.next_claim(LONG).await;
            assert_eq!((&claim.key()[..], claim.attempts()), ("a", attempts), "ending {ending}");
            assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
            fail(&dict, claim, ending).await;
        }
        assert_eq!((dict.dead_len().await, dict.len().await), (1, 2), "ending {ending}");
        assert_eq!(dict.get("a").await, Some(0));
        assert!(dict.contains_key("a").await);
        assert_eq!(dict.ttl("a").await, Ttl::Persistent);
        assert!(dict.claim_expired(9, LONG).await.is_empty());
        assert_eq!(dict.take_expired(9).await, NONE);
        assert!(dict.next_expired().now_or_never().is_none());
        assert!(
            !dict.set_timeout("a", Duration::ZERO).await,
            "only `revive` makes a dead letter due"
        );
        assert!(!dict.remove_timeout("a").await);
        assert_eq!(dict.take_dead(0).await, NONE);
        assert_eq!(dict.take_dead(9).await, [entry("a", 0)]);
        assert_eq!((dict.dead_len().await, dict.get("a").await), (0, None));
        assert_eq!(dict.take_dead(9).await, NONE);
        assert_eq!(dict.len().await, 1);
    });
    join_all(endings).await;
}

async fn claim_made_void_by_set_timeout_has_failed<D: Dict>() {
    for lease in [LONG, Duration::MAX] {
        let dict = dict_with_due::<D>(2, &["a", "b"]).await;
        let mut claims = dict.claim_expired(9, lease).await;
        assert!(dict.set_timeout("a", Duration::ZERO).await);
        assert!(dict.remove_timeout("b").await);
        assert!(dict.set_timeout("b", Duration::ZERO).await);
        sleep(ms(1)).await;
        claims.extend(dict.claim_expired(9, lease).await);
        let attempts: Vec<_> = claims.iter().map(|claim| claim.attempts()).collect();
        assert_eq!(attempts, [1, 1, 2, 2]);
        assert!(!dict.set_timeout("a", Duration::ZERO).await, "it was the last attempt");
        sleep(ms(1)).await;
        assert!(!dict.remove_timeout("b").await);
        sleep(ms(1)).await;
        assert_eq!(dict.dead_len().await, 2);
        assert_eq!(dict.take_expired(9).await, NONE);
        for claim in claims {
            assert!(!claim.ack().await);
        }
        assert_eq!(dict.take_dead(9).await, [entry("a", 0), entry("b", 1)]);
    }
}

async fn take_dead_returns_the_oldest_dead_letters_first<D: Dict>() {
    let dict = dict_with_due::<D>(1, &["a", "b", "c", "d"]).await;
    let mut claims = dict.claim_expired(9, 2 * first()).await;
    drop(claims.remove(2));
    claims.into_iter().for_each(forget);
    wait_for_tasks().await;
    assert_eq!(dict.dead_len().await, 1);
    sleep(2 * first()).await;
    assert_eq!(dict.dead_len().await, 4);
    assert_eq!(dict.take_dead(1).await, [entry("c", 2)]);
    let mut others = dict.take_dead(9).await;
    // Their leases ended at the same time.
    others.sort();
    assert_eq!(others, [entry("a", 0), entry("b", 1), entry("d", 3)]);
}

async fn attempts_restart_at_one_after_set_revive_and_ack<D: Dict>() {
    let dict = dict_with_due::<D>(2, &["a"]).await;
    let attempt = async |attempts| {
        let claim = dict.next_claim(LONG).await;
        assert_eq!(claim.attempts(), attempts);
        fail(&dict, claim, 0).await;
    };
    assert!(!dict.revive("a", LONG).await, "the entry is not a dead letter");
    assert!(!dict.revive("none", LONG).await);
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    assert!(dict.revive("a", Duration::ZERO).await);
    assert_eq!(dict.dead_len().await, 0);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    // `set` on a dead letter, and on an entry that has failed.
    assert_eq!(dict.set("a".into(), 7, Duration::ZERO).await, Some(0));
    assert_eq!(dict.dead_len().await, 0);
    attempt(1).await;
    dict.set("a".into(), 8, Duration::ZERO).await;
    attempt(1).await;
    // `set_timeout` keeps the attempts.
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    attempt(2).await;
    assert_eq!(dict.dead_len().await, 1);
    assert_eq!(dict.remove("a").await, Some(8));
    assert_eq!(dict.dead_len().await, 0);
    dict.set("a".into(), 9, Duration::ZERO).await;
    attempt(1).await;
    // `remove` and `ack` restart the attempts, too.
    dict.remove("a").await;
    dict.set("a".into(), 9, Duration::ZERO).await;
    attempt(1).await;
    assert!(dict.next_claim(LONG).await.ack().await);
    dict.set("a".into(), 9, Duration::ZERO).await;
    attempt(1).await;
    assert_eq!(dict.take_expired(9).await, [entry("a", 9)]);
    dict.set("a".into(), 9, Duration::ZERO).await;
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    dict.clear().await;
    assert_eq!((dict.dead_len().await, dict.take_dead(9).await), (0, vec![]));
    dict.set("a".into(), 9, Duration::ZERO).await;
    attempt(1).await;
}

async fn expired_claim_may_still_ack_a_dead_letter<D: Dict>() {
    let dict = dict_with_due::<D>(1, &["a", "b", "c"]).await;
    let mut claims = dict.claim_expired(9, ms(1)).await;
    sleep(ms(2)).await;
    assert_eq!(dict.dead_len().await, 3);
    assert!(claims.pop().unwrap().ack().await);
    assert_eq!(dict.dead_len().await, 2);
    // Extending an expired lease makes the entry live again.
    let claim = claims.pop().unwrap();
    assert!(claim.extend(LONG).await);
    assert_eq!(dict.dead_len().await, 1);
    assert!(!dict.revive("b", Duration::ZERO).await, "the entry is not a dead letter");
    assert!(claim.retry_in(Duration::ZERO).await);
    sleep(ms(1)).await;
    assert_eq!(dict.take_dead(1).await, [entry("a", 0)]);
    assert!(!claims.pop().unwrap().ack().await);
    assert_eq!(dict.take_dead(9).await, [entry("b", 1)]);
}

async fn entry_is_due_immediately_after_an_expired_lease_despite_a_dropped_claim<D: Dict>() {
    for observes_expiry in [false, true] {
        let dict = dict_with_due::<D>(u32::MAX, &["a"]).await;
        let claim = dict.next_claim(ms(1)).await;
        sleep(ms(2)).await;
        if observes_expiry {
            assert_eq!(dict.take_expired(0).await, NONE);
        }
        drop(claim);
        wait_for_tasks().await;
        let claims = dict.claim_expired(9, LONG).await;
        assert_eq!((claims.len(), claims[0].attempts()), (1, 2));
    }
}

async fn concurrent_take_dead_returns_each_dead_letter_once<D: Dict>() {
    let dict = D::with_retries(first(), first(), 1).await;
    for key in 0..300_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await;
    }
    dict.claim_expired(usize::MAX, Duration::ZERO).await.into_iter().for_each(forget);
    sleep(ms(10)).await;
    assert_eq!(dict.dead_len().await, 300);
    let takers = (0..4).map(|_| {
        let dict = dict.clone();
        tokio::spawn(async move {
            let mut taken = Vec::new();
            while dict.dead_len().await > 0 {
                taken.extend(dict.take_dead(7).await.into_iter().map(|entry| entry.1));
            }
            taken
        })
    });
    let taken = join_all(takers.collect::<Vec<_>>()).await;
    let mut taken: Vec<_> = taken.into_iter().flat_map(|taken| taken.unwrap()).collect();
    taken.sort();
    assert_eq!(taken, (0..300).collect::<Vec<_>>());
}
