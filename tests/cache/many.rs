//! Batches, tags, `compute` and futures on keys.

use std::{hash::Hash, sync::Arc, time::Duration};

use fleeting::{
    Cache, Cause, Equivalent, ExpiringSets, Freshness, Op, Sweep, TimeoutDict, ToKey, Ttl, When,
};
use futures::{FutureExt, StreamExt, stream};
use tokio::{
    sync::Semaphore,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task::spawn};

use crate::borrowed::Borrowed;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn batches_equal_single_calls() {
    for bounded in [false, true] {
        let builder = Cache::<u32, u32>::builder().time_to_live(SECOND);
        let cache = if bounded { builder.max_entries(5_000).build() } else { builder.build() };
        cache.set_many((0..3_000).map(|n| (n, n)), None).await;
        cache.set_many([(5_000, 1), (5_000, 2)], Some(2 * SECOND)).await;
        let keys: Vec<u32> = (0..6_000).rev().chain([7, 7]).collect();
        let values = cache.get_many(&keys).await;
        assert_eq!(values.len(), keys.len());
        for (key, value) in keys.iter().zip(&values) {
            let expected = if *key == 5_000 { Some(2) } else { Some(*key).filter(|k| *k < 3_000) };
            assert_eq!(*value, expected, "{key}");
        }
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses), (3_003, 2_999));
        assert_eq!(cache.remove_many([&1, &1, &9_999]).await, 1);
        advance(SECOND).await;
        let live_values = cache.get_many(&keys).await.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(
            (live_values, cache.len()),
            (vec![2], 1),
            "expired entries are removed when they are found"
        );
        assert!(cache.get_many::<u32>([]).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn remove_if_removes_live_entries_that_match() {
    for bounded in [false, true] {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual()).publish([Cause::Removed]);
        let cache = if bounded { builder.max_entries(9_000).build() } else { builder.build() };
        let mut events = cache.events_lossless(10_000);
        cache.set_many((0..4_000).map(|n| (n, n)), None).await;
        cache.set_many((4_000..5_000).map(|n| (n, n)), Some(SECOND)).await;
        advance(SECOND).await;
        assert_eq!(cache.remove_if(|key, value| *key == *value && key % 2 == 0).await, 2_000);
        assert_eq!(cache.retain(|key, _| *key < 10).await, 1_995);
        assert_eq!((cache.live_len(), cache.len()), (5, 1_005));
        cache.shutdown().await;
        let mut received = 0;
        while let Some(event) = events.recv().await {
            assert_eq!(event.cause, Cause::Removed);
            received += 1;
        }
        assert_eq!(received, 3_995);
    }
}

