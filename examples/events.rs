//! Three ways to receive removals: a stream that never slows the cache, a lossless stream, and a callback.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Cause};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let cache = Cache::builder()
        .event_capacity(3)
        // Causes to publish; by default `Expired` and `Evicted`.
        .publish([Cause::Expired, Cause::Removed, Cause::Replaced])
        .build();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(100);
    // The callback must be `'static`: it shares state with its caller by an `Arc` or a channel.
    cache.on_expired(async |event| println!("callback: {} has expired", event.key));

    cache.set("replaced", 1).await;
    cache.set_ex("replaced", 2, SECOND).await;
    cache.set("removed", 3).await;
    cache.remove("removed").await;
    for (key, ttl) in [("first", 2 * SECOND), ("second", 3 * SECOND), ("third", 4 * SECOND)] {
        cache.set_ex(key, 0, ttl).await;
    }
    // No call is needed for entries to expire: the sweeper removes expired entries within 100 ms plus the duration of a
    // sweep.
    sleep(5 * SECOND).await;
    // Ends the streams. Their unread events can still be received.
    cache.shutdown().await;

    let mut received = Vec::new();
    while let Some(event) = lossless.recv().await {
        println!("lossless: {} {:?} of {:?}", event.key, event.cause, event.value);
        received.push((event.key, event.cause));
    }
    assert_eq!(received.len(), 6);
    assert_eq!(received[..2], [("replaced", Cause::Replaced), ("removed", Cause::Removed)]);
    assert!(received[2..].iter().all(|(_, cause)| *cause == Cause::Expired));

    // This subscriber read nothing so far, and the ring holds the last three of the six events.
    let lagged = events.recv().await.expect("the ring is not empty").expect_err("three are missed");
    println!("stream:   {lagged}");
    assert_eq!(lagged.0, 3);
    while let Some(Ok(event)) = events.recv().await {
        println!(
            "stream:   {} expired, lag {:?}",
            event.key,
            event.lag().expect("it had a deadline")
        );
    }
}
