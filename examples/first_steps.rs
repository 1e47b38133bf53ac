//! First steps: set values with a TTL, read them, and extend their TTL.
//!
//! `start_paused` makes Tokio's clock jump to the next timer instead of waiting. The 45 seconds take no time, and every
//! printed TTL is exact.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Ttl};

const TTL: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // A handle: its clones share one cache, for use by other tasks.
    let cache = Cache::new();
    cache.set_ex("session", "Ada", TTL).await;
    cache.set("motto", "nothing lasts").await;

    println!("session: {:?}, TTL {:?}", cache.get("session").await, cache.ttl("session").await);
    println!("motto:   {:?}, TTL {:?}", cache.get("motto").await, cache.ttl("motto").await);
    assert_eq!(cache.get("session").await, Some("Ada"));
    assert_eq!(cache.ttl("session").await, Ttl::Remaining(TTL));
    assert_eq!(cache.ttl("motto").await, Ttl::Persistent);

    sleep(TTL / 2).await;
    println!("\nafter 15 s: the session is read, and its TTL is set to 30 s again");
    assert_eq!(cache.get_ex("session", TTL).await, Some("Ada"));

    sleep(TTL).await;
    println!("after 45 s: {:?}, {:?}", cache.get("session").await, cache.ttl("session").await);
    assert_eq!(cache.get("session").await, None);
    assert_eq!(cache.get("motto").await, Some("nothing lasts"));
    println!("motto:   {:?}", cache.get("motto").await);
}
