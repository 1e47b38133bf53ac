//! What fails comes again, later each time and not for ever.

use std::{mem::forget, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use tokio::time::{Instant, advance, timeout};

use super::due::keys;

type Dict = TimeoutDict<&'static str, u32>;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);

async fn due(max_attempts: u32, keys: &[&'static str]) -> Dict {
    let dict = Dict::builder().max_attempts(max_attempts).build();
    for (value, &key) in (0..).zip(keys) {
        dict.set(key, value, Duration::ZERO).await;
    }
    dict
}

/// Ends a claim otherwise than by an ack, and waits until its entry is due again.
async fn fail(claim: Claim<&'static str, u32>, way: u32) {
    match way {
        0 => drop(claim),
        1 => assert!(claim.retry_in(Duration::ZERO).await),
        2 => drop(claim.ack()),
        3 => drop(claim.retry_in(SECOND)),
        _ => forget(claim),
    }
    advance(120 * SECOND).await;
}

const WAYS: u32 = 5;

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_lets_others_be_done() {
    let dict = due(u32::MAX, &["bad", "good"]).await;
    let mut attempts = 0;
    let work = async {
        loop {
            let job = dict.next_claim(60 * SECOND).await;
            if *job.key() == "good" {
                job.ack().await;
            } else {
                attempts += 1;
            }
        }
    };
    assert!(timeout(2 * SECOND, work).await.is_err());
    assert_eq!(dict.get("good").await, None);
    assert!((1..=4).contains(&attempts), "it was tried {attempts} times in two seconds");
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_comes_again_later_each_time() {
    let dict = due(u32::MAX, &["a"]).await;
    let mut last = Instant::now();
    for attempts in 1..12 {
        let claim = dict.next_claim(SECOND).await;
        assert_eq!(claim.attempts(), attempts);
        let backoff = SECOND * 2_u32.pow(attempts - 1).min(60) / 2;
        if attempts > 1 {
            let before = SECOND * 2_u32.pow(attempts - 2).min(60);
            assert!((before / 2..=before * 2).contains(&last.elapsed()), "{:?}", last.elapsed());
        }
        last = Instant::now();
        drop(claim);
        advance(backoff - NANO).await;
        assert!(dict.claim_expired(9, SECOND).await.is_empty());
        assert_eq!(dict.take_expired(9).await, []);
    }
    // In the middle of a backoff it is as any other.
    assert!(matches!(dict.ttl("a").await, Ttl::Remaining(left) if left > Duration::ZERO));
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.next_claim(SECOND).await.attempts(), 12);
}

#[tokio::test(start_paused = true)]
async fn with_a_seed_the_jitter_is_the_same_each_time() {
    let mut delays = Vec::new();
    for seed in [7, 7, 8] {
        let dict = Dict::builder().seed(seed).build();
        dict.set("a", 0, Duration::ZERO).await;
        drop(dict.next_claim(SECOND).await);
        delays.push(dict.ttl("a").await);
    }
    assert!(delays[0] == delays[1] && delays[0] != delays[2], "{delays:?}");
}

#[tokio::test(start_paused = true)]
async fn what_comes_again_is_behind_what_is_due_by_then() {
    let dict = TimeoutDict::builder().backoff(Duration::ZERO, Duration::ZERO).build();
    for key in ["a", "b", "c"] {
        dict.set(key, 0, Duration::ZERO).await;
    }
    drop(dict.next_claim(SECOND).await);
    assert_eq!(keys(&dict.claim_expired(9, SECOND).await), ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_the_backoff_is_over() {
    let dict = due(u32::MAX, &["a"]).await;
    drop(dict.next_claim(SECOND).await);
    let Ttl::Remaining(backoff) = dict.ttl("a").await else { panic!("it never comes") };
    let start = Instant::now();
    let claim = dict.next_claim(SECOND).await;
    // The timer's steps are milliseconds.
    assert!((backoff..backoff + 2 * MILLI).contains(&start.elapsed()), "{:?}", start.elapsed());
    // Sooner than a waiter slept for.
    let mut waiter = Box::pin(dict.next_expired());
    assert!(waiter.as_mut().now_or_never().is_none());
    assert!(claim.retry_in(Duration::from_millis(10)).await);
    let start = Instant::now();
    assert_eq!(waiter.await, ("a", 0));
    assert_eq!(start.elapsed(), Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn retry_in_says_when() {
    let dict = due(u32::MAX, &["a", "b"]).await;
    let mut claims = dict.claim_expired(9, SECOND).await;
    assert!(claims.pop().unwrap().retry_in(Duration::MAX).await);
    assert_eq!(dict.ttl("b").await, Ttl::Persistent, "it never comes");
    assert!(claims.pop().unwrap().retry_in(10 * SECOND).await);
    advance(10 * SECOND - NANO).await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    advance(NANO).await;
    let claim = dict.next_claim(SECOND).await;
    assert_eq!((*claim.key(), claim.attempts()), ("a", 2));
    // Of a claim that is void.
    dict.set("a", 7, SECOND).await;
    assert!(!claim.retry_in(Duration::ZERO).await);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(SECOND));
    // Of one whose lease is over, as long as nobody else has the entry.
    advance(SECOND).await;
    let claim = dict.next_claim(SECOND).await;
    advance(SECOND).await;
    assert!(claim.retry_in(5 * SECOND).await);
    assert_eq!(dict.take_expired(9).await, []);
    advance(5 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 7)]);
}

#[tokio::test(start_paused = true)]
async fn each_delivery_that_is_not_acked_is_a_failure_and_the_last_is_for_good() {
    for way in 0..WAYS {
        let dict = due(3, &["a", "b"]).await;
        dict.set("b", 1, Duration::MAX).await;
        for attempts in 1..=3 {
            assert_eq!(dict.dead_len().await, 0);
            let claim = dict.next_claim(SECOND).await;
            assert_eq!((*claim.key(), claim.attempts()), ("a", attempts), "way {way}");
            fail(claim, way).await;
        }
        assert_eq!((dict.dead_len().await, dict.len().await), (1, 2), "way {way}");
        assert_eq!(dict.get("a").await, Some(0));
        assert!(dict.contains_key("a").await);
        assert_eq!(dict.ttl("a").await, Ttl::Persistent);
        assert!(dict.claim_expired(9, SECOND).await.is_empty());
        assert_eq!(dict.take_expired(9).await, []);
        assert!(dict.next_expired().now_or_never().is_none());
        assert!(!dict.set_timeout("a", Duration::ZERO).await, "only a revival lets it come");
        assert!(!dict.remove_timeout("a").await);
        assert_eq!(dict.take_dead(0).await, []);
        assert_eq!(dict.take_dead(9).await, [("a", 0)]);
        assert_eq!((dict.dead_len().await, dict.get("a").await), (0, None));
        assert_eq!(dict.take_dead(9).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_made_void_has_failed() {
    for lease in [SECOND, Duration::MAX] {
        let dict = due(2, &["a", "b"]).await;
        let mut claims = dict.claim_expired(9, lease).await;
        assert!(dict.set_timeout("a", Duration::ZERO).await);
        assert!(dict.remove_timeout("b").await);
        assert!(dict.set_timeout("b", Duration::ZERO).await);
        claims.extend(dict.claim_expired(9, lease).await);
        assert_eq!(claims.iter().map(Claim::attempts).collect::<Vec<_>>(), [1, 1, 2, 2]);
        assert!(!dict.set_timeout("a", Duration::ZERO).await, "it was the last");
        assert!(!dict.remove_timeout("b").await);
        assert_eq!((dict.dead_len().await, dict.next_expired().now_or_never()), (2, None));
        for claim in claims {
            assert!(!claim.ack().await);
        }
        assert_eq!(dict.take_dead(9).await, [("a", 0), ("b", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_dead_come_in_the_order_of_their_deaths() {
    let dict = due(1, &["a", "b", "c", "d"]).await;
    let mut claims = dict.claim_expired(9, 10 * SECOND).await;
    drop(claims.remove(2));
    claims.into_iter().for_each(forget);
    advance(10 * SECOND).await;
    assert_eq!(dict.take_dead(1).await, [("c", 2)]);
    assert_eq!(dict.take_dead(9).await, [("a", 0), ("b", 1), ("d", 3)]);
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_anew_begins_at_one() {
    let dict = due(2, &["a"]).await;
    let attempt = async |attempts| {
        let claim = dict.next_claim(SECOND).await;
        assert_eq!(claim.attempts(), attempts);
        fail(claim, 0).await;
    };
    assert!(!dict.revive("a", SECOND).await, "it is not dead");
    assert!(!dict.revive("none", SECOND).await);
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    assert!(dict.revive("a", SECOND).await);
    assert_eq!((dict.dead_len().await, dict.ttl("a").await), (0, Ttl::Remaining(SECOND)));
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    // Another value, of a dead entry and of one that failed.
    assert_eq!(dict.set("a", 7, Duration::ZERO).await, Some(0));
    assert_eq!(dict.dead_len().await, 0);
    attempt(1).await;
    dict.set("a", 8, Duration::ZERO).await;
    attempt(1).await;
    // Another deadline is the same job.
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    attempt(2).await;
    assert_eq!(dict.dead_len().await, 1);
    assert_eq!(dict.remove("a").await, Some(8));
    assert_eq!(dict.dead_len().await, 0);
    for key in ["a", "b"] {
        dict.set(key, 0, Duration::ZERO).await;
    }
    for _ in 0..2 {
        drop(dict.claim_expired(9, SECOND).await);
        advance(120 * SECOND).await;
    }
    assert_eq!(dict.dead_len().await, 2);
    dict.clear().await;
    assert_eq!((dict.dead_len().await, dict.take_dead(9).await), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn who_is_late_may_still_ack_what_is_dead() {
    for looked in [false, true] {
        let dict = due(1, &["a", "b", "c"]).await;
        let mut claims = dict.claim_expired(9, SECOND).await;
        advance(SECOND).await;
        if looked {
            assert_eq!(dict.dead_len().await, 3);
        }
        assert!(claims.pop().unwrap().ack().await);
        assert_eq!(dict.dead_len().await, 2);
        // A lease that is extended is one again, and its end is another.
        let claim = claims.pop().unwrap();
        assert_eq!(dict.ttl("b").await, Ttl::Persistent);
        assert!(claim.extend(SECOND).await);
        assert_eq!(dict.dead_len().await, 1);
        assert_eq!(dict.ttl("b").await, Ttl::Remaining(Duration::ZERO), "it lives, and is due");
        assert!(claim.retry_in(Duration::ZERO).await);
        assert_eq!(dict.take_dead(1).await, [("a", 0)]);
        assert!(!claims.pop().unwrap().ack().await);
        assert_eq!(dict.take_dead(9).await, [("b", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_brings_the_entry_back_at_once_whatever_its_claim_does() {
    for looked in [false, true] {
        let dict = due(u32::MAX, &["a"]).await;
        let claim = dict.next_claim(SECOND).await;
        advance(SECOND).await;
        if looked {
            assert_eq!(dict.take_expired(0).await, []);
        }
        drop(claim);
        let again = dict.claim_expired(9, SECOND).await;
        assert_eq!((again.len(), again[0].attempts()), (1, 2));
    }
}

#[test]
fn a_claim_may_be_dropped_where_there_is_no_runtime() {
    for paused in [false, true] {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(paused).build().unwrap()
        };
        let first = runtime();
        let (dict, [here, there]) = first.block_on(async {
            let dict = due(1, &["a", "b"]).await;
            let claims = dict.claim_expired(9, SECOND).await;
            (dict, <[_; 2]>::try_from(claims).unwrap())
        });
        drop(here);
        drop(first);
        std::thread::spawn(move || drop(there)).join().unwrap();
        assert_eq!(runtime().block_on(dict.take_dead(9)), [("a", 0), ("b", 1)]);
    }
}

#[test]
fn settings_are_checked() {
    let builder = Dict::builder;
    for (set, said) in [
        (|| drop(Dict::builder().max_attempts(0)), "max_attempts must be at least 1, got 0"),
        (
            || drop(Dict::builder().backoff(2 * SECOND, SECOND)),
            "backoff: first must not be longer than max, got 2s and 1s",
        ),
    ] as [(fn(), &str); 2]
    {
        let panic = std::panic::catch_unwind(set).unwrap_err();
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or(panic.downcast_ref::<&str>().copied());
        assert_eq!(message, Some(said));
    }
    let _: Dict = builder().backoff(SECOND, SECOND).max_attempts(1).build();
    let random = std::collections::hash_map::RandomState::new();
    let _: TimeoutDict<u8, u8, _> = TimeoutDict::builder().hasher(random).build();
}
