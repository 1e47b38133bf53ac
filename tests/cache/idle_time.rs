//! Idle time (`time_to_idle`) and hard deadlines.

use std::time::Duration;

use fleeting::{Ttl, When};
use tokio::time::{Instant, advance};

use crate::freshness::builder;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn time_to_idle_expires_unread_entries() {
    for bounded in [false, true] {
        let builder = builder().time_to_idle(10 * SECOND);
        let cache = if bounded { builder.max_entries(100).build() } else { builder.build() };
        cache.set(1, 1).await;
        cache.set_ex(2, 2, 25 * SECOND).await;
        cache.set_ex(3, 3, 5 * SECOND).await;
        assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND));
        assert_eq!(cache.ttl(&2).await, Ttl::Remaining(10 * SECOND));
        assert_eq!(cache.ttl(&3).await, Ttl::Remaining(5 * SECOND));
        advance(9 * SECOND).await;
        assert_eq!(cache.get_many([&1, &2, &3]).await, [Some(1), Some(2), None]);
        advance(9 * SECOND).await;
        // Neither of these calls is a hit.
        assert!(cache.contains_key(&1).await && cache.iter().count() == 2);
        assert_eq!(cache.get_or_set_with(&2, SECOND, async || unreachable!()).await, 2);
        assert_eq!(cache.ttl(&2).await, Ttl::Remaining(7 * SECOND), "the earlier deadline applies");
        advance(SECOND).await;
        assert_eq!(cache.get(&1).await, None);
        advance(6 * SECOND).await;
        assert_eq!(cache.get(&2).await, None);
    }
}

/// A hit restarts the idle time first.
#[tokio::test(start_paused = true)]
async fn get_with_ttl_is_a_hit_and_returns_the_ttl_after_it() {
    for bounded in [false, true] {
        let builder = builder().time_to_idle(10 * SECOND);
        let cache = if bounded { builder.max_entries(100).build() } else { builder.build() };
        cache.set(1, 1).await;
        cache.set_ex(2, 2, 12 * SECOND).await;
        advance(9 * SECOND).await;
        assert_eq!(cache.get_with_ttl(&1).await, Some((1, Ttl::Remaining(10 * SECOND))));
        assert_eq!(cache.get_with_ttl(&2).await, Some((2, Ttl::Remaining(3 * SECOND))));
        advance(9 * SECOND).await;
        assert_eq!(cache.get_with_ttl(&2).await, None);
        assert_eq!(cache.get(&1).await, Some(1));
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses), (3, 1));
    }
}

/// Methods on TTLs read and change the hard deadline.
#[tokio::test(start_paused = true)]
async fn time_to_idle_keeps_the_hard_deadline() {
    let cache = builder().time_to_idle(10 * SECOND).build();
    cache.set_ex(1, 1, 100 * SECOND).await;
    advance(5 * SECOND).await;
    cache.update(&1, |value| *value += 1).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(5 * SECOND), "the entry was not read");
    assert!(cache.persist(&1).await);
    assert!(!cache.persist(&1).await);
    for _ in 0..30 {
        advance(9 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(2));
    }
    assert!(cache.expire(&1, 12 * SECOND).await);
    assert!(cache.extend(&1, SECOND).await);
    advance(9 * SECOND).await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
    cache.set_keep_ttl(1, 3).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
    advance(4 * SECOND).await;
    assert_eq!(cache.get(&1).await, None);
}

