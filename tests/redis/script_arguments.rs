//! Hostile arguments of the methods that run scripts: keys, values, names, TTLs and costs that Lua or the protocol
//! could take for something else. Random calls are compared with what was set.
//!
//! `FLEETING_SEED` determines the calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fleeting::{
    Limit, Ttl, Window,
    redis::{Cache, CacheBuilder, Client, Error, ExpiringSet, Format, RateLimiter, TimeoutDict},
};
use futures::StreamExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::timeout;

use crate::{
    arguments::{BYTES, NANO, TEXTS, TTLS},
    near::until,
    patience::patience,
    rate_limiter::strict,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Longer than any chunk in which values are read or sent.
const LONG: usize = 1 << 20;

/// Source of arguments.
struct Random(SmallRng);

impl Random {
    /// Returns the source of a test.
    fn new(test: u64) -> Self {
        let seed = env::var("FLEETING_SEED").ok();
        let seed = seed.map_or(7, |seed| seed.parse::<u64>().expect("FLEETING_SEED is a number"));
        println!("FLEETING_SEED={seed}");
        Self(SmallRng::seed_from_u64(seed ^ test << 32))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    fn text(&mut self) -> String {
        match self.below(150) {
            0 => "\0".repeat(LONG),
            1..40 => {
                let part = TEXTS[self.below(TEXTS.len())];
                part.to_owned() + TEXTS[self.below(TEXTS.len())]
            }
            _ => TEXTS[self.below(TEXTS.len())].to_owned(),
        }
    }

    /// Returns a text that may be a name, that is to say neither empty nor with braces.
    fn name(&mut self) -> String {
        let name = self.text().replace(['{', '}'], ":");
        if name.is_empty() || name.len() > 100 { "c".to_owned() } else { name }
    }

    fn bytes(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => BYTES[self.below(BYTES.len())].to_vec(),
            1 => [BYTES[self.below(BYTES.len())], self.text().as_bytes()].concat(),
            _ => self.text().into_bytes(),
        }
    }

    fn ttl(&mut self) -> Duration {
        TTLS[self.below(TTLS.len())]
    }

    /// Returns a TTL that does not expire during a test.
    fn long_ttl(&mut self) -> Duration {
        TTLS[2 + self.below(TTLS.len() - 2)]
    }
}

/// Returns an argument as it is printed in a failure.
fn short(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let end = bytes.len().min(60);
    format!("{} bytes {}", bytes.len(), bytes[..end].escape_ascii())
}

/// Returns the result of a call none of whose arguments is an error.
fn ok<T>(call: &str, result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{call}: {error:?}"))
}

/// An entry of a model: a value, and whether it has a TTL. A TTL at the end of the range of the server may count as
/// none.
type Entry = (Vec<u8>, Option<bool>);

type Model = BTreeMap<String, Entry>;

/// Returns whether a value with this TTL has one; `None` if that depends on the range of the server.
fn has_ttl(ttl: Duration) -> Option<bool> {
    match ttl {
        HOUR => Some(true),
        Duration::MAX => Some(false),
        _ => None,
    }
}

/// Makes random calls, and compares each key with the model after its call.
async fn check_cache(cache: &Cache<String, Vec<u8>>, random: &mut Random, calls: usize) {
    let mut model = Model::new();
    let witness = "witness".to_owned();
    ok("witness", cache.set(witness.clone(), b"untouched".to_vec()).await);
    for call in 0..calls {
        let (key, value, ttl) = (random.text(), random.bytes(), random.ttl());
        let which = random.below(17);
        let what = &format!(
            "call {call}, method {which}, key {}, value {}, TTL {ttl:?}",
            short(&key),
            short(&value)
        );
        let (old, had_ttl) = match model.get(&key) {
            Some((old, had_ttl)) => (Some(old.clone()), *had_ttl),
            None => (None, Some(false)),
        };
        let exists = old.is_some();
        let is_long = ttl >= HOUR;
        let new = Some((value.clone(), has_ttl(ttl)));
        // The entry after the call.
        let mut after = model.get(&key).cloned();
        match which {
            0 => {
                let replaced = ok(what, cache.set(key.clone(), value.clone()).await);
                assert_eq!(replaced, old, "{what}");
                after = Some((value, Some(false)));
            }
            1 => {
                let replaced = ok(what, cache.set_ex(key.clone(), value, ttl).await);
                assert_eq!(replaced, old, "{what}");
                after = new.filter(|_| is_long);
            }
            2 => {
                let is_set = ok(what, cache.set_nx(key.clone(), value, Some(ttl)).await);
                assert_eq!(is_set, !exists, "{what}");
                after = if is_set { new.filter(|_| is_long) } else { after };
            }
            3 => {
                let replaced = ok(what, cache.set_keep_ttl(key.clone(), value.clone()).await);
                assert_eq!(replaced, old, "{what}");
                after = Some((value, had_ttl));
            }
            4 => {
                assert_eq!(ok(what, cache.get_ex(&key, ttl).await), old, "{what}");
                after = old.map(|old| (old, has_ttl(ttl))).filter(|_| is_long);
            }
            5 => {
                assert_eq!(ok(what, cache.remove(&key).await), old, "{what}");
                after = None;
            }
            6 => {
                assert_eq!(ok(what, cache.expire(&key, ttl).await), exists, "{what}");
                after = old.map(|old| (old, has_ttl(ttl))).filter(|_| is_long);
            }
            7 => {
                let was_changed = ok(what, cache.persist(&key).await);
                assert_eq!(was_changed, exists && had_ttl.unwrap_or(was_changed), "{what}");
                after = old.map(|old| (old, Some(false)));
            }
            8 => {
                let more = random.long_ttl();
                let was_changed = ok(what, cache.extend(&key, more).await);
                let expected = exists && had_ttl.unwrap_or(was_changed);
                assert_eq!(was_changed, expected, "{what}, {more:?}");
                let has_ttl = if was_changed { has_ttl(more) } else { had_ttl };
                after = old.map(|old| (old, has_ttl));
            }
            9 => {
                assert_eq!(ok(what, cache.expire_now(&key).await), old, "{what}");
                after = None;
            }
            10 => {
                let update = cache.update(&key, |old| old.clone_from(&value)).await;
                assert_eq!(ok(what, update).is_some(), exists, "{what}");
                after = after.map(|(_, has_ttl)| (value, has_ttl));
            }
            11 => {
                let load = value.clone();
                let loaded = cache.get_or_set_with(&key, ttl, async move || load).await;
                let loaded = ok(what, loaded);
                assert_eq!(loaded, old.unwrap_or(value), "{what}");
                after = if exists { after } else { new.filter(|_| is_long) };
            }
            12 => {
                let other = random.text();
                let entries = [(key.clone(), value.clone()), (other.clone(), value.clone())];
                ok(what, cache.set_many(entries, Some(ttl)).await);
                after = new.filter(|_| is_long);
                check_entry(cache, &other, after.clone(), what).await;
                set_model(&mut model, &other, after.clone());
            }
            13 => {
                let other = random.text();
                let removed = ok(what, cache.remove_many([&key, &other]).await);
                let distinct = BTreeSet::from([&key, &other]);
                let expected = distinct.into_iter().filter(|key| model.contains_key(*key)).count();
                assert_eq!(removed, expected, "{what}");
                model.remove(&other);
                after = None;
            }
            14 | 15 => {
                let tags: Vec<String> = (0..=random.below(4)).map(|_| random.text()).collect();
                let long = random.long_ttl();
                let set = cache.set_tagged(key.clone(), value.clone(), long, tags.clone());
                assert_eq!(ok(what, set.await), old, "{what}");
                assert_eq!(ok(what, cache.get(&key).await), Some(value.clone()), "{what}");
                // A tag of the value, or perhaps not.
                let tag = if which == 14 { tags[0].clone() } else { random.text() };
                ok(what, cache.remove_tag(&tag).await);
                let left = (!tags.contains(&tag)).then_some(value);
                assert_eq!(ok(what, cache.remove(&key).await), left, "{what}, tags {tags:?}");
                after = None;
            }
            _ => {
                assert_eq!(ok(what, cache.contains_key(&key).await), exists, "{what}");
                let keys: Vec<String> = model.keys().cloned().chain([key.clone()]).collect();
                let values = ok(what, cache.get_many(&keys).await);
                for (key, value) in keys.iter().zip(values) {
                    let expected = model.get(key).map(|(value, _)| value);
                    assert_eq!(value.as_ref(), expected, "{what}: {}", short(key));
                }
            }
        }
        check_entry(cache, &key, after.clone(), what).await;
        set_model(&mut model, &key, after);
    }
    let value = ok("witness", cache.remove(&witness).await);
    assert_eq!(value.as_deref(), Some(&b"untouched"[..]));
    let found: BTreeMap<String, Vec<u8>> = cache.iter().map(|entry| entry.unwrap()).collect().await;
    let expected = model.into_iter().map(|(key, (value, _))| (key, value)).collect();
    assert!(found == expected, "{} entries, expected {}", found.len(), expected.len());
    ok("clear", cache.clear().await);
}

fn set_model(model: &mut Model, key: &str, entry: Option<Entry>) {
    match entry {
        Some(entry) => _ = model.insert(key.to_owned(), entry),
        None => _ = model.remove(key),
    }
}

async fn check_entry(
    cache: &Cache<String, Vec<u8>>,
    key: &String,
    expected: Option<Entry>,
    what: &str,
) {
    if expected.is_none() {
        // A TTL of a nanosecond may be rounded up to a millisecond.
        until(what, async || ok(what, cache.get(key).await).is_none()).await;
    } else {
        let value = ok(what, cache.get(key).await);
        assert_eq!(value.as_ref(), expected.as_ref().map(|(value, _)| value), "{what}");
    }
    let ttl = ok(what, cache.ttl(key).await);
    match (expected.map(|(_, has_ttl)| has_ttl), ttl) {
        (None, Ttl::Missing) | (Some(None | Some(false)), Ttl::Persistent) => {}
        (Some(None | Some(true)), Ttl::Remaining(remaining)) if remaining > HOUR / 2 => {}
        (_, ttl) => panic!("{what}: {ttl:?}"),
    }
}

fn raw(client: &Client, name: &str) -> CacheBuilder<String, Vec<u8>> {
    Cache::builder(client, name).format(Format::Raw)
}

#[tokio::test]
async fn cache_methods_take_any_key_value_ttl_and_tag() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let mut random = Random::new(1);
    for builder in [
        raw(&client, "args plain"),
        raw(&client, "args events").events(HOUR),
        raw(&client, "args stale").stale_while_revalidate(Duration::MAX).lease(Duration::MAX),
        raw(&client, "args near").near(1_000),
    ] {
        check_cache(&builder.build().unwrap(), &mut random, 150).await;
    }
}

