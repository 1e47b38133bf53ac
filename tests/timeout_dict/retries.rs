//! Retries: backoff, number of attempts and dead entries.

use std::{mem::forget, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use tokio::time::{Instant, advance, timeout};

use super::due::keys;

type Dict = TimeoutDict<&'static str, u32>;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);

async fn dict_with_due(max_attempts: u32, keys: &[&'static str]) -> Dict {
    let dict = Dict::builder().max_attempts(max_attempts).build();
    for (value, &key) in (0..).zip(keys) {
        dict.set(key, value, Duration::ZERO).await;
    }
    dict
}

/// Ends a claim without an ack, and waits until its entry is due again.
async fn end_without_ack(claim: Claim<&'static str, u32>, ending: u32) {
    match ending {
        0 => drop(claim),
        1 => assert!(claim.retry_in(Duration::ZERO).await),
        2 => drop(claim.ack()),
        3 => drop(claim.retry_in(SECOND)),
        _ => forget(claim),
    }
    advance(120 * SECOND).await;
}

const ENDINGS: u32 = 5;

#[tokio::test(start_paused = true)]
async fn backoff_lets_other_jobs_run_before_a_failing_one() {
    let dict = dict_with_due(u32::MAX, &["bad", "good"]).await;
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
    assert!((1..=4).contains(&attempts), "{attempts} attempts in two seconds");
}

#[tokio::test(start_paused = true)]
async fn backoff_doubles_after_each_dropped_claim() {
    let dict = dict_with_due(u32::MAX, &["a"]).await;
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
    // During its backoff an entry can be changed as any other.
    assert!(matches!(dict.ttl("a").await, Ttl::Remaining(left) if left > Duration::ZERO));
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.next_claim(SECOND).await.attempts(), 12);
}

#[tokio::test(start_paused = true)]
async fn jitter_is_repeatable_with_a_seed() {
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
async fn failed_entry_with_zero_backoff_follows_other_due_entries() {
    let dict = TimeoutDict::builder().backoff(Duration::ZERO, Duration::ZERO).build();
    for key in ["a", "b", "c"] {
        dict.set(key, 0, Duration::ZERO).await;
    }
    drop(dict.next_claim(SECOND).await);
    assert_eq!(keys(&dict.claim_expired(9, SECOND).await), ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_is_woken_when_the_backoff_ends() {
    let dict = dict_with_due(u32::MAX, &["a"]).await;
    drop(dict.next_claim(SECOND).await);
    let Ttl::Remaining(backoff) = dict.ttl("a").await else { panic!("the entry has no deadline") };
    let start = Instant::now();
    let claim = dict.next_claim(SECOND).await;
    // Tokio's timer has a resolution of one millisecond.
    assert!((backoff..backoff + 2 * MILLI).contains(&start.elapsed()), "{:?}", start.elapsed());
    // `retry_in` with a time before the waiter's wake deadline.
    let mut waiter = Box::pin(dict.next_expired());
    assert!(waiter.as_mut().now_or_never().is_none());
    assert!(claim.retry_in(Duration::from_millis(10)).await);
    let start = Instant::now();
    assert_eq!(waiter.await, ("a", 0));
    assert_eq!(start.elapsed(), Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn retry_in_sets_the_next_delivery() {
    let dict = dict_with_due(u32::MAX, &["a", "b"]).await;
    let mut claims = dict.claim_expired(9, SECOND).await;
    assert!(claims.pop().unwrap().retry_in(Duration::MAX).await);
    assert_eq!(dict.ttl("b").await, Ttl::Persistent, "the entry is never due");
    assert!(claims.pop().unwrap().retry_in(10 * SECOND).await);
    advance(10 * SECOND - NANO).await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    advance(NANO).await;
    let claim = dict.next_claim(SECOND).await;
    assert_eq!((*claim.key(), claim.attempts()), ("a", 2));
    // `retry_in` of a void claim has no effect.
    dict.set("a", 7, SECOND).await;
    assert!(!claim.retry_in(Duration::ZERO).await);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(SECOND));
    // `retry_in` works after the end of the lease, until another caller gets the entry.
    advance(SECOND).await;
    let claim = dict.next_claim(SECOND).await;
    advance(SECOND).await;
    assert!(claim.retry_in(5 * SECOND).await);
    assert_eq!(dict.take_expired(9).await, []);
    advance(5 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 7)]);
}

#[tokio::test(start_paused = true)]
async fn entry_is_dead_after_max_attempts_deliveries_without_ack() {
    for ending in 0..ENDINGS {
        let dict = dict_with_due(3, &["a", "b"]).await;
        dict.set("b", 1, Duration::MAX).await;
        for attempts in 1..=3 {
            assert_eq!(dict.dead_len().await, 0);
            let claim = dict.next_claim(SECOND).await;
            assert_eq!((*claim.key(), claim.attempts()), ("a", attempts), "ending {ending}");
            end_without_ack(claim, ending).await;
        }
        assert_eq!((dict.dead_len().await, dict.len().await), (1, 2), "ending {ending}");
        assert_eq!(dict.get("a").await, Some(0));
        assert!(dict.contains_key("a").await);
        assert_eq!(dict.ttl("a").await, Ttl::Persistent);
        assert!(dict.claim_expired(9, SECOND).await.is_empty());
        assert_eq!(dict.take_expired(9).await, []);
        assert!(dict.next_expired().now_or_never().is_none());
        assert!(
            !dict.set_timeout("a", Duration::ZERO).await,
            "set_timeout does not revive a dead entry"
        );
        assert!(!dict.remove_timeout("a").await);
        assert_eq!(dict.take_dead(0).await, []);
        assert_eq!(dict.take_dead(9).await, [("a", 0)]);
        assert_eq!((dict.dead_len().await, dict.get("a").await), (0, None));
        assert_eq!(dict.take_dead(9).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn claim_made_void_by_a_new_deadline_is_a_failed_attempt() {
    for lease in [SECOND, Duration::MAX] {
        let dict = dict_with_due(2, &["a", "b"]).await;
        let mut claims = dict.claim_expired(9, lease).await;
        assert!(dict.set_timeout("a", Duration::ZERO).await);
        assert!(dict.remove_timeout("b").await);
        assert!(dict.set_timeout("b", Duration::ZERO).await);
        claims.extend(dict.claim_expired(9, lease).await);
        assert_eq!(claims.iter().map(Claim::attempts).collect::<Vec<_>>(), [1, 1, 2, 2]);
        assert!(!dict.set_timeout("a", Duration::ZERO).await, "it was the last allowed attempt");
        assert!(!dict.remove_timeout("b").await);
        assert_eq!((dict.dead_len().await, dict.next_expired().now_or_never()), (2, None));
        for claim in claims {
            assert!(!claim.ack().await);
        }
        assert_eq!(dict.take_dead(9).await, [("a", 0), ("b", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn take_dead_returns_entries_in_the_order_in_which_they_became_dead() {
    let dict = dict_with_due(1, &["a", "b", "c", "d"]).await;
    let mut claims = dict.claim_expired(9, 10 * SECOND).await;
    drop(claims.remove(2));
    claims.into_iter().for_each(forget);
    advance(10 * SECOND).await;
    assert_eq!(dict.take_dead(1).await, [("c", 2)]);
    assert_eq!(dict.take_dead(9).await, [("a", 0), ("b", 1), ("d", 3)]);
}

#[tokio::test(start_paused = true)]
async fn attempts_start_at_one_after_set_and_revive() {
    let dict = dict_with_due(2, &["a"]).await;
    let attempt = async |attempts| {
        let claim = dict.next_claim(SECOND).await;
        assert_eq!(claim.attempts(), attempts);
        end_without_ack(claim, 0).await;
    };
    assert!(!dict.revive("a", SECOND).await, "the entry is not dead");
    assert!(!dict.revive("none", SECOND).await);
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    assert!(dict.revive("a", SECOND).await);
    assert_eq!((dict.dead_len().await, dict.ttl("a").await), (0, Ttl::Remaining(SECOND)));
    for attempts in [1, 2] {
        attempt(attempts).await;
    }
    // A new value resets the attempts, both of a dead entry and of one that has failed.
    assert_eq!(dict.set("a", 7, Duration::ZERO).await, Some(0));
    assert_eq!(dict.dead_len().await, 0);
    attempt(1).await;
    dict.set("a", 8, Duration::ZERO).await;
    attempt(1).await;
    // A new deadline keeps the attempts.
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
async fn late_ack_of_a_dead_entry_succeeds() {
    for end_is_noticed in [false, true] {
        let dict = dict_with_due(1, &["a", "b", "c"]).await;
        let mut claims = dict.claim_expired(9, SECOND).await;
        advance(SECOND).await;
        if end_is_noticed {
            assert_eq!(dict.dead_len().await, 3);
        }
        assert!(claims.pop().unwrap().ack().await);
        assert_eq!(dict.dead_len().await, 2);
        // An extended lease is active again, and ends again.
        let claim = claims.pop().unwrap();
        assert_eq!(dict.ttl("b").await, Ttl::Persistent);
        assert!(claim.extend(SECOND).await);
        assert_eq!(dict.dead_len().await, 1);
        assert_eq!(
            dict.ttl("b").await,
            Ttl::Remaining(Duration::ZERO),
            "the entry is no longer dead, and is due"
        );
        assert!(claim.retry_in(Duration::ZERO).await);
        assert_eq!(dict.take_dead(1).await, [("a", 0)]);
        assert!(!claims.pop().unwrap().ack().await);
        assert_eq!(dict.take_dead(9).await, [("b", 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn ended_lease_makes_the_entry_due_immediately_without_backoff() {
    for end_is_noticed in [false, true] {
        let dict = dict_with_due(u32::MAX, &["a"]).await;
        let claim = dict.next_claim(SECOND).await;
        advance(SECOND).await;
        if end_is_noticed {
            assert_eq!(dict.take_expired(0).await, []);
        }
        drop(claim);
        let again = dict.claim_expired(9, SECOND).await;
        assert_eq!((again.len(), again[0].attempts()), (1, 2));
    }
}

#[test]
fn claim_may_be_dropped_outside_of_a_runtime() {
    for paused in [false, true] {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(paused).build().unwrap()
        };
        let first = runtime();
        let (dict, [here, there]) = first.block_on(async {
            let dict = dict_with_due(1, &["a", "b"]).await;
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
fn builder_panics_on_invalid_backoff_and_max_attempts() {
    let builder = Dict::builder;
    for (set, expected) in [
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
        assert_eq!(message, Some(expected));
    }
    let _: Dict = builder().backoff(SECOND, SECOND).max_attempts(1).build();
    let random_state = std::collections::hash_map::RandomState::new();
    let _: TimeoutDict<u8, u8, _> = TimeoutDict::builder().hasher(random_state).build();
}
