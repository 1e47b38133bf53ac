//! What fails comes again, later each time and not for ever: the same cases in memory, by a paused clock, and on a real
//! server, by its own.

use std::{mem::forget, time::Duration};

use crate::clock::ms;

/// Of a first failure, so short that a case is soon done, and so long that a busy machine does much in it.
fn first() -> Duration {
    ms(100)
}
const LONG: Duration = Duration::from_secs(60);
const NONE: [(String, u32); 0] = [];

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $told:item) => {
        mod $backend {
            use std::time::Duration;

            use fleeting::Ttl;
            use futures::{FutureExt, future::join_all};
            use tokio::time::{Instant, sleep, timeout};

            use super::{LONG, NONE, first, forget, ms};

            $setup
            $told

            use setup::{Claim, Dict, make, run};

            async fn due(max_attempts: u32, keys: &[&str]) -> (Dict, setup::Guard) {
                let (dict, guard) = make(first(), 4 * first(), max_attempts).await;
                for (value, key) in (0..).zip(keys) {
                    told(dict.set(key.to_string(), value, Duration::ZERO).await);
                }
                (dict, guard)
            }

            fn entry(key: &str, value: u32) -> (String, u32) {
                (key.to_owned(), value)
            }

            /// What a task does for who can't wait is done.
            async fn settle() {
                sleep(ms(30)).await;
            }

            /// Ends a claim otherwise than by an ack, and waits until its entry is due again.
            async fn fail(dict: &Dict, claim: Claim, way: u32) {
                let key = claim.key().clone();
                match way {
                    0 => drop(claim),
                    1 => assert!(told(claim.retry_in(Duration::ZERO).await)),
                    2 => drop(claim.ack()),
                    3 => drop(claim.retry_in(LONG)),
                    _ => {
                        assert!(told(claim.extend(Duration::ZERO).await));
                        forget(claim);
                    }
                }
                settle().await;
                // As if the backoff were over.
                if let Ttl::Remaining(_) = told(dict.ttl(&key).await) && way != 4 {
                    assert!(told(dict.set_timeout(&key, Duration::ZERO).await));
                }
            }

            const WAYS: u32 = 5;

            #[$test]
            async fn a_job_that_fails_lets_others_be_done() {
                run(async || {
                    let (dict, _guard) = due(u32::MAX, &["bad", "good"]).await;
                    let mut attempts = 0;
                    let work = async {
                        loop {
                            let job = told(dict.next_claim(LONG).await);
                            if *job.key() == "good" {
                                told(job.ack().await);
                            } else {
                                attempts += 1;
                                assert_eq!(job.attempts(), attempts);
                            }
                        }
                    };
                    assert!(timeout(3 * first(), work).await.is_err());
                    assert_eq!(told(dict.get("good").await), None);
                    assert!((1..=4).contains(&attempts), "it was tried {attempts} times");
                })
                .await;
            }

            #[$test]
            async fn what_is_dropped_comes_again_later_each_time() {
                run(async || {
                    let (dict, _guard) = due(u32::MAX, &["a"]).await;
                    for attempts in 1..5 {
                        let claim = told(dict.next_claim(LONG).await);
                        assert_eq!(claim.attempts(), attempts);
                        let dropped = Instant::now();
                        drop(claim);
                        settle().await;
                        let backoff = first() * 2_u32.pow(attempts - 1).min(4);
                        let Ttl::Remaining(left) = told(dict.ttl("a").await) else { panic!() };
                        assert!(left <= 3 * backoff / 2, "{left:?} of {backoff:?}");
                        assert!(left + dropped.elapsed() >= backoff / 2, "{left:?} of {backoff:?}");
                        assert!(told(dict.claim_expired(9, LONG).await).is_empty());
                        assert_eq!(told(dict.take_expired(9).await), NONE);
                    }
                    // In the middle of a backoff it is as any other.
                    assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(told(dict.next_claim(LONG).await).attempts(), 5);
                })
                .await;
            }

            #[$test]
            async fn retry_in_says_when() {
                run(async || {
                    let (dict, _guard) = due(u32::MAX, &["a", "b"]).await;
                    let mut claims = told(dict.claim_expired(9, LONG).await);
                    assert!(told(claims.pop().unwrap().retry_in(Duration::MAX).await));
                    assert_eq!(told(dict.ttl("b").await), Ttl::Persistent, "it never comes");
                    let start = Instant::now();
                    assert!(told(claims.pop().unwrap().retry_in(3 * first()).await));
                    assert!(told(dict.claim_expired(9, LONG).await).is_empty());
                    let claim = told(dict.next_claim(LONG).await);
                    assert!(start.elapsed() >= 3 * first(), "{:?}", start.elapsed());
                    assert_eq!((&claim.key()[..], claim.attempts()), ("a", 2));
                    // Of a claim that is void.
                    told(dict.set("a".into(), 7, Duration::ZERO).await);
                    assert!(!told(claim.retry_in(LONG).await));
                    // Of one whose lease is over, as long as nobody else has the entry.
                    let claim = told(dict.next_claim(ms(1)).await);
                    assert_eq!(claim.attempts(), 1);
                    sleep(ms(2)).await;
                    assert!(told(claim.retry_in(LONG).await));
                    assert_eq!(told(dict.take_expired(9).await), NONE);
                    assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(told(dict.next_claim(LONG).await).attempts(), 2);
                })
                .await;
            }

            #[$test]
            async fn each_delivery_that_is_not_acked_is_a_failure_and_the_last_is_for_good() {
                run(async || {
                    let ways = (0..WAYS).map(async |way| {
                        let (dict, _guard) = due(3, &["a", "b"]).await;
                        told(dict.set("b".into(), 1, Duration::MAX).await);
                        for attempts in 1..=3 {
                            assert_eq!(told(dict.dead_len().await), 0);
                            let claim = told(dict.next_claim(LONG).await);
                            assert_eq!((&claim.key()[..], claim.attempts()), ("a", attempts), "way {way}");
                            assert_eq!(told(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                            fail(&dict, claim, way).await;
                        }
                        assert_eq!((told(dict.dead_len().await), told(dict.len().await)), (1, 2), "way {way}");
                        assert_eq!(told(dict.get("a").await), Some(0));
                        assert!(told(dict.contains_key("a").await));
                        assert_eq!(told(dict.ttl("a").await), Ttl::Persistent);
                        assert!(told(dict.claim_expired(9, LONG).await).is_empty());
                        assert_eq!(told(dict.take_expired(9).await), NONE);
                        assert!(dict.next_expired().now_or_never().is_none());
                        assert!(!told(dict.set_timeout("a", Duration::ZERO).await), "only a revival lets it come");
                        assert!(!told(dict.remove_timeout("a").await));
                        assert_eq!(told(dict.take_dead(0).await), NONE);
                        assert_eq!(told(dict.take_dead(9).await), [entry("a", 0)]);
                        assert_eq!((told(dict.dead_len().await), told(dict.get("a").await)), (0, None));
                        assert_eq!(told(dict.take_dead(9).await), NONE);
                        assert_eq!(told(dict.len().await), 1);
                    });
                    join_all(ways).await;
                })
                .await;
            }

            #[$test]
            async fn a_claim_that_is_made_void_has_failed() {
                run(async || {
                    for lease in [LONG, Duration::MAX] {
                        let (dict, _guard) = due(2, &["a", "b"]).await;
                        let mut claims = told(dict.claim_expired(9, lease).await);
                        assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                        assert!(told(dict.remove_timeout("b").await));
                        assert!(told(dict.set_timeout("b", Duration::ZERO).await));
                        sleep(ms(1)).await;
                        claims.extend(told(dict.claim_expired(9, lease).await));
                        let attempts: Vec<_> = claims.iter().map(|claim| claim.attempts()).collect();
                        assert_eq!(attempts, [1, 1, 2, 2]);
                        assert!(!told(dict.set_timeout("a", Duration::ZERO).await), "it was the last");
                        sleep(ms(1)).await;
                        assert!(!told(dict.remove_timeout("b").await));
                        sleep(ms(1)).await;
                        assert_eq!(told(dict.dead_len().await), 2);
                        assert_eq!(told(dict.take_expired(9).await), NONE);
                        for claim in claims {
                            assert!(!told(claim.ack().await));
                        }
                        assert_eq!(told(dict.take_dead(9).await), [entry("a", 0), entry("b", 1)]);
                    }
                })
                .await;
            }

            #[$test]
            async fn the_dead_come_in_the_order_of_their_deaths() {
                run(async || {
                    let (dict, _guard) = due(1, &["a", "b", "c", "d"]).await;
                    let mut claims = told(dict.claim_expired(9, 2 * first()).await);
                    drop(claims.remove(2));
                    claims.into_iter().for_each(forget);
                    settle().await;
                    assert_eq!(told(dict.dead_len().await), 1);
                    sleep(2 * first()).await;
                    assert_eq!(told(dict.dead_len().await), 4);
                    assert_eq!(told(dict.take_dead(1).await), [entry("c", 2)]);
                    let mut others = told(dict.take_dead(9).await);
                    // Their leases ended in one moment.
                    others.sort();
                    assert_eq!(others, [entry("a", 0), entry("b", 1), entry("d", 3)]);
                })
                .await;
            }

            #[$test]
            async fn whoever_begins_anew_begins_at_one() {
                run(async || {
                    let (dict, _guard) = due(2, &["a"]).await;
                    let attempt = async |attempts| {
                        let claim = told(dict.next_claim(LONG).await);
                        assert_eq!(claim.attempts(), attempts);
                        fail(&dict, claim, 0).await;
                    };
                    assert!(!told(dict.revive("a", LONG).await), "it is not dead");
                    assert!(!told(dict.revive("none", LONG).await));
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    assert!(told(dict.revive("a", Duration::ZERO).await));
                    assert_eq!(told(dict.dead_len().await), 0);
                    assert_eq!(told(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    // Another value, of a dead entry and of one that failed.
                    assert_eq!(told(dict.set("a".into(), 7, Duration::ZERO).await), Some(0));
                    assert_eq!(told(dict.dead_len().await), 0);
                    attempt(1).await;
                    told(dict.set("a".into(), 8, Duration::ZERO).await);
                    attempt(1).await;
                    // Another deadline is the same job.
                    assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                    attempt(2).await;
                    assert_eq!(told(dict.dead_len().await), 1);
                    assert_eq!(told(dict.remove("a").await), Some(8));
                    assert_eq!(told(dict.dead_len().await), 0);
                    told(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    // One that was removed, too, and one that was acked.
                    told(dict.remove("a").await);
                    told(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    assert!(told(told(dict.next_claim(LONG).await).ack().await));
                    told(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 9)]);
                    told(dict.set("a".into(), 9, Duration::ZERO).await);
                    for attempts in [1, 2] {
                        attempt(attempts).await;
                    }
                    told(dict.clear().await);
                    assert_eq!((told(dict.dead_len().await), told(dict.take_dead(9).await)), (0, vec![]));
                    told(dict.set("a".into(), 9, Duration::ZERO).await);
                    attempt(1).await;
                })
                .await;
            }

            #[$test]
            async fn who_is_late_may_still_ack_what_is_dead() {
                run(async || {
                    let (dict, _guard) = due(1, &["a", "b", "c"]).await;
                    let mut claims = told(dict.claim_expired(9, ms(1)).await);
                    sleep(ms(2)).await;
                    assert_eq!(told(dict.dead_len().await), 3);
                    assert!(told(claims.pop().unwrap().ack().await));
                    assert_eq!(told(dict.dead_len().await), 2);
                    // A lease that is extended is one again, and its end is another.
                    let claim = claims.pop().unwrap();
                    assert!(told(claim.extend(LONG).await));
                    assert_eq!(told(dict.dead_len().await), 1);
                    assert!(!told(dict.revive("b", Duration::ZERO).await), "it is not dead");
                    assert!(told(claim.retry_in(Duration::ZERO).await));
                    sleep(ms(1)).await;
                    assert_eq!(told(dict.take_dead(1).await), [entry("a", 0)]);
                    assert!(!told(claims.pop().unwrap().ack().await));
                    assert_eq!(told(dict.take_dead(9).await), [entry("b", 1)]);
                })
                .await;
            }

            #[$test]
            async fn a_lease_that_is_over_brings_the_entry_back_at_once_whatever_its_claim_does() {
                run(async || {
                    for looks in [false, true] {
                        let (dict, _guard) = due(u32::MAX, &["a"]).await;
                        let claim = told(dict.next_claim(ms(1)).await);
                        sleep(ms(2)).await;
                        if looks {
                            assert_eq!(told(dict.take_expired(0).await), NONE);
                        }
                        drop(claim);
                        settle().await;
                        let again = told(dict.claim_expired(9, LONG).await);
                        assert_eq!((again.len(), again[0].attempts()), (1, 2));
                    }
                })
                .await;
            }

            #[$test]
            async fn the_dead_go_to_one_however_many_take_them() {
                run(async || {
                    let (dict, _guard) = make(first(), first(), 1).await;
                    for key in 0..300_u32 {
                        told(dict.set(key.to_string(), key, Duration::ZERO).await);
                    }
                    told(dict.claim_expired(usize::MAX, Duration::ZERO).await).into_iter().for_each(forget);
                    sleep(ms(10)).await;
                    assert_eq!(told(dict.dead_len().await), 300);
                    let takers = (0..4).map(|_| {
                        let dict = dict.clone();
                        tokio::spawn(async move {
                            let mut taken = Vec::new();
                            while told(dict.dead_len().await) > 0 {
                                taken.extend(told(dict.take_dead(7).await).into_iter().map(|entry| entry.1));
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
    mod setup {
        use std::time::Duration;

        pub(super) type Dict = fleeting::TimeoutDict<String, u32>;
        pub(super) type Claim = fleeting::Claim<String, u32>;
        pub(super) type Guard = ();

        pub(super) async fn make(first: Duration, max: Duration, attempts: u32) -> (Dict, Guard) {
            (Dict::builder().backoff(first, max).max_attempts(attempts).build(), ())
        }

        pub(super) async fn run(case: impl AsyncFn()) {
            case().await;
        }
    }
    fn told<T>(answer: T) -> T {
        answer
    }
}

suite! {
    on_redis,
    tokio::test,
    mod setup {
        use std::{
            sync::{
                Arc,
                atomic::{AtomicU32, Ordering::Relaxed},
            },
            time::Duration,
        };

        use fleeting::redis;

        pub(super) use crate::clock::in_time as run;
        use crate::servers::{Server, connect};

        pub(super) type Dict = redis::TimeoutDict<String, u32>;
        pub(super) type Claim = redis::Claim<String, u32>;
        pub(super) type Guard = Arc<Server>;

        /// A name of its own, on a server that all who run at once share.
        pub(super) async fn make(first: Duration, max: Duration, attempts: u32) -> (Dict, Guard) {
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let server = Server::shared();
            let client = connect(server.url()).await;
            let name = format!("jobs-{}", NAMES.fetch_add(1, Relaxed));
            let builder = Dict::builder(&client, name).backoff(first, max).max_attempts(attempts);
            (builder.build().unwrap(), server)
        }
    }
    fn told<T>(answer: Result<T, fleeting::redis::Error>) -> T {
        answer.unwrap()
    }
}
