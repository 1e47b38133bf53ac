//! User types that misbehave: they panic at a chosen moment, or call the cache while they are dropped.
//!
//! Whatever they do, nothing waits for itself, and nothing is lost but what panicked.

use std::{
    cell::Cell,
    collections::HashSet,
    hash::{Hash, Hasher},
    marker::PhantomPinned,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use fleeting::{Cache, Cause, Event, Events, LosslessEvents, Sweep, When};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(300);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

// Types that panic at a chosen call.

/// How many calls until one panics; 0 for never.
#[derive(Default)]
struct Fuse(AtomicU32);

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
    let cache = moody_cache();
    let mut events = heard.then(|| cache.events_lossless(1_000));
    let ttl = if dead { Duration::ZERO } else { 60 * SECOND };
    for id in 0..20 {
        cache.set_ex(moody(id, &fuses), moody(id, &fuses), 60 * SECOND).await;
        cache.expire(&moody(id, &fuses), ttl).await;
    }
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

const VERBS: usize = 17;

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
        _ => cache.clear().await,
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

fn so_far<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| events.recv().now_or_never().flatten()).collect()
}

impl Fuse {
    fn light(&self, calls: u32) {
        self.0.store(calls, Relaxed);
    }

    fn put_out(&self) {
        self.0.store(0, Relaxed);
    }

    fn burn(&self) {
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

// A value that calls its cache as it is dropped.

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
            for verb in 0..3 {
                let (cache, home) = caller_cache();
                let events = cache.events_lossless(100);
                let one = key(1);
                cache.set(Key(1, one.1.clone()), caller(1, &home)).await;
                one.1.light(calls);
                let remove = async {
                    match verb {
                        0 => drop(cache.remove(&one).await),
                        1 => drop(cache.expire_now(&one).await),
                        _ => drop(cache.set(Key(1, one.1.clone()), caller(2, &home)).await),
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

fn caller_cache() -> (CallerCache, Arc<Home>) {
    let sweep = Sweep::default().sample(1.0);
    let cache: CallerCache =
        Cache::builder().shards(2).event_capacity(2).sweep(sweep).publish(ALL).build();
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

// Unusual types that do nothing wrong.

/// A value that listens to the cache that it is in.
#[derive(Clone)]
struct Listener(#[allow(dead_code)] Arc<Mutex<Events<u32, Listener>>>);

#[test]
fn a_value_may_hold_a_stream_of_its_own_cache() {
    watched(async || {
        let cache: Cache<u32, Listener> =
            Cache::builder().event_capacity(4).publish(ALL).shards(2).build();
        let listener = || Listener(Arc::new(Mutex::new(cache.events())));
        for round in 0..3 {
            for id in 0..10 {
                cache.set_ex(id, listener(), SECOND).await;
            }
            assert!(cache.stats().subscribers >= 10, "round {round}");
        }
        sleep(3 * SECOND).await;
        assert_eq!(cache.len(), 0, "it still sweeps");
        let held = cache.stats().subscribers;
        assert!(held <= 4, "{held} streams: more than the last events in the ring hold");
        cache.set(1, listener()).await;
        cache.clear().await;
    });
}

#[derive(Clone, PartialEq, Eq)]
struct Collides(u32);

impl Hash for Collides {
    fn hash<H: Hasher>(&self, state: &mut H) {
        0_u64.hash(state);
    }
}

#[test]
fn keys_that_all_collide_are_slow_but_right() {
    watched(async || {
        const KEYS: u32 = 2_000;
        let cache: Cache<Collides, u32> = Cache::builder().publish(ALL).build();
        let mut events = cache.events_lossless(10_000);
        for key in 0..KEYS {
            let ttl = if key % 2 == 0 { SECOND } else { 60 * SECOND };
            cache.set_ex(Collides(key), key, ttl).await;
        }
        assert_eq!(cache.len(), KEYS as usize);
        for key in (0..KEYS).step_by(10) {
            assert_eq!(cache.get(&Collides(key)).await, Some(key), "another one's value");
        }
        sleep(3 * SECOND).await;
        let expired: HashSet<u32> = so_far(&mut events).iter().map(|event| event.key.0).collect();
        assert_eq!(expired, (0..KEYS).step_by(2).collect(), "the wrong ones expired");
        for key in (1..KEYS).step_by(10) {
            assert_eq!(cache.remove(&Collides(key)).await, Some(key), "another one's value");
        }
        sleep(60 * SECOND).await;
        assert_eq!(cache.len(), 0, "it still sweeps");
    });
}

#[test]
fn types_of_unusual_size_go_in_and_out() {
    watched(async || {
        check_type((), ()).await;
        check_type(1_u8, [7_u8; 10_000]).await;
        check_type("k".repeat(1_000), "v".repeat(1 << 20)).await;
        check_type([3_u64; 125], vec![1_u8; 1 << 20]).await;
        check_type(Some(()), Arc::new(())).await;
        check_type(1_u128, (5_u8, PhantomPinned)).await;
        check_type(Box::new(9_u32), None::<Box<[u8]>>).await;
        check_type(u64::MAX, (|| 7) as fn() -> u32).await;
        check_type("static", std::marker::PhantomData::<fn(std::rc::Rc<()>)>).await;
    });
}

/// A value of each kind through each of the ways in and out.
async fn check_type<K, V>(key: K, value: V)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + PartialEq + Send + Sync + 'static,
{
    let cache: Cache<K, V> = Cache::builder().publish(ALL).build();
    let mut events = cache.events_lossless(10);
    let is_value = |read: Option<V>| read.is_some_and(|read| read == value);
    assert!(cache.set(key.clone(), value.clone()).await.is_none());
    assert!(is_value(cache.get(&key).await));
    assert!(is_value(cache.set_ex(key.clone(), value.clone(), SECOND).await));
    assert!(!cache.set_nx(key.clone(), value.clone(), None).await);
    assert_eq!((cache.iter().count(), cache.len()), (1, 1));
    assert!(is_value(cache.remove(&key).await));
    cache.set_ex(key.clone(), value.clone(), SECOND).await;
    sleep(3 * SECOND).await;
    assert_eq!(cache.len(), 0, "it did not expire");
    let told = so_far(&mut events);
    let causes: Vec<Cause> = told.iter().map(|event| event.cause).collect();
    assert_eq!(causes, [Cause::Replaced, Cause::Removed, Cause::Expired]);
    assert!(told.iter().all(|event| event.key == key && event.value == value));
}

/// Runs `test` on a thread of its own, with a paused clock, and fails where it gets stuck.
fn watched<Test, Running>(test: Test)
where
    Test: FnOnce() -> Running + Send + 'static,
    Running: Future<Output = ()>,
{
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(test());
        drop(runtime);
        done.send(()).expect("the watchdog waits longer than this");
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().expect("it is done"),
        Err(RecvTimeoutError::Timeout) => {
            panic!("still running after {PATIENCE:?}: something waits for itself")
        }
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it ended early"))
        }
    }
}
