//! Many leases that end together: each call ends a bounded number of them under one lock, and no result depends on how
//! many have been ended by then.

use std::{mem::forget, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use tokio::time::advance;
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);

/// More leases than end under one lock.
const MANY: u32 = 1_000;

/// Returns a dictionary whose leases have all ended, unnoticed; the last entry was due first.
async fn with_ended_leases(
    len: u32,
    max_attempts: u32,
) -> (TimeoutDict<u32, ()>, Vec<Claim<u32, ()>>) {
    let dict = TimeoutDict::builder().max_attempts(max_attempts).build();
    for key in 0..len {
        dict.set(key, (), (len - key) * Duration::from_nanos(1)).await;
    }
    advance(SECOND).await;
    let claims = dict.claim_expired(usize::MAX, SECOND).await;
    assert_eq!(claims.len(), len as usize);
    advance(SECOND).await;
    (dict, claims)
}

#[tokio::test(start_paused = true)]
async fn entries_of_ended_leases_are_taken_in_the_order_of_their_deadlines() {
    let (dict, claims) = with_ended_leases(MANY, u32::MAX).await;
    let taken: Vec<_> = dict.take_expired(1).await;
    assert_eq!(taken, [(MANY - 1, ())]);
    let claimed = dict.claim_expired(usize::MAX, SECOND).await;
    assert!(claimed.iter().map(Claim::key).copied().eq((0..MANY - 1).rev()));
    for claim in claims {
        assert!(!claim.ack().await);
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_the_first_of_many_entries_of_ended_leases() {
    let (dict, claims) = with_ended_leases(MANY, u32::MAX).await;
    claims.into_iter().for_each(forget);
    assert_eq!(dict.next_expired().await, (MANY - 1, ()));
    assert_eq!(*dict.next_claim(SECOND).await.key(), MANY - 2);
    // The last allowed attempt of all but one: a waiter passes entries that failed too often.
    let (dict, claims) = with_ended_leases(MANY, 1).await;
    claims.into_iter().for_each(forget);
    dict.set(MANY, (), Duration::ZERO).await;
    assert_eq!(dict.next_expired().await, (MANY, ()));
    assert!(dict.next_expired().now_or_never().is_none());
    assert_eq!(dict.dead_len().await, MANY as usize);
}

#[tokio::test(start_paused = true)]
async fn calls_for_one_key_end_its_lease_among_many() {
    let key = 0;
    let last = |claims: &mut Vec<Claim<u32, ()>>| claims.pop().expect("the last was claimed last");
    let (dict, mut claims) = with_ended_leases(MANY, 1).await;
    assert_eq!(*last(&mut claims).key(), key, "its lease is the last to be ended");

    let (dict_of_ttl, _claims) = with_ended_leases(MANY, 1).await;
    assert_eq!(dict_of_ttl.ttl(&key).await, Ttl::Persistent, "it is dead");
    let (dict_of_set, _claims) = with_ended_leases(MANY, 1).await;
    assert!(!dict_of_set.set_timeout(&key, SECOND).await);
    assert!(!dict_of_set.remove_timeout(&key).await);
    let (dict_of_revive, _claims) = with_ended_leases(MANY, 1).await;
    assert!(dict_of_revive.revive(&key, Duration::ZERO).await);
    assert_eq!(dict_of_revive.take_expired(9).await, [(key, ())]);
    for dict in [dict, dict_of_ttl, dict_of_set] {
        assert_eq!(dict.dead_len().await, MANY as usize);
    }
    let (dict, mut claims) = with_ended_leases(MANY, 2).await;
    assert!(last(&mut claims).retry_in(9 * SECOND).await);
    assert_eq!(dict.ttl(&key).await, Ttl::Remaining(9 * SECOND));
    let (dict, mut claims) = with_ended_leases(MANY, 2).await;
    let claim = last(&mut claims);
    assert!(claim.extend(SECOND).await);
    assert_eq!(dict.take_expired(usize::MAX).await.len(), MANY as usize - 1);
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_ordered_by_the_times_of_their_last_failures_even_if_noticed_later() {
    let dict = TimeoutDict::builder().max_attempts(1).build();
    for key in ["a", "b", "c"] {
        dict.set(key, 0, Duration::ZERO).await;
    }
    forget(dict.next_claim(2 * SECOND).await);
    let b = dict.next_claim(9 * SECOND).await;
    forget(dict.next_claim(SECOND).await);
    advance(3 * SECOND).await;
    drop(b);
    let dead = dict.dead_letters(9).await;
    assert_eq!(dead.iter().map(|letter| letter.key).collect::<Vec<_>>(), ["c", "a", "b"]);
    assert_eq!(dict.take_dead(9).await, [("c", 0), ("a", 0), ("b", 0)]);
}

#[tokio::test(start_paused = true)]
async fn call_that_ends_many_leases_lets_others_run_in_between() {
    let (dict, claims) = with_ended_leases(100_000, u32::MAX).await;
    claims.into_iter().for_each(forget);
    // A call for one key does not wait for them.
    assert_eq!(dict.ttl(&7).now_or_never(), Some(Ttl::Remaining(Duration::ZERO)));
    let mut take = spawn(dict.take_expired(1));
    assert_pending!(take.poll());
    drop(take);
    tokio::task::yield_now().await;
    let mut next = spawn(dict.next_expired());
    assert_pending!(next.poll());
    tokio::task::yield_now().await;
    for _ in 0..9 {
        if let std::task::Poll::Ready(first) = next.poll() {
            assert_eq!(first, (99_999, ()));
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the leases do not end");
}
