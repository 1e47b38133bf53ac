//! Retries and dead letters of both timeout dictionaries: run in memory with a paused clock, and on a real server.

use std::{mem::forget, time::Duration};

use crate::clock::ms;

/// First backoff: short for a fast test, but long enough that a busy machine completes a few calls in it.
fn first() -> Duration {
    ms(100)
}
const LONG: Duration = Duration::from_secs(60);
const NONE: [(String, u32); 0] = [];

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $reply:item) => {
        mod $backend {
            use std::time::Duration;

            use fleeting::Ttl;
            use futures::{FutureExt, future::join_all};
            use tokio::time::{Instant, sleep, timeout};

            use super::{LONG, NONE, first, forget, ms};

            $setup
            $reply

            use setup::{Claim, Dict, make, run};

            async fn dict_with_due(max_attempts: u32, keys: &[&str]) -> (Dict, setup::Guard) {
                let (dict, guard) = make(first(), 4 * first(), max_attempts).await;
                for (value, key) in (0..).zip(keys) {
                    reply(dict.set(key.to_string(), value, Duration::ZERO).await);
                }
                (dict, guard)
            }

            fn entry(key: &str, value: u32) -> (String, u32) {
                (key.to_owned(), value)
            }

            /// Waits for the tasks that return dropped claims.
            async fn wait_for_tasks() {
                sleep(ms(30)).await;
            }

            /// Ends a claim in one of the ways that are not an ack, and makes its entry due again.
            async fn fail(dict: &Dict, claim: Claim, ending: u32) {
                let key = claim.key().clone();
                match ending {
                    0 => drop(claim),
                    1 => assert!(reply(claim.retry_in(Duration::ZERO).await)),
                    2 => drop(claim.ack()),
                    3 => drop(claim.retry_in(LONG)),
                    _ => {
                        assert!(reply(claim.extend(Duration::ZERO).await));
                        forget(claim);
                    }
                }
                wait_for_tasks().await;
                // Skips the backoff.
                if let Ttl::Remaining(_) = reply(dict.ttl(&key).await) && ending != 4 {
                    assert!(reply(dict.set_timeout(&key, Duration::ZERO).await));
                }
            }

            const ENDINGS: u32 = 5;

            #[$test]
            async fn failing_entry_does_not_block_others() {
                run(async || {
                    let (dict, _guard) = dict_with_due(u32::MAX, &["failing", "healthy"]).await;
                    let mut attempts = 0;
                    let work = async {
                        loop {
                            let job = reply(dict.next_claim(LONG).await);
                            if *job.key() == "healthy" {
                                reply(job.ack().await);
                            } else {
                                attempts += 1;
                                assert_eq!(job.attempts(), attempts);
                            }
                        }
                    };
                    assert!(timeout(3 * first(), work).await.is_err());
                    assert_eq!(reply(dict.get("healthy").await), None);
                    assert!((1..=4).contains(&attempts), "{attempts} attempts");
                })
                .await;
            }

            #[$test]
            async fn dropped_claim_is_due_again_after_a_doubling_backoff() {
                run(async || {
                    let (dict, _guard) = dict_with_due(u32::MAX, &["a"]).await;
                    for attempts in 1..5 {
                        let claim = reply(dict.next_claim(LONG).await);
                        assert_eq!(claim.attempts(), attempts);
                        let dropped = Instant::now();
                        drop(claim);
                        wait_for_tasks().await;
                        let backoff = first() * 2_u32.pow(attempts - 1).min(4);
                        let Ttl::Remaining(remaining) = reply(dict.ttl("a").await) else { panic!() };
                        assert!(remaining <= 3 * backoff / 2, "{remaining:?} of {backoff:?}");
                        assert!(remaining + dropped.elapsed() >= backoff / 2, "{remaining:?} of {backoff:?}");
                        assert!(reply(dict.claim_expired(9, LONG).await).is_empty());
                        assert_eq!(reply(dict.take_expired(9).await), NONE);
                    }
                    // `set_timeout` applies during a backoff, too.
                    assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(reply(dict.next_claim(LONG).await).attempts(), 5);
                })
                .await;
            }

            #[$test]
            async fn retry_in_sets_the_delay() {
                run(async || {
                    let (dict, _guard) = dict_with_due(u32::MAX, &["a", "b"]).await;
                    let mut claims = reply(dict.claim_expired(9, LONG).await);
                    assert!(reply(claims.pop().unwrap().retry_in(Duration::MAX).await));
                    assert_eq!(reply(dict.ttl("b").await), Ttl::Persistent, "an endless delay makes the entry persistent");
                    let start = Instant::now();
                    assert!(reply(claims.pop().unwrap().retry_in(3 * first()).await));
                    assert!(reply(dict.claim_expired(9, LONG).await).is_empty());
                    let claim = reply(dict.next_claim(LONG).await);
                    assert!(start.elapsed() >= 3 * first(), "{:?}", start.elapsed());
                    assert_eq!((&claim.key()[..], claim.attempts()), ("a", 2));
                    // A void claim.
                    reply(dict.set("a".into(), 7, Duration::ZERO).await);
                    assert!(!reply(claim.retry_in(LONG).await));
                    // A claim whose lease has expired, but whose entry no other caller has.
                    let claim = reply(dict.next_claim(ms(1)).await);
                    assert_eq!(claim.attempts(), 1);
                    sleep(ms(2)).await;
                    assert!(reply(claim.retry_in(LONG).await));
                    assert_eq!(reply(dict.take_expired(9).await), NONE);
                    assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(reply(dict.next_claim(LONG).await).attempts(), 2);
                })
                .await;
            }

            #[$test]
            async fn entry_becomes_a_dead_letter_after_max_attempts_failures() {
                run(async || {
                    let endings = (0..ENDINGS).map(async |ending| {
                        let (dict, _guard) = dict_with_due(3, &["a", "b"]).await;
                        reply(dict.set("b".into(), 1, Duration::MAX).await);
                        for attempts in 1..=3 {
                            assert_eq!(reply(dict.dead_len().await), 0);
                            let claim = reply(dict.next_claim(LONG).await);
                            assert_eq!((&claim.key()[..], claim.attempts()), ("a", attempts), "ending {ending}");
                            assert_eq!(reply(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                            fail(&dict, claim, ending).await;
                        }
                        assert_eq!((reply(dict.dead_len().await), reply(dict.len().await)), (1, 2), "ending {ending}");
                        assert_eq!(reply(dict.get("a").await), Some(0));
                        assert!(reply(dict.contains_key("a").await));
                        assert_eq!(reply(dict.ttl("a").await), Ttl::Persistent);
                        assert!(reply(dict.claim_expired(9, LONG).await).is_empty());
                        assert_eq!(reply(dict.take_expired(9).await), NONE);
                        assert!(dict.next_expired().now_or_never().is_none());
                        assert!(!reply(dict.set_timeout("a", Duration::ZERO).await), "only `revive` makes a dead letter due");
                        assert!(!reply(dict.remove_timeout("a").await));
                        assert_eq!(reply(dict.take_dead(0).await), NONE);
                        assert_eq!(reply(dict.take_dead(9).await), [entry("a", 0)]);
                        assert_eq!((reply(dict.dead_len().await), reply(dict.get("a").await)), (0, None));
                        assert_eq!(reply(dict.take_dead(9).await), NONE);
                        assert_eq!(reply(dict.len().await), 1);
                    });
                    join_all(endings).await;
                })
                .await;
            }

            #[$test]
            async fn claim_made_void_by_set_timeout_has_failed() {
                run(async || {
                    for lease in [LONG, Duration::MAX] {
                        let (dict, _guard) = dict_with_due(2, &["a", "b"]).await;
                        let mut claims = reply(dict.claim_expired(9, lease).await);
                        assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                        assert!(reply(dict.remove_timeout("b").await));
                        assert!(reply(dict.set_timeout("b", Duration::ZERO).await));
                        sleep(ms(1)).await;
                        claims.extend(reply(dict.claim_expired(9, lease).await));
                        let attempts: Vec<_> = claims.iter().map(|claim| claim.attempts()).collect();
                        assert_eq!(attempts, [1, 1, 2, 2]);
                        assert!(!reply(dict.set_timeout("a", Duration::ZERO).await), "it was the last attempt");
                        sleep(ms(1)).await;
                        assert!(!reply(dict.remove_timeout("b").await));
                        sleep(ms(1)).await;
                        assert_eq!(reply(dict.dead_len().await), 2);
                        assert_eq!(reply(dict.take_expired(9).await), NONE);
                        for claim in claims {
                            assert!(!reply(claim.ack().await));
                        }
                        assert_eq!(reply(dict.take_dead(9).await), [entry("a", 0), entry("b", 1)]);
                    }
                })
                .await;
            }

            #[$test]
            async fn take_dead_returns_the_oldest_dead_letters_first() {
                run(async || {
                    let (dict, _guard) = dict_with_due(1, &["a", "b", "c", "d"]).await;
                    let mut claims = reply(dict.claim_expired(9, 2 * first()).await);
                    drop(claims.remove(2));
                    claims.into_iter().for_each(forget);
                    wait_for_tasks().await;
                    assert_eq!(reply(dict.dead_len().await), 1);
                    sleep(2 * first()).await;
                    assert_eq!(reply(dict.dead_len().await), 4);
                    assert_eq!(reply(dict.take_dead(1).await), [entry("c", 2)]);
                    let mut others = reply(dict.take_dead(9).await);
                    // Their leases ended at the same time.
                    others.sort();
                    assert_eq!(others, [entry("a", 0), entry("b", 1), entry("d", 3)]);
                })
                .await;
            }

            #[$test]
            async fn attempts_restart_at_one_after_set_revive_and_ack() {
                run(async || {
                    let (dict, _guard) = dict_with_due(2, &["a"]).await;
                    let attempt = async |attempts| {
                        let claim = reply(dict.next_claim(LONG).await);
                        assert_eq!(claim.attempts(), attempts);
                        fail(&dict, claim, 0).await;
                    };
                    assert!(!reply(dict.revive("a", LONG).await), "the entry is not a dead letter");
                    assert!(!reply(dict.revive("none", LONG).await));
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    assert!(reply(dict.revive("a", Duration::ZERO).await));
                    assert_eq!(reply(dict.dead_len().await), 0);
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    // `set` on a dead letter, and on an entry that has failed.
                    assert_eq!(reply(dict.set("a".into(), 7, Duration::ZERO).await), Some(0));
                    assert_eq!(reply(dict.dead_len().await), 0);
                    attempt(1).await;
                    reply(dict.set("a".into(), 8, Duration::ZERO).await);
                    attempt(1).await;
                    // `set_timeout` keeps the attempts.
                    assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                    attempt(2).await;
                    assert_eq!(reply(dict.dead_len().await), 1);
                    assert_eq!(reply(dict.remove("a").await), Some(8));
                    assert_eq!(reply(dict.dead_len().await), 0);
                    reply(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    // `remove` and `ack` restart the attempts, too.
                    reply(dict.remove("a").await);
                    reply(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    assert!(reply(reply(dict.next_claim(LONG).await).ack().await));
                    reply(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 9)]);
                    reply(dict.set("a".into(), 9, Duration::ZERO).await);
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    reply(dict.clear().await);
                    assert_eq!((reply(dict.dead_len().await), reply(dict.take_dead(9).await)), (0, vec![]));
                    reply(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                })
                .await;
            }

            #[$test]
            async fn expired_claim_may_still_ack_a_dead_letter() {
                run(async || {
                    let (dict, _guard) = dict_with_due(1, &["a", "b", "c"]).await;
                    let mut claims = reply(dict.claim_expired(9, ms(1)).await);
                    sleep(ms(2)).await;
                    assert_eq!(reply(dict.dead_len().await), 3);
                    assert!(reply(claims.pop().unwrap().ack().await));
                    assert_eq!(reply(dict.dead_len().await), 2);
                    // Extending an expired lease makes the entry live again.
                    let claim = claims.pop().unwrap();
                    assert!(reply(claim.extend(LONG).await));
                    assert_eq!(reply(dict.dead_len().await), 1);
                    assert!(!reply(dict.revive("b", Duration::ZERO).await), "the entry is not a dead letter");
                    assert!(reply(claim.retry_in(Duration::ZERO).await));
                    sleep(ms(1)).await;
                    assert_eq!(reply(dict.take_dead(1).await), [entry("a", 0)]);
                    assert!(!reply(claims.pop().unwrap().ack().await));
                    assert_eq!(reply(dict.take_dead(9).await), [entry("b", 1)]);
                })
                .await;
            }

            #[$test]
            async fn entry_is_due_immediately_after_an_expired_lease_despite_a_dropped_claim() {
                run(async || {
                    for observes_expiry in [false, true] {
                        let (dict, _guard) = dict_with_due(u32::MAX, &["a"]).await;
                        let claim = reply(dict.next_claim(ms(1)).await);
                        sleep(ms(2)).await;
                        if observes_expiry {
                            assert_eq!(reply(dict.take_expired(0).await), NONE);
                        }
                        drop(claim);
                        wait_for_tasks().await;
                        let claims = reply(dict.claim_expired(9, LONG).await);
                        assert_eq!((claims.len(), claims[0].attempts()), (1, 2));
                    }
                })
                .await;
            }

            #[$test]
            async fn concurrent_take_dead_returns_each_dead_letter_once() {
                run(async || {
                    let (dict, _guard) = make(first(), first(), 1).await;
                    for key in 0..300_u32 {
                        reply(dict.set(key.to_string(), key, Duration::ZERO).await);
                    }
                    reply(dict.claim_expired(usize::MAX, Duration::ZERO).await).into_iter().for_each(forget);
                    sleep(ms(10)).await;
                    assert_eq!(reply(dict.dead_len().await), 300);
                    let takers = (0..4).map(|_| {
                        let dict = dict.clone();
                        tokio::spawn(async move {
                            let mut taken = Vec::new();
                            while reply(dict.dead_len().await) > 0 {
                                taken.extend(reply(dict.take_dead(7).await).into_iter().map(|entry| entry.1));
                            }
                            taken
                        })
                    });
                    let taken = join_all(takers.collect::<Vec<_>>()).await;
                    let mut taken: Vec<_> = taken.into_iter().flat_map(|taken| taken.unwrap()).collect();
                    taken.sort();
                    assert_eq!(taken, (0..300).collect::<Vec<_>>());
                })
                .await;
            }
        }
    };
}

suite! {
    embedded,
    tokio::test(start_paused = true),
    use crate::conformance::dicts::embedded as setup;
    use setup::reply;
}

suite! {
    on_redis,
    tokio::test,
    use crate::conformance::dicts::on_redis as setup;
    use setup::reply;
}
