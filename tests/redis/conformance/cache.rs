//! Methods shared by the embedded `Cache` and `redis::Cache`: the same tests, run on both.

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

/// Return value of a method: plain, or in a `Result` on Redis.
trait Reply<T> {
    fn reply(self) -> T;
}

impl<T> Reply<T> for Result<T, fleeting::redis::Error> {
    fn reply(self) -> T {
        self.unwrap()
    }
}

macro_rules! reply {
    ($($type:ty),*) => {$(
        impl Reply<$type> for $type {
            fn reply(self) -> $type {
                self
            }
        }
    )*};
}

reply!(bool, usize, (), Option<()>, Ttl, Option<u64>, Option<String>);

/// Long enough that no value expires during a slow test.
const HOUR: Duration = Duration::from_secs(3_600);

fn short() -> Duration {
    ms(150)
}

/// Returns whether `ttl` may be the rest of `given`, which was set up to 20 seconds ago.
fn is_about(ttl: Ttl, given: Duration) -> bool {
    matches!(ttl, Ttl::Remaining(left) if left <= given && left + Duration::from_secs(20) > given)
}

async fn set_of<T: Ord>(stream: impl Stream<Item = T>) -> BTreeSet<T> {
    let items: Vec<T> = stream.collect().await;
    let len = items.len();
    let set = BTreeSet::from_iter(items);
    assert_eq!(set.len(), len, "each item is returned once");
    set
}

