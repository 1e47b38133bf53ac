//! Values that call their cache as they are dropped: never under a lock.

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

use super::{ALL, SECOND, panics::Fuse, so_far, watched};
use fleeting::{Cache, Op, Sweep};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{advance, sleep},
};

struct Caller {
    id: u32,
    home: Arc<Home>,
}

#[derive(Default)]
struct Home {
    cache: Mutex<Option<CallerCache>>,
    calls: AtomicU32,
    /// Panics in the next clone of this id.
    clone_of: AtomicU32,
}

type CallerCache = Cache<Key, Caller>;

/// A key that panics when it has been compared so often.
struct Key(u32, Arc<Fuse>);

thread_local! {
    /// What a call of the dropped drops itself calls nobody.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subscribed {
    Nobody,
    /// Reads nothing: the ring lets the oldest go.
    Ring,
    /// Reads nothing: its events wait.
    Lossless,
    /// Reads and lets go.
    Reader,
}

#[test]
fn a_value_may_call_the_cache_as_it_is_dropped_on_every_way_out() {
    use Subscribed::{Lossless, Nobody, Reader, Ring};
    for subscribed in [Nobody, Ring, Lossless, Reader] {
        for way in 0..12 {
            watched(async move || drop_on_way_out(subscribed, way).await);
        }
    }
}

async fn drop_on_way_out(subscribed: Subscribed, way: u32) {
    let (cache, home) = caller_cache();
    let ring = (subscribed == Subscribed::Ring).then(|| cache.events());
    let mut lossless = matches!(subscribed, Subscribed::Lossless | Subscribed::Reader)
        .then(|| cache.events_lossless(1_000));
    for id in 0..10 {
        cache.set_ex(key(id), caller(id, &home), 60 * SECOND).await;
    }
    for id in 0..10 {
        match way {
            0 => drop(cache.set(key(id), caller(id, &home)).await),
            1 => drop(cache.remove(&key(id)).await),
            2 => drop(cache.expire_now(&key(id)).await),
            3 => drop(cache.set_nx(key(id), caller(id, &home), None).await),
            4 => drop(cache.update(&key(id), |_| ()).await),
            5 => drop(cache.set_keep_ttl(key(id), caller(id, &home)).await),
            6 => cache.expire(&key(id), Duration::ZERO).map(drop).await,
            _ => {}
        }
    }
    match way {
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
                assert!(cache.get(&key(id)).await.is_none(), "it is dead");
            }
        }
        _ => cache.clear().await,
    }
    if subscribed == Subscribed::Reader {
        so_far(lossless.as_mut().expect("it reads"));
    }
    drop((ring, lossless));
    cache.clear().await;
    let calls = home.calls.load(Relaxed);
    assert!(calls >= 10, "{subscribed:?}, way {way}: only {calls} values called as they went");
    // Those that calls themselves have put in.
    assert_eq!(cache.len(), 0, "{subscribed:?}, way {way}");
    home.cache.lock().unwrap().take();
}

/// Under the lock of its shard, the drop would wait for itself.
#[test]
fn a_clone_that_panics_in_iter_drops_no_other_under_the_lock() {
    watched(async || {
        let (cache, home) = caller_cache();
        for id in 0..20 {
            cache.set(key(id), caller(id, &home)).await;
        }
        for id in 0..20 {
            home.clone_of.store(id, Relaxed);
            let read = std::panic::catch_unwind(AssertUnwindSafe(|| cache.iter().count()));
            assert!(read.is_err(), "the panic of a clone is its caller's");
        }
        assert_eq!(cache.iter().count(), 20, "an entry was lost");
        home.cache.lock().unwrap().take();
    });
}

/// Under the lock of its shard, the drop would wait for itself.
#[test]
fn a_closure_that_panics_in_get_ex_with_drops_nothing_under_the_lock() {
    watched(async || {
        let (cache, home) = caller_cache();
        cache.set(key(1), caller(1, &home)).await;
        let one = key(1);
        let read = cache.get_ex_with(&one, |_| panic!("the panic of this test"));
        assert!(AssertUnwindSafe(read).catch_unwind().await.is_err(), "the panic is its caller's");
        assert!(cache.get(&key(1)).await.is_some(), "the value was lost");
        home.cache.lock().unwrap().take();
    });
}

