//! The permissions listed in the docs are sufficient, and all of them are needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fleeting::{
    Limit, When, Window,
    redis::{Cache, Client, Error, ExpiringSet, RateLimiter, TimeoutDict},
};
use futures::StreamExt;
use tokio::time::sleep;

use crate::{
    clock::ms,
    near::read_near,
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

const GUIDE: &str = include_str!("../../src/guide/before_production.md");

/// Returns the table of permissions in the docs.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let docs = include_str!("../../src/redis.rs");
    let rows = docs.lines().filter_map(|line| {
        let (row, commands) = line.strip_prefix("//! | ")?.split_once(" | `")?;
        let commands = commands.strip_suffix("` |")?.split(' ');
        let commands = commands.map(|command| command.replace("\\|", "|"));
        Some((row.replace(['[', ']', '`'], ""), commands.collect()))
    });
    rows.collect()
}

/// Returns the patterns of the keys of a type and of one of its names, from the guide.
fn patterns(kind: &str) -> (&'static str, &'static str) {
    let row = format!("| [`{kind}`](crate::redis::{kind}) | `");
    let keys = GUIDE.lines().find_map(|line| line.strip_prefix(&row)?.strip_suffix("` |"));
    let patterns = keys.and_then(|keys| keys.split_once("` | `"));
    patterns.expect("the guide lists the keys of the type")
}

/// Returns the patterns of the keys of these names of a type.
fn keys_of(kind: &str, names: &[&str]) -> Vec<String> {
    let (_, of_name) = patterns(kind);
    let of_names = names.iter().map(|name| of_name.replace("NAME", &escaped(name)));
    of_names
        .flat_map(|patterns| patterns.split(' ').map(String::from).collect::<Vec<_>>())
        .collect()
}

/// Returns a name with a backslash before each character that has a meaning in patterns, as the guide recommends.
fn escaped(name: &str) -> String {
    let escape = |char| if r"*?[]\".contains(char) { vec!['\\', char] } else { vec![char] };
    name.chars().flat_map(escape).collect()
}

#[tokio::test]
async fn patterns_of_a_name_permit_no_other_name() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let names = ["api", "api:internal", "api:", "api::", "api:7", "a*", "ap?", "ap[i]", "ap\\i"];
    for name in names {
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "app", "on", ">secret", "resetkeys", "allcommands"]);
        for kind in ["Cache", "RateLimiter", "ExpiringSet", "TimeoutDict"] {
            user.arg(keys_of(kind, &[name]));
        }
        let () = user.query_async(&mut plain).await.unwrap();
        let url = server.url().replace("redis://", "redis://app:secret@");
        let client = connect(url).await;
        for other in names {
            let cache: Cache<String, u8> = Cache::new(&client, other).unwrap();
            let dict: TimeoutDict<String, u8> = TimeoutDict::new(&client, other).unwrap();
            let set: ExpiringSet<String> = ExpiringSet::new(&client, other, HOUR).unwrap();
            let limiter = RateLimiter::<String>::builder(&client, other).limit(Limit::per_hour(1));
            let limiter = limiter.timeout(patience()).build().unwrap();
            // Keys of several shards.
            for key in (0..40).map(|key| key.to_string()) {
                let results = [
                    cache.set(key.clone(), 1).await.map(drop),
                    dict.set(key.clone(), 1, HOUR).await.map(drop),
                    set.push(key.clone()).await.map(drop),
                    limiter.reset(&key).await.map(drop),
                ];
                for result in results {
                    assert_eq!(result.is_ok(), name == other, "{name} and {other}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn example_in_the_guide_has_exactly_the_rights_of_a_limiter() {
    let mut words = GUIDE.lines().find(|line| line.starts_with("ACL SETUSER")).unwrap().split(' ');
    let head = ["ACL", "SETUSER", "api", "on", ">secret", "resetkeys", "nocommands"];
    assert!(words.by_ref().take(head.len()).eq(head));
    assert_eq!(words.next(), Some(patterns("RateLimiter").0));
    let granted: BTreeSet<_> = words.map(|word| word.to_uppercase()).collect();
    let documented = documented();
    let needed = documented["all"].union(&documented["RateLimiter"]);
    assert_eq!(granted, needed.map(|command| format!("+{command}")).collect());
}

/// Runs `calls` as a user with exactly the permissions of `rows`, and asserts that each of them was needed.
async fn assert_exact(rows: &[&str], keys: Vec<String>, calls: impl AsyncFn(&Client)) {
    let server = Server::start();
    let mut plain = server.plain().await;
    let documented = documented();
    let permissions: BTreeSet<String> =
        ["all"].iter().chain(rows).flat_map(|row| documented[*row].clone()).collect();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "app", "on", ">secret", "resetkeys", "nocommands"]).arg(keys);
    user.arg(
        permissions
            .iter()
            .map(|command| format!("+{}", command.to_lowercase()))
            .collect::<Vec<_>>(),
    );
    let () = user.query_async(&mut plain).await.unwrap();
    let url = server.url().replace("redis://", "redis://app:secret@");
    let client = connect(url).await;
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut plain).await.unwrap();
    calls(&client).await;
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut plain).await.unwrap();
    let used = info.lines().flat_map(|line| {
        let stats = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':'));
        let (name, stats) = stats.unwrap_or_default();
        // A new connection sends its library name and version, which may be rejected. So may the probe of a silent
        // connection, as on a late machine: an error shows that the server is alive.
        let is_needed = !["client|setinfo", "ping"].contains(&name);
        assert!(!is_needed || stats.is_empty() || stats.contains("rejected_calls=0"), "{line}");
        // The full name of a subcommand, and the name of its command.
        [name.to_uppercase(), name.split('|').next().unwrap_or_default().to_uppercase()]
    });
    let used: BTreeSet<_> = used.collect();
    // Used only after some time, or for errors; `HLEN` only by the metrics.
    let rare = ["APPEND", "HLEN", "PEXPIREAT", "TYPE", "ZREMRANGEBYRANK"];
    let unused: Vec<_> =
        permissions.difference(&used).filter(|it| !rare.contains(&&it[..])).collect();
    assert!(unused.is_empty(), "{rows:?}: {unused:?} were not used");
}

