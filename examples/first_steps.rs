//! First steps: values that know when to leave.
//!
//! `start_paused` makes Tokio's clock jump where it would wait, and stand still elsewhere: the 45
//! seconds take no time, and every figure is exact.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Ttl};

const TTL: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // A handle: its clones are the same cache, for other tasks to use.
    let cache = Cache::new();
    cache.set_ex("session", "Ada", TTL).await;
    cache.set("motto", "nothing lasts").await;

    println!("session: {:?}, for {:?}", cache.get("session").await, cache.ttl("session").await);
    println!("motto:   {:?}, for {:?}", cache.get("motto").await, cache.ttl("motto").await);
    assert_eq!(cache.get("session").await, Some("Ada"));
    assert_eq!(cache.ttl("session").await, Ttl::Remaining(TTL));
    assert_eq!(cache.ttl("motto").await, Ttl::Persistent);

    sleep(TTL / 2).await;
    println!("\nafter 15 s the session is used, and may live for 30 s more");
    assert_eq!(cache.get_ex("session", TTL).await, Some("Ada"));

    sleep(TTL).await;
    println!("after 45 s: {:?}, {:?}", cache.get("session").await, cache.ttl("session").await);
    assert_eq!(cache.get("session").await, None);
    assert_eq!(cache.get("motto").await, Some("nothing lasts"));
    println!("motto:   {:?}", cache.get("motto").await);
}
