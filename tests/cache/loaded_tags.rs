//! Tags of loaded values: kept by refreshes, given by the loader's argument, and removed during a load.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleeting::{Cache, Cause, Sweep, Tagged, TimeToLive, Ttl};
use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::Semaphore,
    time::{advance, sleep},
};
use tokio_test::{assert_pending, assert_ready_eq, task::spawn};

use crate::freshness::{builder, run_background_tasks};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Each kind of refresh keeps the tags of the value that it replaces, even if that was evicted in the meantime.
#[tokio::test(start_paused = true)]
async fn refresh_keeps_the_tags_of_the_replaced_value() {
    for (kind, evicts) in (0..6).map(|case| (case / 2, case % 2 == 1)) {
        let builder = builder().refresh_ahead(1e9).sweep(Sweep::manual().seed(1));
        let cache = builder.stale_while_revalidate(MINUTE).max_entries(2).build();
        let slow = async || {
            sleep(SECOND).await;
            2
        };
        // Refresh-ahead needs a duration of loads.
        cache.get_or_set_with(&0, MINUTE, slow).await;
        cache.set_tagged(1, 1, MINUTE, ["user"]).await;
        if kind == 1 {
            advance(MINUTE).await;
        }
        match kind {
            0 | 1 => assert_eq!(cache.get_or_set_with(&1, MINUTE, slow).await, 1),
            _ => {
                let cache = cache.clone();
                tokio::spawn(async move { cache.refresh_with(&1, MINUTE, slow).await });
            }
        }
        run_background_tasks().await;
        if evicts {
            cache.set_max_entries(1).await;
            cache.set(2, 2).await;
        }
        sleep(2 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(2), "{kind}");
        cache.remove_tag("user").await;
        assert_eq!(cache.get(&1).await, None, "{kind}, evicts {evicts}: the refresh lost the tag");
    }
}

/// TTL of a minute, and a tag that is given or computed.
#[derive(Clone, Copy, Debug)]
enum Argument {
    New,
    By,
}

type Call = BoxFuture<'static, u32>;

const METHODS: usize = 7;

/// Calls a loader method for key 1, whose loader waits for a permit and returns `value`.
fn call(
    method: usize,
    cache: &Cache<u32, u32>,
    argument: Argument,
    gate: &Arc<Semaphore>,
    value: u32,
) -> Call {
    let ttl = Tagged::new(MINUTE, ["user"]);
    match argument {
        Argument::New => call_with(method, cache.clone(), ttl, gate.clone(), value),
        Argument::By => {
            let ttl = Tagged::by(|_: &u32| (MINUTE, vec!["user".to_owned()]));
            call_with(method, cache.clone(), ttl, gate.clone(), value)
        }
    }
}

fn call_with(
    method: usize,
    cache: Cache<u32, u32>,
    ttl: impl fleeting::TimeToLive<u32> + Send + Sync + 'static,
    gate: Arc<Semaphore>,
    value: u32,
) -> Call {
    let load = async move || {
        gate.acquire().await.unwrap().forget();
        value
    };
    async move {
        match method {
            0 => cache.get_or_set_with(&1, ttl, load).await,
            1 => {
                let load = async move || Ok::<_, Infallible>(load().await);
                *cache.get_or_try_set_with(&1, ttl, load).await.as_ref().unwrap()
            }
            2 => {
                let load = async move || Ok::<_, Infallible>(load().await);
                cache.get_or_try_set_with_freshness(&1, ttl, load).await.unwrap().0
            }
            3 => cache.get_or_set(&1, ttl, load()).await,
            4 => {
                let load = async { Ok::<_, Infallible>(load().await) };
                cache.get_or_try_set(&1, ttl, load).await.unwrap()
            }
            5 => cache.refresh_with(&1, ttl, load).await,
            _ => {
                let load = async |keys: Vec<u32>| {
                    let value = load().await;
                    keys.into_iter().map(|key| (key, value)).collect()
                };
                cache.get_many_or_set_with([2, 1], ttl, load).await[1].unwrap()
            }
        }
    }
    .boxed()
}

