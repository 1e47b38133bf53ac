//! Expirations of `redis::Cache` on a server whose clock jumps back: none is lost, and no value whose expiration was
//! delivered is read again.

use std::time::{Duration, Instant};

use fleeting::redis::{Cache, Client, LosslessEvents};
use tokio::time::timeout;

use crate::{
    clock::ms,
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn cache(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(24 * HOUR).time_to_live(HOUR);
    builder.poll_every(ms(10)).build().unwrap()
}

async fn recv(events: &mut LosslessEvents<String, u64>) -> u64 {
    let event = timeout(patience(), events.recv()).await.expect("an event is delivered");
    event.expect("the cache exists").unwrap().value
}

/// The server has deleted the value while its clock was ahead, and its expiration was not published by then.
#[tokio::test]
async fn each_write_publishes_the_expiration_of_a_deleted_value_if_the_clock_has_jumped_back() {
    let server = Server::start_with_clock();
    let cache = cache(&connect(server.url()).await);
    drop(cache.events_lossless("g").await.unwrap());
    let mut plain = server.plain().await;
    for method in 0..8_u64 {
        let (key, second) = (format!("k{method}"), method + 100);
        server.set_clock(Duration::ZERO);
        cache.set_ex(key.clone(), method, HOUR).await.unwrap();
        let found = redis::cmd("KEYS").arg(format!("*}}:{key}")).to_owned();
        let found: Vec<String> = found.query_async(&mut plain).await.unwrap();
        server.set_clock(2 * HOUR);
        let get = redis::cmd("GET").arg(&found[0]).to_owned();
        assert_eq!(get.query_async::<Option<String>>(&mut plain).await.unwrap(), None);
        server.set_clock(Duration::ZERO);
        match method {
            0 => assert_eq!(cache.set(key, second).await.unwrap(), None),
            1 => assert_eq!(cache.set_ex(key, second, Duration::ZERO).await.unwrap(), None),
            2 => assert!(cache.set_nx(key, second, Some(HOUR)).await.unwrap()),
            3 => assert_eq!(cache.set_keep_ttl(key, second).await.unwrap(), None),
            4 => assert_eq!(cache.set_tagged(key, second, HOUR, ["tag"]).await.unwrap(), None),
            5 => cache.set_many([(key, second)], Some(HOUR)).await.unwrap(),
            6 => assert_eq!(cache.remove(&key).await.unwrap(), None),
            _ => assert_eq!(cache.expire_now(&key).await.unwrap(), None),
        }
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(recv(&mut events).await, method, "method {method}");
        if method == 1 {
            assert_eq!(recv(&mut events).await, second, "it expires immediately");
        }
        events.ack().await.unwrap();
    }
}

/// A script sees a key as it was when the script began, but a later time. So it may publish the expiration of a value
/// that the server has not deleted.
#[tokio::test]
async fn value_whose_expiration_was_published_is_not_read_after_the_clock_has_jumped_back() {
    let server = Server::start_with_clock();
    let cache = cache(&connect(server.url()).await);
    drop(cache.events_lossless("g").await.unwrap());
    let step = Duration::from_secs(60);
    let (mut live, mut expired) = (0, 0);
    // The number of looks before the script varies: in some of the rounds, the deadline is between those of the script.
    // Valkey looks at the clock only every few milliseconds, which is rarely during a script.
    let begin = Instant::now();
    for (round, looks) in (1..40).cycle().enumerate() {
        if round >= 400 && live > 0 && expired > 0 {
            return;
        }
        assert!(begin.elapsed() < patience(), "{live} values were live, and {expired} had expired");
        cache.set_ex("ada".into(), 1, looks * step).await.unwrap();
        server.advance_clock_per_look(step);
        let removed = cache.remove("ada").await.unwrap();
        server.advance_clock_per_look(Duration::ZERO);
        if removed.is_some() {
            live += 1;
        } else {
            expired += 1;
            assert_eq!(cache.get("ada").await.unwrap(), None, "after {looks} looks");
        }
    }
}
