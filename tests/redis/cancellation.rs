//! Calls of the types on Redis, cancelled after each poll: they have the effect that `src/guide/cancel_safety.md`
//! states, and block no other caller.

mod cache;
mod events;
mod limiter;
mod timeout_dict;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use fleeting::{
    Ttl,
    redis::{Cache, Client, ExpiringSet},
};
use tokio::time::{Instant, sleep};

use crate::{
    cancel::{Parts, at_each_poll, calls, has_effect_at_polls, with_effects},
    patience::patience,
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

/// Fails if a call has failed, given the text of its reply.
fn checked(reply: String) {
    assert!(!reply.starts_with("Err"), "{reply}");
}

#[tokio::test]
async fn cancelled_connect_prevents_no_later_connection() {
    let server = Server::shared();
    let works = async |client: &Client, promise: &str| {
        let cache = Cache::<String, u64>::new(client, &fresh()).unwrap();
        assert_eq!(cache.set("0".into(), 1).await.unwrap(), None, "{promise}");
    };
    let builder = || Client::builder(server.url()).timeout(patience()).connect_timeout(patience());
    at_each_poll(
        async || builder(),
        async |builder| builder.clone().connect().await.unwrap(),
        async |builder, _, schedule| {
            works(&builder.connect().await.unwrap(), &format!("{schedule:?}")).await;
        },
    )
    .await;
    // Its default timeout is too short for a busy machine, so that the result does not matter.
    at_each_poll(
        async || (),
        async |()| drop(Client::connect(server.url()).await),
        async |(), _, schedule| {
            works(&builder().connect().await.unwrap(), &format!("{schedule:?}")).await;
        },
    )
    .await;
    // The first call of a lazy client connects. Its cancellation must leave the connection to the next call.
    at_each_poll(
        async || builder().lazy().unwrap(),
        async |client| Cache::<String, u64>::new(client, &fresh()).unwrap().get("0").await.unwrap(),
        async |client, _, schedule| works(&client, &format!("lazy, {schedule:?}")).await,
    )
    .await;
}

#[tokio::test]
async fn cancelled_call_of_an_expiring_set_has_its_whole_effect_or_none() {
    type Set = ExpiringSet<String>;
    let server = Server::shared();
    let client = connect(server.url()).await;
    let changes = calls! { set: Set;
        set.push("new".into()), set.push("a".into()), set.push_at("new".into(), later()),
        set.push_unique_at("new".into(), later()), set.extend(["x", "y"].map(String::from)),
        set.pop(), set.remove("a"), set.remove_range(..), set.clear(),
    };
    let reads = calls! { set: Set;
        set.elements(), set.range(..), set.peek(), set.score("a"), set.contains("a"), set.len(), set.is_empty(),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        let new = async || {
            let set = Set::new(&client, fresh(), HOUR).unwrap();
            set.extend(["a", "b", "c"].map(String::from)).await.unwrap();
            set
        };
        let observe = async |set: &Set| {
            let elements = set.elements().await.unwrap();
            Parts::from([("members".to_owned(), format!("{elements:?}"))])
        };
        let call = async |set: &Set| checked(call(set).await);
        has_effect_at_polls(effect, name, new, call, observe).await;
    }
}

/// The tests above share clients: a cancelled call must not leave its reply to another one.
#[tokio::test]
async fn reply_of_a_cancelled_call_is_not_given_to_another() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let cache = Cache::<String, u64>::new(&client, &fresh()).unwrap();
    cache.set_many((0..4).map(|key| (key.to_string(), key)), Some(HOUR)).await.unwrap();
    let cache = Arc::new(cache);
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
