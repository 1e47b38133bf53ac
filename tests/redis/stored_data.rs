//! Data on a server, as release 0.1 stores it: literal keys and bytes, sent by raw commands. All releases of a minor
//! version share a server, so that these must stay readable, and must be what is written.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleeting::{
    Limit, Ttl, Window,
    redis::{Cache, Client, ExpiringSet, Format, RateLimiter, TimeoutDict},
};
use redis::{FromRedisValue, ToRedisArgs, aio::MultiplexedConnection};
use tokio::time::timeout;

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_MS: u64 = 3_600_000;
const HOUR_MICROS: u64 = 1_000 * HOUR_MS;

/// 1 under tag `staff` with its version, as a value with JSON.
const TAGGED: &[u8] = b"\xC1tag\x01\0\0\0\x05\0\0\0staff0123456789abcdef1";

/// Connection to the server, for raw commands.
struct Raw(MultiplexedConnection);

impl Raw {
    async fn ask<T: FromRedisValue>(&mut self, command: &str, args: impl ToRedisArgs) -> T {
        redis::cmd(command).arg(args).query_async(&mut self.0).await.unwrap()
    }

    async fn send(&mut self, command: &str, args: &[&str]) {
        self.ask::<redis::Value>(command, args).await;
    }

    async fn set(&mut self, key: &str, value: &[u8]) {
        self.ask::<()>("SET", (key, value)).await;
    }

    /// Returns the names of all keys, sorted.
    async fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask("KEYS", "*").await;
        keys.sort();
        keys
    }
}

async fn start() -> (Server, Raw, Client) {
    let server = Server::start();
    let (raw, client) = (Raw(server.plain().await), connect(server.url()).await);
    (server, raw, client)
}

/// Returns the time in microseconds. The server has the same clock.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn cache(client: &Client, name: &str) -> Cache<String, u64> {
    Cache::new(client, name).unwrap()
}

fn raw_cache(client: &Client) -> Cache<String, Vec<u8>> {
    Cache::builder(client, "raw").format(Format::Raw).build().unwrap()
}

fn packed_cache(client: &Client) -> Cache<(u64, String), Vec<String>> {
    Cache::builder(client, "packed").format(Format::MessagePack).build().unwrap()
}

#[tokio::test]
async fn cache_values_of_release_0_1_are_read() {
    let (_server, mut raw, client) = start().await;
    raw.send("SET", &["fleeting:cache1:{c:2}:ada", "42", "PX", "3600000"]).await;
    raw.set("fleeting:cache1:{c:11}:bob", b"43").await;
    raw.set("fleeting:cache1:{c:7}:eve", TAGGED).await;
    raw.send("SET", &["fleeting:cache1:{c:7}.tag:staff", "0123456789abcdef"]).await;
    raw.set("fleeting:cache1:{packed:10}:[1,\"a\"]", b"\x91\xa1x").await;
    raw.set("fleeting:cache1:{raw:2}:ada", b"\xC1tag\0\0\0\0\xC1tagx").await;
    let numbers = cache(&client, "c");
    assert_eq!(numbers.get("ada").await.unwrap(), Some(42));
    let Ttl::Remaining(left) = numbers.ttl("ada").await.unwrap() else { panic!() };
    assert!(left <= HOUR && left > HOUR - patience(), "{left:?}");
    assert_eq!(numbers.get("bob").await.unwrap(), Some(43));
    assert_eq!(numbers.ttl("bob").await.unwrap(), Ttl::Persistent);
    assert_eq!(numbers.get_many(["ada", "eve", "bob"]).await.unwrap(), [42, 1, 43].map(Some));
    assert_eq!(numbers.len().await.unwrap(), 3);
    numbers.remove_tag("staff").await.unwrap();
    assert_eq!(numbers.get("eve").await.unwrap(), None);
    let value = packed_cache(&client).get(&(1, "a".into())).await.unwrap();
    assert_eq!(value, Some(vec!["x".to_owned()]));
    assert_eq!(raw_cache(&client).get("ada").await.unwrap(), Some(b"\xC1tagx".to_vec()));
}

