//! Fairness: overlapping readers do not starve writers or the sweeper, and long calls yield to other tasks. Uses real
//! time and real threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Sweep};
use futures::FutureExt;
use tokio::time::{sleep, timeout};

use crate::patience::patience;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Outside of a task no call waits.
fn call<T>(call_future: impl Future<Output = T>) -> T {
    call_future.now_or_never().expect("a call outside of a task never yields")
}

/// Threads that read `key` of `cache` in a loop until they are dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Readers {
    /// Returns when all of them are reading.
    fn start(cache: &Cache<u64, Vec<u8>>, count: usize) -> Self {
        let (stop, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let read = || {
            let (cache, stop, reading) = (cache.clone(), stop.clone(), reading.clone());
            thread::spawn(move || {
                assert!(call(cache.get(&0)).is_some());
                reading.fetch_add(1, Relaxed);
                while !stop.load(Relaxed) {
                    assert!(call(cache.get(&0)).is_some());
                }
            })
        };
        let threads = (0..count).map(|_| read()).collect();
        while reading.load(Relaxed) < count {
            thread::yield_now();
        }
        Self { threads, stop }
    }

    fn stop(self) {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Reads of one value overlap almost always, so a lock that prefers readers would never be free.
#[test]
fn overlapping_readers_do_not_starve_writers() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    for (readers, size) in [(2, 64), (4, 64), (8, 4_096), (8, 65_536)] {
        let cache = Cache::builder().shards(2).build();
        call(cache.set(0, vec![1; size]));
        let all = Readers::start(&cache, readers);
        let begin = Instant::now();
        for write in 0..200_u64 {
            let key = write % 2;
            call(cache.set_ex(key, vec![2; size], HOUR));
            assert!(
                begin.elapsed() < patience(),
                "{write} writes with {readers} readers of {size} bytes"
            );
        }
        all.stop();
    }
}

/// The sweeper runs on a runtime with one worker, which must be able to run other tasks.
#[test]
fn overlapping_readers_do_not_starve_the_sweeper_or_its_worker() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _context = runtime.enter();
    let cache = Cache::builder().shards(2).sweep(Sweep::default().every(MS)).build();
    call(cache.set(0, vec![1; 4_096]));
    let mut events = cache.events_lossless(10_000);
    let turns = Arc::new(AtomicUsize::new(0));
    let counter = turns.clone();
    runtime.spawn(async move {
        loop {
            sleep(MS).await;
            counter.fetch_add(1, Relaxed);
        }
    });
    let readers = Readers::start(&cache, 8);
    for round in 0..50 {
        let before = turns.load(Relaxed);
        for key in 1..20 {
            call(cache.set_ex(key, Vec::new(), MS));
        }
        let result = runtime.block_on(timeout(patience(), async {
            for _ in 1..20 {
                events.recv().await.unwrap();
            }
            // Other tasks of the same worker got to run.
            while turns.load(Relaxed) < before + 2 {
                sleep(MS).await;
            }
        }));
        result.unwrap_or_else(|_| {
            panic!("round {round}: the entries stay in memory, or the worker is blocked")
        });
    }
    readers.stop();
}

/// A single call may take long, but not thousands of them in a row without a yield.
#[tokio::test]
async fn calls_that_clone_large_values_yield_to_other_tasks() {
    let cache = Cache::new();
    cache.set_ex(0, vec![1_u8; 1 << 20], HOUR).await;
    cache.set(1, vec![1_u8; 1 << 20]).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let counter = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counter.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    for key in [0, 1] {
        let (mut last_turns, mut calls, mut most) = (turns.load(Relaxed), 0, 0);
        for _ in 0..4_000 {
            assert!(cache.get(&key).await.is_some());
            calls += 1;
            let now = turns.load(Relaxed);
            if now != last_turns {
                (last_turns, calls) = (now, 0);
            }
            most = most.max(calls);
        }
        // Some dozens of calls fit between two ticks. By their number alone there would be 7,808.
        assert!(most < 1_000, "{most} calls without a yield");
    }
    other.abort();
}

