//! Keys and values that panic at a chosen call: no other entry is lost, and every method stays usable.

use std::{
    future::pending,
    hash::{Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use super::{ALL, SECOND, drain, run_with_watchdog};
use fleeting::{Cache, Op, Sweep, When};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};
use tokio_test::task::spawn;

/// Number of calls until one panics; 0 for never.
#[derive(Default)]
pub(super) struct Fuse(AtomicU32);

/// One fuse for each trait implemented by user code.
#[derive(Default)]
struct Fuses {
    hash: Fuse,
    eq: Fuse,
    clone: Fuse,
    drop: Fuse,
}

/// Key or value that panics when one of its fuses is used up.
struct Panicky {
    id: u32,
    fuses: Arc<Fuses>,
}

type PanickyCache = Cache<Panicky, Panicky>;

#[test]
fn panic_of_hash_in_a_growing_table_loses_no_entry() {
    run_with_watchdog(async || {
        let fuses = Arc::new(Fuses::default());
        let cache: PanickyCache = panicky_cache();
        for id in 0..2_000 {
            // The first hash is that of the call itself, the second one that of a moving entry.
            fuses.hash.arm(2);
            cache.set_ex(panicky(id, &fuses), panicky(id, &fuses), SECOND).await;
            fuses.hash.disarm();
        }
        assert_eq!((cache.len(), cache.live_len()), (2_000, 2_000), "an entry was lost");
        assert_eq!(cache.iter().count(), 2_000, "an entry was lost to the iterator");
        let mut found = 0;
        for id in 0..2_000 {
            found += u32::from(cache.contains_key(&panicky(id, &fuses)).await);
        }
        assert!(
            (1_950..2_000).contains(&found),
            "{found} of 2,000 are found: at most one per growing table is not"
        );

        fuses.hash.arm(1);
        let set = AssertUnwindSafe(cache.set(panicky(0, &fuses), panicky(0, &fuses)));
        assert!(set.catch_unwind().await.is_err(), "the hash of a call panics to its caller");
        sleep(5 * SECOND).await;
        assert_eq!(cache.len(), 0, "entries that can't be found are swept too");
        check_usable(&cache, &fuses).await;
    });
}

/// Each method, each of its comparisons and clones, live and expired entries, with and without a subscriber.
#[test]
fn panic_of_eq_or_clone_leaves_every_method_usable() {
    run_with_watchdog(async || {
        let mut panics = 0;
        for method in 0..METHODS {
            for (expired, subscribed) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                for fuse in [eq_fuse, clone_fuse, hash_fuse] {
                    for calls in 1..=8 {
                        panics +=
                            u32::from(try_method(method, expired, subscribed, fuse, calls).await);
                    }
                }
            }
        }
        assert!(panics > 150, "only {panics} calls panicked: the fuses are not used up");
    });
}

async fn try_method(
    method: usize,
    expired: bool,
    subscribed: bool,
    fuse: fn(&Fuses) -> &Fuse,
    calls: u32,
) -> bool {
    let case =
        format!("method {method}, expired {expired}, subscribed {subscribed}, at call {calls}");
    let fuses = Arc::new(Fuses::default());
    // No method grows a table here, because an entry whose hash panics would not be found again.
    let builder = Cache::builder().shards(2).initial_capacity(200);
    let cache = builder.sweep(Sweep::default().sample(1.0)).publish(ALL).build();
    let awaited = panicky(7, &fuses);
    let mut events = subscribed.then(|| cache.events_lossless(1_000));
    let ttl = if expired { Duration::ZERO } else { 60 * SECOND };
    for id in 0..20 {
        cache.set_ex(panicky(id, &fuses), panicky(id, &fuses), 60 * SECOND).await;
        cache.expire(&panicky(id, &fuses), ttl).await;
    }
    // Waiters for the removal and for the load of the value that the method uses.
    let mut removal_waiter = spawn(unconstrained(cache.expired(&awaited)));
    let mut loads = spawn(unconstrained(cache.get_or_set_with(&awaited, SECOND, pending)));
    assert_eq!(
        (removal_waiter.poll().is_pending(), loads.poll().is_pending()),
        (!expired, expired),
        "{case}"
    );
    fuse(&fuses).arm(calls);
    let panicked = AssertUnwindSafe(call(method, &cache, &fuses)).catch_unwind().await.is_err();
    fuse(&fuses).disarm();

    let read: Vec<u32> = cache.values().map(|value| value.id).collect();
    if let Some(events) = &mut events {
        let mut known: Vec<u32> = drain(events).iter().map(|event| event.value.id).collect();
        known.extend(&read);
        known.sort_unstable();
        known.dedup();
        let resident = cache.len() - read.len();
        assert!(known.len() + resident >= 20, "{case}: each removed value has an event");
    }
    check_usable(&cache, &fuses).await;
    panicked
}

