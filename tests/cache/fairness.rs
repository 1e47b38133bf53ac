//! Nobody is kept waiting by those who only read, and no task keeps its worker. By the real clock, on real threads.

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

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Outside of a task nothing waits.
fn call<T>(verb: impl Future<Output = T>) -> T {
    verb.now_or_never().expect("a verb takes its turn in tasks only")
}

/// Threads that read `key` of `cache` over and over, until they are dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Readers {
    /// Comes back when all of them read.
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

/// Readers of one value overlap nearly always, and a lock that prefers readers would never be free.
#[test]
fn writers_get_in_beside_readers_that_overlap() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    for (readers, size) in [(2, 64), (4, 64), (8, 4_096), (8, 65_536)] {
        let cache = Cache::builder().shards(2).build();
        call(cache.set(0, vec![1; size]));
        let all = Readers::start(&cache, readers);
        let begin = Instant::now();
        for write in 0..200_u64 {
            let key = write % 2;
            call(cache.set_ex(key, vec![2; size], PATIENCE));
            assert!(begin.elapsed() < PATIENCE, "{write} writes beside {readers} of {size}");
        }
        all.stop();
    }
}

/// The sweeper has a runtime of one worker, which must go on with all else that it has.
#[test]
fn the_sweeper_gets_in_beside_readers_and_blocks_no_worker() {
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
        let gone = runtime.block_on(timeout(PATIENCE, async {
            for _ in 1..20 {
                events.recv().await.unwrap();
            }
            // And whoever else has something to do there has had turns.
            while turns.load(Relaxed) < before + 2 {
                sleep(MS).await;
            }
        }));
        gone.unwrap_or_else(|_| panic!("in round {round} they stay, or the worker stands still"));
    }
    readers.stop();
}

/// One call may take long, but not thousands of them one after the other.
#[tokio::test]
async fn large_values_let_others_have_their_turn() {
    let cache = Cache::new();
    cache.set_ex(0, vec![1_u8; 1 << 20], PATIENCE).await;
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
        let (mut seen, mut calls, mut most) = (turns.load(Relaxed), 0, 0);
        for _ in 0..4_000 {
            assert!(cache.get(&key).await.is_some());
            calls += 1;
            let now = turns.load(Relaxed);
            if now != seen {
                (seen, calls) = (now, 0);
            }
            most = most.max(calls);
        }
        // Some dozens come between two ticks. By their number alone it would be 7,808.
        assert!(most < 1_000, "{most} calls without a turn for others");
    }
    other.abort();
}

/// A first call of a task never yields: who polls once, and drops it, gets an answer.
#[tokio::test]
async fn a_call_that_is_polled_once_answers() {
    let cache = Cache::new();
    cache.set_ex(0, vec![1_u8; 10], PATIENCE).await;
    for _ in 0..100 {
        sleep(MS).await;
        assert!(cache.get(&0).now_or_never().flatten().is_some());
    }
}

/// The only key, whose hash waits where it is told to.
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

type Verb<T> = fn(&Cache<SlowKey, u32>, SlowKey) -> T;

const KEY: SlowKey = SlowKey { wait: None };

fn slow() -> (SlowKey, Arc<Wait>) {
    let wait = Arc::new(Wait { begun: AtomicBool::new(false), go_on: AtomicBool::new(false) });
    (SlowKey { wait: Some(wait.clone()) }, wait)
}

/// Calls `verb` in a thread with a key whose hash takes as long as `meanwhile`.
fn slowly<T: Send + 'static>(
    verb: impl FnOnce(SlowKey) -> T + Send + 'static,
    meanwhile: impl FnOnce(),
) -> T {
    let (key, wait) = slow();
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(verb(key)).unwrap());
    while !wait.begun.load(Relaxed) {
        thread::yield_now();
    }
    meanwhile();
    wait.go_on.store(true, Relaxed);
    thread.join().unwrap();
    receiver.recv().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_anybody_saw_dead_stays_dead() {
    let verbs: [Verb<bool>; 5] = [
        |cache, key| call(cache.expire(&key, PATIENCE)),
        |cache, key| call(cache.get_ex(&key, PATIENCE)).is_some(),
        |cache, key| call(cache.extend(&key, PATIENCE)),
        |cache, key| call(cache.persist(&key)),
        |cache, key| call(cache.set_keep_ttl(key, 2)).is_some(),
    ];
    for verb in verbs {
        let cache: Cache<SlowKey, u32> = Cache::builder().sweep(Sweep::manual()).build();
        cache.set_ex(KEY, 1, 100 * MS).await;
        let its = cache.clone();
        let revived = slowly(
            move |key| verb(&its, key),
            // Seen, and left where it is.
            || while cache.iter().next().is_some() {},
        );
        assert!(!revived);
        assert_ne!(cache.get(&KEY).await, Some(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_stamps_of_a_key_never_go_back() {
    let verbs: [Verb<()>; 4] = [
        |cache, key| _ = call(cache.set(key, 3)),
        |cache, key| _ = call(cache.set_ex(key, 3, PATIENCE)),
        |cache, key| _ = call(cache.remove(&key)),
        |cache, key| _ = call(cache.expire_now(&key)),
    ];
    for verb in verbs {
        let all = [Cause::Expired, Cause::Removed, Cause::Replaced];
        let cache: Cache<SlowKey, u32> = Cache::builder().publish(all).build();
        let mut events = cache.events_lossless(10);
        cache.set_ex(KEY, 1, PATIENCE).await;
        let its = cache.clone();
        slowly(
            move |key| verb(&its, key),
            || {
                thread::sleep(20 * MS);
                call(cache.set_ex(KEY, 2, PATIENCE));
            },
        );
        let (first, second) = (events.recv().await.unwrap(), events.recv().await.unwrap());
        assert_eq!((first.value, second.value), (1, 2));
        assert!(first.at <= second.at, "{:?} after {:?}", second.at, first.at);
    }
}
