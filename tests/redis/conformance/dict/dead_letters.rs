//! Dead letters with reasons, released claims and `set_nx`.

use std::{mem::forget, time::Duration};

use fleeting::Ttl;
use tokio::time::sleep;

use super::{Claim, Dict, Embedded, LONG, OnRedis};
use crate::clock::ms;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        dead_letters_are_listed_oldest_first_and_stay,
        many_dead_letters_are_listed_in_order,
        reason_is_that_of_the_last_failed_attempt_that_had_one,
        set_revive_and_removal_clear_the_reason,
        new_deadline_keeps_the_reason,
        long_reason_is_cut_at_a_character_boundary,
        failed_claim_is_due_again_after_its_backoff,
        fail_of_a_void_claim_records_nothing,
        fail_after_the_end_of_the_lease_changes_nothing,
        unpolled_fail_and_release_are_failed_attempts_without_reason,
        released_entry_is_due_immediately_without_a_failed_attempt,
        release_after_the_end_of_the_lease_undoes_the_delivery,
        set_nx_sets_only_keys_without_an_entry,
    }
}

/// Longer than any test.
const BACKOFF: Duration = Duration::from_secs(10);

async fn dict_with_due<D: Dict>(max_attempts: u32, keys: &[&str]) -> D {
    let dict = D::with_retries(BACKOFF, BACKOFF, max_attempts).await;
    for (value, key) in (0..).zip(keys) {
        dict.set(key.to_string(), value, Duration::ZERO).await;
    }
    dict
}

/// Claims the entry `a`, without waiting for its backoff.
async fn claim_a<D: Dict>(dict: &D, lease: Duration) -> D::Claim {
    sleep(ms(1)).await;
    dict.set_timeout("a", Duration::ZERO).await;
    sleep(ms(1)).await;
    dict.claim_expired(1, lease).await.pop().expect("an entry is due")
}

/// Drops a claim and waits for the task that returns it.
async fn drop_claim(claim: impl Claim) {
    drop(claim);
    sleep(ms(30)).await;
}

async fn reasons(dict: &impl Dict) -> Vec<Option<String>> {
    dict.dead_letters(9).await.into_iter().map(|letter| letter.reason).collect()
}

async fn dead_letters_are_listed_oldest_first_and_stay<D: Dict>() {
    let dict = dict_with_due::<D>(1, &["a", "b", "c", "d"]).await;
    assert!(dict.dead_letters(9).await.is_empty());
    let mut claims = dict.claim_expired(3, ms(100)).await;
    assert!(claims.remove(2).fail("c fails first").await);
    claims.into_iter().for_each(forget);
    sleep(ms(120)).await;
    assert!(dict.dead_letters(0).await.is_empty());
    for max in [1, 2, 9, usize::MAX] {
        let letters = dict.dead_letters(max).await;
        let mut listed: Vec<_> =
            letters.iter().map(|l| (&l.key[..], l.value, l.attempts)).collect();
        assert_eq!(listed.len(), max.min(3));
        assert_eq!(listed.remove(0), ("c", 2, 1));
        // Their leases ended at the same time.
        assert!(listed.iter().all(|l| [("a", 0, 1), ("b", 1, 1)].contains(l)), "{listed:?}");
    }
    assert_eq!(reasons(&dict).await, [Some("c fails first".to_owned()), None, None]);
    assert_eq!((dict.dead_len().await, dict.len().await), (3, 4));
    assert_eq!(dict.take_dead(9).await.len(), 3);
    assert!(dict.dead_letters(9).await.is_empty());
}

async fn many_dead_letters_are_listed_in_order<D: Dict>() {
    let dict = D::with_retries(BACKOFF, BACKOFF, 1).await;
    for key in 0..200 {
        dict.set(key.to_string(), key, Duration::ZERO).await;
    }
    for claim in dict.claim_expired(usize::MAX, LONG).await.into_iter().rev() {
        let reason = claim.key().clone();
        assert!(claim.fail(reason).await);
    }
    for max in [17, 150, 201] {
        let letters = dict.dead_letters(max).await;
        let values: Vec<_> = letters.iter().map(|letter| letter.value).collect();
        assert_eq!(values, (0..200).rev().take(max).collect::<Vec<_>>());
        assert!(letters.iter().all(|l| l.reason.as_ref() == Some(&l.key)));
    }
    let taken: Vec<_> = dict.take_dead(999).await.into_iter().map(|(_, value)| value).collect();
    assert_eq!(taken, (0..200).rev().collect::<Vec<_>>());
}

