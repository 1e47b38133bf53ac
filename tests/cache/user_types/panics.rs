//! Keys and values that panic at a chosen moment lose nothing else, and leave every verb usable.

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

use super::{ALL, SECOND, so_far, watched};
use fleeting::{Cache, Op, Sweep, When};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};
use tokio_test::task::spawn;

/// How many calls until one panics; 0 for never.
#[derive(Default)]
pub(super) struct Fuse(AtomicU32);

/// One fuse for each trait whose code is the user's.
#[derive(Default)]
struct Fuses {
    hash: Fuse,
    eq: Fuse,
    clone: Fuse,
    drop: Fuse,
}

/// A key or a value that panics where a fuse of its says so.
struct Moody {
    id: u32,
    fuses: Arc<Fuses>,
}

type MoodyCache = Cache<Moody, Moody>;

#[test]
fn a_hash_that_panics_while_a_table_grows_loses_nothing() {
    watched(async || {
        let fuses = Arc::new(Fuses::default());
        let cache: MoodyCache = moody_cache();
        for id in 0..2_000 {
            // The first is that of the call itself, the second one of an entry that moves.
            fuses.hash.light(2);
            cache.set_ex(moody(id, &fuses), moody(id, &fuses), SECOND).await;
            fuses.hash.put_out();
        }
        assert_eq!((cache.len(), cache.live_len()), (2_000, 2_000), "an entry was lost");
        assert_eq!(cache.iter().count(), 2_000, "an entry was lost to the iterator");
        let mut found = 0;
        for id in 0..2_000 {
            found += u32::from(cache.contains_key(&moody(id, &fuses)).await);
        }
        assert!((1_950..2_000).contains(&found), "{found} of 2,000 are found: one lost a growth");

        fuses.hash.light(1);
        let set = AssertUnwindSafe(cache.set(moody(0, &fuses), moody(0, &fuses)));
        assert!(set.catch_unwind().await.is_err(), "the hash of a call panics to its caller");
        sleep(5 * SECOND).await;
        assert_eq!(cache.len(), 0, "what cannot be found leaves all the same");
        check_usable(&cache, &fuses).await;
    });
}

/// Each verb, each of the comparisons it makes, over live and dead entries, heard of and not.
#[test]
fn an_eq_or_clone_that_panics_leaves_every_verb_usable() {
    watched(async || {
        let mut panics = 0;
        for verb in 0..VERBS {
            for (dead, heard) in [(false, false), (false, true), (true, false), (true, true)] {
                for fuse in [eq_fuse, clone_fuse, hash_fuse] {
                    for calls in 1..=8 {
                        panics += u32::from(try_verb(verb, dead, heard, fuse, calls).await);
                    }
                }
            }
        }
        assert!(panics > 150, "only {panics} calls panicked: the fuses don't burn");
    });
}

async fn try_verb(
    verb: usize,
    dead: bool,
    heard: bool,
    fuse: fn(&Fuses) -> &Fuse,
    calls: u32,
) -> bool {
    let case = format!("verb {verb}, dead {dead}, heard {heard}, at call {calls}");
    let fuses = Arc::new(Fuses::default());
    // No verb makes a table larger: an entry whose hash panics then is not found again.
    let roomy = Cache::builder().shards(2).initial_capacity(200);
    let cache = roomy.sweep(Sweep::default().sample(1.0)).publish(ALL).build();
    let awaited = moody(7, &fuses);
    let mut events = heard.then(|| cache.events_lossless(1_000));
    let ttl = if dead { Duration::ZERO } else { 60 * SECOND };
    for id in 0..20 {
        cache.set_ex(moody(id, &fuses), moody(id, &fuses), 60 * SECOND).await;
        cache.expire(&moody(id, &fuses), ttl).await;
    }
    // Somebody waits for the value that the verb is about: to leave, or to be loaded.
    let mut leaves = spawn(unconstrained(cache.expired(&awaited)));
    let mut loads = spawn(unconstrained(cache.get_or_set_with(&awaited, SECOND, pending)));
    assert_eq!((leaves.poll().is_pending(), loads.poll().is_pending()), (!dead, dead), "{case}");
    fuse(&fuses).light(calls);
    let panicked = AssertUnwindSafe(call(verb, &cache, &fuses)).catch_unwind().await.is_err();
    fuse(&fuses).put_out();

    let read: Vec<u32> = cache.values().map(|value| value.id).collect();
    if let Some(events) = &mut events {
        let mut known: Vec<u32> = so_far(events).iter().map(|event| event.value.id).collect();
        known.extend(&read);
        known.sort_unstable();
        known.dedup();
        let resident = cache.len() - read.len();
        assert!(known.len() + resident >= 20, "{case}: a value is gone without an event");
    }
    check_usable(&cache, &fuses).await;
    panicked
}

const VERBS: usize = 27;

async fn call(verb: usize, cache: &MoodyCache, fuses: &Arc<Fuses>) {
    let key = || moody(7, fuses);
    match verb {
        0 => drop(cache.get(&key()).await),
        1 => drop(cache.get_ex(&key(), SECOND).await),
        2 => drop(cache.get_ex_with(&key(), |_| SECOND).await),
        3 => drop(cache.set(key(), moody(100, fuses)).await),
        4 => drop(cache.set_nx(key(), moody(100, fuses), None).await),
        5 => drop(cache.set_keep_ttl(key(), moody(100, fuses)).await),
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
        17 => drop(cache.compute(&key(), |_| Op::Set(moody(100, fuses))).await),
        18 => drop(cache.compute(&key(), |_| Op::Remove).await),
        19 => drop(cache.compute_with(&key(), async |_| Op::Set(moody(100, fuses))).await),
        20 => drop(cache.get_many([&key(), &moody(8, fuses)]).await),
        21 => drop(cache.set_tagged(key(), moody(100, fuses), SECOND, ["tag"]).await),
        22 => drop(cache.remove_if(|_, value| value.id % 2 == 1).await),
        23 => drop(cache.remove_many([&key(), &moody(8, fuses)]).await),
        24 => drop(cache.expired(&key()).now_or_never()),
        25 => {
            let entries = [7, 8, 7].map(|id| (moody(id, fuses), moody(100 + id, fuses)));
            cache.set_many(entries, None).await;
        }
        _ => {
            let loaded = moody(100, fuses);
            drop(cache.get_or_set_with(&moody(50, fuses), SECOND, async || loaded).await);
        }
    }
}

