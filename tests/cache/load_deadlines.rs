//! Deadlines that change during a load, and deadlines that start one: `expire` and its relatives take precedence over
//! the deadline of the loaded value, and only a TTL makes `refresh_ahead` reload.

use std::time::Duration;

use fleeting::{Cache, Cause, Freshness, Sweep, Ttl, When};
use futures::FutureExt;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_eq, task::spawn};

use crate::freshness::{builder, run_background_tasks};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Way in which a live value is loaded again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reload {
    Ahead,
    Explicit,
    /// A call that waits for an explicit refresh runs its loader after the first one was cancelled.
    AfterCancellation,
}

const RELOADS: [Reload; 3] = [Reload::Ahead, Reload::Explicit, Reload::AfterCancellation];

/// Method that changes the deadline of a live value, and the time that is left afterwards.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    None,
    Expire,
    ExpireAt,
    ExpireIf,
    Extend,
    Persist,
    GetEx,
    GetExWith,
    ExpireZero,
    ExpireAtPast,
    GetExZero,
    /// The new deadline passes before the load ends.
    ExpireSoon,
}

impl Verb {
    const ALL: [Verb; 12] = [
        Verb::None,
        Verb::Expire,
        Verb::ExpireAt,
        Verb::ExpireIf,
        Verb::Extend,
        Verb::Persist,
        Verb::GetEx,
        Verb::GetExWith,
        Verb::ExpireZero,
        Verb::ExpireAtPast,
        Verb::GetExZero,
        Verb::ExpireSoon,
    ];

    async fn call(self, cache: &Cache<u32, u32>) {
        let changed = match self {
            Verb::None => true,
            Verb::Expire => cache.expire(&1, 50 * SECOND).await,
            Verb::ExpireAt => cache.expire_at(&1, Instant::now() + 50 * SECOND).await,
            Verb::ExpireIf => cache.expire_if(&1, 50 * SECOND, When::Sooner).await,
            Verb::Extend => cache.extend(&1, HOUR).await,
            Verb::Persist => cache.persist(&1).await,
            Verb::GetEx => cache.get_ex(&1, 50 * SECOND).await == Some(1),
            Verb::GetExWith => cache.get_ex_with(&1, |_| 50 * SECOND).await == Some(1),
            Verb::ExpireZero => cache.expire(&1, Duration::ZERO).await,
            Verb::ExpireAtPast => cache.expire_at(&1, Instant::now() - SECOND).await,
            Verb::GetExZero => cache.get_ex(&1, Duration::ZERO).await == Some(1),
            Verb::ExpireSoon => cache.expire(&1, 5 * SECOND).await,
        };
        assert!(changed, "{self:?}");
    }

    /// Returns the TTL ten seconds after the call, when a load has ended that began a second before it.
    fn ttl_after_load(self) -> Ttl {
        match self {
            // That of the loaded value.
            Verb::None => Ttl::Remaining(HOUR),
            Verb::Extend => Ttl::Remaining(2 * HOUR - 11 * SECOND),
            Verb::Persist => Ttl::Persistent,
            Verb::ExpireZero | Verb::ExpireAtPast | Verb::GetExZero | Verb::ExpireSoon => {
                Ttl::Missing
            }
            _ => Ttl::Remaining(40 * SECOND),
        }
    }
}

async fn load_slowly() -> u32 {
    sleep(11 * SECOND).await;
    2
}

#[tokio::test(start_paused = true)]
async fn deadline_set_during_a_refresh_takes_precedence_over_that_of_the_loaded_value() {
    let verbs = Verb::ALL.into_iter().flat_map(|verb| RELOADS.map(|reload| (verb, reload)));
    for (verb, reload) in verbs {
        let cache = builder().refresh_ahead(1e9).sweep(Sweep::manual().seed(1)).build();
        // Refresh-ahead needs a duration of loads.
        cache.get_or_set_with(&0, HOUR, load_slowly).await;
        cache.set_ex(1, 1, HOUR).await;
        let (cancelled, refreshes) = (cache.clone(), cache.clone());
        let mut cancelled = spawn(cancelled.refresh_with(&1, HOUR, std::future::pending::<u32>));
        let mut refresh = spawn(refreshes.refresh_with(&1, HOUR, load_slowly));
        match reload {
            Reload::Ahead => assert_eq!(cache.get_or_set_with(&1, HOUR, load_slowly).await, 1),
            Reload::Explicit => assert_pending!(refresh.poll()),
            Reload::AfterCancellation => {
                assert_pending!(cancelled.poll());
                assert_pending!(refresh.poll());
                // Before the second load begins, whose value then has its own deadline.
                assert!(cache.expire(&1, HOUR).await);
                drop(cancelled);
                assert_pending!(refresh.poll());
            }
        }
        sleep(SECOND).await;
        verb.call(&cache).await;
        sleep(10 * SECOND).await;
        run_background_tasks().await;
        if reload != Reload::Ahead {
            assert_ready_eq!(refresh.poll(), 2);
        }
        assert_eq!(cache.ttl(&1).await, verb.ttl_after_load(), "{verb:?} {reload:?}");
        let stored = (verb.ttl_after_load() != Ttl::Missing).then_some(2);
        assert_eq!(cache.get(&1).await, stored, "{verb:?} {reload:?}");
    }
}