fn cases() -> impl Iterator<Item = (usize, Argument)> {
    (0..METHODS).flat_map(|method| [Argument::New, Argument::By].map(|it| (method, it)))
}

#[tokio::test(start_paused = true)]
async fn loaded_value_has_the_ttl_and_the_tags_of_its_argument() {
    for (method, argument) in cases() {
        let cache = builder().build();
        let gate = Arc::new(Semaphore::new(1));
        assert_eq!(call(method, &cache, argument, &gate, 7).await, 7);
        assert_eq!(cache.get_with_ttl(&1).await, Some((7, Ttl::Remaining(MINUTE))));
        cache.remove_tag("other").await;
        assert_eq!(cache.get(&1).await, Some(7));
        cache.remove_tag("user").await;
        assert_eq!(cache.get(&1).await, None, "{method} {argument:?}");
        cache.sweep().await;
        assert!(cache.is_empty(), "{method} {argument:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tagged_with_none_gives_the_default_ttl() {
    let cache = Cache::<u32, u32>::builder().time_to_live(MINUTE).build();
    cache.get_or_set_with(&1, Tagged::new(None, ["user"]), async || 1).await;
    assert_eq!(cache.ttl(&1).await, Ttl::Remaining(MINUTE));
}

#[test]
fn computed_argument_has_the_ttl_of_its_closure() {
    let argument = Tagged::by(|value: &u32| (*value * SECOND, vec!["user".to_owned()]));
    assert_eq!(argument.of(&7), Some(7 * SECOND));
}

/// Callers that were waiting get the loaded value, which is not stored. Later ones load again.
#[tokio::test(start_paused = true)]
async fn removal_of_a_tag_of_the_argument_takes_precedence_over_the_load() {
    let cases = cases().flat_map(|case| [(case, false), (case, true)]);
    // The tag may be removed again while later callers wait.
    for (((method, argument), bounded), twice) in
        cases.flat_map(|case| [(case, false), (case, true)])
    {
        let builder = builder();
        let cache = if bounded { builder.max_entries(10).build() } else { builder.build() };
        let (gate, next) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let mut leader = spawn(call(method, &cache, argument, &gate, 1));
        assert_pending!(leader.poll());
        let mut early = spawn(call(0, &cache, argument, &next, 2));
        assert_pending!(early.poll());
        cache.remove_tag("other").await;
        cache.remove_tag("user").await;
        let mut late = spawn(call(0, &cache, argument, &next, 3));
        assert_pending!(late.poll());
        if twice {
            cache.remove_tag("user").await;
        }
        gate.add_permits(1);
        while leader.poll().is_pending() {}
        assert_ready_eq!(early.poll(), 1, "{method} {argument:?}: it came before the removal");
        assert_eq!(cache.get(&1).await, None, "{method} {argument:?}: the load took precedence");
        assert_pending!(late.poll(), "{method} {argument:?}: its value is older than the removal");
        next.add_permits(1);
        assert_ready_eq!(late.poll(), 3);
        assert_eq!(cache.get(&1).await, Some(3));
    }
}

/// A caller that comes after each removal waits for two loads, as with `remove`.
#[tokio::test(start_paused = true)]
async fn caller_waits_for_at_most_two_loads_while_a_tag_is_removed_again_and_again() {
    for argument in [Argument::New, Argument::By] {
        let cache = builder().build();
        let gate = Arc::new(Semaphore::new(0));
        let mut other = spawn(call(0, &cache, argument, &gate, 1));
        assert_pending!(other.poll());
        cache.remove_tag("user").await;
        let mut caller = spawn(call(0, &cache, argument, &gate, 2));
        assert_pending!(caller.poll());
        for value in 3..5 {
            gate.add_permits(1);
            assert!(other.poll().is_ready());
            other = spawn(call(0, &cache, argument, &gate, value));
            assert_pending!(other.poll());
            cache.remove_tag("user").await;
            if value == 3 {
                assert_pending!(caller.poll(), "the first load began before the removal");
            }
        }
        assert_ready_eq!(caller.poll(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn argument_without_tags_removes_those_of_the_replaced_value() {
    let cache = builder().build();
    cache.set_tagged(1, 1, MINUTE, ["user"]).await;
    let none: [&str; 0] = [];
    assert_eq!(cache.refresh_with(&1, Tagged::new(MINUTE, none), async || 2).await, 2);
    cache.remove_tag("user").await;
    assert_eq!(cache.get(&1).await, Some(2));
    // Others replace them.
    cache.set_tagged(1, 1, MINUTE, ["user"]).await;
    assert_eq!(cache.refresh_with(&1, Tagged::new(MINUTE, ["page"]), async || 2).await, 2);
    cache.remove_tag("user").await;
    assert_eq!(cache.get(&1).await, Some(2));
    cache.remove_tag("page").await;
    assert_eq!(cache.get(&1).await, None);
}

/// The load of a missing key has no value whose tags it could keep.
#[tokio::test(start_paused = true)]
async fn load_of_a_missing_key_has_no_tags_of_an_older_value() {
    for explicit in [false, true] {
        let cache = builder().build();
        cache.set_tagged(1, 1, SECOND, ["user"]).await;
        advance(SECOND).await;
        // The expired entry is still in memory, and no method returns it.
        match explicit {
            true => _ = cache.refresh_with(&1, MINUTE, async || 2).await,
            false => _ = cache.get_or_set_with(&1, MINUTE, async || 2).await,
        }
        cache.remove_tag("user").await;
        assert_eq!(cache.get(&1).await, Some(2), "explicit {explicit}");
    }
}

/// The second load begins after a write of a value with other tags, and keeps those.
#[tokio::test(start_paused = true)]
async fn refresh_that_a_waiter_takes_over_keeps_the_tags_that_were_written_in_the_meantime() {
    for removes in [false, true] {
        let cache = builder().max_entries(1).build();
        let gate = Arc::new(Semaphore::new(0));
        cache.set_tagged(1, 1, MINUTE, ["old"]).await;
        let mut cancelled = spawn(cache.refresh_with(&1, MINUTE, std::future::pending::<u32>));
        assert_pending!(cancelled.poll());
        let mut refresh = spawn(cache.refresh_with(&1, MINUTE, async || {
            gate.acquire().await.unwrap().forget();
            3
        }));
        assert_pending!(refresh.poll());
        cache.remove_tag("old").await;
        cache.set_tagged(1, 2, MINUTE, ["new"]).await;
        drop(cancelled);
        assert_pending!(refresh.poll());
        // Evicted, so that only the flight has its tags.
        cache.set(2, 2).await;
        if removes {
            cache.remove_tag("new").await;
        }
        gate.add_permits(1);
        assert_ready_eq!(refresh.poll(), 3);
        assert_eq!(cache.get(&1).await, (!removes).then_some(3));
        cache.remove_tag("new").await;
        assert_eq!(cache.get(&1).await, None);
    }
}

/// A removed value publishes its event, and a cancelled load leaves nothing behind that notes removals.
#[tokio::test(start_paused = true)]
async fn removed_loaded_value_publishes_its_event() {
    let cache = builder().publish([Cause::Removed]).build();
    let mut events = cache.events_lossless(10);
    let gate = Arc::new(Semaphore::new(1));
    let mut cancelled = spawn(call(0, &cache, Argument::By, &Arc::new(Semaphore::new(0)), 1));
    assert_pending!(cancelled.poll());
    drop(cancelled);
    call(0, &cache, Argument::New, &gate, 7).await;
    cache.remove_tag("user").await;
    cache.sweep().await;
    let event = events.recv().now_or_never().flatten().unwrap();
    assert_eq!((event.key, event.value, event.cause), (1, 7, Cause::Removed));
}
