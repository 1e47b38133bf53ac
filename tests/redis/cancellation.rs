//! Calls of the types on Redis, cancelled after each poll: they have the effect that `src/guide/cancel_safety.md` states,
//! and block no other caller.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use fleeting::{
    Limit, Ttl, When,
    redis::{Cache, Claim, ExpiringSet, RateLimiter, TimeoutDict},
};
use futures::lock::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cancel::{Effect, Parts, at_each_poll, calls, has_effect_at_polls},
    patience::patience,
    rate_limiter::strict,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a name that no other state uses.
fn fresh() -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("cancelled {}", NAMES.fetch_add(1, Relaxed))
}

/// Returns a TTL in hours, so that the time of a test does not matter.
fn hours(ttl: Ttl) -> String {
    match ttl {
        Ttl::Remaining(ttl) => format!("{} h", (ttl + HOUR / 2).as_secs() / 3_600),
        ttl => format!("{ttl:?}"),
    }
}

/// Returns a score that no member has that is pushed now: `push_unique_at` would replace it.
fn later() -> SystemTime {
    SystemTime::now() + HOUR / 2
}

/// Waits until `done` returns true.
async fn until(done: impl AsyncFn() -> bool, promise: &str) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < patience(), "{promise}");
        sleep(Duration::from_millis(2)).await;
    }
}

async fn checked(reply: impl Future<Output = String>) {
    let reply = reply.await;
    assert!(!reply.starts_with("Err"), "{reply}");
}

type Numbers = Cache<String, u64>;

async fn cache(client: &fleeting::redis::Client, has_events: bool) -> Numbers {
    let builder = Cache::builder(client, &fresh());
    let builder = if has_events { builder.events(HOUR) } else { builder };
    let cache = builder.build().unwrap();
    cache.set_many((0..4).map(|key| (key.to_string(), key)), Some(HOUR)).await.unwrap();
    cache.set_tagged("tagged".into(), 7, HOUR, ["a"]).await.unwrap();
    cache
}

async fn observe_cache(cache: &Numbers) -> Parts {
    let mut parts = Parts::new();
    for key in ["0", "1", "2", "3", "tagged", "new"] {
        let value = cache.get(key).await.unwrap();
        parts.insert(key.into(), format!("{value:?} {}", hours(cache.ttl(key).await.unwrap())));
    }
    parts
}

#[tokio::test]
async fn cancelled_call_of_a_cache_has_its_whole_effect_or_none() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let whole = calls! { cache: Numbers;
        cache.get_ex("0", 2 * HOUR), cache.set("0".into(), 9), cache.set_ex("new".into(), 9, 2 * HOUR),
        cache.set_nx("0".into(), 9, None), cache.set_nx("new".into(), 9, Some(HOUR)),
        cache.set_keep_ttl("0".into(), 9), cache.remove("0"), cache.expire("0", 2 * HOUR),
        cache.expire_if("0", 2 * HOUR, When::Later), cache.expire_at("0", Instant::now() + 2 * HOUR),
        cache.extend("0", HOUR), cache.persist("0"), cache.expire_now("0"), cache.update("0", |value| *value += 7),
        cache.set_tagged("0".into(), 9, 2 * HOUR, ["a", "b"]), cache.remove_tag("a"),
    };
    let reads = calls! { cache: Numbers;
        cache.get("0"), cache.get_many(["0", "new"]), cache.contains_key("0"), cache.ttl("0"), cache.len(),
        cache.is_empty(),
    };
    let parts = calls! { cache: Numbers;
        cache.set_many(["0", "1", "new"].map(|key| (key.to_owned(), 9)), Some(2 * HOUR)),
        cache.remove_many(["0", "1", "new"]), cache.clear(),
    };
    for (effect, calls) in
        [(Effect::Whole, whole), (Effect::Nothing, reads), (Effect::SomeParts, parts)]
    {
        for (name, call) in calls {
            for has_events in [false, true] {
                let new = async || cache(&client, has_events).await;
                let call = async |cache: &Numbers| checked(call(cache)).await;
                has_effect_at_polls(effect, name, new, call, observe_cache).await;
            }
        }
    }
}

