//! Dead letters, released claims and `set_nx`, where they are exact in memory. `tests/redis/conformance/dict` has the
//! rest.

use std::{mem::forget, time::Duration};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::FutureExt;
use tokio::time::{Instant, advance};

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

#[tokio::test(start_paused = true)]
async fn dead_letters_of_equal_age_are_listed_in_the_order_of_their_claims() {
    let dict = dict_with_due(1, &["a", "b", "c", "d"]).await;
    let mut claims = dict.claim_expired(3, 10 * SECOND).await;
    assert!(claims.remove(2).fail("c fails first").await);
    claims.into_iter().for_each(forget);
    advance(10 * SECOND).await;
    for max in [1, 2, 9] {
        let letters = dict.dead_letters(max).await;
        let listed: Vec<_> = letters.iter().map(|l| (l.key, l.value, l.attempts)).collect();
        assert_eq!(listed, [("c", 2, 1), ("a", 0, 1), ("b", 1, 1)][..max.min(3)]);
    }
    assert_eq!(dict.take_dead(9).await, [("c", 2), ("a", 0), ("b", 1)]);
}

#[tokio::test(start_paused = true)]
async fn failed_claim_waits_for_the_default_backoff() {
    let dict = dict_with_due(u32::MAX, &["a"]).await;
    assert!(claim(&dict).await.fail("busy").await);
    let Ttl::Remaining(backoff) = dict.ttl("a").await else { panic!("the entry has no deadline") };
    assert!((SECOND / 2..=SECOND * 2).contains(&backoff), "{backoff:?}");
    assert_eq!(claim(&dict).await.attempts(), 2);
}

/// The order is the same if a call has noticed in between that the entry is dead.
#[tokio::test(start_paused = true)]
async fn released_entry_keeps_its_place_among_equal_deadlines() {
    for (attempts, is_noticed, is_extended) in
        [(2, true, false), (1, false, false), (1, true, false), (1, true, true)]
    {
        let dict = dict_with_due(attempts, &["a", "b", "c"]).await;
        let held = dict.claim_expired(2, SECOND).await;
        advance(SECOND).await;
        if is_noticed {
            assert_eq!(dict.dead_len().await, if attempts == 1 { 2 } else { 0 });
        }
        for claim in held.into_iter().rev() {
            assert!(!is_extended || claim.extend(SECOND).await);
            assert!(claim.release().await);
        }
        let taken = dict.take_expired(9).await;
        let case = (attempts, is_noticed, is_extended);
        assert_eq!(taken, [("a", 0), ("b", 1), ("c", 2)], "{case:?}");
    }
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
async fn set_nx_wakes_a_waiter() {
    let dict = Dict::new();
    let mut waiter = Box::pin(dict.next_expired());
    assert!(waiter.as_mut().now_or_never().is_none());
    assert!(dict.set_nx("a", 1, Duration::ZERO).await);
    assert_eq!(waiter.await, ("a", 1));
}