async fn reason_is_that_of_the_last_failed_attempt_that_had_one<D: Dict>() {
    let dict = dict_with_due::<D>(3, &["a"]).await;
    assert!(claim_a(&dict, LONG).await.fail("first").await);
    assert!(claim_a(&dict, LONG).await.fail(String::from("second\n\0ä")).await);
    drop_claim(claim_a(&dict, LONG).await).await;
    let letter = dict.dead_letters(9).await.remove(0);
    assert_eq!((letter.attempts, letter.reason.as_deref()), (3, Some("second\n\0ä")));
}

async fn set_revive_and_removal_clear_the_reason<D: Dict>() {
    for call in 0..7 {
        let dict = dict_with_due::<D>(2, &["a"]).await;
        assert!(claim_a(&dict, LONG).await.fail("full").await);
        drop_claim(claim_a(&dict, LONG).await).await;
        assert_eq!(reasons(&dict).await, [Some("full".to_owned())]);
        match call {
            0 => assert!(dict.set("a".into(), 1, Duration::ZERO).await.is_some()),
            1 => assert!(dict.revive("a", Duration::ZERO).await),
            2 => assert_eq!(dict.take_dead(9).await.len(), 1),
            3 => assert!(dict.remove("a").await.is_some()),
            4 => dict.clear().await,
            5 => {
                assert!(dict.revive("a", Duration::ZERO).await);
                assert_eq!(dict.take_expired(9).await.len(), 1);
            }
            _ => {
                assert!(dict.revive("a", Duration::ZERO).await);
                assert!(claim_a(&dict, LONG).await.fail("again").await);
                assert!(claim_a(&dict, LONG).await.ack().await);
            }
        }
        assert!(dict.dead_letters(9).await.is_empty());
        dict.set_nx("a".into(), 2, Duration::ZERO).await;
        for _ in 0..2 {
            drop_claim(claim_a(&dict, LONG).await).await;
        }
        assert_eq!(reasons(&dict).await, [None], "call {call}");
    }
}

async fn new_deadline_keeps_the_reason<D: Dict>() {
    let dict = dict_with_due::<D>(2, &["a"]).await;
    assert!(claim_a(&dict, LONG).await.fail("full").await);
    assert!(dict.remove_timeout("a").await);
    drop_claim(claim_a(&dict, LONG).await).await;
    assert_eq!(reasons(&dict).await, [Some("full".to_owned())]);
}

async fn long_reason_is_cut_at_a_character_boundary<D: Dict>() {
    let cases = [
        (String::new(), String::new()),
        ("x".repeat(1_024), "x".repeat(1_024)),
        ("x".repeat(1_025), "x".repeat(1_024)),
        ("ä".repeat(600), "ä".repeat(512)),
        ("€".repeat(600), "€".repeat(341)),
        (format!("x{}", "🦀".repeat(600)), format!("x{}", "🦀".repeat(255))),
    ];
    for (given, expected) in cases {
        let dict = dict_with_due::<D>(1, &["a"]).await;
        assert!(claim_a(&dict, LONG).await.fail(given).await);
        assert_eq!(reasons(&dict).await, [Some(expected)]);
    }
}

async fn failed_claim_is_due_again_after_its_backoff<D: Dict>() {
    let dict = dict_with_due::<D>(u32::MAX, &["a"]).await;
    assert!(claim_a(&dict, LONG).await.fail("busy").await);
    let Ttl::Remaining(backoff) = dict.ttl("a").await else { panic!("the entry has no deadline") };
    assert!((BACKOFF / 3..=BACKOFF * 3 / 2).contains(&backoff), "{backoff:?}");
    assert_eq!(claim_a(&dict, LONG).await.attempts(), 2);
}

async fn fail_of_a_void_claim_records_nothing<D: Dict>() {
    let dict = dict_with_due::<D>(1, &["a"]).await;
    let void = claim_a(&dict, LONG).await;
    dict.set("a".into(), 1, Duration::ZERO).await;
    assert!(!void.fail("void").await);
    drop_claim(claim_a(&dict, LONG).await).await;
    assert_eq!(reasons(&dict).await, [None]);
    // The entry was removed, and another one may be in its place.
    let dict = dict_with_due::<D>(1, &["b"]).await;
    let void = dict.next_claim(LONG).await;
    dict.clear().await;
    dict.set("a".into(), 1, Duration::ZERO).await;
    assert!(!void.fail("void").await);
    drop_claim(claim_a(&dict, LONG).await).await;
    assert_eq!(reasons(&dict).await, [None]);
}