#[tokio::test]
async fn value_may_have_many_tags() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    for builder in [raw(&client, "tags plain"), raw(&client, "tags events").events(HOUR)] {
        let cache = builder.build().unwrap();
        for count in [1_000, 10_000] {
            let tags = || (0..count).map(|n| n.to_string());
            ok("set", cache.set_tagged("ada".into(), b"1".to_vec(), HOUR, tags()).await);
            assert_eq!(ok("get", cache.get("ada").await), Some(b"1".to_vec()), "{count}");
            let replaced = cache.set_tagged("ada".into(), b"2".to_vec(), HOUR, tags()).await;
            assert_eq!(ok("replace", replaced), Some(b"1".to_vec()), "{count}");
            assert!(ok("expire", cache.expire("ada", 2 * HOUR).await));
            ok("remove", cache.remove_tag(&(count - 1).to_string()).await);
            assert_eq!(ok("get", cache.get("ada").await), None, "{count}");
        }
    }
}

#[tokio::test]
async fn names_and_groups_are_any_text_without_braces() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let mut random = Random::new(2);
    for name in ["", "{", "}", "a{b}"] {
        assert!(matches!(Cache::<u32, u32>::new(&client, name), Err(Error::Name(_))));
        assert!(matches!(TimeoutDict::<u32, u32>::new(&client, name), Err(Error::Name(_))));
        assert!(matches!(ExpiringSet::<u32>::new(&client, name, HOUR), Err(Error::Name(_))));
        let limiter = strict(&client, name).limit(Limit::per_hour(1)).build();
        assert!(matches!(limiter, Err(Error::Name(_))));
    }
    let names: BTreeSet<String> = (0..40).map(|_| random.name()).collect();
    for (number, name) in names.iter().enumerate() {
        let what = &*short(name);
        let (key, value) = (random.text(), random.bytes());
        let cache = raw(&client, name).events(HOUR).build().unwrap();
        let group = random.text();
        let mut events = ok(what, cache.events_lossless(&group).await);
        ok(what, cache.set(key.clone(), value.clone()).await);
        assert_eq!(ok(what, cache.expire_now(&key).await), Some(value.clone()), "{what}");
        let event = timeout(patience(), events.recv()).await.expect("an event is delivered");
        let event = ok(what, event.unwrap());
        assert_eq!((&event.key, &event.value), (&key, &value), "{what}, group {group:?}");
        ok(what, events.ack().await);
        assert_eq!(ok(what, cache.groups().await), [&*group], "{what}");
        assert!(ok(what, cache.remove_group(&group).await), "{what}");
        // Each name has its own keys.
        ok(what, cache.set("number".into(), number.to_string().into_bytes()).await);
        let dict = TimeoutDict::<String, usize>::new(&client, name.as_str()).unwrap();
        ok(what, dict.set(key.clone(), number, HOUR).await);
        let set = ExpiringSet::<usize>::new(&client, name.as_str(), HOUR).unwrap();
        ok(what, set.push(number).await);
        let limiter = strict(&client, name).limit(Limit::per_hour(1)).build().unwrap();
        assert_eq!(ok(what, limiter.check("number").await).remaining(), 0, "{what}");
    }
    for (number, name) in names.iter().enumerate() {
        let cache = raw(&client, name).build().unwrap();
        let value = ok(name, cache.get("number").await);
        assert_eq!(value, Some(number.to_string().into_bytes()), "{name:?}");
        assert_eq!(cache.keys().count().await, 1, "{name:?}");
        let dict = TimeoutDict::<String, usize>::new(&client, name.as_str()).unwrap();
        assert_eq!(ok(name, dict.len().await), 1, "{name:?}");
        let set = ExpiringSet::<usize>::new(&client, name.as_str(), HOUR).unwrap();
        assert_eq!(ok(name, set.elements().await), [number], "{name:?}");
    }
}