#[tokio::test]
async fn cache_values_are_written_as_by_release_0_1() {
    let (_server, mut raw, client) = start().await;
    let numbers = cache(&client, "c");
    numbers.set_ex("ada".into(), 42, HOUR).await.unwrap();
    numbers.set("bob".into(), 43).await.unwrap();
    numbers.set_tagged("eve".into(), 1, HOUR, ["staff"]).await.unwrap();
    packed_cache(&client).set((1, "a".into()), vec!["x".into()]).await.unwrap();
    raw_cache(&client).set("ada".into(), b"\xC1tagx".to_vec()).await.unwrap();
    let expected = [
        "fleeting:cache1:{c:11}:bob",
        "fleeting:cache1:{c:2}:ada",
        "fleeting:cache1:{c:7}.tag:staff",
        "fleeting:cache1:{c:7}:eve",
        "fleeting:cache1:{packed:10}:[1,\"a\"]",
        "fleeting:cache1:{raw:2}:ada",
    ];
    assert_eq!(raw.keys().await, expected);
    let values: Vec<Vec<u8>> = raw.ask("MGET", &expected).await;
    assert_eq!([&values[0][..], &values[1]], [b"43", b"42"]);
    // The version is random.
    let version = &values[2];
    assert_eq!(values[3], [&TAGGED[..17], version, b"1"].concat());
    assert_eq!(values[4], b"\x91\xa1x");
    assert_eq!(values[5], b"\xC1tag\0\0\0\0\xC1tagx");
}

#[tokio::test]
async fn expirations_of_release_0_1_are_delivered() {
    let (_server, mut raw, client) = start().await;
    let past = (now() / 1_000 - 50).to_string();
    let index = "fleeting:cache1:{c:2}";
    let of = |suffix: &str| format!("{index}{suffix}");
    // An event in the stream, and an expired value that was not moved to it.
    raw.send("SADD", &[&of(".groups"), "mailers"]).await;
    let counts = ["id", "1.2", "read:mailers", "0", "events", "1"];
    raw.send("HSET", &[&[&of(".counts")[..]], &counts[..]].concat()).await;
    let event = ["*", "key", "ada", "value", "1", "deadline", &past, "number", "1"];
    raw.send("XADD", &[&[&of(".expired")[..]], &event[..]].concat()).await;
    raw.send("XGROUP", &["CREATE", &of(".expired"), "mailers", "0"]).await;
    let last = "18446744073709551615-18446744073709551615";
    raw.send("XGROUP", &["CREATE", &of(".expired"), "fleeting:restored", last]).await;
    raw.send("SET", &[&of(".told"), "1.2", "PX", "3600000"]).await;
    raw.send("ZADD", &[index, &past, "ada"]).await;
    raw.send("SET", &[&of(".value:ada"), "2", "PX", "3600000"]).await;
    raw.send("SET", &[&of(".soonest"), &format!("{past} 9999999999999")]).await;
    let cache: Cache<String, u64> = Cache::builder(&client, "c").events(HOUR).build().unwrap();
    let mut events = cache.events_lossless("mailers").await.unwrap();
    for value in [1, 2] {
        let event = timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
        assert_eq!((&event.key[..], event.value), ("ada", value));
    }
    assert_eq!(cache.stats().missed, 0);
}

#[tokio::test]
async fn stale_value_of_release_0_1_is_returned_during_its_load() {
    let (_server, mut raw, client) = start().await;
    let later = (now() / 1_000 + HOUR_MS).to_string();
    raw.send("SET", &["fleeting:cache1:{c:2}.cleared", "random", "PX", "3600000"]).await;
    // Another process is loading it.
    let load =
        ["token", "other", "till", &later, "stale", "1", "last", &later, "cleared", "random"];
    raw.send("HSET", &[&["fleeting:cache1:{c:2}.load:ada"], &load[..]].concat()).await;
    let builder = Cache::builder(&client, "c").stale_while_revalidate(HOUR).lease(2 * HOUR);
    let cache: Cache<String, u64> = builder.build().unwrap();
    assert_eq!(cache.get_or_set_with("ada", HOUR, async || 2).await.unwrap(), 1);
}

