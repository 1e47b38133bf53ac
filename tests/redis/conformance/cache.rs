//! The verbs that the embedded cache and the one on Redis share: the same cases, run on both.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Lagged, Ttl, When};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep};

use crate::{
    clock::{in_time, ms},
    servers::{Server, connect},
};

/// An answer, as it is or out of a `Result`.
trait Told<T> {
    fn told(self) -> T;
}

impl<T> Told<T> for Result<T, fleeting::redis::Error> {
    fn told(self) -> T {
        self.unwrap()
    }
}

macro_rules! told {
    ($($type:ty),*) => {$(
        impl Told<$type> for $type {
            fn told(self) -> $type {
                self
            }
        }
    )*};
}

told!(bool, usize, (), Option<()>, Ttl, Option<u64>, Option<String>);

/// Long enough that nothing dies of slowness.
const HOUR: Duration = Duration::from_secs(3_600);

fn short() -> Duration {
    ms(150)
}

/// Of a TTL that was just given, on a clock that may go on.
fn is_about(ttl: Ttl, given: Duration) -> bool {
    matches!(ttl, Ttl::Remaining(left) if left <= given && left + Duration::from_secs(20) > given)
}

async fn set_of<T: Ord>(stream: impl Stream<Item = T>) -> BTreeSet<T> {
    let items: Vec<T> = stream.collect().await;
    let len = items.len();
    let set = BTreeSet::from_iter(items);
    assert_eq!(set.len(), len, "each comes once");
    set
}

