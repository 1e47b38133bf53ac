//! Dead letters with reasons, released claims, and `set_nx`.

use std::{mem::forget, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use tokio::time::{Instant, advance};

use super::due::keys;

type Dict = TimeoutDict<&'static str, u32>;

const SECOND: Duration = Duration::from_secs(1);

async fn dict_with_due(max_attempts: u32, keys: &[&'static str]) -> Dict {
    let dict = Dict::builder().max_attempts(max_attempts).build();
    for (value, &key) in (0..).zip(keys) {
        dict.set(key, value, Duration::ZERO).await;
    }
    dict
}

/// Claims the entry after its backoff.
async fn claim(dict: &Dict) -> Claim<&'static str, u32> {
    advance(120 * SECOND).await;
    dict.claim_expired(1, SECOND).await.pop().expect("an entry is due")
}

async fn reasons(dict: &Dict) -> Vec<Option<String>> {
    dict.dead_letters(9).await.into_iter().map(|letter| letter.reason).collect()
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_listed_oldest_first_and_stay() {
    let dict = dict_with_due(1, &["a", "b", "c", "d"]).await;
    assert_eq!(dict.dead_letters(9).await, []);
    let mut claims = dict.claim_expired(3, 10 * SECOND).await;
    assert!(claims.remove(2).fail("c fails first").await);
    claims.into_iter().for_each(forget);
    advance(10 * SECOND).await;
    assert_eq!(dict.dead_letters(0).await, []);
    for max in [1, 2, 9] {
        let letters = dict.dead_letters(max).await;
        let listed: Vec<_> = letters.iter().map(|l| (l.key, l.value, l.attempts)).collect();
        assert_eq!(listed, [("c", 2, 1), ("a", 0, 1), ("b", 1, 1)][..max.min(3)]);
    }
    assert_eq!(reasons(&dict).await, [Some("c fails first".to_owned()), None, None]);
    assert_eq!((dict.dead_len().await, dict.len().await), (3, 4));
    assert_eq!(dict.take_dead(9).await, [("c", 2), ("a", 0), ("b", 1)]);
    assert_eq!(dict.dead_letters(9).await, []);
}

#[tokio::test(start_paused = true)]
async fn many_dead_letters_are_listed_in_order() {
    let dict = TimeoutDict::builder().max_attempts(1).build();
    for key in 0..2_000_u32 {
        dict.set(key, (), Duration::ZERO).await;
    }
    for claim in dict.claim_expired(usize::MAX, SECOND).await.into_iter().rev() {
        let reason = claim.key().to_string();
        assert!(claim.fail(reason).await);
    }
    let letters = dict.dead_letters(1_500).await;
    let keys: Vec<_> = letters.iter().map(|letter| letter.key).collect();
    assert_eq!(keys, (500..2_000).rev().collect::<Vec<_>>());
    assert!(letters.iter().all(|l| l.reason == Some(l.key.to_string())));
    let taken: Vec<_> = dict.take_dead(9_999).await.into_iter().map(|(key, ())| key).collect();
    assert_eq!(taken, (0..2_000).rev().collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn reason_is_that_of_the_last_failed_attempt_that_had_one() {
    let dict = dict_with_due(3, &["a"]).await;
    claim(&dict).await.fail("first").await;
    claim(&dict).await.fail(String::from("second")).await;
    drop(claim(&dict).await);
    let letter = dict.dead_letters(9).await.remove(0);
    assert_eq!((letter.attempts, letter.reason.as_deref()), (3, Some("second")));
}

#[tokio::test(start_paused = true)]
async fn set_revive_and_removal_clear_the_reason() {
    let clears: [fn(&Dict); 6] = [
        |dict| assert!(dict.set("a", 1, Duration::ZERO).now_or_never().unwrap().is_some()),
        |dict| assert!(dict.revive("a", Duration::ZERO).now_or_never().unwrap()),
        |dict| assert_eq!(dict.take_dead(9).now_or_never().unwrap().len(), 1),
        |dict| assert!(dict.remove("a").now_or_never().unwrap().is_some()),
        |dict| dict.clear().now_or_never().unwrap(),
        |dict| {
            assert!(dict.revive("a", Duration::ZERO).now_or_never().unwrap());
            assert_eq!(dict.take_expired(9).now_or_never().unwrap().len(), 1);
        },
    ];
    for (index, clear) in clears.into_iter().enumerate() {
        let dict = dict_with_due(1, &["a"]).await;
        assert!(claim(&dict).await.fail("full").await);
        assert_eq!(reasons(&dict).await, [Some("full".to_owned())]);
        clear(&dict);
        assert_eq!(dict.dead_letters(9).await, []);
        dict.set_nx("a", 2, Duration::ZERO).await;
        drop(claim(&dict).await);
        assert_eq!(reasons(&dict).await, [None], "call {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn new_deadline_keeps_the_reason() {
    let dict = dict_with_due(2, &["a"]).await;
    assert!(claim(&dict).await.fail("full").await);
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert!(dict.remove_timeout("a").await);
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    drop(claim(&dict).await);
    assert_eq!(reasons(&dict).await, [Some("full".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn long_reason_is_cut_at_a_character_boundary() {
    let ascii = "x".repeat(1_025);
    let cases = [
        (String::new(), String::new()),
        ("x".repeat(1_024), "x".repeat(1_024)),
        (ascii, "x".repeat(1_024)),
        // 512 of two bytes fit; of three bytes, 341; after one byte, 255 of four bytes.
        ("ä".repeat(600), "ä".repeat(512)),
        ("€".repeat(600), "€".repeat(341)),
        (format!("x{}", "🦀".repeat(600)), format!("x{}", "🦀".repeat(255))),
    ];
    for (given, expected) in cases {
        let dict = dict_with_due(1, &["a"]).await;
        assert!(claim(&dict).await.fail(given).await);
        assert_eq!(reasons(&dict).await, [Some(expected)]);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_claim_is_delivered_again_after_its_backoff() {
    let dict = dict_with_due(u32::MAX, &["a"]).await;
    assert!(claim(&dict).await.fail("busy").await);
    let Ttl::Remaining(backoff) = dict.ttl("a").await else { panic!("the entry has no deadline") };
    assert!((SECOND / 2..=SECOND * 2).contains(&backoff), "{backoff:?}");
    assert_eq!(claim(&dict).await.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn fail_of_a_void_claim_records_nothing() {
    let dict = dict_with_due(1, &["a"]).await;
    let void = claim(&dict).await;
    dict.set("a", 1, Duration::ZERO).await;
    assert!(!void.fail("void").await);
    drop(claim(&dict).await);
    assert_eq!(reasons(&dict).await, [None]);
    // Of a claim whose entry was removed and whose slot has another entry.
    let dict = dict_with_due(1, &["a"]).await;
    let void = claim(&dict).await;
    dict.clear().await;
    dict.set("b", 1, Duration::ZERO).await;
    assert!(!void.fail("void").await);
    drop(claim(&dict).await);
    assert_eq!(reasons(&dict).await, [None]);
}

#[tokio::test(start_paused = true)]
async fn fail_after_the_end_of_the_lease_records_its_reason() {
    for end_is_noticed in [false, true] {
        let dict = dict_with_due(1, &["a"]).await;
        let late = claim(&dict).await;
        advance(SECOND).await;
        if end_is_noticed {
            assert_eq!(reasons(&dict).await, [None]);
        }
        assert!(late.fail("slow").await);
        assert_eq!(reasons(&dict).await, [Some("slow".to_owned())]);
        assert_eq!(dict.dead_len().await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_fail_and_release_are_failed_attempts_without_reason() {
    let dict = dict_with_due(2, &["a"]).await;
    drop(claim(&dict).await.fail("never polled"));
    assert_eq!(dict.claim_expired(9, SECOND).await.len(), 0, "it waits for its backoff");
    let again = claim(&dict).await;
    assert_eq!(again.attempts(), 2);
    drop(again.release());
    assert_eq!(reasons(&dict).await, [None]);
}

#[tokio::test(start_paused = true)]
async fn released_entry_is_due_immediately_without_a_failed_attempt() {
    let dict = dict_with_due(2, &["a", "b"]).await;
    for _ in 0..9 {
        let claims = dict.claim_expired(1, SECOND).await;
        assert_eq!((keys(&claims)[0], claims[0].attempts()), ("a", 1));
        for claim in claims {
            assert!(claim.release().await);
        }
        assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    }
    drop(dict.claim_expired(1, SECOND).await);
    dict.remove("b").await;
    // Earlier failed attempts still count.
    let second = claim(&dict).await;
    assert_eq!(second.attempts(), 2);
    assert!(second.release().await);
    assert_eq!(dict.dead_len().await, 0);
    let second = claim(&dict).await;
    assert_eq!(second.attempts(), 2);
    drop(second);
    assert_eq!(dict.dead_len().await, 1);
}

#[tokio::test(start_paused = true)]
async fn release_wakes_a_waiter() {
    let dict = dict_with_due(1, &["a"]).await;
    let held = dict.next_claim(60 * SECOND).await;
    let mut waiter = Box::pin(dict.next_claim(SECOND));
    assert!(waiter.as_mut().now_or_never().is_none());
    let start = Instant::now();
    assert!(held.release().await);
    assert_eq!((waiter.await.attempts(), start.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn release_after_the_end_of_the_lease_undoes_the_delivery() {
    for end_is_noticed in [false, true] {
        let dict = dict_with_due(1, &["a"]).await;
        let late = claim(&dict).await;
        advance(SECOND).await;
        if end_is_noticed {
            assert_eq!(dict.dead_len().await, 1);
        }
        assert!(late.release().await);
        assert_eq!(dict.dead_len().await, 0);
        let late = claim(&dict).await;
        assert_eq!(late.attempts(), 1);
        // Void after another caller got the entry.
        assert!(dict.set_timeout("a", Duration::ZERO).now_or_never().is_some());
        assert!(!late.release().await);
    }
}

#[tokio::test(start_paused = true)]
async fn set_nx_sets_only_keys_without_an_entry() {
    let dict = Dict::builder().max_attempts(1).build();
    assert!(dict.set_nx("a", 1, SECOND).await);
    assert!(!dict.set_nx("a", 2, Duration::MAX).await);
    assert_eq!((dict.get("a").await, dict.ttl("a").await), (Some(1), Ttl::Remaining(SECOND)));
    advance(SECOND).await;
    assert!(!dict.set_nx("a", 2, SECOND).await, "it is due");
    let claim = dict.next_claim(SECOND).await;
    assert!(!dict.set_nx("a", 2, SECOND).await, "it is claimed");
    assert!(claim.extend(SECOND).await, "the claim stays valid");
    drop(claim);
    assert!(!dict.set_nx("a", 2, SECOND).await, "it is dead");
    assert_eq!(dict.take_dead(9).await, [("a", 1)]);
    assert!(dict.set_nx("a", 2, Duration::ZERO).await);
    assert!(dict.next_claim(SECOND).await.ack().await);
    assert!(dict.set_nx("a", 3, Duration::ZERO).await);
    assert_eq!(dict.next_expired().await, ("a", 3));
}

#[tokio::test(start_paused = true)]
async fn set_nx_wakes_a_waiter() {
    let dict = Dict::new();
    let mut waiter = Box::pin(dict.next_expired());
    assert!(waiter.as_mut().now_or_never().is_none());
    assert!(dict.set_nx("a", 1, Duration::ZERO).await);
    assert_eq!(waiter.await, ("a", 1));
}