fn jobs(client: &Client) -> TimeoutDict<String, u64> {
    TimeoutDict::builder(client, "d").max_attempts(2).build().unwrap()
}

#[tokio::test]
async fn dictionary_entries_of_release_0_1_are_read() {
    let (_server, mut raw, client) = start().await;
    let due = 2 * (now() / 2 - 1_000_000);
    // Due, for the second time.
    raw.send("ZADD", &["fleeting:dict1:{d:2}", &due.to_string(), "ada"]).await;
    raw.set("fleeting:dict1:{d:2}:ada", b"1").await;
    raw.send("HSET", &["fleeting:dict1:{d:2}.failed", "ada", "1"]).await;
    raw.send("HSET", &["fleeting:dict1:{d:2}.reasons", "ada", "1 full"]).await;
    // A dead letter.
    raw.send("ZADD", &["fleeting:dict1:{d:7}", "+inf", "eve"]).await;
    raw.set("fleeting:dict1:{d:7}:eve", b"2").await;
    raw.send("ZADD", &["fleeting:dict1:{d:7}.dead", &due.to_string(), "eve"]).await;
    raw.send("HSET", &["fleeting:dict1:{d:7}.failed", "eve", "1"]).await;
    raw.send("HSET", &["fleeting:dict1:{d:7}.reasons", "eve", "2 gone"]).await;
    // Leased by another process.
    let lease_end = 4 * ((now() + HOUR_MICROS) / 4) + 1;
    raw.send("ZADD", &["fleeting:dict1:{d:11}", &lease_end.to_string(), "bob"]).await;
    raw.set("fleeting:dict1:{d:11}:bob", b"3").await;
    let jobs = jobs(&client);
    assert_eq!((jobs.len().await.unwrap(), jobs.dead_len().await.unwrap()), (3, 1));
    let letters = jobs.dead_letters(9).await.unwrap();
    let [eve] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((&eve.key[..], eve.value, eve.attempts), ("eve", 2, 2));
    assert_eq!(eve.reason.as_deref(), Some("gone"));
    let claims = jobs.claim_expired(9, HOUR).await.unwrap();
    let [ada] = &claims[..] else { panic!("{claims:?}") };
    assert_eq!((&ada.key()[..], *ada.value(), ada.attempts()), ("ada", 1, 2));
    assert_eq!(jobs.get("bob").await.unwrap(), Some(3));
}

#[tokio::test]
async fn dictionary_entries_are_written_as_by_release_0_1() {
    let (_server, mut raw, client) = start().await;
    let jobs = jobs(&client);
    jobs.set("ada".into(), 1, Duration::ZERO).await.unwrap();
    jobs.next_claim(HOUR).await.unwrap().fail("full").await.unwrap();
    let due: u64 = raw.ask("ZSCORE", &["fleeting:dict1:{d:2}", "ada"]).await;
    assert!(due.is_multiple_of(2) && due.abs_diff(now()) < HOUR_MICROS, "{due}");
    assert_eq!(raw.ask::<String>("GET", "fleeting:dict1:{d:2}:ada").await, "1");
    let failed = ["ada", "1"].map(String::from);
    assert_eq!(raw.ask::<Vec<String>>("HGETALL", "fleeting:dict1:{d:2}.failed").await, failed);
    let reasons = ["ada", "1 full"].map(String::from);
    assert_eq!(raw.ask::<Vec<String>>("HGETALL", "fleeting:dict1:{d:2}.reasons").await, reasons);
    // Its last attempt.
    let claim = timeout(patience(), jobs.next_claim(HOUR)).await.unwrap().unwrap();
    let dead_at: u64 = raw.ask("ZSCORE", &["fleeting:dict1:{d:2}.dead", "ada"]).await;
    assert!(dead_at % 4 == 1 && dead_at.abs_diff(now() + HOUR_MICROS) < HOUR_MICROS, "{dead_at}");
    drop(claim);
}