#[tokio::test]
async fn timeout_dict_methods_take_any_key_value_reason_and_time() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let mut random = Random::new(3);
    let builder = TimeoutDict::<String, Vec<u8>>::builder(&client, "args").format(Format::Raw);
    let dict = builder.max_attempts(2).build().unwrap();
    ok("witness", dict.set("witness".into(), b"untouched".to_vec(), HOUR).await);
    for case in 0..150 {
        let (key, value) = (random.text(), random.bytes());
        let (ttl, reason) = (random.ttl(), random.text());
        let what = &format!(
            "case {case}, key {}, value {}, time {ttl:?}, reason {}",
            short(&key),
            short(&value),
            short(&reason)
        );
        let entry = (key.clone(), value.clone());
        assert!(ok(what, dict.set_nx(key.clone(), value.clone(), ttl).await), "{what}");
        assert!(!ok(what, dict.set_nx(key.clone(), Vec::new(), ttl).await), "{what}");
        assert_eq!(ok(what, dict.get(&key).await), Some(value.clone()), "{what}");
        match ok(what, dict.ttl(&key).await) {
            Ttl::Remaining(remaining) => assert!(remaining <= ttl, "{what}: {remaining:?}"),
            ttl_of_entry => assert!(ttl > HOUR && ttl_of_entry == Ttl::Persistent, "{what}"),
        }
        assert!(ok(what, dict.set_timeout(&key, random.long_ttl()).await), "{what}");
        assert_eq!(ok(what, dict.take_expired(usize::MAX).await), [], "{what}");
        let replaced = ok(what, dict.set(key.clone(), value.clone(), Duration::ZERO).await);
        assert_eq!(replaced, Some(value.clone()), "{what}");
        // It is due from now on.
        let lease = random.long_ttl();
        let mut claims = ok(what, dict.claim_expired(usize::MAX, lease).await);
        let claim = claims.pop().expect("the entry is due");
        assert!(
            claims.is_empty() && (claim.key(), claim.value()) == (&entry.0, &entry.1),
            "{what}"
        );
        assert!(ok(what, claim.extend(random.long_ttl()).await), "{what}");
        match case % 4 {
            0 => assert!(ok(what, claim.ack().await), "{what}"),
            1 => {
                assert!(ok(what, claim.retry_in(random.long_ttl()).await), "{what}");
                assert_eq!(ok(what, dict.remove(&key).await), Some(value), "{what}");
            }
            2 => {
                assert!(ok(what, claim.release().await), "{what}");
                assert_eq!(ok(what, dict.take_expired(usize::MAX).await), [entry], "{what}");
            }
            _ => {
                assert!(ok(what, claim.retry_in(Duration::ZERO).await), "{what}");
                let again = ok(what, dict.claim_expired(1, lease).await).pop();
                assert!(ok(what, again.expect("it is due").fail(&reason).await), "{what}");
                let letters = ok(what, dict.dead_letters(usize::MAX).await);
                assert_eq!(letters.len(), 1, "{what}");
                let letter = &letters[0];
                assert_eq!((&letter.key, &letter.value, letter.attempts), (&key, &value, 2));
                let kept = letter.reason.as_ref().expect("it has a reason");
                assert!(
                    reason.starts_with(kept) && kept.len() >= reason.len().min(1_000),
                    "{what}"
                );
                if case % 8 == 3 {
                    assert_eq!(ok(what, dict.take_dead(usize::MAX).await), [entry], "{what}");
                } else {
                    assert!(ok(what, dict.revive(&key, random.long_ttl()).await), "{what}");
                    assert!(ok(what, dict.contains_key(&key).await), "{what}");
                    assert_eq!(ok(what, dict.remove(&key).await), Some(value), "{what}");
                }
            }
        }
        assert_eq!(ok(what, dict.get(&key).await), None, "{what}");
        assert_eq!(ok(what, dict.len().await), 1, "{what}");
    }
    let witness = ok("witness", dict.remove("witness").await);
    assert_eq!(witness.as_deref(), Some(&b"untouched"[..]));
}

