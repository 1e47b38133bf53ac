//! What both expiring sets promise: the same cases in memory, by a paused clock, and on a real server, by its
//! own.

use std::time::Duration;

use crate::clock::ms;

const MILLI: Duration = Duration::from_millis(1);
/// Long enough that a busy machine does in it what a case wants done before it is over.
fn ttl() -> Duration {
    ms(400)
}
const LONG: Duration = Duration::from_secs(600);
const NONE: [String; 0] = [];

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $told:item) => {
        mod $backend {
            use std::{ops::Bound, time::Duration};

            use futures::future::join_all;
            use rand::{RngExt, SeedableRng, rngs::SmallRng};
            use tokio::time::sleep;

            use super::{LONG, MILLI, NONE, ttl};

            $setup
            $told

            use setup::{Time, make, run};

            async fn fill(set: &setup::Set, members: &[(&str, Time)]) {
                for (member, score) in members {
                    told(set.push_at((*member).into(), *score).await);
                }
            }

            #[$test]
            async fn a_member_dies_when_its_score_is_ttl_old() {
                run(async || {
                    let (set, _guard) = make(ttl()).await;
                    told(set.push("a".into()).await);
                    assert_eq!(told(set.elements().await), ["a"]);
                    assert!(told(set.contains("a").await) && !told(set.contains("b").await));
                    // The past, and the future.
                    fill(&set, &[("b", Time::now() - ttl() / 2), ("c", Time::now() + ttl())]).await;
                    assert_eq!(told(set.elements().await), ["b", "a", "c"]);
                    sleep(ttl() / 2 + MILLI).await;
                    assert_eq!(told(set.elements().await), ["a", "c"]);
                    sleep(ttl() / 2 + MILLI).await;
                    assert_eq!((told(set.elements().await), told(set.len().await)), (vec!["c".into()], 1));
                    assert_eq!(told(set.peek().await).as_deref(), Some("c"));
                    assert!(!told(set.remove("a").await));
                    sleep(ttl()).await;
                    assert!(told(set.is_empty().await));
                    assert_eq!((told(set.pop().await), told(set.peek().await)), (None, None));
                    assert_eq!(told(set.remove_range(..).await), 0);
                    assert_eq!(told(set.score("c").await), None);
                })
                .await;
            }

            #[$test]
            async fn members_come_by_score_and_move_when_pushed_again() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let at = |millis: u32| noon + millis * MILLI;
                    fill(&set, &[("c", at(3)), ("a", at(1)), ("b", at(2))]).await;
                    assert_eq!(told(set.elements().await), ["a", "b", "c"]);
                    fill(&set, &[("a", noon + 4 * MILLI), ("c", noon)]).await;
                    assert_eq!(told(set.elements().await), ["c", "b", "a"]);
                    told(set.push_at("b".into(), noon + LONG).await);
                    assert_eq!(told(set.elements().await), ["c", "a", "b"]);
                    assert_eq!(told(set.len().await), 3);
                    assert_eq!(told(set.pop().await).as_deref(), Some("c"));
                    assert_eq!(told(set.peek().await).as_deref(), Some("a"));
                    assert!(told(set.remove("a").await));
                    assert!(!told(set.remove("a").await));
                    assert_eq!(told(set.elements().await), ["b"]);
                    told(set.clear().await);
                    assert!(told(set.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn equal_scores_keep_all_in_the_order_of_pushing() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    fill(&set, &[("d", noon), ("b", noon), ("z", noon - MILLI), ("c", noon)]).await;
                    fill(&set, &[("a", noon), ("y", noon + MILLI)]).await;
                    assert_eq!(told(set.elements().await), ["z", "d", "b", "c", "a", "y"]);
                    assert_eq!(told(set.range(noon..=noon).await), ["d", "b", "c", "a"]);
                    // Pushed again, a member comes behind its equals; the last stays the last.
                    fill(&set, &[("b", noon), ("b", noon), ("d", noon)]).await;
                    assert_eq!(told(set.elements().await), ["z", "c", "a", "b", "d", "y"]);
                    assert_eq!(told(set.score("b").await), told(set.score("c").await));
                    told(set.push_unique_at("a".into(), noon).await);
                    assert_eq!(told(set.elements().await), ["z", "a", "y"]);
                    told(set.push_unique_at("w".into(), noon).await);
                    assert_eq!(told(set.elements().await), ["z", "w", "y"]);
                    told(set.push_unique_at("w".into(), noon - MILLI).await);
                    assert_eq!(told(set.elements().await), ["w", "y"]);
                })
                .await;
            }

            #[$test]
            async fn equals_that_are_pushed_over_and_over_stay_in_order() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let mut random = SmallRng::seed_from_u64(3);
                    let mut known: Vec<u32> = (0..50).collect();
                    for member in &known {
                        told(set.push_at(member.to_string(), noon).await);
                    }
                    for _ in 0..6_000 {
                        let member = known.remove(random.random_range(0..50));
                        known.push(member);
                        told(set.push_at(member.to_string(), noon).await);
                    }
                    let expected: Vec<_> = known.iter().map(ToString::to_string).collect();
                    assert_eq!(told(set.elements().await), expected);
                    assert_eq!(told(set.range(noon..=noon).await), expected);
                })
                .await;
            }

            #[$test]
            async fn a_thousand_equals_keep_their_order() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let members: Vec<_> = (0..1_000_u32).rev().map(|member| member.to_string()).collect();
                    for member in &members {
                        told(set.push_at(member.clone(), noon).await);
                    }
                    assert_eq!(told(set.elements().await), members);
                    assert_eq!(told(set.remove_range(noon..=noon).await), 1_000);
                })
                .await;
            }

            #[$test]
            async fn extend_keeps_the_order_it_was_given() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    told(set.push("first".into()).await);
                    told(set.extend([]).await);
                    told(set.extend(["c", "a", "b", "c"].map(String::from)).await);
                    assert_eq!(told(set.elements().await), ["first", "a", "b", "c"]);
                    told(set.push("a".into()).await);
                    assert_eq!(told(set.elements().await), ["first", "b", "c", "a"]);
                    let many: Vec<_> = (0..10_000_u32).rev().map(|member| member.to_string()).collect();
                    told(set.extend(many.clone()).await);
                    told(set.push("last".into()).await);
                    let elements = told(set.elements().await);
                    assert_eq!(elements[..4], ["first", "b", "c", "a"]);
                    assert_eq!(elements[4..10_004], many);
                    assert_eq!(elements[10_004..], ["last"]);
                })
                .await;
            }

            #[$test]
            async fn what_is_dead_at_once_does_not_come() {
                run(async || {
                    let (set, _guard) = make(ttl()).await;
                    told(set.push("a".into()).await);
                    let old = Time::now() - ttl();
                    fill(&set, &[("b", old), ("c", old - LONG)]).await;
                    assert_eq!(told(set.elements().await), ["a"]);
                    told(set.push_unique_at("b".into(), old).await);
                    assert_eq!(told(set.elements().await), ["a"]);
                    // It moves to its death.
                    told(set.push_at("a".into(), old).await);
                    assert!(told(set.is_empty().await));

                    let (set, _guard) = make(Duration::ZERO).await;
                    told(set.push("a".into()).await);
                    told(set.extend((0..9_000).map(|member| member.to_string())).await);
                    assert!(told(set.is_empty().await));
                    told(set.push_at("b".into(), Time::now() + LONG).await);
                    assert_eq!(told(set.elements().await), ["b"]);
                })
                .await;
            }

            #[$test]
            async fn a_ttl_without_end_lets_nothing_die() {
                run(async || {
                    let (set, _guard) = make(Duration::MAX).await;
                    fill(&set, &[("b", Time::now()), ("a", Time::now() - LONG)]).await;
                    assert_eq!(told(set.elements().await), ["a", "b"]);
                })
                .await;
            }

            #[$test]
            async fn ranges_are_by_score() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let start = Time::now() - Duration::from_secs(60);
                    let at = |millis: u32| start + millis * MILLI;
                    for millis in 0..10_u32 {
                        told(set.push_at(millis.to_string(), at(millis)).await);
                    }
                    assert_eq!(told(set.range(at(3)..at(5)).await), ["3", "4"]);
                    assert_eq!(told(set.range(at(3)..=at(5)).await), ["3", "4", "5"]);
                    assert_eq!(told(set.range(..at(2)).await), ["0", "1"]);
                    assert_eq!(told(set.range(at(8)..).await), ["8", "9"]);
                    let inner = (Bound::Excluded(at(3)), Bound::Excluded(at(6)));
                    assert_eq!(told(set.range(inner).await), ["4", "5"]);
                    let wrong_way_round = (Bound::Included(at(6)), Bound::Included(at(3)));
                    assert_eq!(told(set.range(wrong_way_round).await), NONE);
                    assert_eq!(told(set.range(at(10)..).await), NONE);
                    assert_eq!(told(set.remove_range(at(2)..=at(3)).await), 2);
                    assert_eq!(told(set.remove_range(wrong_way_round).await), 0);
                    assert_eq!(told(set.remove_range(at(8)..).await), 2);
                    assert_eq!(told(set.elements().await), ["0", "1", "4", "5", "6", "7"]);
                    assert_eq!(told(set.range(at(4)..=at(4)).await), ["4"]);
                    assert_eq!(told(set.score("5").await), told(set.score("4").await).map(|at| at + MILLI));
                    assert_eq!(told(set.score("9").await), None);
                })
                .await;
            }

            #[$test]
            async fn what_is_pushed_now_is_found_from_now_on() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let before = Time::now();
                    told(set.push("a".into()).await);
                    told(set.extend(["b".into(), "c".into()]).await);
                    assert_eq!(told(set.range(before..).await), ["a", "b", "c"]);
                    assert_eq!(told(set.range(before + Duration::from_secs(5)..).await), NONE);
                    assert!(told(set.score("a").await).unwrap() + MILLI > before);
                })
                .await;
            }

            #[$test]
            async fn each_is_popped_once() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    told(set.extend((0..500).map(|member| member.to_string())).await);
                    let poppers = (0..8).map(|_| async {
                        let mut popped = Vec::new();
                        while let Some(member) = told(set.pop().await) {
                            popped.push(member.parse::<u32>().unwrap());
                        }
                        popped
                    });
                    let mut popped: Vec<_> = join_all(poppers).await.concat();
                    popped.sort();
                    assert_eq!(popped, (0..500).collect::<Vec<_>>());
                })
                .await;
            }

            #[$test]
            async fn clones_are_one_set() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let clone = set.clone();
                    for member in ["", "é\n\"", "{}", "7"] {
                        told(clone.push(member.into()).await);
                        assert!(told(set.contains(member).await));
                        assert_eq!(told(set.pop().await).as_deref(), Some(member));
                    }
                    assert!(told(clone.is_empty().await));
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

        pub(super) type Set = fleeting::ExpiringSet<String>;
        pub(super) type Guard = ();
        pub(super) type Time = tokio::time::Instant;

        pub(super) async fn make(ttl: Duration) -> (Set, Guard) {
            // So that there is a past.
            tokio::time::advance(Duration::from_secs(10_000)).await;
            (Set::new(ttl), ())
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
            time::{Duration, SystemTime},
        };

        use fleeting::redis;

        pub(super) use crate::clock::in_time as run;
        use crate::servers::{Server, connect};

        pub(super) type Set = redis::ExpiringSet<String>;
        pub(super) type Guard = Arc<Server>;
        pub(super) type Time = SystemTime;

        /// A name of its own, on a server that all who run at once share.
        pub(super) async fn make(ttl: Duration) -> (Set, Guard) {
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let server = Server::shared();
            let client = connect(server.url()).await;
            let name = format!("set-{}", NAMES.fetch_add(1, Relaxed));
            (Set::new(&client, name, ttl).unwrap(), server)
        }
    }
    fn told<T>(answer: Result<T, fleeting::redis::Error>) -> T {
        answer.unwrap()
    }
}