async fn use_cache(cache: &Cache<String, u64>) {
    for key in ["ada", "bob"] {
        cache.set(key.into(), 1).await.unwrap();
        cache.set_ex(key.into(), 1, HOUR).await.unwrap();
        cache.set_keep_ttl(key.into(), 1).await.unwrap();
        cache.set_nx(key.into(), 1, Some(Duration::ZERO)).await.unwrap();
        cache.get(key).await.unwrap();
        cache.get_ex(key, HOUR).await.unwrap();
        cache.ttl(key).await.unwrap();
        cache.expire(key, HOUR).await.unwrap();
        cache.expire_if(key, Duration::MAX, When::Later).await.unwrap();
        cache.expire(key, HOUR).await.unwrap();
        cache.extend(key, HOUR).await.unwrap();
        cache.extend(key, Duration::MAX).await.unwrap();
        cache.persist(key).await.unwrap();
        cache.update(key, |n| *n += 1).await.unwrap();
    }
    cache.get_or_set_with("eve", HOUR, async || 1).await.unwrap();
    let failed = cache.get_or_try_set_with("eva", HOUR, async || Err(())).await.unwrap();
    assert_eq!(failed, Err(Arc::new(())));
    // Another load, as the failed one returned its lease.
    cache.get_or_set_with("eva", Duration::ZERO, async || 1).await.unwrap();
    cache.set_many([("ada".to_owned(), 1), ("eve".to_owned(), 2)], Some(HOUR)).await.unwrap();
    assert_eq!(cache.get_many(["eve", "eva"]).await.unwrap(), [Some(2), None]);
    for _ in 0..2 {
        cache.set_tagged("tagged".into(), 1, HOUR, ["tag"]).await.unwrap();
    }
    cache.get("tagged").await.unwrap();
    cache.remove_tag("tag").await.unwrap();
    cache.remove("tagged").await.unwrap();
    cache.remove("eve").await.unwrap();
    cache.remove("ada").await.unwrap();
    assert_eq!(cache.iter().count().await, 1);
    cache.expire_now("bob").await.unwrap();
    cache.set_ex("ada".into(), 1, HOUR).await.unwrap();
    cache.clear().await.unwrap();
}

#[tokio::test]
async fn cache_needs_exactly_the_documented_permissions() {
    assert_exact(&["Cache"], keys_of("Cache", &["c"]), async |client| {
        use_cache(&Cache::new(client, "c").unwrap()).await;
    })
    .await;
    assert_exact(&["Cache", "its near cache"], keys_of("Cache", &["c"]), async |client| {
        let near = Cache::builder(client, "c").near(100).build().unwrap();
        use_cache(&near).await;
        assert_eq!(read_near(&near, "ada").await, None);
    })
    .await;
    assert_exact(&["Cache", "its events"], keys_of("Cache", &["c", "plain"]), async |client| {
        use_cache(&Cache::new(client, "plain").unwrap()).await;
        let builder = Cache::builder(client, "c").events(HOUR).lease(ms(60)).poll_every(ms(20));
        let cache = builder.build().unwrap();
        let mut all = cache.events().await.unwrap();
        let mut held = cache.events_lossless("g").await.unwrap();
        assert!(!cache.remove_group("h").await.unwrap());
        assert_eq!(cache.groups().await.unwrap(), ["g"]);
        for n in 0..20 {
            cache.set_ex(n.to_string(), n, ms(10)).await.unwrap();
        }
        for _ in 0..10 {
            all.recv().await.unwrap().unwrap();
            held.recv().await.unwrap().unwrap();
        }
        held.ack().await.unwrap();
        held.recv().await.unwrap().unwrap();
        // The drop returns events that were not delivered; the lease of the others expires.
        drop(held);
        let mut others = cache.events_lossless("g").await.unwrap();
        for _ in 0..10 {
            others.recv().await.unwrap().unwrap();
        }
        sleep(ms(100)).await;
        use_cache(&cache).await;
    })
    .await;
}