/// Every shard takes writes and gives reads, and the sweeper lives.
async fn check_usable(cache: &MoodyCache, fuses: &Arc<Fuses>) {
    for id in 0..40 {
        cache.set_ex(moody(id, fuses), moody(id + 1, fuses), SECOND).await;
        let read = cache.get(&moody(id, fuses)).await;
        assert_eq!(read.map(|value| value.id), Some(id + 1), "a shard is not usable any more");
    }
    sleep(2 * SECOND).await;
    let left = cache.iter().filter(|(key, _)| key.id < 40).count();
    assert_eq!((left, cache.live_len()), (0, cache.len()), "the sweeper is dead");
}

#[test]
fn a_closure_that_panics_leaves_the_cache_usable() {
    watched(async || {
        let fuses = Arc::new(Fuses::default());
        let cache = moody_cache();
        cache.set(moody(7, &fuses), moody(1, &fuses)).await;
        let key = moody(7, &fuses);
        let update = cache.update(&key, |value| {
            value.id = 2;
            panic!("the panic of this test")
        });
        let ended: Result<Option<()>, _> = AssertUnwindSafe(update).catch_unwind().await;
        assert!(ended.is_err(), "a panic of the closure is its caller's");
        assert_eq!(cache.get(&key).await.unwrap().id, 2, "the value stays as the closure left it");
        let read = cache.get_ex_with(&key, |_| panic!("the panic of this test"));
        assert!(AssertUnwindSafe(read).catch_unwind().await.is_err());
        assert_eq!(cache.ttl(&key).await.as_secs(), -1, "the TTL stays as it was");
        check_usable(&cache, &fuses).await;
    });
}

/// One value of twenty panics as it is dropped, on each of the ways out, heard of and not.
#[test]
fn a_drop_that_panics_takes_no_other_value_with_it() {
    watched(async || {
        for way in 0..6 {
            for heard in [false, true] {
                try_way_out(way, heard).await;
            }
        }
    });
}

async fn try_way_out(way: u32, heard: bool) {
    let fuses = Arc::new(Fuses::default());
    let quiet = Arc::new(Fuses::default());
    let cache = moody_cache();
    let events = heard.then(|| (cache.events_lossless(1_000), cache.events()));
    for id in 0..20 {
        let fuses = if id == 7 { &fuses } else { &quiet };
        cache.set_ex(moody(id, &quiet), moody(id, fuses), 60 * SECOND).await;
    }
    fuses.drop.light(1);
    let leave = async {
        match way {
            0 => {
                for id in 0..20 {
                    let set = cache.set(moody(id, &quiet), moody(100 + id, &quiet));
                    drop(AssertUnwindSafe(set.map(drop)).catch_unwind().await);
                }
            }
            1 => {
                for id in 0..20 {
                    let key = moody(id, &quiet);
                    let remove = cache.remove(&key).map(drop);
                    drop(AssertUnwindSafe(remove).catch_unwind().await);
                }
            }
            2 => {
                advance(60 * SECOND).await;
                for id in 0..20 {
                    let key = moody(id, &quiet);
                    let get = cache.get(&key).map(drop);
                    drop(AssertUnwindSafe(get).catch_unwind().await);
                }
            }
            3 => sleep(65 * SECOND).await,
            4 => cache.clear().await,
            _ => cache.shutdown().await,
        }
    };
    let _ = AssertUnwindSafe(leave).catch_unwind().await;
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(events)));
    fuses.drop.put_out();
    // Where it panicked in `clear`, the rest is for the next call.
    cache.clear().await;
    assert_eq!(cache.len(), 0, "way {way}, heard {heard}");
    let stats = cache.stats();
    let left = stats.expired + stats.removed + stats.replaced;
    let expected = if way == 0 { 40 } else { 20 };
    assert_eq!(left, expected, "way {way}, heard {heard}: a departure was not counted");
    if way < 5 {
        check_usable(&cache, &quiet).await;
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

fn moody(id: u32, fuses: &Arc<Fuses>) -> Moody {
    Moody { id, fuses: fuses.clone() }
}

fn moody_cache() -> MoodyCache {
    Cache::builder().shards(2).sweep(Sweep::default().sample(1.0)).publish(ALL).build()
}

impl Fuse {
    pub(super) fn light(&self, calls: u32) {
        self.0.store(calls, Relaxed);
    }

    pub(super) fn put_out(&self) {
        self.0.store(0, Relaxed);
    }

    pub(super) fn burn(&self) {
        if thread::panicking() || self.0.load(Relaxed) == 0 {
            return;
        }
        assert!(self.0.fetch_sub(1, Relaxed) > 1, "the panic of this test");
    }
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        self.fuses.clone.burn();
        Self { id: self.id, fuses: self.fuses.clone() }
    }
}

impl PartialEq for Moody {
    fn eq(&self, other: &Self) -> bool {
        self.fuses.eq.burn();
        self.id == other.id
    }
}

impl Eq for Moody {}

impl Hash for Moody {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fuses.hash.burn();
        self.id.hash(state);
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        self.fuses.drop.burn();
    }
}