async fn fail_after_the_end_of_the_lease_changes_nothing<D: Dict>() {
    for (most, end_is_noticed) in [(1, false), (1, true), (2, false)] {
        let dict = dict_with_due::<D>(most, &["a"]).await;
        let late = claim_a(&dict, ms(1)).await;
        sleep(ms(3)).await;
        if end_is_noticed {
            assert_eq!(reasons(&dict).await, [None]);
        }
        assert!(!late.fail("slow").await, "the attempt has ended already");
        if most == 2 {
            assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO), "without a backoff");
            let last = claim_a(&dict, LONG).await;
            assert_eq!(last.attempts(), 2);
            drop_claim(last).await;
        }
        let letter = dict.dead_letters(9).await.remove(0);
        assert_eq!((letter.attempts, letter.reason), (most, None));
        assert_eq!(dict.dead_len().await, 1);
    }
}

async fn unpolled_fail_and_release_are_failed_attempts_without_reason<D: Dict>() {
    let dict = dict_with_due::<D>(2, &["a"]).await;
    drop(claim_a(&dict, LONG).await.fail("never polled"));
    sleep(ms(30)).await;
    assert!(dict.claim_expired(9, LONG).await.is_empty(), "it waits for its backoff");
    let again = claim_a(&dict, LONG).await;
    assert_eq!(again.attempts(), 2);
    drop(again.release());
    sleep(ms(30)).await;
    assert_eq!(reasons(&dict).await, [None]);
}

async fn released_entry_is_due_immediately_without_a_failed_attempt<D: Dict>() {
    let dict = dict_with_due::<D>(2, &["a"]).await;
    sleep(ms(2)).await;
    dict.set("b".into(), 1, Duration::ZERO).await;
    sleep(ms(2)).await;
    for _ in 0..5 {
        let claim = dict.next_claim(LONG).await;
        assert_eq!((&claim.key()[..], claim.attempts()), ("a", 1), "it keeps its deadline");
        assert!(claim.extend(2 * LONG).await);
        assert!(claim.release().await);
        assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    }
    dict.remove("b").await;
    drop_claim(claim_a(&dict, LONG).await).await;
    // Earlier failed attempts still count.
    let second = claim_a(&dict, LONG).await;
    assert_eq!(second.attempts(), 2);
    assert!(second.release().await);
    assert_eq!(dict.dead_len().await, 0);
    let second = claim_a(&dict, LONG).await;
    assert_eq!(second.attempts(), 2);
    drop_claim(second).await;
    assert_eq!(dict.dead_len().await, 1);
}

async fn release_after_the_end_of_the_lease_undoes_the_delivery<D: Dict>() {
    for end_is_noticed in [false, true] {
        let dict = dict_with_due::<D>(1, &["a"]).await;
        let late = claim_a(&dict, ms(1)).await;
        sleep(ms(3)).await;
        if end_is_noticed {
            assert_eq!(dict.dead_len().await, 1);
        }
        assert!(late.release().await);
        assert_eq!(dict.dead_len().await, 0);
        let claim = dict.next_claim(LONG).await;
        assert_eq!(claim.attempts(), 1);
        // Void after a new deadline.
        dict.set("a".into(), 3, LONG).await;
        assert!(!claim.release().await);
        // Void after the entry became a dead letter.
        let claim = claim_a(&dict, LONG).await;
        dict.set_timeout("a", Duration::ZERO).await;
        assert!(!claim.release().await);
    }
}

async fn set_nx_sets_only_keys_without_an_entry<D: Dict>() {
    let dict = D::with_retries(BACKOFF, BACKOFF, 1).await;
    let set_nx = async |value| dict.set_nx("a".into(), value, Duration::ZERO).await;
    assert!(dict.set_nx("b".into(), 1, LONG).await);
    let ttl = dict.ttl("b").await;
    assert!(matches!(ttl, Ttl::Remaining(ttl) if ttl <= LONG && 2 * ttl > LONG), "{ttl:?}");
    assert!(dict.set_nx("a".into(), 1, Duration::MAX).await);
    assert!(!set_nx(2).await);
    assert_eq!((dict.get("a").await, dict.ttl("a").await), (Some(1), Ttl::Persistent));
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    sleep(ms(1)).await;
    assert!(!set_nx(2).await, "it is due");
    let claim = dict.next_claim(LONG).await;
    assert!(!set_nx(2).await, "it is claimed");
    assert!(claim.extend(LONG).await, "the claim stays valid");
    drop_claim(claim).await;
    assert!(!set_nx(2).await, "it is a dead letter");
    assert_eq!(dict.take_dead(9).await, [("a".to_owned(), 1)]);
    assert!(set_nx(2).await);
    assert!(dict.next_claim(LONG).await.ack().await);
    assert!(set_nx(3).await);
    assert_eq!(dict.next_expired().await, ("a".to_owned(), 3));
}
