//! Three ways to learn what left the cache: a stream that never slows it, one that loses nothing, and
//! a callback.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Cause};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let cache = Cache::builder()
        .event_capacity(3)
        // Without this, only what expires is told.
        .publish([Cause::Expired, Cause::Removed, Cause::Replaced])
        .build();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(100);
    // What it shares with us goes in by an `Arc` or a channel.
    cache.on_expired(async |event| println!("callback: {} is gone", event.key));

    cache.set("replaced", 1).await;
    cache.set_ex("replaced", 2, SECOND).await;
    cache.set("removed", 3).await;
    cache.remove("removed").await;
    for (key, ttl) in [("first", 2 * SECOND), ("second", 3 * SECOND), ("third", 4 * SECOND)] {
        cache.set_ex(key, 0, ttl).await;
    }
    // Nobody has to ask for a value: the sweeper finds the dead, within 100 ms.
    sleep(5 * SECOND).await;
    // Ends the streams after what they hold.
    cache.shutdown().await;

    let mut told = Vec::new();
    while let Some(event) = lossless.recv().await {
        println!("lossless: {} {:?} of {:?}", event.key, event.cause, event.value);
        told.push((event.key, event.cause));
    }
    assert_eq!(told.len(), 6);
    assert_eq!(told[..2], [("replaced", Cause::Replaced), ("removed", Cause::Removed)]);
    assert!(told[2..].iter().all(|(_, cause)| *cause == Cause::Expired));

    // We did not read while the events came, and the ring holds three of the six.
    let lagged = events.recv().await.expect("the ring is not empty").expect_err("three are missed");
    println!("stream:   {lagged}");
    assert_eq!(lagged.0, 3);
    while let Some(Ok(event)) = events.recv().await {
        println!("stream:   {} left {:?} late", event.key, event.lag().expect("it had a deadline"));
    }
}