#[tokio::test]
async fn set_members_of_release_0_1_are_read_and_written() {
    let (_server, mut raw, client) = start().await;
    let set: ExpiringSet<String> = ExpiringSet::new(&client, "s", HOUR).unwrap();
    let score = format!("{}", (now() / 1_000 - 10_000) as f64 + 0.25);
    raw.send("ZADD", &["fleeting:set1:{s}", &score, "\"ada\""]).await;
    set.push("bob".into()).await.unwrap();
    assert_eq!(set.elements().await.unwrap(), ["ada", "bob"]);
    let members: Vec<String> = raw.ask("ZRANGE", &["fleeting:set1:{s}", "0", "-1"]).await;
    assert_eq!(members, ["\"ada\"", "\"bob\""]);
    let score: f64 = raw.ask("ZSCORE", &["fleeting:set1:{s}", "\"bob\""]).await;
    assert!((score - now() as f64 / 1e3).abs() < 60_000.0, "{score}");
}

/// Four of ten units charged a second ago. Times are microseconds of the server as doubles.
fn limiter_states() -> [(Window, Vec<u8>); 3] {
    let at = now() - 1_000_000;
    let number = |number: u64| (number as f64).to_le_bytes();
    let times = [at, at, at + 2 * HOUR_MICROS].map(number).concat();
    let (units, one) = (4_u32.to_le_bytes(), 1_u16.to_le_bytes());
    let log = [
        b"\x01L",
        &times[..],
        &[0, 1].map(number).concat(),
        &one,
        &[HOUR_MICROS, 0, at].map(number).concat(),
        &units,
        &number(at),
        &units,
    ];
    let buckets = [b"\x01B", &times[..], &units, &one, &number(at), &units];
    let step = HOUR_MICROS / 10;
    let gcra = [b"\x03G", &times[..], &[at + 4 * step, 0, step].map(number).concat()];
    [
        (Window::Log, log.concat()),
        (Window::Buckets(10), buckets.concat()),
        (Window::Gcra, gcra.concat()),
    ]
}

#[tokio::test]
async fn charges_of_release_0_1_count_and_are_written_alike() {
    let (_server, mut raw, client) = start().await;
    for (window, state) in limiter_states() {
        raw.set("fleeting:limit1:l:{ada}", &state).await;
        let builder = RateLimiter::builder(&client, "l").limit(Limit::per_hour(10)).window(window);
        let limiter: RateLimiter<String> = builder.timeout(patience()).build().unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 6, "{window:?}");
        assert_eq!(limiter.check_n("ada", 2).await.unwrap().remaining(), 4, "{window:?}");
        limiter.check_n("bob", 4).await.unwrap();
        let written: Vec<u8> = raw.ask("GET", "fleeting:limit1:l:{bob}").await;
        // The window of `Buckets` and the quota of `Gcra` follow, in the form of a further limit.
        let more = match window {
            Window::Log => 0,
            Window::Gcra => 24,
            _ => 6 + 12,
        };
        let expected = (&state[..2], state.len() + more);
        assert_eq!((&written[..2], written.len()), expected, "{window:?}");
        limiter.reset("bob").await.unwrap();
    }
}

/// Before the state of `Window::Gcra` contained its steps: two limits of 10 per hour and of 100 per day, four units
/// charged a second ago. Made after the layout of that time.
fn gcra_state_without_steps() -> Vec<u8> {
    let at = now() - 1_000_000;
    let number = |number: u64| (number as f64).to_le_bytes();
    let times = [at, at, at + 30 * HOUR_MICROS].map(number).concat();
    let (hour, day) = (HOUR_MICROS / 10, 24 * HOUR_MICROS / 100);
    let limits = [at + 4 * hour, 0, at + 4 * day, 0].map(number).concat();
    [b"\x02G", &times[..], &limits].concat()
}