/// Tests of all caches. `make(case)` returns an empty cache from strings to numbers without a default TTL;
/// `make_with(case, ttl)` one with. `entries!`, `keys!` and `values!` return streams.
macro_rules! suite {
    ($($attribute:meta)?) => {
        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn set_value_is_returned_until_it_is_removed() {
            run(async || {
                let cache = make("set").await;
                assert_eq!(cache.get("ada").await.reply(), None);
                assert_eq!(cache.set("ada".into(), 1).await.reply(), None);
                assert_eq!(cache.get("ada").await.reply(), Some(1));
                assert_eq!(cache.set("ada".into(), 2).await.reply(), Some(1));
                assert!(cache.contains_key("ada").await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert_eq!(cache.remove("ada").await.reply(), Some(2));
                assert_eq!(cache.remove("ada").await.reply(), None);
                assert!(!cache.contains_key("ada").await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Missing);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn value_expires_after_its_ttl_and_not_before() {
            run(async || {
                let cache = make("set_ex").await;
                let begin = Instant::now();
                assert_eq!(cache.set_ex("ada".into(), 1, short()).await.reply(), None);
                assert!(is_about(cache.ttl("ada").await.reply(), short()));
                assert_eq!(cache.get("ada").await.reply(), Some(1));
                while cache.get("ada").await.reply().is_some() {
                    assert!(begin.elapsed() < HOUR);
                    sleep(ms(1)).await;
                }
                assert!(begin.elapsed() >= short(), "{:?}", begin.elapsed());
                assert!(!cache.contains_key("ada").await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Missing);
                assert_eq!(cache.set("ada".into(), 2).await.reply(), None, "an expired value is not returned");
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn ttl_of_zero_expires_immediately_and_overflowing_ttl_is_persistent() {
            run(async || {
                let cache = make("edges").await;
                cache.set("ada".into(), 1).await.reply();
                assert_eq!(cache.set_ex("ada".into(), 2, Duration::ZERO).await.reply(), Some(1));
                assert_eq!(cache.get("ada").await.reply(), None);
                assert_eq!(cache.set_ex("ada".into(), 3, Duration::MAX).await.reply(), None);
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert_eq!(cache.get_ex("ada", Duration::ZERO).await.reply(), Some(3));
                assert_eq!(cache.get("ada").await.reply(), None);
                assert!(cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await.reply());
                assert_eq!(cache.get("ada").await.reply(), None);
                cache.set("ada".into(), 5).await.reply();
                assert!(cache.expire("ada", Duration::ZERO).await.reply());
                assert_eq!(cache.get("ada").await.reply(), None);
                assert!(!cache.expire("ada", Duration::ZERO).await.reply());
                cache.set_ex("ada".into(), 6, HOUR).await.reply();
                assert!(cache.expire("ada", Duration::MAX).await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert!(cache.expire("ada", Duration::MAX).await.reply());
                assert!(!cache.expire("bob", Duration::MAX).await.reply());
                // A TTL of less than a millisecond is valid, too.
                cache.set_ex("ada".into(), 7, HOUR).await.reply();
                assert!(cache.expire("ada", Duration::from_nanos(1)).await.reply());
                sleep(ms(5)).await;
                assert_eq!(cache.get("ada").await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn get_ex_returns_the_value_and_sets_a_new_ttl() {
            run(async || {
                let cache = make("get_ex").await;
                assert_eq!(cache.get_ex("ada", HOUR).await.reply(), None);
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Missing);
                cache.set_ex("ada".into(), 1, short()).await.reply();
                assert_eq!(cache.get_ex("ada", HOUR).await.reply(), Some(1));
                assert!(is_about(cache.ttl("ada").await.reply(), HOUR));
                assert_eq!(cache.get_ex("ada", Duration::MAX).await.reply(), Some(1));
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                cache.set_ex("bob".into(), 1, short()).await.reply();
                sleep(short() + ms(10)).await;
                assert_eq!(cache.get_ex("bob", HOUR).await.reply(), None, "an expired value stays expired");
                assert_eq!(cache.get("bob").await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn set_nx_sets_only_without_a_live_value() {
            run(async || {
                let cache = make("set_nx").await;
                assert!(cache.set_nx("ada".into(), 1, Some(short())).await.reply());
                assert!(!cache.set_nx("ada".into(), 2, None).await.reply());
                assert_eq!(cache.get("ada").await.reply(), Some(1));
                assert!(is_about(cache.ttl("ada").await.reply(), short()));
                sleep(short() + ms(10)).await;
                assert!(cache.set_nx("ada".into(), 3, None).await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert!(!cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await.reply());
                assert_eq!(cache.get("ada").await.reply(), Some(3));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn set_keep_ttl_keeps_the_ttl() {
            run(async || {
                let cache = make("keep").await;
                assert_eq!(cache.set_keep_ttl("ada".into(), 1).await.reply(), None);
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert_eq!(cache.set_keep_ttl("ada".into(), 2).await.reply(), Some(1));
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                cache.set_ex("ada".into(), 3, short()).await.reply();
                assert_eq!(cache.set_keep_ttl("ada".into(), 4).await.reply(), Some(3));
                assert!(is_about(cache.ttl("ada").await.reply(), short()));
                assert_eq!(cache.get("ada").await.reply(), Some(4));
                sleep(short() + ms(10)).await;
                assert_eq!(cache.get("ada").await.reply(), None);
                assert_eq!(cache.set_keep_ttl("ada".into(), 5).await.reply(), None);
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn default_ttl_applies_without_an_explicit_ttl() {
            run(async || {
                let cache = make_with("default", HOUR).await;
                cache.set("ada".into(), 1).await.reply();
                assert!(is_about(cache.ttl("ada").await.reply(), HOUR));
                assert!(cache.set_nx("bob".into(), 1, None).await.reply());
                assert!(is_about(cache.ttl("bob").await.reply(), HOUR));
                assert_eq!(cache.set_keep_ttl("cyd".into(), 1).await.reply(), None);
                assert!(is_about(cache.ttl("cyd").await.reply(), HOUR));
                cache.set_ex("dan".into(), 1, Duration::MAX).await.reply();
                assert_eq!(cache.set_keep_ttl("dan".into(), 2).await.reply(), Some(1));
                assert_eq!(cache.ttl("dan").await.reply(), Ttl::Persistent);
                cache.set_ex("eve".into(), 1, 2 * HOUR).await.reply();
                assert_eq!(cache.set_keep_ttl("eve".into(), 2).await.reply(), Some(1));
                assert!(is_about(cache.ttl("eve").await.reply(), 2 * HOUR));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_if_changes_the_ttl_only_if_its_condition_holds() {
            run(async || {
                let cache = make("expire_if").await;
                use When::{HasTtl, Later, NoTtl, Sooner};
                for when in [NoTtl, HasTtl, Later, Sooner] {
                    assert!(!cache.expire_if("ada", HOUR, when).await.reply(), "{when:?}");
                }
                // The current TTL, the new TTL, and the conditions that hold.
                let cases = [
                    (Duration::MAX, HOUR, [NoTtl, Sooner].as_slice()),
                    (HOUR, 2 * HOUR, &[HasTtl, Later]),
                    (2 * HOUR, HOUR, &[HasTtl, Sooner]),
                    (HOUR, Duration::MAX, &[HasTtl, Later]),
                    (Duration::MAX, Duration::MAX, &[NoTtl]),
                    (HOUR, Duration::ZERO, &[HasTtl, Sooner]),
                ];
                for (has, new, expected) in cases {
                    for when in [NoTtl, HasTtl, Later, Sooner] {
                        let case = format!("{has:?}, {new:?}, {when:?}");
                        cache.set_ex("ada".into(), 1, has).await.reply();
                        let before = cache.ttl("ada").await.reply();
                        let is_changed = cache.expire_if("ada", new, when).await.reply();
                        assert_eq!(is_changed, expected.contains(&when), "{case}");
                        let after = cache.ttl("ada").await.reply();
                        let is_correct = match (is_changed, new, before) {
                            (true, Duration::ZERO, _) => after == Ttl::Missing,
                            (true, Duration::MAX, _) => after == Ttl::Persistent,
                            (true, new, _) => is_about(after, new),
                            (false, _, Ttl::Remaining(_)) => is_about(after, has),
                            (false, _, before) => after == before,
                        };
                        assert!(is_correct, "{case}: {after:?}");
                    }
                }
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_extend_and_persist_change_only_live_values() {
            run(async || {
                let cache = make("deadlines").await;
                assert!(!cache.expire("ada", HOUR).await.reply());
                assert!(!cache.expire_at("ada", Instant::now() + HOUR).await.reply());
                assert!(!cache.extend("ada", HOUR).await.reply());
                assert!(!cache.persist("ada").await.reply());
                cache.set("ada".into(), 1).await.reply();
                assert!(!cache.extend("ada", HOUR).await.reply(), "persistent");
                assert!(!cache.persist("ada").await.reply(), "persistent already");
                assert!(cache.expire("ada", HOUR).await.reply());
                assert!(is_about(cache.ttl("ada").await.reply(), HOUR));
                assert!(cache.extend("ada", HOUR).await.reply());
                assert!(is_about(cache.ttl("ada").await.reply(), 2 * HOUR));
                assert!(cache.extend("ada", Duration::ZERO).await.reply());
                assert!(is_about(cache.ttl("ada").await.reply(), 2 * HOUR));
                assert!(cache.expire_at("ada", Instant::now() + HOUR).await.reply());
                assert!(is_about(cache.ttl("ada").await.reply(), HOUR));
                assert!(cache.extend("ada", Duration::MAX).await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                cache.expire("ada", HOUR).await.reply();
                assert!(cache.persist("ada").await.reply());
                assert_eq!(cache.ttl("ada").await.reply(), Ttl::Persistent);
                assert!(cache.expire_at("ada", Instant::now()).await.reply());
                assert_eq!(cache.get("ada").await.reply(), None);
                cache.set_ex("bob".into(), 1, short()).await.reply();
                sleep(short() + ms(10)).await;
                assert!(!cache.expire("bob", HOUR).await.reply(), "an expired value stays expired");
                assert!(!cache.extend("bob", HOUR).await.reply());
                assert!(!cache.persist("bob").await.reply());
                assert_eq!(cache.remove("bob").await.reply(), None);
                assert_eq!(cache.expire_now("bob").await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expire_now_removes_and_returns_the_value() {
            run(async || {
                let cache = make("expire_now").await;
                cache.set("ada".into(), 1).await.reply();
                assert_eq!(cache.expire_now("ada").await.reply(), Some(1));
                assert_eq!(cache.get("ada").await.reply(), None);
                assert_eq!(cache.expire_now("ada").await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn update_changes_the_live_value_and_keeps_its_ttl() {
            run(async || {
                let cache = make("update").await;
                assert_eq!(cache.update("ada", |n| *n += 1).await.reply(), None);
                cache.set_ex("ada".into(), 1, HOUR).await.reply();
                let double = |n: &mut u64| {
                    *n *= 2;
                    n.to_string()
                };
                assert_eq!(cache.update("ada", double).await.reply(), Some("2".into()));
                assert_eq!(cache.get("ada").await.reply(), Some(2));
                assert!(is_about(cache.ttl("ada").await.reply(), HOUR));
                cache.set_ex("ada".into(), 1, short()).await.reply();
                sleep(short() + ms(10)).await;
                assert_eq!(cache.update("ada", double).await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn concurrent_updates_are_not_lost() {
            run(async || {
                let cache = make("updates").await;
                cache.set("n".into(), 0).await.reply();
                let tasks = (0..8).map(|_| {
                    let cache = cache.clone();
                    tokio::spawn(async move {
                        for _ in 0..10 {
                            cache.update("n", |n| *n += 1).await.reply().unwrap();
                        }
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                assert_eq!(cache.get("n").await.reply(), Some(80));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn remove_tag_removes_the_values_that_were_written_with_it() {
            run(async || {
                let cache = make("tags").await;
                let (ada, bob, eve) = ("ada".to_owned(), "bob".to_owned(), "eve".to_owned());
                assert_eq!(cache.set_tagged(ada.clone(), 1, HOUR, ["a", "b"]).await.reply(), None);
                assert_eq!(cache.set_tagged(bob.clone(), 2, HOUR, ["b"]).await.reply(), None);
                assert_eq!(cache.set_tagged(eve.clone(), 3, HOUR, ["c"]).await.reply(), None);
                assert_eq!(cache.update("ada", |n| *n += 1).await.reply(), Some(()));
                assert_eq!(cache.set(bob, 4).await.reply(), Some(2));
                cache.remove_tag("b").await.reply();
                assert_eq!(cache.get("ada").await.reply(), None, "update keeps the tags");
                assert_eq!(cache.get("bob").await.reply(), Some(4), "set replaces the tags");
                assert_eq!(cache.get("eve").await.reply(), Some(3), "it has another tag");
                assert!(cache.set_nx(ada, 5, None).await.reply());
                cache.remove_tag("a").await.reply();
                assert_eq!(cache.get("ada").await.reply(), Some(5));
                assert_eq!(cache.set_tagged(eve, 6, HOUR, ["b"]).await.reply(), Some(3));
                assert_eq!(cache.remove("eve").await.reply(), Some(6));
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn iter_returns_each_entry_once_and_clear_removes_all() {
            run(async || {
                let cache = make("entries").await;
                assert!(is_empty!(cache));
                assert_eq!(set_of(entries!(cache)).await, BTreeSet::new());
                let keys: BTreeSet<_> = (0..3_000).map(|n| (format!("key {n}"), n)).collect();
                let sets = keys.iter().map(|(key, n)| cache.set_ex(key.clone(), *n, HOUR));
                let replaced = futures::future::join_all(sets).await;
                assert!(replaced.into_iter().all(|set| set.reply().is_none()));
                cache.set_ex("expired".into(), 1, ms(20)).await.reply();
                sleep(ms(30)).await;
                assert_eq!(set_of(entries!(cache)).await, keys);
                let names: BTreeSet<_> = keys.iter().map(|(key, _)| key.clone()).collect();
                assert_eq!(set_of(keys!(cache)).await, names);
                assert_eq!(set_of(values!(cache)).await, BTreeSet::from_iter(0..3_000));
                // The expired entry may still be resident.
                assert!((3_000..=3_001).contains(&len!(cache)));
                assert!(!is_empty!(cache));
                cache.clear().await.reply();
                assert_eq!(set_of(entries!(cache)).await, BTreeSet::new());
                assert!(is_empty!(cache));
                assert_eq!(cache.get("key 1").await.reply(), None);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn stats_count_hits_and_misses() {
            run(async || {
                let cache = make("stats").await;
                cache.set("ada".into(), 1).await.reply();
                cache.get("ada").await.reply();
                cache.get_ex("ada", HOUR).await.reply();
                cache.get("bob").await.reply();
                let stats = cache.stats();
                assert_eq!((stats.hits, stats.misses), (2, 1));
            })
            .await;
        }
    };
}

/// Tests of caches with events. `events!` subscribes.
macro_rules! event_suite {
    ($($attribute:meta)?) => {
        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn expired_event_has_key_value_and_deadline() {
            run(async || {
                let cache = make("expired").await;
                let mut events = events!(cache);
                cache.set("bob".into(), 7).await.reply();
                let given = Instant::now();
                cache.set_ex("ada".into(), 42, short()).await.reply();
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!((event.key.as_str(), event.value), ("ada", 42));
                assert_eq!(event.cause, fleeting::Cause::Expired);
                let deadline = event.deadline.unwrap();
                assert!(deadline >= given + short() - ms(5), "{:?}", deadline - given);
                assert!(event.lag().unwrap() <= ms(2_000));
                assert_eq!(cache.get("ada").await.reply(), None);
                let before = Instant::now();
                assert_eq!(cache.expire_now("bob").await.reply(), Some(7));
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!((event.key.as_str(), event.value), ("bob", 7));
                assert!(event.deadline.unwrap() + ms(20) >= before);
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn write_to_an_expired_key_publishes_the_old_value_first() {
            run(async || {
                let cache = make("order").await;
                let mut events = events!(cache);
                for n in 1..=10_u64 {
                    assert_eq!(cache.set_ex("ada".into(), n, ms(2)).await.reply(), None);
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
        async fn removed_replaced_or_persisted_value_has_no_expired_event() {
            run(async || {
                let cache = make("no event").await;
                let mut events = events!(cache);
                cache.set_ex("removed".into(), 1, short()).await.reply();
                cache.remove("removed").await.reply();
                cache.set_ex("replaced".into(), 1, short()).await.reply();
                cache.set("replaced".into(), 2).await.reply();
                cache.set_ex("persisted".into(), 1, short()).await.reply();
                cache.persist("persisted").await.reply();
                cache.set_ex("put off".into(), 1, short()).await.reply();
                cache.expire("put off", HOUR).await.reply();
                cache.set_ex("cleared".into(), 1, short()).await.reply();
                cache.set("alive".into(), 1).await.reply();
                cache.update("alive", |n| *n += 1).await.reply();
                sleep(ms(1)).await;
                let last = 2 * short();
                cache.remove("cleared").await.reply();
                cache.set_ex("last".into(), 9, last).await.reply();
                let event = events.recv().await.unwrap().unwrap();
                assert_eq!(event.key, "last");
            })
            .await;
        }

        #[tokio::test$((flavor = "current_thread", $attribute))?]
        async fn slow_subscriber_gets_the_number_of_missed_events() {
            run(async || {
                let cache = make("slow").await;
                let mut events = events!(cache);
                for n in 0..100_u64 {
                    cache.set(n.to_string(), n).await.reply();
                    cache.expire_now(&n.to_string()).await.reply();
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
        async fn event_streams_end_with_the_cache() {
            run(async || {
                let cache = make("end").await;
                let mut events = events!(cache);
                let mut others = events!(cache);
                cache.shutdown().await;
                assert!(events.recv().await.is_none());
                assert!(others.next().await.is_none());
                cache.set("ada".into(), 1).await.reply();
                assert_eq!(cache.get("ada").await.reply(), Some(1));

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

/// Macros of both modules on Redis.
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

/// Returns a client of the server shared by all tests, which runs while a test holds it.
async fn client() -> fleeting::redis::Client {
    thread_local! {
        static HELD: RefCell<Option<Arc<Server>>> = const { RefCell::new(None) };
    }

    let server = Server::shared();
    let url = server.url();
    HELD.set(Some(server));
    connect(url).await
}

/// Returns a unique name, also for repeated attempts of a test.
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