/// Setting a deadline restarts the idle time, even if it is the deadline that the entry already has.
#[tokio::test(start_paused = true)]
async fn setting_a_deadline_restarts_time_to_idle() {
    let cache = builder().time_to_idle(10 * SECOND).build();
    let end = Instant::now() + 1_000 * SECOND;
    for given in [end, end + SECOND] {
        for method in 0..3 {
            cache.set_ex(1, 1, end - Instant::now()).await;
            advance(6 * SECOND).await;
            let remaining = given - Instant::now();
            assert!(match method {
                0 => cache.expire_at(&1, given).await,
                1 => cache.expire(&1, remaining).await,
                _ => cache.get_ex(&1, remaining).await.is_some(),
            });
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND), "{method}");
            // This call sets no deadline.
            advance(SECOND).await;
            assert!(!cache.expire_if(&1, SECOND, When::NoTtl).await);
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(9 * SECOND));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_method_that_changes_a_deadline_restarts_time_to_idle() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let methods =
        ["get_ex", "get_ex_with", "expire", "expire_if", "expire_at", "extend", "persist"];
    for (bounded, method) in [false, true].into_iter().flat_map(|b| methods.map(|m| (b, m))) {
        let builder = builder().time_to_idle(10 * SECOND);
        let cache = if bounded { builder.max_entries(100).build() } else { builder.build() };
        let sync = cache.sync();
        for is_sync in [false, true] {
            cache.set_ex(1, 1, HOUR).await;
            advance(6 * SECOND).await;
            let end = Instant::now() + HOUR;
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
            let changed = match (method, is_sync) {
                ("get_ex", false) => cache.get_ex(&1, HOUR).await.is_some(),
                ("get_ex", true) => sync.get_ex(&1, HOUR).is_some(),
                ("get_ex_with", _) => cache.get_ex_with(&1, |_| HOUR).await.is_some(),
                ("expire", false) => cache.expire(&1, HOUR).await,
                ("expire", true) => sync.expire(&1, HOUR),
                ("expire_if", false) => cache.expire_if(&1, HOUR, When::Later).await,
                ("expire_if", true) => sync.expire_if(&1, HOUR, When::Later),
                ("expire_at", false) => cache.expire_at(&1, end).await,
                ("expire_at", true) => sync.expire_at(&1, end),
                ("extend", false) => cache.extend(&1, HOUR).await,
                ("extend", true) => sync.extend(&1, HOUR),
                ("persist", false) => cache.persist(&1).await,
                ("persist", true) => sync.persist(&1),
                _ => unreachable!("{method}"),
            };
            assert!(changed, "{method}");
            assert_eq!(cache.ttl(&1).await, Ttl::Remaining(10 * SECOND), "{method}, {is_sync}");
            advance(10 * SECOND).await;
            assert_eq!(cache.get(&1).await, None, "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_changes_no_deadline_does_not_restart_time_to_idle() {
    let cache = builder().time_to_idle(10 * SECOND).build();
    cache.set(1, 1).await;
    advance(6 * SECOND).await;
    let sync = cache.sync();
    assert!(!cache.expire_if(&1, SECOND, When::HasTtl).await);
    assert!(!sync.expire_if(&1, SECOND, When::HasTtl));
    assert!(!cache.extend(&1, SECOND).await && !sync.extend(&1, SECOND));
    assert!(!cache.persist(&1).await && !sync.persist(&1));
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(4 * SECOND));
}

/// Entries move to larger and smaller tables, and each keeps its hard deadline and tags.
#[tokio::test(start_paused = true)]
async fn hard_deadlines_and_tags_survive_a_rehash() {
    for bounded in [false, true] {
        let builder = builder().time_to_idle(100 * SECOND);
        let cache = if bounded { builder.max_entries(100_000).build() } else { builder.build() };
        for key in 0..50_000 {
            let tag = format!("tag {}", key % 10);
            if key % 3 == 0 {
                cache
                    .set_tagged(key, key, Duration::from_secs(150 + u64::from(key) % 7), [tag])
                    .await;
            } else {
                cache.set_ex(key, key, Duration::from_secs(150 + u64::from(key) % 7)).await;
            }
        }
        for key in 0..50_000 {
            if key % 16 != 0 {
                cache.remove(&key).await;
            }
        }
        // Each sweep moves a part of the entries to smaller tables, with reads in between.
        let mut sweeps = 0;
        advance(90 * SECOND).await;
        while sweeps < 40 {
            cache.sweep().await;
            sweeps += 1;
            for key in (0..50_000).step_by(16).skip(sweeps).step_by(40) {
                assert_eq!(cache.get(&key).await, Some(key));
            }
        }
        cache.get_many((0..50_000).collect::<Vec<_>>().iter()).await;
        for key in (0..50_000).step_by(16) {
            let remaining = Duration::from_secs(60 + u64::from(key) % 7);
            assert_eq!(cache.ttl(&key).await, Ttl::Remaining(remaining), "{key}");
        }
        cache.remove_tag("tag 2").await;
        cache.remove_tag("no such tag").await;
        for key in (0..50_000).step_by(16) {
            let is_tagged = key % 3 == 0 && key % 10 == 2;
            assert_eq!(cache.get(&key).await.is_none(), is_tagged, "{key}");
        }
    }
}