const METHODS: usize = 27;

async fn call(method: usize, cache: &PanickyCache, fuses: &Arc<Fuses>) {
    let key = || panicky(7, fuses);
    match method {
        0 => drop(cache.get(&key()).await),
        1 => drop(cache.get_ex(&key(), SECOND).await),
        2 => drop(cache.get_ex_with(&key(), |_| SECOND).await),
        3 => drop(cache.set(key(), panicky(100, fuses)).await),
        4 => drop(cache.set_nx(key(), panicky(100, fuses), None).await),
        5 => drop(cache.set_keep_ttl(key(), panicky(100, fuses)).await),
        6 => drop(cache.remove(&key()).await),
        7 => drop(cache.contains_key(&key()).await),
        8 => drop(cache.ttl(&key()).await),
        9 => drop(cache.expire(&key(), SECOND).await),
        10 => drop(cache.expire_if(&key(), SECOND, When::HasTtl).await),
        11 => drop(cache.expire_at(&key(), Instant::now() + SECOND).await),
        12 => drop(cache.persist(&key()).await),
        13 => drop(cache.expire_now(&key()).await),
        14 => drop(cache.update(&key(), |value| value.id).await),
        15 => drop(cache.iter().count()),
        16 => cache.clear().await,
        17 => drop(cache.compute(&key(), |_| Op::Set(panicky(100, fuses))).await),
        18 => drop(cache.compute(&key(), |_| Op::Remove).await),
        19 => drop(cache.compute_with(&key(), async |_| Op::Set(panicky(100, fuses))).await),
        20 => drop(cache.get_many([&key(), &panicky(8, fuses)]).await),
        21 => drop(cache.set_tagged(key(), panicky(100, fuses), SECOND, ["tag"]).await),
        22 => drop(cache.remove_if(|_, value| value.id % 2 == 1).await),
        23 => drop(cache.remove_many([&key(), &panicky(8, fuses)]).await),
        24 => drop(cache.expired(&key()).now_or_never()),
        25 => {
            let entries = [7, 8, 7].map(|id| (panicky(id, fuses), panicky(100 + id, fuses)));
            cache.set_many(entries, None).await;
        }
        _ => {
            let loaded = panicky(100, fuses);
            drop(cache.get_or_set_with(&panicky(50, fuses), SECOND, async || loaded).await);
        }
    }
}

/// Every shard can be read and written, and the sweeper runs.
async fn check_usable(cache: &PanickyCache, fuses: &Arc<Fuses>) {
    for id in 0..40 {
        cache.set_ex(panicky(id, fuses), panicky(id + 1, fuses), SECOND).await;
        let read = cache.get(&panicky(id, fuses)).await;
        assert_eq!(read.map(|value| value.id), Some(id + 1), "every shard stays usable");
    }
    sleep(2 * SECOND).await;
    let remaining = cache.iter().filter(|(key, _)| key.id < 40).count();
    assert_eq!((remaining, cache.live_len()), (0, cache.len()), "the sweeper still runs");
}

#[test]
fn panic_of_a_closure_leaves_the_cache_usable() {
    run_with_watchdog(async || {
        let fuses = Arc::new(Fuses::default());
        let cache = panicky_cache();
        cache.set(panicky(7, &fuses), panicky(1, &fuses)).await;
        let key = panicky(7, &fuses);
        let update = cache.update(&key, |value| {
            value.id = 2;
            panic!("the panic of this test")
        });
        let ended: Result<Option<()>, _> = AssertUnwindSafe(update).catch_unwind().await;
        assert!(ended.is_err(), "the panic of the closure reaches its caller");
        assert_eq!(cache.get(&key).await.unwrap().id, 2, "the value stays as the closure left it");
        let read = cache.get_ex_with(&key, |_| panic!("the panic of this test"));
        assert!(AssertUnwindSafe(read).catch_unwind().await.is_err());
        assert_eq!(cache.ttl(&key).await.as_secs(), -1, "the TTL stays as it was");
        check_usable(&cache, &fuses).await;
    });
}

