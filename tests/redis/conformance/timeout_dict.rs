//! What both timeout dictionaries promise: the same cases in memory, by a paused clock, and on a real server,
//! by its own.

use std::time::Duration;

use crate::clock::ms;

const MILLI: Duration = Duration::from_millis(1);
/// Long enough that a busy machine does in it what a case wants done before it is over.
fn soon() -> Duration {
    ms(300)
}
const LONG: Duration = Duration::from_secs(60);
/// Longer than the first, where there is one. The second is twice as long.
const BACKOFF: Duration = Duration::from_millis(1_600);
const NONE: [(String, u32); 0] = [];

fn entry(key: &str, value: u32) -> (String, u32) {
    (key.to_owned(), value)
}

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $told:item) => {
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
            $told

            use setup::{Claim, Dict, make, run};

            async fn due<const N: usize>(keys: [&str; N]) -> (Dict, setup::Guard) {
                let (dict, guard) = make().await;
                for (key, value) in keys.into_iter().zip(0..) {
                    assert_eq!(told(dict.set(key.into(), value, Duration::ZERO).await), None);
                }
                (dict, guard)
            }

            fn keys(claims: &[Claim]) -> Vec<&str> {
                claims.iter().map(|claim| &claim.key()[..]).collect()
            }

            /// What a task does for who can't wait is done.
            async fn settle() {
                yield_now().await;
                sleep(ms(50)).await;
            }

            #[$test]
            async fn what_is_due_stays_readable_until_it_is_taken() {
                run(async || {
                    let (dict, _guard) = make().await;
                    assert_eq!(told(dict.set("a".into(), 1, soon()).await), None);
                    assert_eq!(told(dict.take_expired(9).await), NONE);
                    let Ttl::Remaining(left) = told(dict.ttl("a").await) else { panic!("it has one") };
                    assert!(left <= soon() && left > Duration::ZERO, "{left:?}");
                    sleep(soon() + MILLI).await;
                    assert_eq!(told(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert_eq!(told(dict.get("a").await), Some(1));
                    assert!(told(dict.contains_key("a").await));
                    assert_eq!(told(dict.take_expired(0).await), NONE);
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 1)]);
                    assert_eq!(told(dict.get("a").await), None);
                    assert_eq!(told(dict.ttl("a").await), Ttl::Missing);
                    assert!(!told(dict.contains_key("a").await));
                    assert_eq!(told(dict.take_expired(9).await), NONE);
                })
                .await;
            }

            #[$test]
            async fn the_oldest_deadline_comes_first() {
                run(async || {
                    let (dict, _guard) = due(["c", "a", "b", "d"]).await;
                    sleep(MILLI).await;
                    assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(told(dict.set("c".into(), 7, Duration::ZERO).await), Some(0));
                    let taken = told(dict.take_expired(3).await);
                    assert_eq!(taken, [entry("b", 2), entry("d", 3), entry("a", 1)]);
                    assert_eq!(told(dict.take_expired(usize::MAX).await), [entry("c", 7)]);
                })
                .await;
            }

            #[$test]
            async fn many_entries_come_in_order() {
                run(async || {
                    let mut random = SmallRng::seed_from_u64(7);
                    let (dict, _guard) = make().await;
                    let mut known = Vec::new();
                    for key in 0..3_000_u32 {
                        let ttl = Duration::from_secs(3_600) + random.random_range(0..1_000_000) * MILLI;
                        told(dict.set(key.to_string(), key, ttl).await);
                        known.push((ttl, key));
                    }
                    // Half of them are due, one after the other.
                    known.sort();
                    for (_, key) in &known[..1_500] {
                        assert!(told(dict.set_timeout(&key.to_string(), Duration::ZERO).await));
                    }
                    sleep(MILLI).await;
                    let mut taken = Vec::new();
                    for (max, all) in [(1, 1), (9, 10), (90, 100), (900, 1_000), (9_000, 1_500)] {
                        let some = told(dict.take_expired(max).await);
                        taken.extend(some.into_iter().map(|(_, value)| value));
                        assert_eq!(taken.len(), all);
                    }
                    let expected: Vec<_> = known[..1_500].iter().map(|(_, key)| *key).collect();
                    assert_eq!(taken, expected);
                    assert_eq!(told(dict.len().await), 1_500);
                })
                .await;
            }

            #[$test]
            async fn without_a_deadline_nothing_is_due() {
                run(async || {
                    let (dict, _guard) = make().await;
                    told(dict.set("never".into(), 1, Duration::MAX).await);
                    told(dict.set("a".into(), 2, soon()).await);
                    assert!(told(dict.remove_timeout("a").await));
                    assert!(!told(dict.remove_timeout("a").await), "it has none");
                    assert!(!told(dict.remove_timeout("never").await), "it has none");
                    assert!(!told(dict.remove_timeout("missing").await));
                    assert!(!told(dict.set_timeout("missing", soon()).await));
                    sleep(soon() + MILLI).await;
                    assert_eq!(told(dict.take_expired(9).await), NONE);
                    assert_eq!(told(dict.ttl("never").await), Ttl::Persistent);
                    assert_eq!(told(dict.ttl("a").await), Ttl::Persistent);
                    assert!(told(dict.set_timeout("a", Duration::ZERO).await));
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 2)]);
                    assert_eq!(told(dict.len().await), 1);
                })
                .await;
            }

            #[$test]
            async fn what_is_due_may_get_a_new_deadline() {
                run(async || {
                    let (dict, _guard) = due(["a", "b"]).await;
                    assert!(told(dict.set_timeout("a", soon()).await));
                    assert_eq!(told(dict.set("b".into(), 7, soon()).await), Some(1));
                    assert_eq!(told(dict.take_expired(9).await), NONE);
                    sleep(soon() + MILLI).await;
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 0), entry("b", 7)]);
                })
                .await;
            }

            #[$test]
            async fn look_ups_take_borrowed_keys_and_clones_are_one() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let clone = dict.clone();
                    for key in ["", "ada", "}:{", "7", "é\n\"", "null"] {
                        assert!(told(dict.is_empty().await));
                        told(clone.set(key.into(), 1, LONG).await);
                        assert_eq!(told(dict.get(key).await), Some(1));
                        assert_eq!(told(dict.remove(key).await), Some(1), "{key}");
                        assert_eq!(told(clone.remove(key).await), None);
                        told(clone.set(key.into(), 1, Duration::ZERO).await);
                        assert_eq!(told(dict.take_expired(9).await), [entry(key, 1)]);
                    }
                    for key in 0..2_000 {
                        told(clone.set(key.to_string(), key, Duration::MAX).await);
                    }
                    assert_eq!(told(dict.len().await), 2_000);
                    told(dict.clear().await);
                    assert!(told(clone.is_empty().await));
                    assert_eq!(told(clone.get("7").await), None);
                })
                .await;
            }

            #[$test]
            async fn what_is_claimed_goes_to_nobody_else_until_the_lease_is_over() {
                run(async || {
                    let (dict, _guard) = due(["a", "b", "c"]).await;
                    let claims = told(dict.claim_expired(2, soon()).await);
                    assert_eq!(keys(&claims), ["a", "b"]);
                    assert_eq!((*claims[1].value(), told(dict.get("a").await)), (1, Some(0)));
                    assert_eq!(format!("{:?}", claims[1]), "Claim { key: \"b\", value: 1, .. }");
                    assert_eq!(told(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert_eq!(told(dict.take_expired(9).await), [entry("c", 2)]);
                    assert_eq!(keys(&told(dict.claim_expired(9, soon()).await)), [""; 0]);
                    assert_eq!(told(dict.len().await), 2);
                    sleep(soon() + MILLI).await;
                    let mut again = told(dict.take_expired(9).await);
                    again.sort();
                    assert_eq!(again, [entry("a", 0), entry("b", 1)]);
                    for claim in claims {
                        assert!(!told(claim.ack().await), "somebody else has taken it");
                    }
                })
                .await;
            }

            #[$test]
            async fn an_ack_takes_out() {
                run(async || {
                    let (dict, _guard) = due(["a", "b"]).await;
                    let mut claims = told(dict.claim_expired(9, soon()).await);
                    assert!(told(claims.pop().unwrap().ack().await));
                    assert_eq!(told(dict.get("a").await), Some(0));
                    assert_eq!(told(dict.get("b").await), None);
                    // After the lease, as long as nobody else got it.
                    sleep(soon() + MILLI).await;
                    told(dict.set("c".into(), 2, Duration::ZERO).await);
                    assert_eq!(told(dict.take_expired(0).await), NONE);
                    assert!(told(claims.pop().unwrap().ack().await));
                    assert_eq!(told(dict.take_expired(9).await), [entry("c", 2)]);
                    assert!(told(dict.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn of_two_claims_on_an_entry_the_later_is_acked() {
                run(async || {
                    let (dict, _guard) = due(["a"]).await;
                    let first = told(dict.next_claim(MILLI).await);
                    sleep(2 * MILLI).await;
                    // Also where the later one has given back.
                    drop(told(dict.next_claim(LONG).await));
                    settle().await;
                    assert!(!told(first.ack().await));
                    let first = told(dict.next_claim(MILLI).await);
                    sleep(2 * MILLI).await;
                    let second = told(dict.next_claim(LONG).await);
                    assert!(!told(first.extend(Duration::ZERO).await));
                    drop(first);
                    settle().await;
                    let more = told(dict.claim_expired(9, LONG).await);
                    assert!(more.is_empty(), "the first has nothing to give back");
                    assert!(told(second.ack().await));
                    assert!(told(dict.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn a_claim_that_is_dropped_gives_back() {
                run(async || {
                    let (dict, _guard) = due(["a", "b"]).await;
                    drop(told(dict.claim_expired(1, LONG).await));
                    sleep(BACKOFF).await;
                    let mut claims = told(dict.claim_expired(9, LONG).await);
                    claims.sort_by_key(|claim| claim.key().clone());
                    assert_eq!(keys(&claims), ["a", "b"]);
                    let mut claims = claims.into_iter();
                    // A future that is dropped before it is polled.
                    drop(claims.next().unwrap().ack());
                    sleep(2 * BACKOFF).await;
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 0)]);
                    // A panic, and a task that is killed.
                    let claim = claims.next().unwrap();
                    let task = tokio::spawn(async move {
                        let _claim = claim;
                        panic!("in mid-work");
                    });
                    assert!(task.await.is_err());
                    let claim = told(dict.next_claim(LONG).await);
                    let task = tokio::spawn(async move {
                        let _claim = claim;
                        std::future::pending::<()>().await;
                    });
                    yield_now().await;
                    assert!(told(dict.claim_expired(9, LONG).await).is_empty());
                    task.abort();
                    assert!(task.await.is_err());
                    sleep(2 * BACKOFF).await;
                    assert_eq!(told(dict.take_expired(9).await), [entry("b", 1)]);
                })
                .await;
            }

            #[$test]
            async fn what_is_leaked_comes_again_when_the_lease_is_over() {
                run(async || {
                    let (dict, _guard) = due(["a", "b"]).await;
                    let start = Instant::now();
                    for lease in [soon(), Duration::MAX] {
                        let claims = told(dict.claim_expired(1, lease).await);
                        claims.into_iter().for_each(std::mem::forget);
                    }
                    assert_eq!(told(dict.next_expired().await), entry("a", 0));
                    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
                    assert_eq!(told(dict.take_expired(9).await), NONE, "that lease is never over");
                    assert_eq!(told(dict.remove("b").await), Some(1));
                })
                .await;
            }

            #[$test]
            async fn extend_moves_the_end_of_the_lease() {
                run(async || {
                    let (dict, _guard) = due(["a"]).await;
                    let claim = told(dict.next_claim(soon()).await);
                    assert!(told(claim.extend(3 * soon()).await));
                    sleep(soon() + MILLI).await;
                    assert!(told(dict.claim_expired(9, soon()).await).is_empty());
                    sleep(2 * soon()).await;
                    // It is over, but nobody has taken it.
                    told(dict.set("b".into(), 1, Duration::ZERO).await);
                    assert_eq!(told(dict.take_expired(0).await), NONE);
                    assert!(told(claim.extend(LONG).await));
                    assert_eq!(told(dict.take_expired(9).await), [entry("b", 1)]);
                    // Sooner than it was, too.
                    assert!(told(claim.extend(Duration::MAX).await));
                    assert_eq!(told(dict.ttl("a").await), Ttl::Remaining(Duration::ZERO));
                    assert!(told(claim.extend(Duration::ZERO).await));
                    assert_eq!(told(dict.take_expired(9).await), [entry("a", 0)]);
                    assert!(!told(claim.extend(LONG).await));
                })
                .await;
            }

            #[$test]
            async fn a_lease_of_zero_is_over_at_once() {
                run(async || {
                    let (dict, _guard) = due(["a", "b"]).await;
                    let first = told(dict.claim_expired(9, Duration::ZERO).await);
                    assert_eq!(keys(&first), ["a", "b"], "each once in one call");
                    let second = told(dict.claim_expired(9, Duration::ZERO).await);
                    assert_eq!(second.len(), 2);
                    for claim in first {
                        assert!(!told(claim.ack().await));
                    }
                    for claim in second {
                        assert!(told(claim.ack().await));
                    }
                })
                .await;
            }

            #[$test]
            async fn whatever_changes_the_entry_makes_its_claim_void() {
                run(async || {
                    for which in 0..6 {
                        for is_over in [false, true] {
                            let (dict, _guard) = due(["a"]).await;
                            let lease = match (is_over, which) {
                                (true, _) => MILLI,
                                // As endless as the deadline that it gets.
                                (false, 2 | 5) => Duration::MAX,
                                (false, _) => LONG,
                            };
                            let mut claims = told(dict.claim_expired(9, lease).await);
                            if is_over {
                                sleep(2 * MILLI).await;
                            }
                            match which {
                                0 => assert_eq!(told(dict.set("a".into(), 7, LONG).await), Some(0)),
                                1 => assert!(told(dict.set_timeout("a", LONG).await)),
                                2 => assert!(told(dict.remove_timeout("a").await)),
                                3 => assert_eq!(told(dict.remove("a").await), Some(0)),
                                4 => told(dict.clear().await),
                                _ => assert!(told(dict.set_timeout("a", Duration::MAX).await)),
                            }
                            let value = told(dict.get("a").await);
                            let is_persistent = told(dict.ttl("a").await) == Ttl::Persistent;
                            let claim = claims.pop().unwrap();
                            assert!(!told(claim.extend(1_000 * LONG).await));
                            if is_over {
                                drop(claim);
                                settle().await;
                            } else {
                                assert!(!told(claim.ack().await));
                            }
                            assert_eq!(told(dict.get("a").await), value, "change {which}");
                            assert_eq!(told(dict.ttl("a").await) == Ttl::Persistent, is_persistent);
                            assert_eq!(told(dict.take_expired(9).await), NONE);
                            // A new entry in its place is not that of the claim.
                            told(dict.set("a".into(), 9, Duration::ZERO).await);
                            assert_eq!(told(dict.take_expired(9).await), [entry("a", 9)]);
                        }
                    }
                })
                .await;
            }

            #[$test]
            async fn next_waits_for_the_first_deadline() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let start = Instant::now();
                    told(dict.set("b".into(), 2, 2 * soon()).await);
                    told(dict.set("a".into(), 1, soon()).await);
                    told(dict.set("never".into(), 0, Duration::MAX).await);
                    assert_eq!(told(dict.next_expired().await), entry("a", 1));
                    assert!(start.elapsed() >= soon(), "{:?}", start.elapsed());
                    let claim = told(dict.next_claim(LONG).await);
                    assert_eq!(claim.key(), "b");
                    let passed = start.elapsed();
                    assert!(passed >= 2 * soon() && passed < 3 * soon(), "{passed:?}");
                    assert!(told(claim.ack().await));
                    assert!(timeout(soon(), dict.next_expired()).await.is_err());
                    assert_eq!(told(dict.len().await), 1);
                })
                .await;
            }

            #[$test]
            async fn next_finds_what_comes_sooner_than_all_it_knew() {
                run(async || {
                    let (dict, _guard) = make().await;
                    told(dict.set("late".into(), 1, LONG).await);
                    let waits = dict.clone();
                    let waits = tokio::spawn(async move { told(waits.next_expired().await) });
                    sleep(soon()).await;
                    told(dict.set("soon".into(), 2, Duration::ZERO).await);
                    let found = timeout(Duration::from_secs(5), waits).await.expect("it is asked for");
                    assert_eq!(found.unwrap(), entry("soon", 2));
                })
                .await;
            }

            #[$test]
            async fn who_waits_is_served_in_the_order_of_asking() {
                run(async || {
                    let (dict, _guard) = make().await;
                    let served = Arc::new(Mutex::new(Vec::new()));
                    let mut tasks = Vec::new();
                    for id in 0..6_u32 {
                        let (dict, served) = (dict.clone(), served.clone());
                        tasks.push(tokio::spawn(async move {
                            let key = if id % 2 == 0 {
                                told(dict.next_expired().await).0
                            } else {
                                let claim = told(dict.next_claim(LONG).await);
                                let key = claim.key().clone();
                                assert!(told(claim.ack().await));
                                key
                            };
                            served.lock().await.push((id, key));
                        }));
                        sleep(5 * MILLI).await;
                    }
                    // Who gives up takes nothing, and those behind move up.
                    tasks.remove(2).abort();
                    tasks.remove(0).abort();
                    for key in ["a", "b", "c", "d"] {
                        told(dict.set(key.into(), 0, Duration::ZERO).await);
                        settle().await;
                    }
                    join_all(tasks).await;
                    let mut served = served.lock().await;
                    // An ack may overtake the next taker's note.
                    served.sort();
                    let expected = [(1, "a"), (3, "b"), (4, "c"), (5, "d")];
                    assert_eq!(*served, expected.map(|(id, key)| (id, key.to_owned())));
                })
                .await;
            }

            #[$test]
            async fn each_goes_to_one_however_many_take() {
                run(async || {
                    let (dict, _guard) = make().await;
                    for key in 0..1_000 {
                        told(dict.set(key.to_string(), key, Duration::ZERO).await);
                    }
                    let tasks = (0..8).map(|id| {
                        let dict = dict.clone();
                        tokio::spawn(async move {
                            let mut taken = Vec::new();
                            while !told(dict.is_empty().await) {
                                match id % 2 {
                                    0 => {
                                        let some = told(dict.take_expired(7).await);
                                        taken.extend(some.into_iter().map(|(_, value)| value));
                                    }
                                    _ => {
                                        for claim in told(dict.claim_expired(7, LONG).await) {
                                            taken.push(*claim.value());
                                            assert!(told(claim.ack().await));
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
    fn told<T>(answer: T) -> T {
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

        /// A name of its own, on a server that all who run at once share.
        pub(super) async fn make() -> (Dict, Guard) {
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let server = Server::shared();
            let client = connect(server.url()).await;
            let name = format!("dict-{}", NAMES.fetch_add(1, Relaxed));
            (Dict::new(&client, name).unwrap(), server)
        }
    }
    fn told<T>(answer: Result<T, fleeting::redis::Error>) -> T {
        answer.unwrap()
    }
}