/// The first call of a task never yields: if it is polled once and dropped, it has returned its result.
#[tokio::test]
async fn first_call_of_a_task_never_yields() {
    let cache = Cache::new();
    cache.set_ex(0, vec![1_u8; 10], HOUR).await;
    for _ in 0..100 {
        sleep(MS).await;
        assert!(cache.get(&0).now_or_never().flatten().is_some());
    }
}

/// Type of the only key; its hash waits if it has a `wait`.
#[derive(Clone, Debug)]
struct SlowKey {
    wait: Option<Arc<Wait>>,
}

#[derive(Debug)]
struct Wait {
    begun: AtomicBool,
    go_on: AtomicBool,
}

impl PartialEq for SlowKey {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SlowKey {}

impl std::hash::Hash for SlowKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        if let Some(wait) = &self.wait {
            wait.begun.store(true, Relaxed);
            while !wait.go_on.load(Relaxed) {
                thread::yield_now();
            }
        }
        0.hash(state);
    }
}

type CallFn<T> = fn(&Cache<SlowKey, u32>, SlowKey) -> T;

const KEY: SlowKey = SlowKey { wait: None };

fn slow() -> (SlowKey, Arc<Wait>) {
    let wait = Arc::new(Wait { begun: AtomicBool::new(false), go_on: AtomicBool::new(false) });
    (SlowKey { wait: Some(wait.clone()) }, wait)
}

/// Runs `function` in a thread with a key whose hash takes as long as `during`.
fn call_slowly<T: Send + 'static>(
    function: impl FnOnce(SlowKey) -> T + Send + 'static,
    during: impl FnOnce(),
) -> T {
    let (key, wait) = slow();
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(function(key)).unwrap());
    while !wait.begun.load(Relaxed) {
        thread::yield_now();
    }
    during();
    wait.go_on.store(true, Relaxed);
    thread.join().unwrap();
    receiver.recv().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn observed_expiry_is_never_undone() {
    let functions: [CallFn<bool>; 5] = [
        |cache, key| call(cache.expire(&key, HOUR)),
        |cache, key| call(cache.get_ex(&key, HOUR)).is_some(),
        |cache, key| call(cache.extend(&key, HOUR)),
        |cache, key| call(cache.persist(&key)),
        |cache, key| call(cache.set_keep_ttl(key, 2)).is_some(),
    ];
    for function in functions {
        let cache: Cache<SlowKey, u32> = Cache::builder().sweep(Sweep::manual()).build();
        cache.set_ex(KEY, 1, 100 * MS).await;
        let its = cache.clone();
        let revived = call_slowly(
            move |key| function(&its, key),
            // Observed as expired, and left in place.
            || while cache.iter().next().is_some() {},
        );
        assert!(!revived);
        assert_ne!(cache.get(&KEY).await, Some(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn event_times_of_a_key_never_decrease() {
    let functions: [CallFn<()>; 4] = [
        |cache, key| _ = call(cache.set(key, 3)),
        |cache, key| _ = call(cache.set_ex(key, 3, HOUR)),
        |cache, key| _ = call(cache.remove(&key)),
        |cache, key| _ = call(cache.expire_now(&key)),
    ];
    for function in functions {
        let all = [Cause::Expired, Cause::Removed, Cause::Replaced];
        let cache: Cache<SlowKey, u32> = Cache::builder().publish(all).build();
        let mut events = cache.events_lossless(10);
        cache.set_ex(KEY, 1, HOUR).await;
        let its = cache.clone();
        call_slowly(
            move |key| function(&its, key),
            || {
                thread::sleep(20 * MS);
                call(cache.set_ex(KEY, 2, HOUR));
            },
        );
        let (first, second) = (events.recv().await.unwrap(), events.recv().await.unwrap());
        assert_eq!((first.value, second.value), (1, 2));
        assert!(first.at <= second.at, "{:?} after {:?}", second.at, first.at);
    }
}