/// One value in twenty panics in its drop, for each kind of removal, with and without a subscriber.
#[test]
fn panic_of_drop_loses_no_other_value() {
    run_with_watchdog(async || {
        for removal in 0..6 {
            for subscribed in [false, true] {
                try_removal(removal, subscribed).await;
            }
        }
    });
}

async fn try_removal(removal: u32, subscribed: bool) {
    let fuses = Arc::new(Fuses::default());
    let calm = Arc::new(Fuses::default());
    let cache = panicky_cache();
    let events = subscribed.then(|| (cache.events_lossless(1_000), cache.events()));
    for id in 0..20 {
        let fuses = if id == 7 { &fuses } else { &calm };
        cache.set_ex(panicky(id, &calm), panicky(id, fuses), 60 * SECOND).await;
    }
    fuses.drop.arm(1);
    let remove_entries = async {
        match removal {
            0 => {
                for id in 0..20 {
                    let set = cache.set(panicky(id, &calm), panicky(100 + id, &calm));
                    drop(AssertUnwindSafe(set.map(drop)).catch_unwind().await);
                }
            }
            1 => {
                for id in 0..20 {
                    let key = panicky(id, &calm);
                    let remove = cache.remove(&key).map(drop);
                    drop(AssertUnwindSafe(remove).catch_unwind().await);
                }
            }
            2 => {
                advance(60 * SECOND).await;
                for id in 0..20 {
                    let key = panicky(id, &calm);
                    let get = cache.get(&key).map(drop);
                    drop(AssertUnwindSafe(get).catch_unwind().await);
                }
            }
            3 => sleep(65 * SECOND).await,
            4 => cache.clear().await,
            _ => cache.shutdown().await,
        }
    };
    let _ = AssertUnwindSafe(remove_entries).catch_unwind().await;
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(events)));
    fuses.drop.disarm();
    // If `clear` panicked, the next call removes the rest.
    cache.clear().await;
    assert_eq!(cache.len(), 0, "removal {removal}, subscribed {subscribed}");
    let stats = cache.stats();
    let remaining = stats.expired + stats.removed + stats.replaced;
    let expected = if removal == 0 { 40 } else { 20 };
    assert_eq!(
        remaining, expected,
        "removal {removal}, subscribed {subscribed}: each removal is counted"
    );
    if removal < 5 {
        check_usable(&cache, &calm).await;
    }
}

fn eq_fuse(fuses: &Fuses) -> &Fuse {
    &fuses.eq
}

fn clone_fuse(fuses: &Fuses) -> &Fuse {
    &fuses.clone
}

fn hash_fuse(fuses: &Fuses) -> &Fuse {
    &fuses.hash
}

fn panicky(id: u32, fuses: &Arc<Fuses>) -> Panicky {
    Panicky { id, fuses: fuses.clone() }
}

fn panicky_cache() -> PanickyCache {
    Cache::builder().shards(2).sweep(Sweep::default().sample(1.0)).publish(ALL).build()
}

impl Fuse {
    pub(super) fn arm(&self, calls: u32) {
        self.0.store(calls, Relaxed);
    }

    pub(super) fn disarm(&self) {
        self.0.store(0, Relaxed);
    }

    pub(super) fn count_down(&self) {
        if thread::panicking() || self.0.load(Relaxed) == 0 {
            return;
        }
        assert!(self.0.fetch_sub(1, Relaxed) > 1, "the panic of this test");
    }
}

impl Clone for Panicky {
    fn clone(&self) -> Self {
        self.fuses.clone.count_down();
        Self { id: self.id, fuses: self.fuses.clone() }
    }
}

impl PartialEq for Panicky {
    fn eq(&self, other: &Self) -> bool {
        self.fuses.eq.count_down();
        self.id == other.id
    }
}

impl Eq for Panicky {}

impl Hash for Panicky {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fuses.hash.count_down();
        self.id.hash(state);
    }
}

impl Drop for Panicky {
    fn drop(&mut self) {
        self.fuses.drop.count_down();
    }
}
