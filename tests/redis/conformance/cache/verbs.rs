//! Verbs, TTLs, tags, iteration and statistics of all caches.

use std::{collections::BTreeSet, time::Duration};

use fleeting::{Ttl, When};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep};

use super::{Backend, Cache, Embedded, HOUR, OnRedis, OnRedisWithEvents, Verbs, short};
use crate::{clock::ms, patience::patience};

cases! {
    embedded: Embedded,
    on_redis: OnRedis,
    on_redis_with_events: OnRedisWithEvents => {
        set_value_is_returned_until_it_is_removed,
        value_expires_after_its_ttl_and_not_before,
        ttl_of_zero_expires_immediately_and_overflowing_ttl_is_persistent,
        get_ex_returns_the_value_and_sets_a_new_ttl,
        set_nx_sets_only_without_a_live_value,
        set_keep_ttl_keeps_the_ttl,
        default_ttl_applies_without_an_explicit_ttl,
        expire_if_changes_the_ttl_only_if_its_condition_holds,
        expire_extend_and_persist_change_only_live_values,
        expire_now_removes_and_returns_the_value,
        update_changes_the_live_value_and_keeps_its_ttl,
        concurrent_updates_are_not_lost,
        remove_tag_removes_the_values_that_were_written_with_it,
        iter_returns_each_entry_once_and_clear_removes_all,
        stats_count_hits_and_misses,
    }
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

async fn set_value_is_returned_until_it_is_removed<B: Backend>() {
    let cache = B::cache("set").await;
    assert_eq!(cache.get("ada").await, None);
    assert_eq!(cache.set("ada".into(), 1).await, None);
    assert_eq!(cache.get("ada").await, Some(1));
    assert_eq!(cache.set("ada".into(), 2).await, Some(1));
    assert!(cache.contains_key("ada").await);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert_eq!(cache.remove("ada").await, Some(2));
    assert_eq!(cache.remove("ada").await, None);
    assert!(!cache.contains_key("ada").await);
    assert_eq!(cache.ttl("ada").await, Ttl::Missing);
}

async fn value_expires_after_its_ttl_and_not_before<B: Backend>() {
    let cache = B::cache("set_ex").await;
    let begin = Instant::now();
    assert_eq!(cache.set_ex("ada".into(), 1, short()).await, None);
    assert!(is_about(cache.ttl("ada").await, short()));
    assert_eq!(cache.get("ada").await, Some(1));
    while cache.get("ada").await.is_some() {
        assert!(begin.elapsed() < patience());
        sleep(ms(1)).await;
    }
    assert!(begin.elapsed() >= short(), "{:?}", begin.elapsed());
    assert!(!cache.contains_key("ada").await);
    assert_eq!(cache.ttl("ada").await, Ttl::Missing);
    assert_eq!(cache.set("ada".into(), 2).await, None, "an expired value is not returned");
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
}

async fn ttl_of_zero_expires_immediately_and_overflowing_ttl_is_persistent<B: Backend>() {
    let cache = B::cache("edges").await;
    cache.set("ada".into(), 1).await;
    assert_eq!(cache.set_ex("ada".into(), 2, Duration::ZERO).await, Some(1));
    assert_eq!(cache.get("ada").await, None);
    assert_eq!(cache.set_ex("ada".into(), 3, Duration::MAX).await, None);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert_eq!(cache.get_ex("ada", Duration::ZERO).await, Some(3));
    assert_eq!(cache.get("ada").await, None);
    assert!(cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await);
    assert_eq!(cache.get("ada").await, None);
    cache.set("ada".into(), 5).await;
    assert!(cache.expire("ada", Duration::ZERO).await);
    assert_eq!(cache.get("ada").await, None);
    assert!(!cache.expire("ada", Duration::ZERO).await);
    cache.set_ex("ada".into(), 6, HOUR).await;
    assert!(cache.expire("ada", Duration::MAX).await);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert!(cache.expire("ada", Duration::MAX).await);
    assert!(!cache.expire("bob", Duration::MAX).await);
    // A TTL of less than a millisecond is valid, too.
    cache.set_ex("ada".into(), 7, HOUR).await;
    assert!(cache.expire("ada", Duration::from_nanos(1)).await);
    sleep(ms(5)).await;
    assert_eq!(cache.get("ada").await, None);
}

async fn get_ex_returns_the_value_and_sets_a_new_ttl<B: Backend>() {
    let cache = B::cache("get_ex").await;
    assert_eq!(cache.get_ex("ada", HOUR).await, None);
    assert_eq!(cache.ttl("ada").await, Ttl::Missing);
    cache.set_ex("ada".into(), 1, short()).await;
    assert_eq!(cache.get_ex("ada", HOUR).await, Some(1));
    assert!(is_about(cache.ttl("ada").await, HOUR));
    assert_eq!(cache.get_ex("ada", Duration::MAX).await, Some(1));
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    cache.set_ex("bob".into(), 1, short()).await;
    sleep(short() + ms(10)).await;
    assert_eq!(cache.get_ex("bob", HOUR).await, None, "an expired value stays expired");
    assert_eq!(cache.get("bob").await, None);
}

async fn set_nx_sets_only_without_a_live_value<B: Backend>() {
    let cache = B::cache("set_nx").await;
    assert!(cache.set_nx("ada".into(), 1, Some(short())).await);
    assert!(!cache.set_nx("ada".into(), 2, None).await);
    assert_eq!(cache.get("ada").await, Some(1));
    assert!(is_about(cache.ttl("ada").await, short()));
    sleep(short() + ms(10)).await;
    assert!(cache.set_nx("ada".into(), 3, None).await);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert!(!cache.set_nx("ada".into(), 4, Some(Duration::ZERO)).await);
    assert_eq!(cache.get("ada").await, Some(3));
}

async fn set_keep_ttl_keeps_the_ttl<B: Backend>() {
    let cache = B::cache("keep").await;
    assert_eq!(cache.set_keep_ttl("ada".into(), 1).await, None);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert_eq!(cache.set_keep_ttl("ada".into(), 2).await, Some(1));
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    cache.set_ex("ada".into(), 3, short()).await;
    assert_eq!(cache.set_keep_ttl("ada".into(), 4).await, Some(3));
    assert!(is_about(cache.ttl("ada").await, short()));
    assert_eq!(cache.get("ada").await, Some(4));
    sleep(short() + ms(10)).await;
    assert_eq!(cache.get("ada").await, None);
    assert_eq!(cache.set_keep_ttl("ada".into(), 5).await, None);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
}

async fn default_ttl_applies_without_an_explicit_ttl<B: Backend>() {
    let cache = B::cache_with_ttl("default", HOUR).await;
    cache.set("ada".into(), 1).await;
    assert!(is_about(cache.ttl("ada").await, HOUR));
    assert!(cache.set_nx("bob".into(), 1, None).await);
    assert!(is_about(cache.ttl("bob").await, HOUR));
    assert_eq!(cache.set_keep_ttl("cyd".into(), 1).await, None);
    assert!(is_about(cache.ttl("cyd").await, HOUR));
    cache.set_ex("dan".into(), 1, Duration::MAX).await;
    assert_eq!(cache.set_keep_ttl("dan".into(), 2).await, Some(1));
    assert_eq!(cache.ttl("dan").await, Ttl::Persistent);
    cache.set_ex("eve".into(), 1, 2 * HOUR).await;
    assert_eq!(cache.set_keep_ttl("eve".into(), 2).await, Some(1));
    assert!(is_about(cache.ttl("eve").await, 2 * HOUR));
}

async fn expire_if_changes_the_ttl_only_if_its_condition_holds<B: Backend>() {
    let cache = B::cache("expire_if").await;
    use When::{HasTtl, Later, NoTtl, Sooner};
    for when in [NoTtl, HasTtl, Later, Sooner] {
        assert!(!cache.expire_if("ada", HOUR, when).await, "{when:?}");
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
            cache.set_ex("ada".into(), 1, has).await;
            let before = cache.ttl("ada").await;
            let is_changed = cache.expire_if("ada", new, when).await;
            assert_eq!(is_changed, expected.contains(&when), "{case}");
            let after = cache.ttl("ada").await;
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
}

async fn expire_extend_and_persist_change_only_live_values<B: Backend>() {
    let cache = B::cache("deadlines").await;
    assert!(!cache.expire("ada", HOUR).await);
    assert!(!cache.expire_at("ada", Instant::now() + HOUR).await);
    assert!(!cache.extend("ada", HOUR).await);
    assert!(!cache.persist("ada").await);
    cache.set("ada".into(), 1).await;
    assert!(!cache.extend("ada", HOUR).await, "persistent");
    assert!(!cache.persist("ada").await, "persistent already");
    assert!(cache.expire("ada", HOUR).await);
    assert!(is_about(cache.ttl("ada").await, HOUR));
    assert!(cache.extend("ada", HOUR).await);
    assert!(is_about(cache.ttl("ada").await, 2 * HOUR));
    assert!(cache.extend("ada", Duration::ZERO).await);
    assert!(is_about(cache.ttl("ada").await, 2 * HOUR));
    assert!(cache.expire_at("ada", Instant::now() + HOUR).await);
    assert!(is_about(cache.ttl("ada").await, HOUR));
    assert!(cache.extend("ada", Duration::MAX).await);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    cache.expire("ada", HOUR).await;
    assert!(cache.persist("ada").await);
    assert_eq!(cache.ttl("ada").await, Ttl::Persistent);
    assert!(cache.expire_at("ada", Instant::now()).await);
    assert_eq!(cache.get("ada").await, None);
    cache.set_ex("bob".into(), 1, short()).await;
    sleep(short() + ms(10)).await;
    assert!(!cache.expire("bob", HOUR).await, "an expired value stays expired");
    assert!(!cache.extend("bob", HOUR).await);
    assert!(!cache.persist("bob").await);
    assert_eq!(cache.remove("bob").await, None);
    assert_eq!(cache.expire_now("bob").await, None);
}

async fn expire_now_removes_and_returns_the_value<B: Backend>() {
    let cache = B::cache("expire_now").await;
    cache.set("ada".into(), 1).await;
    assert_eq!(cache.expire_now("ada").await, Some(1));
    assert_eq!(cache.get("ada").await, None);
    assert_eq!(cache.expire_now("ada").await, None);
}

async fn update_changes_the_live_value_and_keeps_its_ttl<B: Backend>() {
    let cache = B::cache("update").await;
    assert_eq!(cache.update("ada", |n| *n += 1).await, None);
    cache.set_ex("ada".into(), 1, HOUR).await;
    let double = |n: &mut u64| {
        *n *= 2;
        n.to_string()
    };
    assert_eq!(cache.update("ada", double).await, Some("2".into()));
    assert_eq!(cache.get("ada").await, Some(2));
    assert!(is_about(cache.ttl("ada").await, HOUR));
    cache.set_ex("ada".into(), 1, short()).await;
    sleep(short() + ms(10)).await;
    assert_eq!(cache.update("ada", double).await, None);
}

async fn concurrent_updates_are_not_lost<B: Backend>() {
    let cache = B::cache("updates").await;
    cache.set("n".into(), 0).await;
    let tasks = (0..8).map(|_| {
        let cache = cache.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                cache.update("n", |n| *n += 1).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(cache.get("n").await, Some(80));
}

async fn remove_tag_removes_the_values_that_were_written_with_it<B: Backend>() {
    let cache = B::cache("tags").await;
    let (ada, bob, eve) = ("ada".to_owned(), "bob".to_owned(), "eve".to_owned());
    assert_eq!(cache.set_tagged(ada.clone(), 1, HOUR, ["a", "b"]).await, None);
    assert_eq!(cache.set_tagged(bob.clone(), 2, HOUR, ["b"]).await, None);
    assert_eq!(cache.set_tagged(eve.clone(), 3, HOUR, ["c"]).await, None);
    assert_eq!(cache.update("ada", |n| *n += 1).await, Some(()));
    assert_eq!(cache.set(bob, 4).await, Some(2));
    cache.remove_tag("b").await;
    assert_eq!(cache.get("ada").await, None, "update keeps the tags");
    assert_eq!(cache.get("bob").await, Some(4), "set replaces the tags");
    assert_eq!(cache.get("eve").await, Some(3), "it has another tag");
    assert!(cache.set_nx(ada, 5, None).await);
    cache.remove_tag("a").await;
    assert_eq!(cache.get("ada").await, Some(5));
    assert_eq!(cache.set_tagged(eve, 6, HOUR, ["b"]).await, Some(3));
    assert_eq!(cache.remove("eve").await, Some(6));
}

async fn iter_returns_each_entry_once_and_clear_removes_all<B: Backend>() {
    let cache = B::cache("entries").await;
    assert!(cache.is_empty().await);
    assert_eq!(set_of(cache.iter()).await, BTreeSet::new());
    let keys: BTreeSet<_> = (0..3_000).map(|n| (format!("key {n}"), n)).collect();
    let sets = keys.iter().map(|(key, n)| cache.set_ex(key.clone(), *n, HOUR));
    let replaced = futures::future::join_all(sets).await;
    assert!(replaced.into_iter().all(|set| set.is_none()));
    cache.set_ex("expired".into(), 1, ms(20)).await;
    sleep(ms(30)).await;
    assert_eq!(set_of(cache.iter()).await, keys);
    let names: BTreeSet<_> = keys.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(set_of(cache.keys()).await, names);
    assert_eq!(set_of(cache.values()).await, BTreeSet::from_iter(0..3_000));
    // The expired entry may still be resident.
    assert!((3_000..=3_001).contains(&cache.len().await));
    assert!(!cache.is_empty().await);
    cache.clear().await;
    assert_eq!(set_of(cache.iter()).await, BTreeSet::new());
    assert!(cache.is_empty().await);
    assert_eq!(cache.get("key 1").await, None);
}

async fn stats_count_hits_and_misses<B: Backend>() {
    let cache = B::cache("stats").await;
    cache.set("ada".into(), 1).await;
    cache.get("ada").await;
    cache.get_ex("ada", HOUR).await;
    cache.get("bob").await;
    assert_eq!(cache.hits_and_misses(), (2, 1));
}
