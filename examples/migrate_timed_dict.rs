//! From Python's TimedDict: each of its calls in a comment, ours below. "But" marks what differs.

use std::time::Duration;

use tokio::time::sleep;

use fleeting::{Cache, Sweep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // checks_per_second=.5, sample_probability=.25, expired_keys_ratio=.25
    // But `checks_per_second` is the pause in seconds, in spite of its name.
    let sweep = Sweep::default().every(SECOND / 2).sample(0.25).repeat_at(0.25);
    // d = TimedDict(timeout=10, ...)
    let d = Cache::builder().name("d").time_to_live(10 * SECOND).sweep(sweep).build();
    // callback=lambda key, value: print(key, value)    but if that raises, nothing is swept any more
    d.on_expired(async |event| println!("expired: {} {}", event.key, event.value));

    // d['foo'] = 'bar'
    d.set("foo", "bar").await;
    // d['foo']    but an Empty() where it is gone
    assert_eq!(d.get("foo").await, Some("bar"));
    // 'foo' in d    but always True
    assert!(d.contains_key("foo").await && !d.contains_key("baz").await);
    // d.set_expiration('foo', seconds=60, ignore_missing=True)    but it revives the dead
    assert!(d.expire("foo", 60 * SECOND).await);
    // d.set_expiration('foo', additional_seconds=5, ignore_missing=True)
    assert!(d.extend("foo", 5 * SECOND).await);
    // len(d)
    assert_eq!(d.len(), 1);
    // d.keys(), d.values(), d.items()    but with the dead, until they are swept
    assert_eq!(d.iter().collect::<Vec<_>>(), [("foo", "bar")]);
    // repr(d)    but with the dead, too
    println!("{d:?}");
    // d.expire_key('foo')
    assert_eq!(d.expire_now("foo").await, Some("bar"));
    // d['quux'] = 1; del d['quux']    no callback, there as here
    d.set("quux", "1").await;
    assert_eq!(d.remove("quux").await, Some("1"));

    // d['foo'] = 'baz'; time.sleep(12)
    d.set("foo", "baz").await;
    sleep(12 * SECOND).await;
    assert!(d.is_empty(), "swept after 10 s, or up to 2 s later: TimedDict has no such bound");

    // d.stop_sweep()    for good; here until `resume_sweeper`
    d.pause_sweeper();
    d.set("foo", "bar").await;
    sleep(60 * SECOND).await;
    assert_eq!((d.len(), d.get("foo").await), (1, None));
}