/// The load began before the session was ended: its value is not returned to a caller that comes later, either.
#[tokio::test(start_paused = true)]
async fn call_after_an_expiry_gets_no_value_whose_load_began_before_it() {
    for expires_at_once in [false, true] {
        let cache = builder().build();
        cache.set_ex(1, 1, HOUR).await;
        let mut refresh = spawn(cache.refresh_with(&1, HOUR, load_slowly));
        assert_pending!(refresh.poll());
        match expires_at_once {
            true => assert!(cache.expire(&1, Duration::ZERO).await),
            false => {
                assert!(cache.expire(&1, SECOND).await);
                advance(SECOND).await;
            }
        }
        let mut later = spawn(cache.get_or_set_with(&1, 7 * SECOND, async || 3));
        assert_pending!(later.poll(), "one load of a key runs at a time");
        sleep(11 * SECOND).await;
        assert_ready_eq!(refresh.poll(), 2, "the call that came before gets the loaded value");
        assert_eq!(cache.get(&1).await, None);
        assert_ready_eq!(later.poll(), 3);
        assert_eq!(cache.ttl(&1).await, Ttl::Remaining(7 * SECOND), "the deadline is its own");
    }
}

/// The value was evicted after its deadline had been changed: the new value has that deadline, too.
#[tokio::test(start_paused = true)]
async fn deadline_set_during_a_refresh_survives_an_eviction() {
    let cache = builder().max_entries(1).build();
    cache.set_ex(1, 1, HOUR).await;
    let mut refresh = spawn(cache.refresh_with(&1, HOUR, load_slowly));
    assert_pending!(refresh.poll());
    assert!(cache.expire(&1, 50 * SECOND).await);
    cache.set(2, 2).await;
    assert_eq!(cache.get(&1).await, None);
    sleep(11 * SECOND).await;
    assert_ready_eq!(refresh.poll(), 2);
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(39 * SECOND));
}

/// A refresh of a stale value stores it with its own deadline: no method can change the deadline of an expired value.
#[tokio::test(start_paused = true)]
async fn deadline_of_a_stale_value_is_not_changed_during_its_refresh() {
    let cache = builder().stale_while_revalidate(HOUR).build();
    let mut events = cache.events();
    cache.set_ex(1, 1, HOUR).await;
    assert!(cache.expire(&1, Duration::ZERO).await);
    let slow = async || Ok::<_, &str>(load_slowly().await);
    let stale = cache.get_or_try_set_with_freshness(&1, HOUR, slow).await;
    assert_eq!(stale, Ok((1, Freshness::Stale)));
    assert!(!cache.expire(&1, SECOND).await && !cache.persist(&1).await);
    sleep(12 * SECOND).await;
    assert_eq!(cache.get(&1).await, Some(2));
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(HOUR - SECOND));
    assert_eq!(events.recv().now_or_never().unwrap().unwrap().unwrap().cause, Cause::Expired);
}

/// A hit restarts the idle time, which is not a change of the deadline.
#[tokio::test(start_paused = true)]
async fn hit_during_a_refresh_does_not_set_the_deadline_of_the_loaded_value() {
    let cache = builder().time_to_idle(20 * SECOND).build();
    cache.set_ex(1, 1, HOUR).await;
    let mut refresh = spawn(cache.refresh_with(&1, 15 * SECOND, load_slowly));
    assert_pending!(refresh.poll());
    sleep(5 * SECOND).await;
    assert_eq!(cache.get(&1).await, Some(1));
    sleep(6 * SECOND).await;
    assert_ready_eq!(refresh.poll(), 2);
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(15 * SECOND));
    // The hard deadline is the one that was set, although the idle time ends earlier.
    let mut refresh = spawn(cache.refresh_with(&1, HOUR, load_slowly));
    assert_pending!(refresh.poll());
    assert!(cache.expire(&1, 30 * SECOND).await);
    sleep(11 * SECOND).await;
    assert_ready_eq!(refresh.poll(), 2);
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(19 * SECOND));
}

/// Ten reads per second for an hour, with loads of five seconds.
#[tokio::test(start_paused = true)]
async fn refresh_ahead_ignores_the_idle_time_and_persistent_values() {
    for (ttl, bounded) in [(Some(24 * HOUR), false), (Some(24 * HOUR), true), (None, false)] {
        let builder = builder().time_to_idle(30 * SECOND).refresh_ahead(1.0);
        let builder = builder.sweep(Sweep::manual().seed(1));
        let cache = if bounded { builder.max_entries(10).build() } else { builder.build() };
        let slow = async || {
            sleep(5 * SECOND).await;
            1
        };
        for _ in 0..36_000 {
            cache.get_or_set_with(&1, ttl, slow).await;
            sleep(SECOND / 10).await;
        }
        assert_eq!(cache.stats().loads, 1, "{ttl:?}, bounded {bounded}");
    }
}

/// The idle time ends earlier than the TTL, which alone is compared with the duration of the loads.
#[tokio::test(start_paused = true)]
async fn refresh_ahead_with_time_to_idle_reloads_before_the_ttl_ends() {
    let builder = builder().time_to_idle(10 * SECOND).refresh_ahead(2.0);
    let cache = builder.sweep(Sweep::manual().seed(1)).build();
    let slow = async || {
        sleep(5 * SECOND).await;
        1
    };
    for _ in 0..36_000 {
        let found = cache.get_or_set_with(&1, 600 * SECOND, slow);
        let start = Instant::now();
        found.await;
        assert!(start.elapsed() <= 5 * SECOND);
        sleep(SECOND / 10).await;
    }
    let stats = cache.stats();
    assert!((6..=8).contains(&stats.loads), "{} loads in an hour", stats.loads);
    assert_eq!(stats.misses, 1, "each value was reloaded before it expired");
}