#[tokio::test]
async fn expiring_set_methods_take_any_member_and_score() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let mut random = Random::new(4);
    let scores = [
        UNIX_EPOCH,
        UNIX_EPOCH - Duration::from_secs(1 << 40),
        UNIX_EPOCH + Duration::from_nanos(1),
        UNIX_EPOCH + Duration::from_secs(1 << 33),
        UNIX_EPOCH + Duration::from_secs(9_007_199_254_740),
        UNIX_EPOCH + Duration::from_secs(1 << 60),
    ];
    for (number, ttl) in TTLS.into_iter().enumerate().skip(2) {
        let set = ExpiringSet::<Vec<u8>>::builder(&client, format!("args {number}"), ttl);
        let set = set.format(Format::Raw).build().unwrap();
        let mut model = BTreeSet::new();
        for case in 0..25 {
            let member = random.bytes();
            let what = &format!("case {case}, TTL {ttl:?}, member {}", short(&member));
            match random.below(6) {
                0 => {
                    let removed = ok(what, set.remove(&member).await);
                    assert_eq!(removed, model.remove(&member), "{what}");
                }
                1 => {
                    ok(what, set.extend([member.clone(), b"also".to_vec()]).await);
                    model.extend([member.clone(), b"also".to_vec()]);
                }
                2 => {
                    let score = scores[random.below(scores.len())];
                    ok(what, set.push_at(member.clone(), score).await);
                    let found = ok(what, set.score(&member).await);
                    // Scores beyond the range of doubles are not exact.
                    let is_kept = score > SystemTime::now() || ttl > HOUR && found.is_some();
                    assert_eq!(found.is_some(), is_kept, "{what}, {score:?}");
                    ok(what, set.range(score..).await);
                    ok(what, set.range(..=score).await);
                    ok(what, set.remove(&member).await);
                    model.remove(&member);
                }
                _ => {
                    ok(what, set.push(member.clone()).await);
                    model.insert(member.clone());
                }
            }
            let contains = ok(what, set.contains(&member).await);
            assert_eq!(contains, model.contains(&member), "{what}");
        }
        let elements: BTreeSet<Vec<u8>> =
            ok("elements", set.elements().await).into_iter().collect();
        assert!(elements == model, "TTL {ttl:?}");
        let first = ok("pop", set.pop().await);
        assert!(first.is_some_and(|first| model.remove(&first)), "TTL {ttl:?}");
        assert_eq!(ok("remove", set.remove_range(..).await), model.len());
    }
}