/// Under the lock of its shard, the drop would wait for itself.
#[test]
fn an_eq_that_panics_in_remove_drops_nothing_under_the_lock() {
    watched(async || {
        for calls in 1..=4 {
            for verb in 0..5 {
                let (cache, home) = caller_cache();
                let events = cache.events_lossless(100);
                let one = key(1);
                cache.set(Key(1, one.1.clone()), caller(1, &home)).await;
                one.1.light(calls);
                let remove = async {
                    match verb {
                        0 => drop(cache.remove(&one).await),
                        1 => drop(cache.expire_now(&one).await),
                        2 => drop(cache.set(Key(1, one.1.clone()), caller(2, &home)).await),
                        3 => drop(cache.remove_many([&one, &one]).await),
                        _ => {
                            let entry = |id| (Key(1, one.1.clone()), caller(id, &home));
                            cache.set_many([2, 3, 4].map(entry), None).await;
                        }
                    }
                };
                let _ = AssertUnwindSafe(remove).catch_unwind().await;
                one.1.put_out();
                cache.clear().await;
                drop(events);
                home.cache.lock().unwrap().take();
            }
        }
    });
}

/// Under the lock of its shard, the drop of what was to be written would wait for itself.
#[test]
fn a_clone_that_panics_in_a_write_drops_nothing_under_the_lock() {
    watched(async || {
        for verb in 0..6 {
            for bounded in [false, true] {
                if (verb, bounded) == (3, false) {
                    // What nobody is given need not be cloned.
                    continue;
                }
                let (cache, home) = caller_cache_of(bounded);
                let events = cache.events_lossless(100);
                cache.set(key(1), caller(1, &home)).await;
                home.clone_of.store(1, Relaxed);
                let write = async {
                    match verb {
                        0 => drop(cache.set(key(1), caller(2, &home)).await),
                        1 => drop(cache.set_keep_ttl(key(1), caller(2, &home)).await),
                        2 => drop(cache.set_tagged(key(1), caller(2, &home), SECOND, ["t"]).await),
                        3 => cache.set_many([(key(1), caller(2, &home))], None).await,
                        4 => {
                            home.clone_of.store(2, Relaxed);
                            let new = caller(2, &home);
                            drop(cache.compute(&key(1), |_| Op::Set(new)).await);
                        }
                        _ => {
                            let new = caller(2, &home);
                            let change = async |old: Option<Caller>| {
                                drop(old);
                                home.clone_of.store(2, Relaxed);
                                Op::Set(new)
                            };
                            home.clone_of.store(u32::MAX, Relaxed);
                            drop(cache.compute_with(&key(1), change).await);
                        }
                    }
                };
                let ended = AssertUnwindSafe(write).catch_unwind().await;
                assert!(ended.is_err(), "the panic of a clone is its caller's");
                let read = cache.get(&key(1)).await.expect("it is there");
                assert_eq!(read.id, 1, "nothing was changed");
                drop((events, read));
                home.cache.lock().unwrap().take();
            }
        }
    });
}

fn caller_cache() -> (CallerCache, Arc<Home>) {
    caller_cache_of(false)
}

fn caller_cache_of(bounded: bool) -> (CallerCache, Arc<Home>) {
    let builder = Cache::builder();
    let builder = if bounded { builder.max_entries(10_000) } else { builder };
    let sweep = Sweep::default().sample(1.0);
    let cache = builder.shards(2).event_capacity(2).sweep(sweep).publish(ALL).build();
    let home = Arc::new(Home { clone_of: AtomicU32::new(u32::MAX), ..Home::default() });
    *home.cache.lock().unwrap() = Some(cache.clone());
    (cache, home)
}

fn caller(id: u32, home: &Arc<Home>) -> Caller {
    Caller { id, home: home.clone() }
}

fn key(id: u32) -> Key {
    Key(id, Arc::default())
}

impl Clone for Caller {
    fn clone(&self) -> Self {
        if !CALLING.get() && self.home.clone_of.load(Relaxed) == self.id {
            self.home.clone_of.store(u32::MAX, Relaxed);
            panic!("the panic of this test");
        }
        caller(self.id, &self.home)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if CALLING.replace(true) {
            return;
        }
        let home = self.home.cache.lock().unwrap().clone();
        if let Some(cache) = home {
            self.home.calls.fetch_add(1, Relaxed);
            self.call(&cache);
        }
        CALLING.set(false);
    }
}

impl Caller {
    /// Verbs on its own key and on another of the same shard, from a place where nothing can wait.
    fn call(&self, cache: &CallerCache) {
        let now = "a verb waits for nothing";
        let events = cache.events();
        let lossless = cache.events_lossless(1);
        let _ = (cache.len(), cache.live_len(), cache.stats(), cache.iter().count());
        drop(unconstrained(cache.get(&key(self.id))).now_or_never().expect(now));
        for other in 1_000..1_016 {
            let value = caller(other, &self.home);
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
        self.1.burn();
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