#[tokio::test]
async fn remove_if_with_a_panicking_predicate_removes_nothing() {
    // One shard: of two, the first may be completed before the panic, and its entries stay removed.
    let cache: Cache<u32, u32> = Cache::builder().shards(1).build();
    cache.set_many((0..100).map(|n| (n, n)), None).await;
    let mut calls = 0;
    let call = cache.remove_if(|_, _| {
        calls += 1;
        assert!(calls < 30, "panic of the predicate");
        true
    });
    assert!(std::panic::AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!((cache.len(), cache.remove_if(|_, _| true).await), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn compute_receives_the_live_value_and_returns_the_result() {
    for bounded in [false, true] {
        let builder = Cache::<String, u32>::builder().time_to_live(9 * SECOND);
        let cache = match bounded {
            true => builder.max_weight(100, |_, weight| *weight).build(),
            false => builder.build(),
        };
        assert_eq!(
            cache
                .compute("k", |value| {
                    assert!(value.is_none());
                    Op::Keep
                })
                .await,
            None
        );
        assert_eq!(cache.compute("k", |_| Op::Remove).await, None);
        assert_eq!(cache.compute("k", |_| Op::SetEx(1, 5 * SECOND)).await, Some(1));
        advance(SECOND).await;
        let add = |value: Option<&u32>| Op::SetKeepTtl(value.unwrap() + 1);
        assert_eq!(cache.compute("k", add).await, Some(2));
        assert_eq!(cache.ttl("k").await, Ttl::Remaining(4 * SECOND));
        assert_eq!(cache.compute("k", |_| Op::Set(3)).await, Some(3));
        assert_eq!(cache.ttl("k").await, Ttl::Remaining(9 * SECOND));
        assert_eq!(
            cache
                .compute("k", |value| {
                    assert_eq!(value, Some(&3));
                    Op::Keep
                })
                .await,
            Some(3)
        );
        assert_eq!(cache.compute("k", |_| Op::SetEx(4, Duration::ZERO)).await, None);
        assert_eq!(
            cache
                .compute("k", |value| {
                    assert!(value.is_none());
                    Op::Set(5)
                })
                .await,
            Some(5)
        );
        if bounded {
            assert_eq!((cache.weight(), cache.len()), (5, 1));
            cache.set("other".into(), 90).await;
            cache.compute("k", |_| Op::Set(60)).await;
            assert!(cache.weight() <= 100);
            assert_eq!(cache.get("k").await, Some(60));
            // Too heavy for the cache, so there is no live value afterwards.
            assert_eq!(cache.compute("k", |_| Op::Set(101)).await, None);
            assert_eq!(cache.compute_with("k", async |_| Op::Set(101)).await, None);
            assert_eq!((cache.get("k").await, cache.stats().evicted), (None, 3));
        }
        assert_eq!(cache.compute("k", |_| Op::Remove).await, None);
        assert_eq!(cache.get("k").await, None);
    }
}

#[tokio::test]
async fn compute_with_runs_one_at_a_time_per_key() {
    let cache: Cache<u32, u32> = Cache::new();
    let gate = Arc::new(Semaphore::new(0));
    let change = |add: u32| {
        let gate = gate.clone();
        async move |value: Option<u32>| {
            gate.acquire().await.unwrap().forget();
            Op::Set(value.unwrap_or(0) + add)
        }
    };
    let mut first = spawn(cache.compute_with(&1, change(1)));
    let mut second = spawn(cache.compute_with(&1, change(10)));
    let mut third = spawn(cache.compute_with(&1, change(100)));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    // No lock is held: other calls and other keys continue.
    assert_eq!(cache.get(&1).await, None);
    gate.add_permits(1);
    assert_ready_eq!(first.poll(), Some(1));
    assert_pending!(second.poll());
    drop(second);
    assert_pending!(third.poll());
    gate.add_permits(1);
    assert_ready_eq!(third.poll(), Some(101));
}

#[tokio::test]
async fn compute_with_never_waits_for_itself() {
    let cache: Cache<u32, u32> = Cache::new();
    let inner = cache.clone();
    let outer = cache.compute_with(&1, async move |_| {
        inner.compute_with(&1, async |_| Op::Set(1)).await;
        Op::Keep
    });
    assert_eq!(outer.await, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_compute_calls_lose_no_update() {
    let cache: Cache<u32, u32> = Cache::new();
    let tasks = (0..8).map(|task| {
        let cache = cache.clone();
        tokio::spawn(async move {
            for round in 0..500_u32 {
                if (task + round) % 2 == 0 {
                    cache.compute(&0, |n| Op::Set(n.map_or(1, |n| n + 1))).await;
                } else {
                    let add = async |n: Option<u32>| {
                        tokio::task::yield_now().await;
                        Op::Set(n.map_or(1, |n| n + 1))
                    };
                    cache.compute_with(&1, add).await;
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(cache.get_many([&0, &1]).await, [Some(2_000), Some(2_000)]);
}

#[tokio::test(start_paused = true)]
async fn remove_tag_removes_all_tagged_entries_immediately() {
    for bounded in [false, true] {
        let builder = Cache::<u32, u32>::builder().sweep(Sweep::manual()).publish([
            Cause::Removed,
            Cause::Expired,
            Cause::Evicted,
            Cause::Replaced,
        ]);
        let cache = if bounded { builder.max_entries(10_000).build() } else { builder.build() };
        let mut events = cache.events_lossless(20_000);
        let minute = 60 * SECOND;
        for key in 0..5_000 {
            let tags = [format!("mod {}", key % 3), format!("half {}", key % 2)];
            assert_eq!(cache.set_tagged(key, key, minute, tags).await, None);
        }
        // A replaced value has none of the tags any more.
        assert_eq!(cache.set(0, 10).await, Some(0));
        assert_eq!(cache.set_tagged(3, 30, minute, ["other"]).await, Some(3));
        cache.update(&6, |value| *value = 60).await;
        cache.expire(&9, minute / 2).await;
        cache.remove_tag("mod 0").await;
        assert_eq!(cache.get(&0).await, Some(10));
        assert_eq!(cache.get(&3).await, Some(30));
        assert_eq!(cache.get(&6).await, None);
        assert_eq!((cache.ttl(&9).await, cache.contains_key(&12).await), (Ttl::Missing, false));
        assert_eq!((cache.remove(&15).await, cache.get_ex(&18, minute).await), (None, None));
        assert!(!cache.expire(&21, minute).await);
        assert!(cache.set_nx(24, 1, None).await);
        assert_eq!(cache.set(27, 1).await, None);
        assert_eq!(cache.update(&30, |_| ()).await, None);
        assert_eq!(
            cache
                .compute(&33, |value| {
                    assert!(value.is_none());
                    Op::Keep
                })
                .await,
            None
        );
        assert_eq!(cache.get_many([&36, &37]).await, [None, Some(37)]);
        let live = 5_000 - 1_667 + 4;
        assert_eq!((cache.live_len(), cache.iter().count()), (live, live));
        // A tag of the same name used later is a new tag.
        cache.set_tagged(39, 1, minute, ["mod 0"]).await;
        cache.sweep().await;
        assert_eq!((cache.len(), cache.get(&39).await), (live + 1, Some(1)));
        cache.remove_tag("half 1").await;
        cache.remove_tag("mod 1").await;
        cache.sweep().await;
        cache.clear().await;
        cache.shutdown().await;
        let mut counts = std::collections::HashMap::new();
        while let Some(event) = events.recv().await {
            *counts.entry(event.cause).or_insert(0) += 1;
        }
        assert_eq!(counts[&Cause::Replaced], 2);
        assert_eq!((counts.len(), counts[&Cause::Removed]), (2, 5_003));
    }
}

/// The sweeper removes the entries, whether it is resting or not.
#[tokio::test(start_paused = true)]
async fn sweeper_removes_entries_removed_by_tag_from_memory() {
    let cache: Cache<u32, u32> = Cache::new();
    for key in 0..1_000 {
        cache.set_tagged(key, key, 100_000 * SECOND, ["tag"]).await;
    }
    sleep(600 * SECOND).await;
    cache.remove_tag("tag").await;
    sleep(Duration::from_millis(150)).await;
    assert_eq!((cache.len(), cache.stats().removed), (0, 1_000));
}

/// Names of tags that no value has any more are removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remove_tag_is_exact_with_concurrent_writers() {
    let cache: Cache<u32, u32> = Cache::builder().max_entries(500).build();
    let tasks = (0..4_u32).map(|task| {
        let cache = cache.clone();
        tokio::spawn(async move {
            for round in 0..3_000_u32 {
                let key = (round * 7 + task) % 1_000;
                let tag = format!("{task} {}", round % 10);
                cache.set_tagged(key + 1_000 * task, round, 60 * SECOND, [tag.clone()]).await;
                if round % 10 == 3 {
                    cache.remove_tag(&tag).await;
                    assert_eq!(cache.get(&(key + 1_000 * task)).await, None);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    cache.sweep().await;
    let stats = cache.stats();
    assert!(stats.resident <= 500);
    let accounted_for = stats.evicted + stats.removed + stats.replaced + stats.resident as u64;
    assert_eq!(accounted_for, 12_000);
}

#[tokio::test(start_paused = true)]
async fn wait_for_returns_the_next_live_value() {
    let cache: Cache<String, u32> = Cache::new();
    let mut waits = spawn(cache.wait_for("k"));
    let mut other = spawn(cache.wait_for("k"));
    let mut dropped_waiter = spawn(cache.wait_for("k"));
    assert_pending!(waits.poll());
    assert_pending!(other.poll());
    assert_pending!(dropped_waiter.poll());
    drop(dropped_waiter);
    cache.set_ex("k".into(), 1, Duration::ZERO).await;
    assert_pending!(waits.poll());
    cache.set("other".into(), 1).await;
    assert!(
        !other.is_woken() || {
            assert_pending!(other.poll());
            true
        }
    );
    cache.set("k".into(), 2).await;
    assert_ready_eq!(waits.poll(), 2);
    assert_ready_eq!(other.poll(), 2);
    assert_eq!(cache.wait_for("k").await, 2);
}

#[tokio::test(start_paused = true)]
async fn expired_resolves_with_the_event_of_the_removal() {
    for (publish, bounded) in [(true, false), (false, false), (false, true), (true, true)] {
        let builder = Cache::<String, u32>::builder().sweep(Sweep::manual());
        let builder = if publish {
            builder.publish([Cause::Removed, Cause::Replaced, Cause::Expired, Cause::Evicted])
        } else {
            builder.publish([])
        };
        let cache = if bounded { builder.max_entries(2).build() } else { builder.build() };
        let stream = publish.then(|| cache.events());
        assert!(cache.expired("k").await.is_none());
        for operation in 0..8 {
            cache.set_ex("k".into(), operation, SECOND).await;
            let mut removal = spawn(cache.expired("k"));
            let mut too = spawn(cache.expired("k"));
            let mut dropped_waiter = spawn(cache.expired("k"));
            assert_pending!(removal.poll());
            assert_pending!(too.poll());
            assert_pending!(dropped_waiter.poll());
            drop(dropped_waiter);
            cache.set("other".into(), operation).await;
            cache.remove("other").await;
            assert_pending!(removal.poll());
            let cause = match operation {
                0 => (cache.remove("k").await, Cause::Removed).1,
                1 => (cache.set("k".into(), 100).await, Cause::Replaced).1,
                2 => (cache.expire_now("k").await, Cause::Expired).1,
                3 => (advance(SECOND).await, cache.get("k").await, Cause::Expired).2,
                4 => (advance(SECOND).await, cache.sweep().await, Cause::Expired).2,
                5 => (cache.clear().await, Cause::Removed).1,
                6 => (cache.remove_if(|_, _| true).await, Cause::Removed).1,
                _ => (advance(SECOND).await, cache.set("k".into(), 100).await, Cause::Expired).2,
            };
            let event = assert_ready!(removal.poll()).unwrap();
            assert_eq!((event.value, event.cause, &*event.key), (operation, cause, "k"));
            assert!(Arc::ptr_eq(&event, &assert_ready!(too.poll()).unwrap()));
            cache.clear().await;
        }
        drop(stream);
        if bounded {
            cache.set("k".into(), 1).await;
            let mut removal = spawn(cache.expired("k"));
            assert_pending!(removal.poll());
            for key in 0..10 {
                cache.set(key.to_string(), 1).await;
            }
            assert_eq!(assert_ready!(removal.poll()).unwrap().cause, Cause::Evicted);
        }
    }
}

/// A tuple of borrowed parts finds a tuple of owned ones.
#[tokio::test(start_paused = true)]
async fn lookups_accept_equivalent_keys() {
    let cache: Cache<(String, u32), u32> = Cache::new();
    let key = || ("ada".to_owned(), 7);
    let found = Borrowed("ada", 7);
    cache.set(key(), 1).await;
    assert_eq!(cache.get(&found).await, Some(1));
    assert_eq!(cache.get_ex_with(&found, |_| SECOND).await, Some(1));
    assert!(cache.expire_if(&found, 2 * SECOND, When::Later).await);
    assert!(cache.expire_at(&found, Instant::now() + SECOND).await);
    assert!(cache.extend(&found, SECOND).await && cache.ttl(&found).await.as_secs() > 0);
    assert!(cache.persist(&found).await);
    let (event, ended) = tokio::join!(cache.expired(&found), cache.expire_now(&found));
    assert_eq!((event.unwrap().value, ended), (1, Some(1)));
    cache.set_many([(key(), 1)], None).await;
    assert_eq!(cache.remove_many([&found, &found]).await, 1);
    cache.set(key(), 1).await;
    assert_eq!(cache.get_many([&found, &Borrowed("bob", 7)]).await, [Some(1), None]);
    assert_eq!(cache.get_ex(&found, SECOND).await, Some(1));
    assert!(cache.expire(&found, SECOND).await && cache.contains_key(&found).await);
    assert_eq!(cache.update(&found, |value| *value).await, Some(1));
    assert_eq!(cache.wait_for(&found).await, 1);
    assert_eq!(cache.remove(&found).await, Some(1));

    let dict: TimeoutDict<(String, u32), u32> = TimeoutDict::new();
    dict.set(key(), 1, SECOND).await;
    assert!(dict.set_timeout(&found, SECOND).await && dict.remove_timeout(&found).await);
    assert_eq!(dict.get(&found).await, Some(1));
    assert_eq!(dict.remove(&found).await, Some(1));

    let sets: ExpiringSets<(String, u32), u32> = ExpiringSets::new(SECOND);
    sets.push(key(), 1).await;
    assert_eq!(sets.elements(&found).await, [1]);
}

/// A call that may have to store the key makes it owned. The stored key is found by both forms.
#[tokio::test(start_paused = true)]
async fn equivalent_keys_are_made_owned_by_to_key() {
    let builder =
        Cache::<(String, u32), u32>::builder().negative_ttl(SECOND).sweep(Sweep::manual());
    let cache = builder.stale_while_revalidate(9 * SECOND).build();
    let (ada, key) = (Borrowed("ada", 7), ("ada".to_owned(), 7));
    let fails = async || Err::<u32, _>("no");
    assert!(cache.get_or_try_set_with(&ada, SECOND, fails).await.is_err());
    assert!(cache.get_or_try_set_with(&key, SECOND, fails).await.is_err(), "the error is kept");
    advance(SECOND).await;
    let (first, second) = tokio::join!(
        cache.get_or_set_with(&ada, SECOND, async || {
            sleep(SECOND).await;
            1
        }),
        cache.get_or_set_with(&key, SECOND, async || unreachable!("the value is cached")),
    );
    assert_eq!((first, second, cache.get(&key).await), (1, 1, Some(1)));
    advance(SECOND).await;
    // The value is stale, and is loaded in the background for all callers.
    let load = async || Ok::<_, &str>(2);
    let stale = cache.get_or_try_set_with_freshness(&ada, SECOND, load).await;
    assert_eq!(stale, Ok((1, Freshness::Stale)));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(cache.get(&key).await, Some(2));

    let bob = Borrowed("bob", 7);
    assert_eq!(cache.compute(&bob, |_| Op::Set(1)).await, Some(1));
    let add = async |n: Option<u32>| Op::Set(n.unwrap() + 1);
    assert_eq!(cache.compute_with(&bob, add).await, Some(2));
    assert_eq!(cache.compute_with(&bob.to_key(), add).await, Some(3));
    assert_eq!(cache.compute(&bob, |_| Op::Remove).await, None);
    assert_eq!(cache.get(&("bob".to_owned(), 7)).await, None);
}

/// Generic code that borrows keys compiles as it did before `ToKey` existed.
#[tokio::test(start_paused = true)]
async fn borrowed_keys_are_made_owned_by_to_key() {
    async fn by_borrow<K, Q>(cache: &Cache<K, u32>, key: &Q) -> Option<u32>
    where
        K: Hash + Eq + Clone + Send + Sync + std::borrow::Borrow<Q> + 'static,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        cache.get_or_set_with(key, SECOND, async || 1).await;
        cache.compute(key, |n| n.map_or(Op::Keep, |n| Op::Set(n + 1))).await
    }
    async fn by_equivalent<K, Q>(cache: &Cache<K, u32>, key: &Q) -> Option<u32>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        Q: Hash + Equivalent<K> + ToOwned<Owned = K> + ?Sized,
    {
        cache.compute(key, |n| n.map_or(Op::Keep, |n| Op::Set(n + 1))).await
    }
    let cache: Cache<String, u32> = Cache::new();
    assert_eq!(by_borrow(&cache, "k").await, Some(2));
    assert_eq!(by_equivalent(&cache, &"k".to_owned()).await, Some(3));
    // The key type is inferred from the borrowed form.
    let cache = Cache::new();
    assert_eq!(cache.compute("k", |_| Op::Set(1)).await, Some(1));
    assert_eq!(cache.remove("k").await, Some(1));
    let bytes: Cache<Vec<u8>, u32> = Cache::new();
    assert_eq!(by_borrow(&bytes, &b"k"[..]).await, Some(2));
    let numbers: Cache<&str, u32> = Cache::new();
    assert_eq!(by_borrow(&numbers, &"k").await, Some(2));
}

/// The future of each method can be spawned, and borrowed keys can be looked up in batches.
#[tokio::test(start_paused = true)]
async fn future_of_each_method_can_be_spawned() {
    let cache: Cache<String, u32> = Cache::new();
    let tasks = {
        let cache = cache.clone();
        tokio::spawn(async move {
            let key = "k".to_owned();
            cache.get_or_set_with("k", SECOND, async || 1).await;
            cache.get_or_set_with(&key, |value: &u32| SECOND * *value, async || 1).await;
            cache.get_or_try_set_with("k", SECOND, async || Ok::<_, String>(1)).await.unwrap();
            cache
                .get_or_try_set_with_freshness("k", SECOND, async || Ok::<_, String>(1))
                .await
                .unwrap();
            cache.get_many(["k", "l"]).await;
            cache.set_many([("l".to_owned(), 1)], None).await;
            cache.remove_many(["l"]).await;
            cache.remove_if(|_, _| false).await;
            cache.compute("k", |_| Op::Keep).await;
            cache.compute_with("k", async |_| Op::Keep).await;
            cache.set_tagged(key.clone(), 1, SECOND, ["tag"]).await;
            cache.remove_tag("tag").await;
            cache.set(key, 1).await;
            cache.wait_for("k").await;
            let (event, _) = tokio::join!(cache.expired("k"), cache.remove("k"));
            event.unwrap().value
        })
    };
    assert_eq!(tasks.await.unwrap(), 1);
    let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let all = stream::iter(&keys)
        .map(|key| cache.get_or_set_with(key, SECOND, async || 7))
        .buffer_unordered(10);
    assert_eq!(all.collect::<Vec<u32>>().await, vec![7; 100]);
}