#[tokio::test]
async fn rate_limiter_needs_exactly_the_documented_permissions() {
    let keys = keys_of("RateLimiter", &["Log", "Buckets4", "Gcra"]);
    assert_exact(&["RateLimiter"], keys, async |client| {
        for window in [Window::Log, Window::Buckets(4), Window::Gcra] {
            let name = format!("{window:?}").replace(['(', ')'], "");
            let limit = Limit::new(30, HOUR);
            let builder = RateLimiter::<String>::builder(client, name).limit(limit.clone());
            let builder = builder.window(window).timeout(patience());
            let limiter = builder.build().unwrap();
            limiter.check("ada").await.unwrap().refund().await.unwrap();
            // Several times, as a window may still contain the refunded call.
            for _ in 0..30 {
                let _ = limiter.check("ada").await;
            }
            assert!(matches!(limiter.check("ada").await, Err(Error::Limited(_))));
            limiter.peek("ada").await.unwrap();
            limiter.reset("ada").await.unwrap();
            limiter.set_limits([limit.named("other")]).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn expiring_set_needs_exactly_the_documented_permissions() {
    assert_exact(&["ExpiringSet"], keys_of("ExpiringSet", &["s"]), async |client| {
        let set: ExpiringSet<String> = ExpiringSet::new(client, "s", HOUR).unwrap();
        let endless: ExpiringSet<String> = ExpiringSet::new(client, "s", Duration::MAX).unwrap();
        let short: ExpiringSet<String> = ExpiringSet::new(client, "s", ms(1)).unwrap();
        let now = SystemTime::now() - ms(1_000);
        for set in [&endless, &set] {
            set.push("a".into()).await.unwrap();
            set.push_at("b".into(), now).await.unwrap();
            set.push_unique_at("c".into(), now).await.unwrap();
            assert_eq!(set.elements().await.unwrap().len(), 2);
            set.score("a").await.unwrap();
            set.pop().await.unwrap();
            set.remove("a").await.unwrap();
            set.extend(["d", "e"].map(String::from)).await.unwrap();
            set.remove_range(..).await.unwrap();
        }
        set.push("f".into()).await.unwrap();
        sleep(ms(5)).await;
        assert!(short.is_empty().await.unwrap());
        set.clear().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn timeout_dict_needs_exactly_the_documented_permissions() {
    let use_dict = async |dict: &TimeoutDict<String, BTreeMap<String, String>>| {
        let value = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        for key in ["ada", "bob", "eve", "zoe"] {
            dict.set(key.into(), value.clone(), Duration::ZERO).await.unwrap();
            dict.get(key).await.unwrap();
            dict.ttl(key).await.unwrap();
            dict.set_timeout(key, Duration::ZERO).await.unwrap();
        }
        dict.len().await.unwrap();
        assert!(dict.next_claim(HOUR).await.unwrap().ack().await.unwrap());
        let claim = dict.next_claim(HOUR).await.unwrap();
        claim.extend(HOUR).await.unwrap();
        claim.retry_in(Duration::ZERO).await.unwrap();
        dict.next_claim(HOUR).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
        dict.next_claim(HOUR).await.unwrap().release().await.unwrap();
        dict.next_claim(HOUR).await.unwrap().fail("full").await.unwrap();
        dict.set_nx("zoe".into(), value.clone(), Duration::ZERO).await.unwrap();
        dict.dead_letters(9).await.unwrap();
        dict.dead_len().await.unwrap();
        dict.revive("bob", Duration::ZERO).await.unwrap();
        dict.take_expired(1).await.unwrap();
        dict.take_dead(1).await.unwrap();
        dict.remove("zoe").await.unwrap();
        dict.clear().await.unwrap();
    };
    assert_exact(&["TimeoutDict"], keys_of("TimeoutDict", &["d"]), async |client| {
        let builder = TimeoutDict::builder(client, "d").max_attempts(2);
        use_dict(&builder.build().unwrap()).await;
    })
    .await;
    assert_exact(&["TimeoutDict", "its compat"], vec!["allkeys".to_owned()], async |client| {
        let builder = TimeoutDict::builder(client, "d").max_attempts(2);
        use_dict(&builder.build().unwrap()).await;
        use_dict(&TimeoutDict::compat(client, "d")).await;
    })
    .await;
}
