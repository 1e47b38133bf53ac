//! Calls of `TimeoutDict` and its claims.

use std::time::Duration;

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::lock::Mutex;
use tokio::time::{advance, sleep};

use crate::cancel::{Effect, Parts, at_each_await, calls, has_effect, with_effects};

type Dict = TimeoutDict<u32, u32>;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a dictionary with due entries, entries with and without a deadline, and a dead letter.
async fn filled() -> Dict {
    let dict = Dict::builder().backoff(SECOND, SECOND).max_attempts(2).build();
    dict.set(9, 19, Duration::ZERO).await;
    for _ in 0..2 {
        dict.set_timeout(&9, Duration::ZERO).await;
        drop(dict.claim_expired(1, SECOND).await);
    }
    assert_eq!(dict.dead_len().await, 1);
    for key in 0..3 {
        dict.set(key, 10 + key, Duration::ZERO).await;
    }
    dict.set(3, 13, 5 * SECOND).await;
    dict.set(4, 14, Duration::MAX).await;
    dict
}

async fn observe(dict: &Dict) -> Parts {
    let mut parts = Parts::new();
    for key in 0..10 {
        if let Some(value) = dict.get(&key).await {
            parts.insert(key.to_string(), format!("{value} {:?}", dict.ttl(&key).await));
        }
    }
    parts.insert("dead".into(), format!("{:?}", dict.dead_letters(9).await));
    // Each entry that no caller holds.
    let mut due: Vec<_> = dict.take_expired(9).await;
    due.sort();
    parts.insert("due".into(), format!("{due:?}"));
    parts
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_has_its_whole_effect_or_none() {
    let changes = calls! { dict: Dict;
        dict.set(0, 1, SECOND), dict.set(8, 1, SECOND), dict.set_nx(8, 1, SECOND), dict.set_timeout(&0, SECOND),
        dict.remove_timeout(&3), dict.remove(&0), dict.clear(), dict.revive(&9, SECOND),
    };
    let reads = calls! { dict: Dict;
        dict.get(&0), dict.contains_key(&0), dict.ttl(&3), dict.len(), dict.is_empty(), dict.dead_letters(2),
        dict.dead_len(), dict.set_nx(0, 1, SECOND), dict.revive(&0, SECOND),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        has_effect(effect, name, filled, async |dict| call(dict).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_take_has_taken_nothing() {
    let calls = calls! { dict: Dict; dict.take_expired(2), dict.take_dead(2) };
    for (name, call) in calls {
        has_effect(Effect::Nothing, name, filled, async |dict| call(dict).await, observe).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_claim_expired_or_next_claim_has_claimed_nothing() {
    let calls =
        calls! { dict: Dict; dict.claim_expired(2, 60 * SECOND), dict.next_claim(60 * SECOND) };
    for (name, call) in calls {
        let call = async |dict: &Dict| call(dict).await;
        at_each_await(filled, call, async |dict, reply, schedule| {
            // A reply is dropped with its claims, so their entries wait for the backoff.
            let due = dict.take_expired(9).await.len();
            match reply {
                None => assert_eq!(due, 3, "{name}, {schedule:?}"),
                Some(_) => assert!(due < 3, "{name}, {schedule:?}"),
            }
            advance(2 * SECOND).await;
            assert_eq!(due + dict.take_expired(9).await.len(), 3, "{name}, {schedule:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_has_taken_nothing_and_later_waiters_move_up() {
    let calls = calls! { dict: Dict; dict.next_expired(), dict.next_claim(60 * SECOND) };
    for (name, call) in calls {
        let new = async || {
            let dict = Dict::new();
            let writer = dict.clone();
            tokio::spawn(async move {
                sleep(SECOND).await;
                writer.set(0, 1, SECOND).await;
            });
            dict
        };
        let call = async |dict: &Dict| call(dict).await;
        at_each_await(new, call, async |dict, reply, schedule| {
            if reply.is_some() {
                dict.set(0, 1, Duration::ZERO).await;
            }
            assert_eq!(dict.next_expired().await, (0, 1), "{name}, {schedule:?}");
        })
        .await;
    }
}

type Held = (Dict, Mutex<Option<Claim<u32, u32>>>);

async fn held() -> Held {
    let dict = Dict::builder().backoff(SECOND, SECOND).build();
    dict.set(0, 10, Duration::ZERO).await;
    let claim = dict.next_claim(60 * SECOND).await;
    (dict, Mutex::new(Some(claim)))
}

#[tokio::test(start_paused = true)]
async fn cancelled_end_of_a_claim_is_a_failed_attempt() {
    for end in ["ack", "retry_in", "fail", "release"] {
        let call = async |(_, claim): &Held| {
            let claim = claim.lock().await.take().expect("called once");
            match end {
                "ack" => claim.ack().await,
                "retry_in" => claim.retry_in(9 * SECOND).await,
                "fail" => claim.fail("no reason").await,
                _ => claim.release().await,
            }
        };
        at_each_await(held, call, async |(dict, claim), reply, schedule| {
            // Without a poll, the claim is still held.
            drop(claim);
            let ttl = dict.ttl(&0).await;
            match (end, reply) {
                (_, None) | ("fail", _) => {
                    let Ttl::Remaining(backoff) = ttl else {
                        panic!("{end}, {schedule:?}: {ttl:?}")
                    };
                    assert!(backoff >= SECOND / 2 && backoff <= 2 * SECOND, "{end}, {schedule:?}");
                    advance(2 * SECOND).await;
                    assert_eq!(dict.next_claim(SECOND).await.attempts(), 2, "{end}, {schedule:?}");
                }
                ("ack", _) => assert_eq!(ttl, Ttl::Missing),
                ("retry_in", _) => assert_eq!(ttl, Ttl::Remaining(9 * SECOND)),
                _ => assert_eq!(ttl, Ttl::Remaining(Duration::ZERO)),
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_extend_leaves_the_lease_unchanged() {
    let call = async |(_, claim): &Held| {
        let claim = claim.lock().await;
        let claim = claim.as_ref().expect("it is never taken");
        claim.extend(5 * SECOND).await
    };
    at_each_await(held, call, async |(dict, _claim), reply, schedule| {
        advance(6 * SECOND).await;
        let due = dict.take_expired(1).await;
        assert_eq!(due.len(), usize::from(reply.is_some()), "{schedule:?}");
    })
    .await;
}