#[tokio::test]
async fn charges_of_gcra_without_steps_count() {
    let (_server, mut raw, client) = start().await;
    let limits = [Limit::per_hour(10), Limit::new(100, 24 * HOUR)];
    let build = |limits: &[Limit]| -> RateLimiter<String> {
        let builder = RateLimiter::builder(&client, "l").window(Window::Gcra);
        let builder = limits.iter().fold(builder, |builder, limit| builder.limit(limit.clone()));
        builder.timeout(patience()).build().unwrap()
    };
    let (both, first) = (build(&limits), build(&limits[..1]));
    let key = "fleeting:limit1:l:{ada}";
    raw.set(key, &gcra_state_without_steps()).await;
    assert_eq!(both.peek("ada").await.unwrap().remaining(), 6);
    assert!(both.check_n("ada", 7).await.is_err());
    assert_eq!(both.check_n("ada", 2).await.unwrap().remaining(), 4);
    let written: Vec<u8> = raw.ask("GET", key).await;
    assert_eq!((&written[..2], written.len()), (&b"\x03G"[..], 26 + 3 * 24));

    // A process with fewer limits keeps the charges of the others.
    raw.set(key, &gcra_state_without_steps()).await;
    first.check_n("ada", 6).await.unwrap().refund().await.unwrap();
    assert!(first.check_n("ada", 7).await.is_err());
    let daily = build(&[Limit::per_hour(1_000), Limit::new(100, 24 * HOUR)]);
    assert_eq!(daily.peek("ada").await.unwrap().remaining(), 96);
}

/// Scripts of release 0.1 before a key kept the usage of several limits.
fn former_script(window: Window) -> String {
    let file = match window {
        Window::Log => include_str!("../data/limiter-0.1/sliding_log.lua"),
        Window::Gcra => include_str!("../data/limiter-0.1/gcra.lua"),
        _ => include_str!("../data/limiter-0.1/buckets.lua"),
    };
    [include_str!("../data/limiter-0.1/prelude.lua"), file].join("\n")
}

/// Calls a former script, and returns whether it admitted the check.
async fn check_by_former_script(raw: &mut Raw, window: Window, cost: u32, quotas: &[u32]) -> bool {
    let number = |number: u64| (number as f64).to_le_bytes();
    let mut arg = [&b"c"[..], &number(cost.into())].concat();
    for quota in quotas {
        let step = match window {
            Window::Gcra => HOUR_MICROS / u64::from(*quota),
            _ => HOUR_MICROS / 10,
        };
        arg.extend([u64::from(*quota), HOUR_MICROS, step].map(number).concat());
    }
    let args = (former_script(window), "1", "fleeting:limit1:l:{ada}", arg);
    let answer: Vec<u8> = raw.ask("EVAL", args).await;
    // The former fast path of GCRA returns the state.
    answer.starts_with(b"\x03G") || answer[..8] == number(0)
}

/// During a rollout, processes of both releases check the same keys in turn.
#[tokio::test]
async fn former_scripts_and_present_ones_share_their_states() {
    let (_server, mut raw, client) = start().await;
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        for quotas in [&[100][..], &[100, 200], &[100, 200, 400, 600]] {
            let limits = quotas.iter().map(|quota| Limit::per_hour(*quota));
            let builder = RateLimiter::builder(&client, "l").window(window).timeout(patience());
            let limiter: RateLimiter<String> =
                limits.fold(builder, |builder, limit| builder.limit(limit)).build().unwrap();
            let mut left = 100;
            for round in 0..20 {
                let permit = limiter.check_n("ada", 3).await.unwrap();
                assert_eq!(permit.remaining(), left - 3, "{window:?} {quotas:?}");
                assert!(check_by_former_script(&mut raw, window, 1, quotas).await);
                left -= 4;
                if round % 5 == 4 {
                    permit.refund().await.unwrap();
                    left += 3;
                }
                // A former process with fewer or more limits. A `Log` with both has a kind of its own.
                let is_readable = window != Window::Log || quotas.len() == 1;
                if round == 10 && is_readable {
                    assert!(check_by_former_script(&mut raw, window, 1, &quotas[..1]).await);
                    left -= 1;
                } else if round == 15 && quotas.len() < 3 && window != Window::Log {
                    let more = [quotas, &[300]].concat();
                    assert!(check_by_former_script(&mut raw, window, 1, &more).await);
                    left -= 1;
                }
                assert_eq!(limiter.peek("ada").await.unwrap().remaining(), left, "{window:?}");
                let kind: Vec<u8> = raw.ask("GETRANGE", ("fleeting:limit1:l:{ada}", 0, 1)).await;
                assert!([b"\x01L", b"\x01B", b"\x03G"].contains(&&[kind[0], kind[1]]));
            }
            assert!(!check_by_former_script(&mut raw, window, left + 1, quotas).await);
            assert!(limiter.check_n("ada", left + 1).await.is_err(), "{window:?} {quotas:?}");
            limiter.reset("ada").await.unwrap();
        }
    }
}