#[tokio::test]
async fn cancelled_load_on_redis_blocks_no_later_load() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    at_each_poll(
        async || cache(&client, false).await,
        async |cache| {
            let load = async || {
                sleep(Duration::from_millis(3)).await;
                1
            };
            cache.get_or_set_with("new", HOUR, load).await.unwrap()
        },
        async |cache, reply, schedule| {
            let later = timeout(patience(), cache.get_or_set_with("new", HOUR, async || 2)).await;
            let later = later.expect("the later load is not blocked").unwrap();
            assert!(later == 2 || later == 1, "{schedule:?}: {later}");
            assert!(reply.is_none_or(|reply| reply == later), "{schedule:?}: {later}");
            assert_eq!(cache.get("new").await.unwrap(), Some(later), "{schedule:?}");
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_recv_on_redis_has_consumed_no_event() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || {
        let cache = cache(&client, true).await;
        let streams =
            (cache.events().await.unwrap(), cache.events_lossless("group").await.unwrap());
        cache.expire_now("0").await.unwrap();
        (cache, Mutex::new(streams))
    };
    // Events of different keys are not ordered, so all others must follow.
    at_each_poll(
        new,
        async |(_, streams)| streams.lock().await.0.recv().await.unwrap().unwrap().key.clone(),
        async |(cache, streams), reply, schedule| {
            let (mut events, _) = streams.into_inner();
            cache.expire_now("1").await.unwrap();
            let mut received = BTreeSet::from_iter(reply);
            while received.len() < 2 {
                let next = timeout(patience(), events.recv()).await.expect("an event is pending");
                let key = next.unwrap().unwrap().key.clone();
                assert!(received.insert(key), "received twice, {schedule:?}");
            }
        },
    )
    .await;
    at_each_poll(
        new,
        async |(_, streams)| streams.lock().await.1.recv().await.unwrap().unwrap().key.clone(),
        async |(cache, streams), reply, schedule| {
            let (_, mut events) = streams.into_inner();
            cache.expire_now("1").await.unwrap();
            let mut received = BTreeSet::from_iter(reply);
            while received.len() < 2 {
                let next = timeout(patience(), events.recv()).await.expect("an event is pending");
                let key = next.unwrap().unwrap().key.clone();
                assert!(received.insert(key), "received twice, {schedule:?}");
            }
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_call_of_an_expiring_set_has_its_whole_effect_or_none() {
    type Set = ExpiringSet<String>;
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { set: Set;
        set.push("new".into()), set.push("a".into()), set.push_at("new".into(), later()),
        set.push_unique_at("new".into(), later()), set.extend(["x", "y"].map(String::from)),
        set.elements(), set.range(..), set.peek(), set.pop(), set.remove("a"), set.remove_range(..), set.score("a"),
        set.contains("a"), set.len(), set.is_empty(), set.clear(),
    };
    for (name, call) in calls {
        let new = async || {
            let set = Set::new(&client, fresh(), HOUR).unwrap();
            set.extend(["a", "b", "c"].map(String::from)).await.unwrap();
            set
        };
        let observe = async |set: &Set| {
            Parts::from([("members".to_owned(), format!("{:?}", set.elements().await.unwrap()))])
        };
        let call = async |set: &Set| checked(call(set)).await;
        has_effect_at_polls(Effect::Whole, name, new, call, observe).await;
    }
}

#[tokio::test]
async fn cancelled_call_of_a_limiter_has_charged_its_cost_or_nothing() {
    type Limiter = RateLimiter<String>;
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { limiter: Limiter;
        limiter.check("ada"), limiter.check("bob"), limiter.check_n("ada", 2), limiter.check_with("ada", &[]),
        limiter.peek("ada"), limiter.reset("ada"), limiter.until_ready("ada"), limiter.until_ready_n("ada", 2),
        limiter.until_ready_within("ada", HOUR),
    };
    for (name, call) in calls {
        let new = async || {
            let limiter = strict(&client, &fresh()).limit(Limit::per_hour(9)).build().unwrap();
            limiter.check("ada").await.unwrap();
            limiter
        };
        let observe = async |limiter: &Limiter| {
            let mut parts = Parts::new();
            for key in ["ada", "bob"] {
                let remaining = limiter.peek(key).await.unwrap().remaining();
                parts.insert(key.to_owned(), remaining.to_string());
            }
            parts
        };
        let call = async |limiter: &Limiter| checked(call(limiter)).await;
        has_effect_at_polls(Effect::Whole, name, new, call, observe).await;
    }
}

type Dict = TimeoutDict<String, u32>;

/// Returns a dictionary with due entries, an entry with a deadline, and a dead letter.
async fn dict(client: &fleeting::redis::Client) -> Dict {
    let backoff = Duration::from_millis(2);
    let builder = Dict::builder(client, fresh()).backoff(backoff, backoff).max_attempts(5);
    let dict = builder.build().unwrap();
    for key in ["a", "b", "c"] {
        dict.set(key.into(), 1, Duration::ZERO).await.unwrap();
    }
    dict.set("later".into(), 1, HOUR).await.unwrap();
    dict
}

async fn observe_dict(dict: &Dict) -> Parts {
    let mut parts = Parts::new();
    for key in ["a", "b", "c", "later", "new"] {
        let value = dict.get(key).await.unwrap();
        parts.insert(key.into(), format!("{value:?} {}", hours(dict.ttl(key).await.unwrap())));
    }
    parts
}

#[tokio::test]
async fn cancelled_call_of_a_timeout_dict_has_its_whole_effect_or_none() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { dict: Dict;
        dict.set("a".into(), 2, HOUR), dict.set("new".into(), 2, HOUR), dict.set_nx("a".into(), 2, HOUR),
        dict.set_nx("new".into(), 2, HOUR), dict.set_timeout("a", HOUR), dict.remove_timeout("later"),
        dict.get("a"), dict.contains_key("a"), dict.ttl("a"), dict.remove("a"), dict.len(), dict.is_empty(),
        dict.dead_len(), dict.dead_letters(9), dict.revive("a", HOUR),
    };
    for (name, call) in calls {
        let call = async |dict: &Dict| checked(call(dict)).await;
        has_effect_at_polls(Effect::Whole, name, async || dict(&client).await, call, observe_dict)
            .await;
    }
    let clear = async |dict: &Dict| dict.clear().await.unwrap();
    has_effect_at_polls(
        Effect::SomeParts,
        "clear",
        async || dict(&client).await,
        clear,
        observe_dict,
    )
    .await;
}

#[tokio::test]
async fn cancelled_take_or_claim_on_redis_loses_no_entry() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { dict: Dict;
        dict.claim_expired(2, HOUR), dict.next_claim(HOUR), dict.take_expired(2), dict.next_expired(),
    };
    for (index, (name, call)) in calls.into_iter().enumerate() {
        at_each_poll(
            async || dict(&client).await,
            async |dict| call(dict).await,
            async |dict, reply, schedule| {
                let taken = match (index, reply.is_some()) {
                    (2, true) => 2,
                    (3, true) => 1,
                    // The claims of a reply are dropped with it, so their entries are due again.
                    _ => 0,
                };
                let found = Mutex::new(BTreeSet::new());
                let promise = format!("{name}, {schedule:?}: an entry is lost");
                let has_all = async || {
                    let due = dict.take_expired(9).await.unwrap();
                    let mut found = found.lock().await;
                    found.extend(due.into_iter().map(|(key, _)| key));
                    found.len() == 3 - taken
                };
                until(has_all, &promise).await;
            },
        )
        .await;
    }
}

#[tokio::test]
async fn entry_is_due_again_after_a_cancelled_end_of_its_claim() {
    type Held = (Dict, Mutex<Option<Claim<String, u32>>>);

    let server = Server::shared();
    let client = connect(server.url()).await;
    let lease = Duration::from_millis(100);
    let new = async || {
        let dict = dict(&client).await;
        let claim = dict.next_claim(lease).await.unwrap();
        (dict, Mutex::new(Some(claim)))
    };
    for end in ["ack", "retry_in", "fail", "release"] {
        let call = async |(_, claim): &Held| {
            let claim = claim.lock().await.take().expect("called once");
            match end {
                "ack" => claim.ack().await,
                "retry_in" => claim.retry_in(Duration::ZERO).await,
                "fail" => claim.fail("no reason").await,
                _ => claim.release().await,
            }
        };
        at_each_poll(new, call, async |(dict, claim), reply, schedule| {
            drop(claim);
            assert!(reply.is_none_or(|reply| reply.unwrap()), "{end}, {schedule:?}");
            let found = Mutex::new(BTreeSet::new());
            let has_all = async || {
                let mut found = found.lock().await;
                found.extend(dict.take_expired(9).await.unwrap().into_iter().map(|(key, _)| key));
                let is_acked = end == "ack" && dict.get("a").await.unwrap().is_none();
                found.contains("a") || is_acked
            };
            until(has_all, &format!("{end}, {schedule:?}: the entry is lost")).await;
        })
        .await;
    }
}

/// The tests above share clients: a cancelled call must not leave its reply to another one.
#[tokio::test]
async fn reply_of_a_cancelled_call_is_not_given_to_another() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let cache = Arc::new(cache(&client, false).await);
    for round in 0..50 {
        at_each_poll(
            async || cache.clone(),
            async |cache| cache.get("1").await.unwrap(),
            async |cache, _, _| {
                assert_eq!(cache.get("2").await.unwrap(), Some(2), "round {round}");
                assert_eq!(cache.get("3").await.unwrap(), Some(3), "round {round}");
            },
        )
        .await;
    }
}
