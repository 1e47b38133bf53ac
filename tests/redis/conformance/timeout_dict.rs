//! Promises of both timeout dictionaries: run in memory with a paused clock, and on a real server.

use std::time::Duration;

use crate::clock::ms;

const MILLI: Duration = Duration::from_millis(1);
/// A short TTL or lease, but long enough that a busy machine completes the calls of a test before it ends.
fn soon() -> Duration {
    ms(300)
}
const LONG: Duration = Duration::from_secs(60);
/// Longer than the first backoff of one second with its jitter. The second backoff is twice as long.
const BACKOFF: Duration = Duration::from_millis(1_600);
const NONE: [(String, u32); 0] = [];

fn entry(key: &str, value: u32) -> (String, u32) {
    (key.to_owned(), value)
}

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $reply:item) => {
        mod $backend {
            use std::{sync::Arc, time::Duration};

            use fleeting::Ttl;
            use futures::future::join_all;
            use rand::{RngExt, SeedableRng, rngs::SmallRng};
            use tokio::{
                sync::Mutex,
                task::yield_now,
                time::{Instant, sleep, timeout},
            };

            use super::{BACKOFF, LONG, MILLI, NONE, ms, soon, entry};

            $setup
            $reply

            use setup::{Claim, Dict, make, run};

            async fn dict_with_due<const N: usize>(keys: [&str; N]) -> (Dict, setup::Guard) {
                let (dict, guard) = make().await;
                for (key, value) in keys.into_iter().zip(0..) {
                    assert_eq!(reply(dict.set(key.into(), value, Duration::ZERO).await), None);
                }
                (dict, guard)
            }

            fn keys(claims: &[Claim]) -> Vec<&str> {
                claims.iter().map(|claim| &claim.key()[..]).collect()
            }

            /// Waits for the tasks that return dropped claims.
            async fn wait_for_tasks() {
                yield_now().await;
                sleep(ms(50)).await;
            }

            #[$test]
            async fn due_entry_is_readable_until_it_is_taken() {
                run(async || {
                    let (dict, _guard) = make().await;
                    assert_eq!(reply(dict.set("a".into(), 1, soon()).await), None);
                    assert_eq!(reply(dict.take_expired(9).await), NONE);
                    let Ttl::Remaining(remaining) = reply(dict.ttl("a").await) else { panic!("the entry has a deadline") };
                    assert!(remaining <= soon() && remaining > Duration::ZERO, "{remaining:?}");
                    sleep(soon() + MILLI).await;
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert_eq!(reply(dict.get("a").await), Some(1));
                    assert!(reply(dict.contains_key("a").await));
                    assert_eq!(reply(dict.take_expired(0).await), NONE);
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 1)]);
                    assert_eq!(reply(dict.get("a").await), None);
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Missing);
                    assert!(!reply(dict.contains_key("a").await));
                    assert_eq!(reply(dict.take_expired(9).await), NONE);
                })
                .await;
            }

            #[$test]
            async fn take_expired_returns_the_oldest_deadline_first() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["c", "a", "b", "d"]).await;
                    sleep(MILLI).await;
                    assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(reply(dict.set("c".into(), 7, Duration::ZERO).await), Some(0));
                    let taken = reply(dict.take_expired(3).await);
                    assert_eq!(taken, [entry("b", 2), entry("d", 3), entry("a", 1)]);
                    assert_eq!(reply(dict.take_expired(usize::MAX).await), [entry("c", 7)]);
                })
                .await;
            }

            #[$test]
            async fn take_expired_keeps_the_order_of_thousands_of_entries() {
                run(async || {
                    let mut random = SmallRng::seed_from_u64(7);
                    let (dict, _guard) = make().await;
                    let mut known = Vec::new();
                    for key in 0..3_000_u32 {
                        let ttl = Duration::from_secs(3_600) + random.random_range(0..1_000_000) * MILLI;
                        reply(dict.set(key.to_string(), key, ttl).await);
                        known.push((ttl, key));
                    }
                    // Makes half of them due, one after the other.
                    known.sort();
                    for (_, key) in &known[..1_500] {
                        assert!(reply(dict.set_timeout(&key.to_string(), Duration::ZERO).await));
                    }
                    sleep(MILLI).await;
                    let mut taken = Vec::new();
                    for (max, all) in [(1, 1), (9, 10), (90, 100), (900, 1_000), (9_000, 1_500)] {
                        let batch = reply(dict.take_expired(max).await);
                        taken.extend(batch.into_iter().map(|(_, value)| value));
                        assert_eq!(taken.len(), all);
                    }
                    let expected: Vec<_> = known[..1_500].iter().map(|(_, key)| *key).collect();
                    assert_eq!(taken, expected);
                    assert_eq!(reply(dict.len().await), 1_500);
                })
                .await;
            }

            #[$test]
            async fn entry_without_a_deadline_is_never_due() {
                run(async || {
                    let (dict, _guard) = make().await;
                    reply(dict.set("never".into(), 1, Duration::MAX).await);
                    reply(dict.set("a".into(), 2, soon()).await);
                    assert!(reply(dict.remove_timeout("a").await));
                    assert!(!reply(dict.remove_timeout("a").await), "it has no deadline");
                    assert!(!reply(dict.remove_timeout("never").await), "it has no deadline");
                    assert!(!reply(dict.remove_timeout("missing").await));
                    assert!(!reply(dict.set_timeout("missing", soon()).await));
                    sleep(soon() + MILLI).await;
                    assert_eq!(reply(dict.take_expired(9).await), NONE);
                    assert_eq!(reply(dict.ttl("never").await), Ttl::Persistent);
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Persistent);
                    assert!(reply(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 2)]);
                    assert_eq!(reply(dict.len().await), 1);
                })
                .await;
            }

            #[$test]
            async fn due_entry_may_get_a_new_deadline() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b"]).await;
                    assert!(reply(dict.set_timeout("a", soon()).await));
                    assert_eq!(reply(dict.set("b".into(), 7, soon()).await), Some(1));
                    assert_eq!(reply(dict.take_expired(9).await), NONE);
                    sleep(soon() + MILLI).await;
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 0), entry("b", 7)]);
                })
                .await;
            }

            #[$test]
            async fn methods_take_borrowed_keys_and_clones_share_one_dict() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let clone = dict.clone();
                    for key in ["", "ada", "}:{", "7", "é\n\"", "null"] {
                        assert!(reply(dict.is_empty().await));
                        reply(clone.set(key.into(), 1, LONG).await);
                        assert_eq!(reply(dict.get(key).await), Some(1));
                        assert_eq!(reply(dict.remove(key).await), Some(1), "{key}");
                        assert_eq!(reply(clone.remove(key).await), None);
                        reply(clone.set(key.into(), 1, Duration::ZERO).await);
                        assert_eq!(reply(dict.take_expired(9).await), [entry(key, 1)]);
                    }
                    for key in 0..2_000 {
                        reply(clone.set(key.to_string(), key, Duration::MAX).await);
                    }
                    assert_eq!(reply(dict.len().await), 2_000);
                    reply(dict.clear().await);
                    assert!(reply(clone.is_empty().await));
                    assert_eq!(reply(clone.get("7").await), None);
                })
                .await;
            }

            #[$test]
            async fn claimed_entry_is_exclusive_until_its_lease_expires() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b", "c"]).await;
                    let claims = reply(dict.claim_expired(2, soon()).await);
                    assert_eq!(keys(&claims), ["a", "b"]);
                    assert_eq!((*claims[1].value(), reply(dict.get("a").await)), (1, Some(0)));
                    assert_eq!(format!("{:?}", claims[1]), "Claim { key: \"b\", value: 1, .. }");
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert_eq!(reply(dict.take_expired(9).await), [entry("c", 2)]);
                    assert_eq!(keys(&reply(dict.claim_expired(9, soon()).await)), [""; 0]);
                    assert_eq!(reply(dict.len().await), 2);
                    sleep(soon() + MILLI).await;
                    let mut again = reply(dict.take_expired(9).await);
                    again.sort();
                    assert_eq!(again, [entry("a", 0), entry("b", 1)]);
                    for claim in claims {
                        assert!(!reply(claim.ack().await), "another caller has taken the entry");
                    }
                })
                .await;
            }

            #[$test]
            async fn ack_removes_the_entry() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b"]).await;
                    let mut claims = reply(dict.claim_expired(9, soon()).await);
                    assert!(reply(claims.pop().unwrap().ack().await));
                    assert_eq!(reply(dict.get("a").await), Some(0));
                    assert_eq!(reply(dict.get("b").await), None);
                    // An ack after the end of the lease, before another caller got the entry.
                    sleep(soon() + MILLI).await;
                    reply(dict.set("c".into(), 2, Duration::ZERO).await);
                    assert_eq!(reply(dict.take_expired(0).await), NONE);
                    assert!(reply(claims.pop().unwrap().ack().await));
                    assert_eq!(reply(dict.take_expired(9).await), [entry("c", 2)]);
                    assert!(reply(dict.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn only_the_latest_claim_on_an_entry_can_be_acked() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a"]).await;
                    let first = reply(dict.next_claim(MILLI).await);
                    sleep(2 * MILLI).await;
                    // Even if the later claim was returned.
                    drop(reply(dict.next_claim(LONG).await));
                    wait_for_tasks().await;
                    assert!(!reply(first.ack().await));
                    let first = reply(dict.next_claim(MILLI).await);
                    sleep(2 * MILLI).await;
                    let second = reply(dict.next_claim(LONG).await);
                    assert!(!reply(first.extend(Duration::ZERO).await));
                    drop(first);
                    wait_for_tasks().await;
                    let more = reply(dict.claim_expired(9, LONG).await);
                    assert!(more.is_empty(), "the void claim returns nothing");
                    assert!(reply(second.ack().await));
                    assert!(reply(dict.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn dropped_claim_returns_the_entry() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b"]).await;
                    drop(reply(dict.claim_expired(1, LONG).await));
                    sleep(BACKOFF).await;
                    let mut claims = reply(dict.claim_expired(9, LONG).await);
                    claims.sort_by_key(|claim| claim.key().clone());
                    assert_eq!(keys(&claims), ["a", "b"]);
                    let mut claims = claims.into_iter();
                    // An ack that is dropped before its first poll.
                    drop(claims.next().unwrap().ack());
                    sleep(2 * BACKOFF).await;
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 0)]);
                    // A panic, and an aborted task.
                    let claim = claims.next().unwrap();
                    let task = tokio::spawn(async move {
                        let _claim = claim;
                        panic!("expected panic of the worker");
                    });
                    assert!(task.await.is_err());
                    let claim = reply(dict.next_claim(LONG).await);
                    let task = tokio::spawn(async move {
                        let _claim = claim;
                        std::future::pending::<()>().await;
                    });
                    yield_now().await;
                    assert!(reply(dict.claim_expired(9, LONG).await).is_empty());
                    task.abort();
                    assert!(task.await.is_err());
                    sleep(2 * BACKOFF).await;
                    assert_eq!(reply(dict.take_expired(9).await), [entry("b", 1)]);
                })
                .await;
            }

            #[$test]
            async fn leaked_claim_is_delivered_again_after_its_lease() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b"]).await;
                    let start = Instant::now();
                    for lease in [soon(), Duration::MAX] {
                        let claims = reply(dict.claim_expired(1, lease).await);
                        claims.into_iter().for_each(std::mem::forget);
                    }
                    assert_eq!(reply(dict.next_expired().await), entry("a", 0));
                    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
                    assert_eq!(reply(dict.take_expired(9).await), NONE, "an endless lease never expires");
                    assert_eq!(reply(dict.remove("b").await), Some(1));
                })
                .await;
            }

            #[$test]
            async fn extend_changes_the_end_of_the_lease() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a"]).await;
                    let claim = reply(dict.next_claim(soon()).await);
                    assert!(reply(claim.extend(3 * soon()).await));
                    sleep(soon() + MILLI).await;
                    assert!(reply(dict.claim_expired(9, soon()).await).is_empty());
                    sleep(2 * soon()).await;
                    // The lease has expired, but no other caller has the entry.
                    reply(dict.set("b".into(), 1, Duration::ZERO).await);
                    assert_eq!(reply(dict.take_expired(0).await), NONE);
                    assert!(reply(claim.extend(LONG).await));
                    assert_eq!(reply(dict.take_expired(9).await), [entry("b", 1)]);
                    // A lease can be shortened, too.
                    assert!(reply(claim.extend(Duration::MAX).await));
                    assert_eq!(reply(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert!(reply(claim.extend(Duration::ZERO).await));
                    assert_eq!(reply(dict.take_expired(9).await), [entry("a", 0)]);
                    assert!(!reply(claim.extend(LONG).await));
                })
                .await;
            }

            #[$test]
            async fn lease_of_zero_expires_immediately() {
                run(async || {
                    let (dict, _guard) = dict_with_due(["a", "b"]).await;
                    let first = reply(dict.claim_expired(9, Duration::ZERO).await);
                    assert_eq!(keys(&first), ["a", "b"], "one call returns each entry once");
                    let second = reply(dict.claim_expired(9, Duration::ZERO).await);
                    assert_eq!(second.len(), 2);
                    for claim in first {
                        assert!(!reply(claim.ack().await));
                    }
                    for claim in second {
                        assert!(reply(claim.ack().await));
                    }
                })
                .await;
            }

            #[$test]
            async fn every_change_of_the_entry_makes_its_claim_void() {
                run(async || {
                    for change in 0..6 {
                        for is_expired in [false, true] {
                            let (dict, _guard) = dict_with_due(["a"]).await;
                            let lease = match (is_expired, change) {
                                (true, _) => MILLI,
                                // As endless as the new deadline, so that both have the same score.
                                (false, 2 | 5) => Duration::MAX,
                                (false, _) => LONG,
                            };
                            let mut claims = reply(dict.claim_expired(9, lease).await);
                            if is_expired {
                                sleep(2 * MILLI).await;
                            }
                            match change {
                                0 => assert_eq!(reply(dict.set("a".into(), 7, LONG).await), Some(0)),
                                1 => assert!(reply(dict.set_timeout("a", LONG).await)),
                                2 => assert!(reply(dict.remove_timeout("a").await)),
                                3 => assert_eq!(reply(dict.remove("a").await), Some(0)),
                                4 => reply(dict.clear().await),
                                _ => assert!(reply(dict.set_timeout("a", Duration::MAX).await)),
                            }
                            let value = reply(dict.get("a").await);
                            let is_persistent = reply(dict.ttl("a").await) == Ttl::Persistent;
                            let claim = claims.pop().unwrap();
                            assert!(!reply(claim.extend(1_000 * LONG).await));
                            if is_expired {
                                drop(claim);
                                wait_for_tasks().await;
                            } else {
                                assert!(!reply(claim.ack().await));
                            }
                            assert_eq!(reply(dict.get("a").await), value, "change {change}");
                            assert_eq!(reply(dict.ttl("a").await) == Ttl::Persistent, is_persistent);
                            assert_eq!(reply(dict.take_expired(9).await), NONE);
                            // The claim has no effect on a new entry of the key.
                            reply(dict.set("a".into(), 9, Duration::ZERO).await);
                            assert_eq!(reply(dict.take_expired(9).await), [entry("a", 9)]);
                        }
                    }
                })
                .await;
            }

            #[$test]
            async fn next_expired_waits_for_the_earliest_deadline() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let start = Instant::now();
                    reply(dict.set("b".into(), 2, 2 * soon()).await);
                    reply(dict.set("a".into(), 1, soon()).await);
                    reply(dict.set("never".into(), 0, Duration::MAX).await);
                    assert_eq!(reply(dict.next_expired().await), entry("a", 1));
                    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
                    let claim = reply(dict.next_claim(LONG).await);
                    assert_eq!(claim.key(), "b");
                    let passed = start.elapsed();
                    assert!(passed >= 2 * soon() && passed < 3 * soon(), "{passed:?}");
                    assert!(reply(claim.ack().await));
                    assert!(timeout(soon(), dict.next_expired()).await.is_err());
                    assert_eq!(reply(dict.len().await), 1);
                })
                .await;
            }

            #[$test]
            async fn next_expired_finds_an_earlier_deadline_set_while_it_waits() {
                run(async || {
                    let (dict, _guard) = make().await;
                    reply(dict.set("late".into(), 1, LONG).await);
                    let waiter = dict.clone();
                    let waiter = tokio::spawn(async move { reply(waiter.next_expired().await) });
                    sleep(soon()).await;
                    reply(dict.set("soon".into(), 2, Duration::ZERO).await);
                    let found = timeout(Duration::from_secs(5), waiter).await.expect("the waiter finds the entry in time");
                    assert_eq!(found.unwrap(), entry("soon", 2));
                })
                .await;
            }

            #[$test]
            async fn next_expired_and_next_claim_serve_waiters_in_fifo_order() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let served = Arc::new(Mutex::new(Vec::new()));
                    let mut tasks = Vec::new();
                    for id in 0..6_u32 {
                        let (dict, served) = (dict.clone(), served.clone());
                        tasks.push(tokio::spawn(async move {
                            let key = if id % 2 == 0 {
                                reply(dict.next_expired().await).0
                            } else {
                                let claim = reply(dict.next_claim(LONG).await);
                                let key = claim.key().clone();
                                assert!(reply(claim.ack().await));
                                key
                            };
                            served.lock().await.push((id, key));
                        }));
                        sleep(5 * MILLI).await;
                    }
                    // Cancelled waiters take nothing, and the next ones take their places.
                    tasks.remove(2).abort();
                    tasks.remove(0).abort();
                    for key in ["a", "b", "c", "d"] {
                        reply(dict.set(key.into(), 0, Duration::ZERO).await);
                        wait_for_tasks().await;
                    }
                    join_all(tasks).await;
                    let mut served = served.lock().await;
                    // The next waiter may be recorded before an ack completes.
                    served.sort();
                    let expected = [(1, "a"), (3, "b"), (4, "c"), (5, "d")];
                    assert_eq!(*served, expected.map(|(id, key)| (id, key.to_owned())));
                })
                .await;
            }

            #[$test]
            async fn concurrent_takes_and_claims_deliver_each_entry_once() {
                run(async || {
                    let (dict, _guard) = make().await;
                    for key in 0..1_000 {
                        reply(dict.set(key.to_string(), key, Duration::ZERO).await);
                    }
                    let tasks = (0..8).map(|id| {
                        let dict = dict.clone();
                        tokio::spawn(async move {
                            let mut taken = Vec::new();
                            while !reply(dict.is_empty().await) {
                                match id % 2 {
                                    0 => {
                                        let batch = reply(dict.take_expired(7).await);
                                        taken.extend(batch.into_iter().map(|(_, value)| value));
                                    }
                                    _ => {
                                        for claim in reply(dict.claim_expired(7, LONG).await) {
                                            taken.push(*claim.value());
                                            assert!(reply(claim.ack().await));
                                        }
                                    }
                                }
                            }
                            taken
                        })
                    });
                    let taken = join_all(tasks.collect::<Vec<_>>()).await;
                    let mut taken: Vec<_> = taken.into_iter().flat_map(|taken| taken.unwrap()).collect();
                    taken.sort();
                    assert_eq!(taken, (0..1_000).collect::<Vec<_>>());
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
        pub(super) type Dict = fleeting::TimeoutDict<String, u32>;
        pub(super) type Claim = fleeting::Claim<String, u32>;
        pub(super) type Guard = ();

        pub(super) async fn make() -> (Dict, Guard) {
            (Dict::new(), ())
        }

        pub(super) async fn run(case: impl AsyncFn()) {
            case().await;
        }
    }
    fn reply<T>(answer: T) -> T {
        answer
    }
}

suite! {
    on_redis,
    tokio::test,
    mod setup {
        use std::sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        };

        use fleeting::redis;

        pub(super) use crate::clock::in_time as run;
        use crate::servers::{Server, connect};

        pub(super) type Dict = redis::TimeoutDict<String, u32>;
        pub(super) type Claim = redis::Claim<String, u32>;
        pub(super) type Guard = Arc<Server>;

        /// Returns a guard, too: the server shared by concurrent tests runs while a test holds it. Names are unique.
        pub(super) async fn make() -> (Dict, Guard) {
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let server = Server::shared();
            let client = connect(server.url()).await;
            let name = format!("dict-{}", NAMES.fetch_add(1, Relaxed));
            (Dict::new(&client, name).unwrap(), server)
        }
    }
    fn reply<T>(answer: Result<T, fleeting::redis::Error>) -> T {
        answer.unwrap()
    }
}