#[tokio::test]
async fn limiter_methods_take_any_key_cost_and_limit() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let mut random = Random::new(5);
    let century = Duration::from_secs(100 * 365 * 86_400);
    for window in [Window::Log, Window::Buckets(1), Window::Buckets(100), Window::Gcra] {
        let name = format!("args {window:?}");
        let builder = strict(&client, &name).window(window).deny_cache(0);
        let limiter: RateLimiter<String> = builder.limit(Limit::new(10, century)).build().unwrap();
        ok("witness", limiter.check_n("witness", 3).await);
        let mut keys = BTreeSet::new();
        for case in 0..40 {
            let key = random.text();
            if !keys.insert(key.clone()) {
                continue;
            }
            let cost = [0, 1, 9, 10, 11, u32::MAX - 1, u32::MAX][random.below(7)];
            let what = &format!("case {case}, {window:?}, key {}, cost {cost}", short(&key));
            match limiter.check_n(&key, cost).await {
                Ok(permit) => {
                    assert!(cost <= 10 && permit.remaining() == 10 - cost, "{what}: {permit:?}");
                    let actual = [0, 1, 9, 10, 11, u32::MAX][random.below(6)];
                    ok(what, permit.settle(actual).await);
                    let left = ok(what, limiter.peek(&key).await).remaining();
                    // With GCRA, a refund after the debt has begun to leak may be rounded.
                    assert_eq!(left, 10_u32.saturating_sub(actual), "{what}, settled {actual}");
                }
                Err(Error::Limited(limited)) => {
                    assert!(cost > 10 && limited.ready_at().is_none(), "{what}: {limited}");
                }
                Err(error) => panic!("{what}: {error:?}"),
            }
            // Limits of a call: the shortest and the longest window, and names.
            let per = [NANO, Duration::from_nanos(999), HOUR, century][random.below(4)];
            let quota = [1, 10, u32::MAX][random.below(3)];
            let limits = [
                Limit::new(quota, per).named(random.text()),
                Limit::new(u32::MAX, century).named(random.text()),
            ];
            let what = &format!("{what}, {quota} in {per:?}");
            match limiter.check_n_with(&key, cost, &limits).await {
                Ok(permit) => assert!(cost <= quota && permit.remaining() <= quota, "{what}"),
                Err(Error::Limited(_)) => assert!(cost > 0, "{what}"),
                Err(error) => panic!("{what}: {error:?}"),
            }
            let state = ok(what, limiter.peek_with(&key, &limits).await);
            assert_eq!(state.standings().len(), 2, "{what}");
            ok(what, limiter.reset(&key).await);
            assert_eq!(ok(what, limiter.peek(&key).await).remaining(), 10, "{what}");
        }
        assert_eq!(ok("witness", limiter.peek("witness").await).remaining(), 7, "{window:?}");
        // Limits for all processes.
        for _ in 0..10 {
            let limits = [
                Limit::new(u32::MAX, century).named(random.text()),
                Limit::new(1, NANO).named(random.text()),
            ];
            ok("set_limits", limiter.set_limits(limits.clone()).await);
            assert_eq!(*limiter.limits(), limits);
            ok("check", limiter.check("ada").await);
        }
        ok("clear_limits", limiter.clear_limits().await);
    }
}
