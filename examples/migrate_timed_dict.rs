//! Migration from Python's TimedDict: each of its calls in a comment, and below it the call of this crate. "But" marks
//! the difference.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Sweep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // checks_per_second=.5, sample_probability=.25, expired_keys_ratio=.25
    // But `checks_per_second` is the pause in seconds, despite its name.
    let sweep = Sweep::default().every(SECOND / 2).sample(0.25).repeat_at(0.25);
    // d = TimedDict(timeout=10, ...)
    let d = Cache::builder().name("d").time_to_live(10 * SECOND).sweep(sweep).build();
    // callback=lambda key, value: print(key, value)    but an exception in it ends all sweeps
    d.on_expired(async |event| println!("expired: {} {}", event.key, event.value));

    // d['foo'] = 'bar'
    d.set("foo", "bar").await;
    // d['foo']    but an Empty() if it is missing
    assert_eq!(d.get("foo").await, Some("bar"));
    // 'foo' in d    but always True
    assert!(d.contains_key("foo").await && !d.contains_key("baz").await);
    // d.set_expiration('foo', seconds=60, ignore_missing=True)    but it also revives expired entries
    assert!(d.expire("foo", 60 * SECOND).await);
    // d.set_expiration('foo', additional_seconds=5, ignore_missing=True)
    assert!(d.extend("foo", 5 * SECOND).await);
    // len(d)
    assert_eq!(d.len(), 1);
    // d.keys(), d.values(), d.items()    but including expired entries, until they are swept
    assert_eq!(d.iter().collect::<Vec<_>>(), [("foo", "bar")]);
    // repr(d)    but including expired entries
    println!("{d:?}");
    // d.expire_key('foo')
    assert_eq!(d.expire_now("foo").await, Some("bar"));
    // d['quux'] = 1; del d['quux']    no callback, in both
    d.set("quux", "1").await;
    assert_eq!(d.remove("quux").await, Some("1"));

    // d['foo'] = 'baz'; time.sleep(12)
    d.set("foo", "baz").await;
    sleep(12 * SECOND).await;
    assert!(d.is_empty(), "swept after 10 s, or up to 2 s later: TimedDict has no such bound");

    // d.stop_sweep()    but permanently; here until `resume_sweeper`
    d.pause_sweeper();
    d.set("foo", "bar").await;
    sleep(60 * SECOND).await;
    assert_eq!((d.len(), d.get("foo").await), (1, None));
}
