//! Values that call their cache in `Drop`: no value is dropped under a lock.

use std::{
    cell::Cell,
    hash::{Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{ALL, SECOND, drain, panics::Fuse, run_with_watchdog};
use fleeting::{Cache, Op, Sweep};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{advance, sleep},
};

struct Caller {
    id: u32,
    state: Arc<CallerState>,
}

#[derive(Default)]
struct CallerState {
    cache: Mutex<Option<CallerCache>>,
    calls: AtomicU32,
    /// The next clone of the value with this id panics.
    clone_of: AtomicU32,
}

type CallerCache = Cache<Key, Caller>;

/// Key that panics in a comparison after a number of them.
struct Key(u32, Arc<Fuse>);

thread_local! {
    /// Set during the calls of a drop: values dropped by these calls make no calls themselves.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subscribed {
    Nobody,
    /// Reads nothing: a broadcast stream drops the oldest events.
    Broadcast,
    /// Reads nothing: a lossless stream retains its events.
    Lossless,
    /// Reads and drops events.
    Reader,
}

#[test]
fn drop_may_call_the_cache_for_every_kind_of_removal() {
    use Subscribed::{Broadcast, Lossless, Nobody, Reader};
    for subscribed in [Nobody, Broadcast, Lossless, Reader] {
        for removal in 0..12 {
            run_with_watchdog(async move || drop_in_removal(subscribed, removal).await);
        }
    }
}

async fn drop_in_removal(subscribed: Subscribed, removal: u32) {
    let (cache, state) = caller_cache();
    let broadcast = (subscribed == Subscribed::Broadcast).then(|| cache.events());
    let mut lossless = matches!(subscribed, Subscribed::Lossless | Subscribed::Reader)
        .then(|| cache.events_lossless(1_000));
    for id in 0..10 {
        cache.set_ex(key(id), caller(id, &state), 60 * SECOND).await;
    }
    for id in 0..10 {
        match removal {
            0 => drop(cache.set(key(id), caller(id, &state)).await),
            1 => drop(cache.remove(&key(id)).await),
            2 => drop(cache.expire_now(&key(id)).await),
            3 => drop(cache.set_nx(key(id), caller(id, &state), None).await),
            4 => drop(cache.update(&key(id), |_| ()).await),
            5 => drop(cache.set_keep_ttl(key(id), caller(id, &state)).await),
            6 => cache.expire(&key(id), Duration::ZERO).map(drop).await,
            _ => {}
        }
    }
    match removal {
        7 => cache.clear().await,
        8 => {
            advance(60 * SECOND).await;
            cache.sweep().await;
        }
        9 => sleep(65 * SECOND).await,
        10 => {
            advance(60 * SECOND).await;
            cache.shutdown().await;
        }
        11 => {
            advance(60 * SECOND).await;
            for id in 0..10 {
                assert!(cache.get(&key(id)).await.is_none(), "the value has expired");
            }
        }
        _ => cache.clear().await,
    }
    if subscribed == Subscribed::Reader {
        drain(lossless.as_mut().expect("the stream exists"));
    }
    drop((broadcast, lossless));
    cache.clear().await;
    let calls = state.calls.load(Relaxed);
    assert!(
        calls >= 10,
        "{subscribed:?}, removal {removal}: only {calls} values called the cache in their drop"
    );
    // Removes the entries that the calls inserted.
    assert_eq!(cache.len(), 0, "{subscribed:?}, removal {removal}");
    state.cache.lock().unwrap().take();
}

/// Under the lock of its shard, the drop would deadlock.
#[test]
fn panic_of_clone_in_iter_drops_no_value_under_the_lock() {
    run_with_watchdog(async || {
        let (cache, state) = caller_cache();
        for id in 0..20 {
            cache.set(key(id), caller(id, &state)).await;
        }
        for id in 0..20 {
            state.clone_of.store(id, Relaxed);
            let read = std::panic::catch_unwind(AssertUnwindSafe(|| cache.iter().count()));
            assert!(read.is_err(), "the panic of the clone reaches the caller");
        }
        assert_eq!(cache.iter().count(), 20, "no entry is lost");
        state.cache.lock().unwrap().take();
    });
}

/// Under the lock of its shard, the drop would deadlock.
#[test]
fn panic_of_the_closure_of_get_ex_with_drops_no_value_under_the_lock() {
    run_with_watchdog(async || {
        let (cache, state) = caller_cache();
        cache.set(key(1), caller(1, &state)).await;
        let one = key(1);
        let read = cache.get_ex_with(&one, |_| panic!("the panic of this test"));
        assert!(
            AssertUnwindSafe(read).catch_unwind().await.is_err(),
            "the panic reaches the caller"
        );
        assert!(cache.get(&key(1)).await.is_some(), "the value is kept");
        state.cache.lock().unwrap().take();
    });
}

/// Under the lock of its shard, the drop would deadlock.
#[test]
fn panic_of_eq_in_remove_drops_no_value_under_the_lock() {
    run_with_watchdog(async || {
        for calls in 1..=4 {
            for method in 0..5 {
                let (cache, state) = caller_cache();
                let events = cache.events_lossless(100);
                let one = key(1);
                cache.set(Key(1, one.1.clone()), caller(1, &state)).await;
                one.1.arm(calls);
                let remove = async {
                    match method {
                        0 => drop(cache.remove(&one).await),
                        1 => drop(cache.expire_now(&one).await),
                        2 => drop(cache.set(Key(1, one.1.clone()), caller(2, &state)).await),
                        3 => drop(cache.remove_many([&one, &one]).await),
                        _ => {
                            let entry = |id| (Key(1, one.1.clone()), caller(id, &state));
                            cache.set_many([2, 3, 4].map(entry), None).await;
                        }
                    }
                };
                let _ = AssertUnwindSafe(remove).catch_unwind().await;
                one.1.disarm();
                cache.clear().await;
                drop(events);
                state.cache.lock().unwrap().take();
            }
        }
    });
}

/// Under the lock of its shard, the drop of the new value would deadlock.
#[test]
fn panic_of_clone_in_a_write_drops_no_value_under_the_lock() {
    run_with_watchdog(async || {
        for method in 0..6 {
            for bounded in [false, true] {
                if (method, bounded) == (3, false) {
                    // A value that is not returned or published need not be cloned.
                    continue;
                }
                let (cache, state) = caller_cache_of(bounded);
                let events = cache.events_lossless(100);
                cache.set(key(1), caller(1, &state)).await;
                state.clone_of.store(1, Relaxed);
                let write = async {
                    match method {
                        0 => drop(cache.set(key(1), caller(2, &state)).await),
                        1 => drop(cache.set_keep_ttl(key(1), caller(2, &state)).await),
                        2 => drop(cache.set_tagged(key(1), caller(2, &state), SECOND, ["t"]).await),
                        3 => cache.set_many([(key(1), caller(2, &state))], None).await,
                        4 => {
                            state.clone_of.store(2, Relaxed);
                            let new = caller(2, &state);
                            drop(cache.compute(&key(1), |_| Op::Set(new)).await);
                        }
                        _ => {
                            let new = caller(2, &state);
                            let change = async |old: Option<Caller>| {
                                drop(old);
                                state.clone_of.store(2, Relaxed);
                                Op::Set(new)
                            };
                            state.clone_of.store(u32::MAX, Relaxed);
                            drop(cache.compute_with(&key(1), change).await);
                        }
                    }
                };
                let ended = AssertUnwindSafe(write).catch_unwind().await;
                assert!(ended.is_err(), "the panic of the clone reaches the caller");
                let read = cache.get(&key(1)).await.expect("the value is kept");
                assert_eq!(read.id, 1, "nothing was changed");
                drop((events, read));
                state.cache.lock().unwrap().take();
            }
        }
    });
}

fn caller_cache() -> (CallerCache, Arc<CallerState>) {
    caller_cache_of(false)
}

fn caller_cache_of(bounded: bool) -> (CallerCache, Arc<CallerState>) {
    let builder = Cache::builder();
    let builder = if bounded { builder.max_entries(10_000) } else { builder };
    let sweep = Sweep::default().sample(1.0);
    let cache = builder.shards(2).event_capacity(2).sweep(sweep).publish(ALL).build();
    let state =
        Arc::new(CallerState { clone_of: AtomicU32::new(u32::MAX), ..CallerState::default() });
    *state.cache.lock().unwrap() = Some(cache.clone());
    (cache, state)
}

fn caller(id: u32, state: &Arc<CallerState>) -> Caller {
    Caller { id, state: state.clone() }
}

fn key(id: u32) -> Key {
    Key(id, Arc::default())
}

impl Clone for Caller {
    fn clone(&self) -> Self {
        if !CALLING.get() && self.state.clone_of.load(Relaxed) == self.id {
            self.state.clone_of.store(u32::MAX, Relaxed);
            panic!("the panic of this test");
        }
        caller(self.id, &self.state)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if CALLING.replace(true) {
            return;
        }
        let state = self.state.cache.lock().unwrap().clone();
        if let Some(cache) = state {
            self.state.calls.fetch_add(1, Relaxed);
            self.call(&cache);
        }
        CALLING.set(false);
    }
}

impl Caller {
    /// Calls methods on its own key and on another key of the same shard, from a place where no call can wait.
    fn call(&self, cache: &CallerCache) {
        let now = "a call outside of a runtime never waits";
        let events = cache.events();
        let lossless = cache.events_lossless(1);
        let _ = (cache.len(), cache.live_len(), cache.stats(), cache.iter().count());
        drop(unconstrained(cache.get(&key(self.id))).now_or_never().expect(now));
        for other in 1_000..1_016 {
            let value = caller(other, &self.state);
            drop(unconstrained(cache.set(key(other), value)).now_or_never().expect(now));
            unconstrained(cache.expire(&key(other), Duration::ZERO)).now_or_never().expect(now);
            drop(unconstrained(cache.remove(&key(other))).now_or_never().expect(now));
        }
        drop((events, lossless));
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        Self(self.0, self.1.clone())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.1.count_down();
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
