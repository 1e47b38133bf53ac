//! Logs of the cache: a span per sweep, a warning for a spent budget, and panics of user code.

use std::{
    collections::hash_map::RandomState,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Sweep};
use tracing::Level;

use crate::log::Log;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn each_sweep_has_a_span_with_its_report_and_the_cache_name() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let cache: Cache<u32, u32> = Cache::builder().name("sessions").build();
    cache.set_ex(1, 1, Duration::ZERO).await;
    tokio::time::sleep(150 * Duration::from_millis(1)).await;
    let spans = log.lines("sweep{");
    assert_eq!(spans.len(), 1, "{spans:?}");
    for part in [
        "DEBUG",
        "sweep{cache=\"sessions\" passes=2 looked_at=1 expired=1 elapsed_us=0",
        "out_of_budget=false held_back=false}",
    ] {
        assert!(spans[0].contains(part), "{part} is not in {}", spans[0]);
    }
}

/// Uses real time, because a paused clock spends no budget.
#[tokio::test]
async fn consecutive_sweeps_cut_by_their_budget_log_a_warning() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let sweep = Sweep::default().every(Duration::from_millis(1)).budget(1e-9);
    let cache: Cache<u32, u32> = Cache::builder().name("busy").sweep(sweep).build();
    // On a busy machine, until three in a row had something to do.
    while cache.stats().sweeps < 20 || log.lines("exceed their budget").is_empty() {
        for key in 0..1_000 {
            cache.set_ex(key, key, Duration::ZERO).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let warnings = log.lines("exceed their budget");
    let sweeps = cache.stats().sweeps as usize;
    assert!(
        warnings.len() <= sweeps / 3,
        "{} warnings in {sweeps} sweeps: at most one per three sweeps",
        warnings.len()
    );
    assert!(warnings[0].contains("WARN"), "{}", warnings[0]);
    assert!(warnings[0].contains("cache=\"busy\" sweeps=3"), "{}", warnings[0]);
}

#[derive(Clone)]
struct DropPanics(Arc<AtomicBool>);

impl Drop for DropPanics {
    fn drop(&mut self) {
        if self.0.load(Relaxed) && !std::thread::panicking() {
            panic!("the panic of this test");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sweeper_survives_and_logs_a_panic_of_drop() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let armed = Arc::new(AtomicBool::new(false));
    let cache: Cache<u32, DropPanics> = Cache::builder().name("hot").build();
    for key in 0..500 {
        cache.set_ex(key, DropPanics(armed.clone()), SECOND).await;
    }
    armed.store(true, Relaxed);
    tokio::time::sleep(3 * SECOND).await;
    armed.store(false, Relaxed);
    assert_eq!(cache.len(), 0);
    let errors = log.lines("drop of expired values panicked");
    assert!(!errors.is_empty());
    assert!(errors[0].contains("ERROR") && errors[0].contains("cache=\"hot\""), "{}", errors[0]);
    cache.set_ex(1, DropPanics(armed.clone()), SECOND).await;
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(cache.len(), 0, "the sweeper continues");
}

#[derive(Clone)]
struct HashPanics(u32, Arc<AtomicBool>);

impl PartialEq for HashPanics {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for HashPanics {}

impl Hash for HashPanics {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!self.1.load(Relaxed), "the panic of this test");
        self.0.hash(state);
    }
}

/// Shrinking a table hashes its keys. An entry whose hash panics can't be looked up any more, but is swept.
#[tokio::test(start_paused = true)]
async fn sweeper_survives_and_logs_a_panic_of_hash() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let armed = Arc::new(AtomicBool::new(false));
    let cache: Cache<HashPanics, u32, RandomState> =
        Cache::builder().name("hot").shards(2).hasher(RandomState::new()).build();
    for key in 0..5_000 {
        let ttl = SECOND * if key < 4_900 { 1 } else { 60 };
        cache.set_ex(HashPanics(key, armed.clone()), key, ttl).await;
    }
    armed.store(true, Relaxed);
    tokio::time::sleep(10 * SECOND).await;
    armed.store(false, Relaxed);
    assert_eq!((cache.len(), cache.live_len()), (100, 100), "nothing is lost");
    let errors = log.lines("hash of keys panicked");
    assert!(!errors.is_empty());
    assert!(errors[0].contains("ERROR") && errors[0].contains("cache=\"hot\""), "{}", errors[0]);
    cache.set_ex(HashPanics(9_999, armed.clone()), 1, SECOND).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(cache.len(), 0, "the sweeper continues and removes every entry");
}

#[tokio::test(start_paused = true)]
async fn panic_of_an_on_expired_callback_is_logged() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let cache: Cache<u32, u32> = Cache::builder().name("hot").build();
    cache.on_expired(async |_| panic!("the panic of this test"));
    cache.set_ex(1, 1, SECOND).await;
    tokio::time::sleep(3 * SECOND).await;
    let errors = log.lines("on_expired callback panicked");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("ERROR") && errors[0].contains("cache=\"hot\""), "{}", errors[0]);
}
