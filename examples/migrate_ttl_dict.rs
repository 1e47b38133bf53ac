//! Migration from pyttl's TTLDict: each of its calls in a comment, and below it the call of this crate. "But" marks the
//! difference.

use std::time::Duration;

use tokio::time::{Instant, advance};

use fleeting::{Cache, Ttl};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // d = TTLDict()
    let d = Cache::new();
    // d.setex('a', 60, 1)
    d.set_ex("a", 1, MINUTE).await;
    // d['b'] = 2    without a TTL, in both
    d.set("b", 2).await;
    // d['a']    but a KeyError if it is missing
    assert_eq!(d.get("a").await, Some(1));
    // d.ttl('a'), d.ttl('b'), d.ttl('c')    60.0, -1, but a KeyError
    assert_eq!(d.ttl("a").await, Ttl::Remaining(MINUTE));
    assert_eq!([d.ttl("b").await.as_secs(), d.ttl("c").await.as_secs()], [-1, -2]);
    // d.expire('a', 120)    but it also revives expired entries, and raises a KeyError if there is no entry
    assert!(d.expire("a", 2 * MINUTE).await && !d.expire("c", MINUTE).await);
    // d.expire('a', 60, now=time.time() + 60)
    assert!(d.expire_at("a", Instant::now() + 2 * MINUTE).await);
    // d.setdefault('a', 3)    but afterwards 'a' is persistent
    assert!(!d.set_nx("a", 3, None).await);
    // d.setex('expired', -1, 1); 'expired' in d    but True
    d.set_ex("expired", 1, Duration::ZERO).await;
    assert!(!d.contains_key("expired").await);
    // len(d), list(d)    but a loop over `d` that ends early leaves it locked
    assert_eq!((d.live_len(), d.keys().count()), (2, 2));
    // del d['b']    but a KeyError if it is missing
    assert_eq!(d.remove("b").await, Some(2));
    // d.ttl('a', now=time.time() + 120)    but it deletes 'a' now
    advance(2 * MINUTE).await;
    assert_eq!(d.ttl("a").await, Ttl::Missing);

    // The purpose of pyttl: the live keys are the requests of the last minute. The example `replay` does this for many
    // clients at once.
    let requests = Cache::new();
    for number in 0..8 {
        // allowed = len(d) < 3
        let allowed = requests.live_len() < 3;
        if allowed {
            // d.setex(number, 60, None)
            requests.set_ex(number, (), MINUTE).await;
        }
        println!("at {:>3} s: {}", number * 15, if allowed { "allowed" } else { "denied" });
        assert_eq!(allowed, number % 4 < 3);
        advance(MINUTE / 4).await;
    }
}