/// States of several limits have new kinds. A limit that is not used stays for the longest window of the key.
#[tokio::test]
async fn states_of_several_limits_have_kinds_of_their_own() {
    in_time(async || {
        let (_server, mut raw, client) = start().await;
        // A `Log` has no calls of the other limit any more.
        for (window, simple, several, later) in [
            (Window::Log, b"\x01L", b"\x02L", b"\x01L"),
            (Window::Buckets(10), b"\x01B", b"\x02B", b"\x02B"),
            (Window::Gcra, b"\x03G", b"\x04G", b"\x04G"),
        ] {
            let builder =
                RateLimiter::builder(&client, "l").window(window).limit(Limit::per_hour(9));
            let limiter: RateLimiter<String> = builder.timeout(patience()).build().unwrap();
            let kind = async |raw: &mut Raw| -> Vec<u8> {
                raw.ask("GETRANGE", ("fleeting:limit1:l:{ada}", 0, 1)).await
            };
            let short = [Limit::new(9, ms(50))];
            limiter.check_with("ada", &short).await.unwrap();
            assert_eq!(kind(&mut raw).await, simple);
            limiter.check("ada").await.unwrap();
            assert_eq!(kind(&mut raw).await, several);
            tokio::time::sleep(ms(80)).await;
            assert_eq!(limiter.check("ada").await.unwrap().remaining(), 6, "{window:?}");
            assert_eq!(kind(&mut raw).await, later);
            limiter.reset("ada").await.unwrap();
            limiter.check("ada").await.unwrap();
            limiter.check_with("ada", &short).await.unwrap();
            assert_eq!(kind(&mut raw).await, several);
            tokio::time::sleep(ms(80)).await;
            assert_eq!(limiter.check("ada").await.unwrap().remaining(), 6, "{window:?}");
            assert_eq!(kind(&mut raw).await, later);
            limiter.reset("ada").await.unwrap();
        }
    })
    .await;
}

/// A release with another layout has keys of its own, so that both can share a server.
#[tokio::test]
async fn data_of_another_layout_is_neither_read_nor_changed() {
    let (_server, mut raw, client) = start().await;
    let others = [
        "fleeting:cache2:{c:2}:ada",
        "fleeting:dict2:{c:2}:ada",
        "fleeting:limit2:c:{ada}",
        "fleeting:set2:{c}",
    ];
    for key in others {
        raw.set(key, b"another layout").await;
    }
    let cache = cache(&client, "c");
    assert_eq!(cache.get("ada").await.unwrap(), None);
    assert_eq!(cache.len().await.unwrap(), 0);
    cache.set("ada".into(), 1).await.unwrap();
    cache.clear().await.unwrap();
    let dict: TimeoutDict<String, u64> = TimeoutDict::new(&client, "c").unwrap();
    assert_eq!(dict.set("ada".into(), 1, HOUR).await.unwrap(), None);
    dict.clear().await.unwrap();
    let set: ExpiringSet<String> = ExpiringSet::new(&client, "c", HOUR).unwrap();
    set.push("ada".into()).await.unwrap();
    set.clear().await.unwrap();
    let builder = RateLimiter::builder(&client, "c").limit(Limit::per_hour(1));
    let limiter: RateLimiter<String> = builder.timeout(patience()).build().unwrap();
    limiter.check("ada").await.unwrap();
    limiter.reset("ada").await.unwrap();
    let values: Vec<String> = raw.ask("MGET", &others).await;
    assert_eq!(values, ["another layout"; 4]);
}
