//! Promises of both expiring sets: run in memory with a paused clock, and on a real server.

use std::time::Duration;

use crate::clock::ms;

const MILLI: Duration = Duration::from_millis(1);
/// TTL, long enough that a busy machine completes the calls of a test before it ends.
fn ttl() -> Duration {
    ms(400)
}
const LONG: Duration = Duration::from_secs(600);
const NONE: [String; 0] = [];

macro_rules! suite {
    ($backend:ident, $test:meta, $setup:item $reply:item) => {
        mod $backend {
            use std::{ops::Bound, time::Duration};

            use futures::future::join_all;
            use rand::{RngExt, SeedableRng, rngs::SmallRng};
            use tokio::time::sleep;

            use super::{LONG, MILLI, NONE, ttl};

            $setup
            $reply

            use setup::{Time, make, run};

            async fn fill(set: &setup::Set, members: &[(&str, Time)]) {
                for (member, score) in members {
                    reply(set.push_at((*member).into(), *score).await);
                }
            }

            #[$test]
            async fn member_expires_when_its_score_is_ttl_old() {
                run(async || {
                    let (set, _guard) = make(ttl()).await;
                    reply(set.push("a".into()).await);
                    assert_eq!(reply(set.elements().await), ["a"]);
                    assert!(reply(set.contains("a").await) && !reply(set.contains("b").await));
                    // Scores in the past and in the future.
                    fill(&set, &[("b", Time::now() - ttl() / 2), ("c", Time::now() + ttl())]).await;
                    assert_eq!(reply(set.elements().await), ["b", "a", "c"]);
                    sleep(ttl() / 2 + MILLI).await;
                    assert_eq!(reply(set.elements().await), ["a", "c"]);
                    sleep(ttl() / 2 + MILLI).await;
                    assert_eq!((reply(set.elements().await), reply(set.len().await)), (vec!["c".into()], 1));
                    assert_eq!(reply(set.peek().await).as_deref(), Some("c"));
                    assert!(!reply(set.remove("a").await));
                    sleep(ttl()).await;
                    assert!(reply(set.is_empty().await));
                    assert_eq!((reply(set.pop().await), reply(set.peek().await)), (None, None));
                    assert_eq!(reply(set.remove_range(..).await), 0);
                    assert_eq!(reply(set.score("c").await), None);
                })
                .await;
            }

            #[$test]
            async fn members_are_ordered_by_score_and_moved_by_a_push() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let at = |millis: u32| noon + millis * MILLI;
                    fill(&set, &[("c", at(3)), ("a", at(1)), ("b", at(2))]).await;
                    assert_eq!(reply(set.elements().await), ["a", "b", "c"]);
                    fill(&set, &[("a", noon + 4 * MILLI), ("c", noon)]).await;
                    assert_eq!(reply(set.elements().await), ["c", "b", "a"]);
                    reply(set.push_at("b".into(), noon + LONG).await);
                    assert_eq!(reply(set.elements().await), ["c", "a", "b"]);
                    assert_eq!(reply(set.len().await), 3);
                    assert_eq!(reply(set.pop().await).as_deref(), Some("c"));
                    assert_eq!(reply(set.peek().await).as_deref(), Some("a"));
                    assert!(reply(set.remove("a").await));
                    assert!(!reply(set.remove("a").await));
                    assert_eq!(reply(set.elements().await), ["b"]);
                    reply(set.clear().await);
                    assert!(reply(set.is_empty().await));
                })
                .await;
            }

            #[$test]
            async fn members_with_equal_scores_are_kept_in_the_order_of_pushing() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    fill(&set, &[("d", noon), ("b", noon), ("z", noon - MILLI), ("c", noon)]).await;
                    fill(&set, &[("a", noon), ("y", noon + MILLI)]).await;
                    assert_eq!(reply(set.elements().await), ["z", "d", "b", "c", "a", "y"]);
                    assert_eq!(reply(set.range(noon..=noon).await), ["d", "b", "c", "a"]);
                    // A repeated push moves a member behind its equals; the last one stays the last.
                    fill(&set, &[("b", noon), ("b", noon), ("d", noon)]).await;
                    assert_eq!(reply(set.elements().await), ["z", "c", "a", "b", "d", "y"]);
                    assert_eq!(reply(set.score("b").await), reply(set.score("c").await));
                    reply(set.push_unique_at("a".into(), noon).await);
                    assert_eq!(reply(set.elements().await), ["z", "a", "y"]);
                    reply(set.push_unique_at("w".into(), noon).await);
                    assert_eq!(reply(set.elements().await), ["z", "w", "y"]);
                    reply(set.push_unique_at("w".into(), noon - MILLI).await);
                    assert_eq!(reply(set.elements().await), ["w", "y"]);
                })
                .await;
            }

            #[$test]
            async fn equal_scores_stay_ordered_after_thousands_of_pushes() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let mut random = SmallRng::seed_from_u64(3);
                    let mut known: Vec<u32> = (0..50).collect();
                    for member in &known {
                        reply(set.push_at(member.to_string(), noon).await);
                    }
                    for _ in 0..6_000 {
                        let member = known.remove(random.random_range(0..50));
                        known.push(member);
                        reply(set.push_at(member.to_string(), noon).await);
                    }
                    let expected: Vec<_> = known.iter().map(ToString::to_string).collect();
                    assert_eq!(reply(set.elements().await), expected);
                    assert_eq!(reply(set.range(noon..=noon).await), expected);
                })
                .await;
            }

            #[$test]
            async fn thousand_equal_scores_keep_the_order_of_pushing() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let noon = Time::now();
                    let members: Vec<_> = (0..1_000_u32).rev().map(|member| member.to_string()).collect();
                    for member in &members {
                        reply(set.push_at(member.clone(), noon).await);
                    }
                    assert_eq!(reply(set.elements().await), members);
                    assert_eq!(reply(set.remove_range(noon..=noon).await), 1_000);
                })
                .await;
            }

            #[$test]
            async fn extend_keeps_the_order_of_its_members() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    reply(set.push("first".into()).await);
                    reply(set.extend([]).await);
                    reply(set.extend(["c", "a", "b", "c"].map(String::from)).await);
                    assert_eq!(reply(set.elements().await), ["first", "a", "b", "c"]);
                    reply(set.push("a".into()).await);
                    assert_eq!(reply(set.elements().await), ["first", "b", "c", "a"]);
                    let many: Vec<_> = (0..10_000_u32).rev().map(|member| member.to_string()).collect();
                    reply(set.extend(many.clone()).await);
                    reply(set.push("last".into()).await);
                    let elements = reply(set.elements().await);
                    assert_eq!(elements[..4], ["first", "b", "c", "a"]);
                    assert_eq!(elements[4..10_004], many);
                    assert_eq!(elements[10_004..], ["last"]);
                })
                .await;
            }

            #[$test]
            async fn push_of_an_expired_score_adds_nothing_and_removes_the_member() {
                run(async || {
                    let (set, _guard) = make(ttl()).await;
                    reply(set.push("a".into()).await);
                    let old = Time::now() - ttl();
                    fill(&set, &[("b", old), ("c", old - LONG)]).await;
                    assert_eq!(reply(set.elements().await), ["a"]);
                    reply(set.push_unique_at("b".into(), old).await);
                    assert_eq!(reply(set.elements().await), ["a"]);
                    // A move to an expired score removes the member.
                    reply(set.push_at("a".into(), old).await);
                    assert!(reply(set.is_empty().await));

                    let (set, _guard) = make(Duration::ZERO).await;
                    reply(set.push("a".into()).await);
                    reply(set.extend((0..9_000).map(|member| member.to_string())).await);
                    assert!(reply(set.is_empty().await));
                    reply(set.push_at("b".into(), Time::now() + LONG).await);
                    assert_eq!(reply(set.elements().await), ["b"]);
                })
                .await;
            }

            #[$test]
            async fn ttl_of_duration_max_expires_nothing() {
                run(async || {
                    let (set, _guard) = make(Duration::MAX).await;
                    fill(&set, &[("b", Time::now()), ("a", Time::now() - LONG)]).await;
                    assert_eq!(reply(set.elements().await), ["a", "b"]);
                })
                .await;
            }

            #[$test]
            async fn range_and_remove_range_select_by_score() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let start = Time::now() - Duration::from_secs(60);
                    let at = |millis: u32| start + millis * MILLI;
                    for millis in 0..10_u32 {
                        reply(set.push_at(millis.to_string(), at(millis)).await);
                    }
                    assert_eq!(reply(set.range(at(3)..at(5)).await), ["3", "4"]);
                    assert_eq!(reply(set.range(at(3)..=at(5)).await), ["3", "4", "5"]);
                    assert_eq!(reply(set.range(..at(2)).await), ["0", "1"]);
                    assert_eq!(reply(set.range(at(8)..).await), ["8", "9"]);
                    let inner = (Bound::Excluded(at(3)), Bound::Excluded(at(6)));
                    assert_eq!(reply(set.range(inner).await), ["4", "5"]);
                    let reversed = (Bound::Included(at(6)), Bound::Included(at(3)));
                    assert_eq!(reply(set.range(reversed).await), NONE);
                    assert_eq!(reply(set.range(at(10)..).await), NONE);
                    assert_eq!(reply(set.remove_range(at(2)..=at(3)).await), 2);
                    assert_eq!(reply(set.remove_range(reversed).await), 0);
                    assert_eq!(reply(set.remove_range(at(8)..).await), 2);
                    assert_eq!(reply(set.elements().await), ["0", "1", "4", "5", "6", "7"]);
                    assert_eq!(reply(set.range(at(4)..=at(4)).await), ["4"]);
                    assert_eq!(reply(set.score("5").await), reply(set.score("4").await).map(|at| at + MILLI));
                    assert_eq!(reply(set.score("9").await), None);
                })
                .await;
            }

            #[$test]
            async fn pushed_members_are_scored_with_the_present() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let before = Time::now();
                    reply(set.push("a".into()).await);
                    reply(set.extend(["b".into(), "c".into()]).await);
                    assert_eq!(reply(set.range(before..).await), ["a", "b", "c"]);
                    assert_eq!(reply(set.range(before + Duration::from_secs(5)..).await), NONE);
                    assert!(reply(set.score("a").await).unwrap() + MILLI > before);
                })
                .await;
            }

            #[$test]
            async fn concurrent_pops_return_each_member_once() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    reply(set.extend((0..500).map(|member| member.to_string())).await);
                    let poppers = (0..8).map(|_| async {
                        let mut popped = Vec::new();
                        while let Some(member) = reply(set.pop().await) {
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
            async fn clones_share_one_set() {
                run(async || {
                    let (set, _guard) = make(LONG).await;
                    let clone = set.clone();
                    for member in ["", "é\n\"", "{}", "7"] {
                        reply(clone.push(member.into()).await);
                        assert!(reply(set.contains(member).await));
                        assert_eq!(reply(set.pop().await).as_deref(), Some(member));
                    }
                    assert!(reply(clone.is_empty().await));
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
            // Otherwise scores in the past would precede the paused clock's start.
            tokio::time::advance(Duration::from_secs(10_000)).await;
            (Set::new(ttl), ())
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

        /// Returns a guard, too: the server shared by concurrent tests runs while a test holds it. Names are unique.
        pub(super) async fn make(ttl: Duration) -> (Set, Guard) {
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let server = Server::shared();
            let client = connect(server.url()).await;
            let name = format!("set-{}", NAMES.fetch_add(1, Relaxed));
            (Set::new(&client, name, ttl).unwrap(), server)
        }
    }
    fn reply<T>(answer: Result<T, fleeting::redis::Error>) -> T {
        answer.unwrap()
    }
}