/// `make(case)` gives a cache of strings and numbers, without a default TTL; `entries(&cache)` what is in it.
macro_rules! suite {
    ($($attribute:meta)?) => {
        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn what_is_set_is_there_until_it_is_removed() {
            run(async || {
                let cache = make("set").await;
                assert_eq!(cache.get("ada").await.told(), None);
                assert_eq!(cache.set("ada".into(), 1).await.told(), None);
                assert_eq!(cache.get("ada").await.told(), Some(1));
                assert_eq!(cache.set("ada".into(), 2).await.told(), Some(1));
                assert!(cache.contains_key("ada").await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert_eq!(cache.remove("ada").await.told(), Some(2));
                assert_eq!(cache.remove("ada").await.told(), None);
                assert!(!cache.contains_key("ada").await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Missing);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn a_value_lives_for_its_ttl_and_no_longer() {
            run(async || {
                let cache = make("set_ex").await;
                let begin = Instant::now();
                assert_eq!(cache.set_ex("ada".into(), 1, short()).await.told(), None);
                assert!(is_about(cache.ttl("ada").await.told(), short()));
                assert_eq!(cache.get("ada").await.told(), Some(1));
                while cache.get("ada").await.told().is_some() {
                    assert!(begin.elapsed() < HOUR);
                    sleep(ms(1)).await;
                }
                assert!(begin.elapsed() >= short(), "{:?}", begin.elapsed());
                assert!(!cache.contains_key("ada").await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Missing);
                assert_eq!(cache.set("ada".into(), 2).await.told(), None, "no dead value comes back");
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn a_ttl_of_zero_is_dead_at_once_and_one_that_overflows_is_none() {
            run(async || {
                let cache = make("edges").await;
                cache.set("ada".into(), 1).await.told();
                assert_eq!(cache.set_ex("ada".into(), 2, Duration::ZERO).await.told(), Some(1));
                assert_eq!(cache.get("ada").await.told(), None);
                assert_eq!(cache.set_ex("ada".into(), 3, Duration::MAX).await.told(), None);
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert_eq!(cache.get_ex("ada", Duration::ZERO).await.told(), Some(3));
                assert_eq!(cache.get("ada").await.told(), None);
                assert!(cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await.told());
                assert_eq!(cache.get("ada").await.told(), None);
                cache.set("ada".into(), 5).await.told();
                assert!(cache.expire("ada", Duration::ZERO).await.told());
                assert_eq!(cache.get("ada").await.told(), None);
                assert!(!cache.expire("ada", Duration::ZERO).await.told());
                cache.set_ex("ada".into(), 6, HOUR).await.told();
                assert!(cache.expire("ada", Duration::MAX).await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert!(cache.expire("ada", Duration::MAX).await.told());
                assert!(!cache.expire("bob", Duration::MAX).await.told());
                // Less than a millisecond is not nothing.
                cache.set_ex("ada".into(), 7, HOUR).await.told();
                assert!(cache.expire("ada", Duration::from_nanos(1)).await.told());
                sleep(ms(5)).await;
                assert_eq!(cache.get("ada").await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn get_ex_reads_and_gives_a_new_ttl() {
            run(async || {
                let cache = make("get_ex").await;
                assert_eq!(cache.get_ex("ada", HOUR).await.told(), None);
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Missing);
                cache.set_ex("ada".into(), 1, short()).await.told();
                assert_eq!(cache.get_ex("ada", HOUR).await.told(), Some(1));
                assert!(is_about(cache.ttl("ada").await.told(), HOUR));
                assert_eq!(cache.get_ex("ada", Duration::MAX).await.told(), Some(1));
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                cache.set_ex("bob".into(), 1, short()).await.told();
                sleep(short() + ms(10)).await;
                assert_eq!(cache.get_ex("bob", HOUR).await.told(), None, "what is dead stays dead");
                assert_eq!(cache.get("bob").await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn set_nx_sets_only_where_no_live_value_is() {
            run(async || {
                let cache = make("set_nx").await;
                assert!(cache.set_nx("ada".into(), 1, Some(short())).await.told());
                assert!(!cache.set_nx("ada".into(), 2, None).await.told());
                assert_eq!(cache.get("ada").await.told(), Some(1));
                assert!(is_about(cache.ttl("ada").await.told(), short()));
                sleep(short() + ms(10)).await;
                assert!(cache.set_nx("ada".into(), 3, None).await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert!(!cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await.told());
                assert_eq!(cache.get("ada").await.told(), Some(3));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn set_keep_ttl_keeps_it() {
            run(async || {
                let cache = make("keep").await;
                assert_eq!(cache.set_keep_ttl("ada".into(), 1).await.told(), None);
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert_eq!(cache.set_keep_ttl("ada".into(), 2).await.told(), Some(1));
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                cache.set_ex("ada".into(), 3, short()).await.told();
                assert_eq!(cache.set_keep_ttl("ada".into(), 4).await.told(), Some(3));
                assert!(is_about(cache.ttl("ada").await.told(), short()));
                assert_eq!(cache.get("ada").await.told(), Some(4));
                sleep(short() + ms(10)).await;
                assert_eq!(cache.get("ada").await.told(), None);
                assert_eq!(cache.set_keep_ttl("ada".into(), 5).await.told(), None);
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn the_default_ttl_is_given_where_none_is() {
            run(async || {
                let cache = make_with("default", HOUR).await;
                cache.set("ada".into(), 1).await.told();
                assert!(is_about(cache.ttl("ada").await.told(), HOUR));
                assert!(cache.set_nx("bob".into(), 1, None).await.told());
                assert!(is_about(cache.ttl("bob").await.told(), HOUR));
                assert_eq!(cache.set_keep_ttl("cyd".into(), 1).await.told(), None);
                assert!(is_about(cache.ttl("cyd").await.told(), HOUR));
                cache.set_ex("dan".into(), 1, Duration::MAX).await.told();
                assert_eq!(cache.set_keep_ttl("dan".into(), 2).await.told(), Some(1));
                assert_eq!(cache.ttl("dan").await.told(), Ttl::Persistent);
                cache.set_ex("eve".into(), 1, 2 * HOUR).await.told();
                assert_eq!(cache.set_keep_ttl("eve".into(), 2).await.told(), Some(1));
                assert!(is_about(cache.ttl("eve").await.told(), 2 * HOUR));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_if_asks_for_the_ttl_that_is_there() {
            run(async || {
                let cache = make("expire_if").await;
                use When::{HasTtl, Later, NoTtl, Sooner};
                for when in [NoTtl, HasTtl, Later, Sooner] {
                    assert!(!cache.expire_if("ada", HOUR, when).await.told(), "{when:?}");
                }
                // What the value has, the new TTL, and the conditions that hold.
                let cases = [
                    (Duration::MAX, HOUR, [NoTtl, Sooner].as_slice()),
                    (HOUR, 2 * HOUR, &[HasTtl, Later]),
                    (2 * HOUR, HOUR, &[HasTtl, Sooner]),
                    (HOUR, Duration::MAX, &[HasTtl, Later]),
                    (Duration::MAX, Duration::MAX, &[NoTtl]),
                    (HOUR, Duration::ZERO, &[HasTtl, Sooner]),
                ];
                for (has, new, holding) in cases {
                    for when in [NoTtl, HasTtl, Later, Sooner] {
                        let case = format!("{has:?}, {new:?}, {when:?}");
                        cache.set_ex("ada".into(), 1, has).await.told();
                        let before = cache.ttl("ada").await.told();
                        let holds = cache.expire_if("ada", new, when).await.told();
                        assert_eq!(holds, holding.contains(&when), "{case}");
                        let after = cache.ttl("ada").await.told();
                        let right = match (holds, new, before) {
                            (true, Duration::ZERO, _) => after == Ttl::Missing,
                            (true, Duration::MAX, _) => after == Ttl::Persistent,
                            (true, new, _) => is_about(after, new),
                            (false, _, Ttl::Remaining(_)) => is_about(after, has),
                            (false, _, before) => after == before,
                        };
                        assert!(right, "{case}: {after:?}");
                    }
                }
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_extend_and_persist_change_the_deadline_of_what_lives() {
            run(async || {
                let cache = make("deadlines").await;
                assert!(!cache.expire("ada", HOUR).await.told());
                assert!(!cache.expire_at("ada", Instant::now() + HOUR).await.told());
                assert!(!cache.extend("ada", HOUR).await.told());
                assert!(!cache.persist("ada").await.told());
                cache.set("ada".into(), 1).await.told();
                assert!(!cache.extend("ada", HOUR).await.told(), "persistent");
                assert!(!cache.persist("ada").await.told(), "persistent already");
                assert!(cache.expire("ada", HOUR).await.told());
                assert!(is_about(cache.ttl("ada").await.told(), HOUR));
                assert!(cache.extend("ada", HOUR).await.told());
                assert!(is_about(cache.ttl("ada").await.told(), 2 * HOUR));
                assert!(cache.extend("ada", Duration::ZERO).await.told());
                assert!(is_about(cache.ttl("ada").await.told(), 2 * HOUR));
                assert!(cache.expire_at("ada", Instant::now() + HOUR).await.told());
                assert!(is_about(cache.ttl("ada").await.told(), HOUR));
                assert!(cache.extend("ada", Duration::MAX).await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                cache.expire("ada", HOUR).await.told();
                assert!(cache.persist("ada").await.told());
                assert_eq!(cache.ttl("ada").await.told(), Ttl::Persistent);
                assert!(cache.expire_at("ada", Instant::now()).await.told());
                assert_eq!(cache.get("ada").await.told(), None);
                cache.set_ex("bob".into(), 1, short()).await.told();
                sleep(short() + ms(10)).await;
                assert!(!cache.expire("bob", HOUR).await.told(), "what is dead stays dead");
                assert!(!cache.extend("bob", HOUR).await.told());
                assert!(!cache.persist("bob").await.told());
                assert_eq!(cache.remove("bob").await.told(), None);
                assert_eq!(cache.expire_now("bob").await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_now_takes_the_value_out() {
            run(async || {
                let cache = make("expire_now").await;
                cache.set("ada".into(), 1).await.told();
                assert_eq!(cache.expire_now("ada").await.told(), Some(1));
                assert_eq!(cache.get("ada").await.told(), None);
                assert_eq!(cache.expire_now("ada").await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn update_changes_what_is_there_and_keeps_its_ttl() {
            run(async || {
                let cache = make("update").await;
                assert_eq!(cache.update("ada", |n| *n += 1).await.told(), None);
                cache.set_ex("ada".into(), 1, HOUR).await.told();
                let double = |n: &mut u64| {
                    *n *= 2;
                    n.to_string()
                };
                assert_eq!(cache.update("ada", double).await.told(), Some("2".into()));
                assert_eq!(cache.get("ada").await.told(), Some(2));
                assert!(is_about(cache.ttl("ada").await.told(), HOUR));
                cache.set_ex("ada".into(), 1, short()).await.told();
                sleep(short() + ms(10)).await;
                assert_eq!(cache.update("ada", double).await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn updates_side_by_side_lose_none() {
            run(async || {
                let cache = make("updates").await;
                cache.set("n".into(), 0).await.told();
                let tasks = (0..8).map(|_| {
                    let cache = cache.clone();
                    tokio::spawn(async move {
                        for _ in 0..10 {
                            cache.update("n", |n| *n += 1).await.told().unwrap();
                        }
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                assert_eq!(cache.get("n").await.told(), Some(80));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn entries_come_once_and_clear_takes_them_out() {
            run(async || {
                let cache = make("entries").await;
                assert!(is_empty!(cache));
                assert_eq!(set_of(entries!(cache)).await, BTreeSet::new());
                let keys: BTreeSet<_> = (0..3_000).map(|n| (format!("key {n}"), n)).collect();
                let sets = keys.iter().map(|(key, n)| cache.set_ex(key.clone(), *n, HOUR));
                let replaced = futures::future::join_all(sets).await;
                assert!(replaced.into_iter().all(|set| set.told().is_none()));
                cache.set_ex("dead".into(), 1, ms(20)).await.told();
                sleep(ms(30)).await;
                assert_eq!(set_of(entries!(cache)).await, keys);
                let names: BTreeSet<_> = keys.iter().map(|(key, _)| key.clone()).collect();
                assert_eq!(set_of(keys!(cache)).await, names);
                assert_eq!(set_of(values!(cache)).await, BTreeSet::from_iter(0..3_000));
                // The dead one may still be in memory.
                assert!((3_000..=3_001).contains(&len!(cache)));
                assert!(!is_empty!(cache));
                cache.clear().await.told();
                assert_eq!(set_of(entries!(cache)).await, BTreeSet::new());
                assert!(is_empty!(cache));
                assert_eq!(cache.get("key 1").await.told(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn reads_are_counted() {
            run(async || {
                let cache = make("stats").await;
                cache.set("ada".into(), 1).await.told();
                cache.get("ada").await.told();
                cache.get_ex("ada", HOUR).await.told();
                cache.get("bob").await.told();
                let stats = cache.stats();
                assert_eq!((stats.hits, stats.misses), (2, 1));
            })
            .await;
        }
    };
}

/// With events in both, which comes last.
macro_rules! event_suite {
    ($($attribute:meta)?) => {
        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn what_expires_is_told_with_its_value() {
            run(async || {
                let cache = make("told").await;
                let mut events = events!(cache);
                cache.set("bob".into(), 7).await.told();
                let given = Instant::now();
                cache.set_ex("ada".into(), 42, short()).await.told();
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!((event.key.as_str(), event.value), ("ada", 42));
                assert_eq!(event.cause, fleeting::Cause::Expired);
                let deadline = event.deadline.unwrap();
                assert!(deadline >= given + short() - ms(5), "{:?}", deadline - given);
                assert!(event.lag().unwrap() <= ms(2_000));
                assert_eq!(cache.get("ada").await.told(), None);
                let before = Instant::now();
                assert_eq!(cache.expire_now("bob").await.told(), Some(7));
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!((event.key.as_str(), event.value), ("bob", 7));
                assert!(event.deadline.unwrap() + ms(20) >= before);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn a_write_on_a_dead_key_tells_of_the_old_value_first() {
            run(async || {
                let cache = make("order").await;
                let mut events = events!(cache);
                for n in 1..=10_u64 {
                    assert_eq!(cache.set_ex("ada".into(), n, ms(2)).await.told(), None);
                    sleep(ms(4)).await;
                }
                for n in 1..=10_u64 {
                    let event = events.recv().await.unwrap().unwrap();
                    assert_eq!((event.key.as_str(), event.value), ("ada", n));
                }
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn what_does_not_expire_is_not_told() {
            run(async || {
                let cache = make("not told").await;
                let mut events = events!(cache);
                cache.set_ex("removed".into(), 1, short()).await.told();
                cache.remove("removed").await.told();
                cache.set_ex("replaced".into(), 1, short()).await.told();
                cache.set("replaced".into(), 2).await.told();
                cache.set_ex("persisted".into(), 1, short()).await.told();
                cache.persist("persisted").await.told();
                cache.set_ex("put off".into(), 1, short()).await.told();
                cache.expire("put off", HOUR).await.told();
                cache.set_ex("cleared".into(), 1, short()).await.told();
                cache.set("alive".into(), 1).await.told();
                cache.update("alive", |n| *n += 1).await.told();
                sleep(ms(1)).await;
                let last = 2 * short();
                cache.remove("cleared").await.told();
                cache.set_ex("last".into(), 9, last).await.told();
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!(event.key, "last");
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn a_slow_reader_is_told_how_much_it_missed() {
            run(async || {
                let cache = make("slow").await;
                let mut events = events!(cache);
                for n in 0..100_u64 {
                    cache.set(n.to_string(), n).await.told();
                    cache.expire_now(&n.to_string()).await.told();
                }
                sleep(ms(1_500)).await;
                let mut missed = 0;
                let mut seen = 0;
                while missed + seen < 100 {
                    match events.recv().await.unwrap() {
                        Ok(_) => seen += 1,
                        Err(Lagged(n)) => missed += n,
                    }
                }
                assert_eq!((seen, missed), (16, 84));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn streams_end_with_the_cache() {
            run(async || {
                let cache = make("end").await;
                let mut events = events!(cache);
                let mut others = events!(cache);
                cache.shutdown().await;
                assert!(events.recv().await.is_none());
                assert!(others.next().await.is_none());
                cache.set("ada".into(), 1).await.told();
                assert_eq!(cache.get("ada").await.told(), Some(1));

                let cache = make("drop").await;
                let mut events = events!(cache);
                drop(cache);
                assert!(events.recv().await.is_none());
            })
            .await;
        }
    };
}

mod embedded {
    use fleeting::Cache;

    use super::*;

    async fn run(case: impl AsyncFn()) {
        case().await;
    }

    async fn make(case: &str) -> Cache<String, u64> {
        Cache::builder().name(case).event_capacity(16).build()
    }

    async fn make_with(case: &str, ttl: Duration) -> Cache<String, u64> {
        Cache::builder().name(case).time_to_live(ttl).build()
    }

    macro_rules! entries {
        ($cache:ident) => {
            futures::stream::iter($cache.iter())
        };
    }
    macro_rules! keys {
        ($cache:ident) => {
            futures::stream::iter($cache.keys())
        };
    }
    macro_rules! values {
        ($cache:ident) => {
            futures::stream::iter($cache.values())
        };
    }
    macro_rules! len {
        ($cache:ident) => {
            $cache.len()
        };
    }
    macro_rules! is_empty {
        ($cache:ident) => {
            $cache.is_empty()
        };
    }
    macro_rules! events {
        ($cache:ident) => {
            $cache.events()
        };
    }

    suite!(start_paused = true);
    event_suite!(start_paused = true);
}

/// What the two on Redis share.
macro_rules! on_redis {
    () => {
        macro_rules! entries {
            ($cache:ident) => {
                $cache.iter().map(Result::unwrap)
            };
        }
        macro_rules! keys {
            ($cache:ident) => {
                $cache.keys().map(Result::unwrap)
            };
        }
        macro_rules! values {
            ($cache:ident) => {
                $cache.values().map(Result::unwrap)
            };
        }
        macro_rules! len {
            ($cache:ident) => {
                $cache.len().await.unwrap()
            };
        }
        macro_rules! is_empty {
            ($cache:ident) => {
                $cache.is_empty().await.unwrap()
            };
        }
    };
}

/// A client of the one server of this file, which is there while a test holds it.
async fn client() -> fleeting::redis::Client {
    thread_local! {
        static HELD: RefCell<Option<Arc<Server>>> = const { RefCell::new(None) };
    }

    let server = Server::shared();
    let url = server.url();
    HELD.set(Some(server));
    connect(url).await
}

/// A name that no attempt of a case shares with another.
fn fresh(case: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("{case} {}", NAMES.fetch_add(1, Relaxed))
}

mod on_redis {
    use fleeting::redis::Cache;

    use super::{in_time as run, *};

    async fn make(case: &str) -> Cache<String, u64> {
        Cache::new(&client().await, &fresh(case)).unwrap()
    }

    async fn make_with(case: &str, ttl: Duration) -> Cache<String, u64> {
        let name = fresh(case);
        Cache::builder(&client().await, &name).time_to_live(ttl).build().unwrap()
    }

    on_redis!();
    suite!();
}

mod on_redis_with_events {
    use fleeting::redis::{Cache, CacheBuilder};

    use super::{in_time as run, *};

    async fn build(case: &str) -> CacheBuilder<String, u64> {
        Cache::builder(&client().await, &fresh(case))
            .events(HOUR)
            .event_capacity(16)
            .poll_every(ms(20))
    }

    async fn make(case: &str) -> Cache<String, u64> {
        build(case).await.build().unwrap()
    }

    async fn make_with(case: &str, ttl: Duration) -> Cache<String, u64> {
        build(case).await.time_to_live(ttl).build().unwrap()
    }

    macro_rules! events {
        ($cache:ident) => {
            $cache.events().await.unwrap()
        };
    }

    on_redis!();
    suite!();
    event_suite!();
}
