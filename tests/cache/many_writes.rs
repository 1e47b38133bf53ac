//! `set_many` and `remove_many`: the same effects as single calls, also with panics, cancellation and concurrency.

use std::{
    collections::BTreeMap,
    hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Cause, LosslessEvents, Sweep, Ttl};
use futures::FutureExt;
use tokio::{
    sync::oneshot,
    task::{unconstrained, yield_now},
    time::advance,
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

type Received = (u32, u32, Cause);

fn drain(events: &mut LosslessEvents<u32, u32>) -> Vec<Received> {
    let next = || unconstrained(events.recv()).now_or_never().flatten();
    std::iter::from_fn(next).map(|event| (event.key, event.value, event.cause)).collect()
}

/// Groups events by key, because the order of different keys is unspecified.
fn by_key(received: Vec<Received>) -> BTreeMap<u32, Vec<(u32, Cause)>> {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for (key, value, cause) in received {
        keys.entry(key).or_default().push((value, cause));
    }
    keys
}

/// With one shard or many, idle deadlines, tags, and a table that is shrinking: contents and events are the same as
/// with single calls.
#[tokio::test(start_paused = true)]
async fn batches_equal_single_calls_in_contents_and_events() {
    for (shards, idle, tagged) in
        [(1, false, false), (4, true, false), (64, false, true), (2, true, true)]
    {
        let [together, single] = [(); 2].map(|()| {
            let builder = Cache::<u32, u32>::builder().shards(shards).publish(ALL);
            let builder = builder.sweep(Sweep::manual()).time_to_live(MINUTE);
            if idle { builder.time_to_idle(40 * SECOND).build() } else { builder.build() }
        });
        let mut events = [&together, &single].map(|cache| cache.events_lossless(100_000));
        for cache in [&together, &single] {
            for key in 0..20_000 {
                let ttl = if key % 3 == 0 { SECOND } else { MINUTE };
                match key % 100 {
                    7 => _ = cache.set_tagged(key, key, ttl, ["tag"]).await,
                    _ => _ = cache.set_ex(key, key, ttl).await,
                }
            }
            cache.remove_if(|key, _| *key >= 2_000).await;
            if tagged {
                cache.remove_tag("tag").await;
            } else {
                // Starts to shrink the tables, and is far from done.
                cache.sweep().await;
            }
        }
        advance(SECOND).await;
        // Some keys have expired, some are live, some are new; some occur twice, far apart or next to each other.
        let entries = || (1_000..4_000).chain(1_500..1_600).chain([9, 9, 9]).zip(50_000..);
        let keys: Vec<u32> = (500..1_200).chain(3_500..4_500).chain([3, 3]).collect();
        together.set_many(entries(), None).await;
        let removed = together.remove_many(&keys).await;
        let mut removed_singly = 0;
        for (key, value) in entries() {
            single.set(key, value).await;
        }
        for key in &keys {
            removed_singly += usize::from(single.remove(key).await.is_some());
        }
        assert_eq!(removed, removed_singly);
        let [received, expected] = events.each_mut().map(drain);
        assert_eq!(by_key(received), by_key(expected));
        let contents = [&together, &single].map(|cache| cache.iter().collect::<BTreeMap<_, _>>());
        assert_eq!(contents[0], contents[1]);
        for key in [9, 1_300, 1_550, 2_900] {
            assert_eq!(together.ttl(&key).await, single.ttl(&key).await);
        }
        together.set_many([(1, 1), (2, 2)], Some(5 * SECOND)).await;
        assert_eq!(together.ttl(&2).await, Ttl::Remaining(5 * SECOND));
        let [a, b] = [together.stats(), single.stats()];
        assert_eq!((a.removed, a.expired), (b.removed, b.expired));
    }
}

/// In a bounded cache, the victims are the same too.
#[tokio::test(start_paused = true)]
async fn batches_evict_the_same_entries_as_single_calls() {
    type Steady = BuildHasherDefault<DefaultHasher>;
    for by_weight in [false, true] {
        let [together, single] = [(); 2].map(|()| {
            let builder = Cache::<u32, u32>::builder().hasher(Steady::default()).publish(ALL);
            let builder = builder.sweep(Sweep::manual().seed(7));
            match by_weight {
                true => builder.max_weight(500, |_, value| value % 5).build(),
                false => builder.max_entries(300).build(),
            }
        });
        let mut events = [&together, &single].map(|cache| cache.events_lossless(100_000));
        let entries = || (0..3_000).zip(0..).map(|(key, value)| (key % 2_000, value));
        together.set_many(entries(), Some(MINUTE)).await;
        for (key, value) in entries() {
            single.set_ex(key, value, MINUTE).await;
        }
        let [received, expected] = events.each_mut().map(drain);
        assert_eq!(received, expected);
        assert!(together.weight() <= if by_weight { 500 } else { 300 });
        assert!(!received.is_empty() && together.weight() == single.weight());
    }
}

/// Key whose `Eq` panics after a number of calls.
#[derive(Clone, Debug)]
struct FusedKey(u32, Arc<AtomicU32>);

impl PartialEq for FusedKey {
    fn eq(&self, other: &Self) -> bool {
        let remaining = self.1.load(Relaxed);
        if remaining > 0 && self.0 == other.0 {
            self.1.store(remaining - 1, Relaxed);
            assert!(remaining > 1, "the panic of this test");
        }
        self.0 == other.0
    }
}

impl Eq for FusedKey {}

impl Hash for FusedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Hasher that sends all small numbers to one shard.
#[derive(Clone, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only `write_u32` is used")
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = number.into();
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Events of the completed part are published immediately, and its waiters are notified; the rest is unchanged.
#[tokio::test(start_paused = true)]
async fn panic_in_a_batch_keeps_and_publishes_the_completed_part() {
    for removes in [false, true] {
        for panics_at in 1..12 {
            let fuse = Arc::new(AtomicU32::new(0));
            let key = |id| FusedKey(id, fuse.clone());
            let builder = Cache::<FusedKey, u32>::builder().initial_capacity(6_400).publish(ALL);
            let builder = builder.hasher(BuildHasherDefault::<IdentityHasher>::default());
            let cache = builder.negative_ttl(MINUTE).build();
            for id in 0..10 {
                let fails = async || Err::<u32, _>("no");
                assert!(cache.get_or_try_set_with(&key(id), SECOND, fails).await.is_err());
                cache.set(key(id), id).await;
            }
            let mut events = cache.events_lossless(100);
            let mut received = spawn(events.recv());
            assert_pending!(received.poll());
            let new = key(50);
            let mut insertion = spawn(unconstrained(cache.wait_for(&new)));
            assert_pending!(insertion.poll());

            fuse.store(panics_at, Relaxed);
            let keys: Vec<FusedKey> = (0..10).map(key).collect();
            let call = async {
                if removes {
                    cache.remove_many(&keys).await;
                } else {
                    // The first entry is a new one, which is compared with nothing.
                    let old = (0..10).map(|id| (key(id), 100 + id));
                    cache.set_many([(key(50), 1)].into_iter().chain(old), None).await;
                }
            };
            let panicked = AssertUnwindSafe(call).catch_unwind().await.is_err();
            fuse.store(0, Relaxed);
            assert_eq!(panicked, panics_at <= 10);
            let done = panics_at.min(11) as usize - 1;
            assert_eq!(received.is_woken(), done > 0, "{done} entries removed");
            drop(received);
            let mut removed_keys = Vec::new();
            while let Some(event) = unconstrained(events.recv()).now_or_never().flatten() {
                removed_keys.push(event.key.0);
            }
            assert_eq!(
                removed_keys,
                (0..done as u32).collect::<Vec<_>>(),
                "the entries are written in order"
            );
            for id in 0..10 {
                let is_done = id < done as u32;
                let value = if removes { None } else { Some(100 + id) };
                let expected = if is_done { value } else { Some(id) };
                assert_eq!(cache.get(&key(id)).await, expected);
            }
            if !removes {
                assert!(insertion.is_woken());
                assert_ready_eq!(insertion.poll(), 1);
            }
        }
    }
}

/// Batches take precedence over running loads, and discard kept errors.
#[tokio::test(start_paused = true)]
async fn set_many_and_remove_many_supersede_loads_and_discard_kept_errors() {
    let cache: Cache<u32, u32> = Cache::builder().negative_ttl(MINUTE).build();
    for removes in [false, true] {
        for key in [1, 2] {
            let fails = async || Err::<u32, _>("no");
            assert!(cache.get_or_try_set_with(&key, MINUTE, fails).await.is_err());
        }
        match removes {
            true => assert_eq!(cache.remove_many([&1, &2]).await, 0),
            false => cache.set_many([(1, 7), (2, 7)], Some(Duration::ZERO)).await,
        }
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let opened = gate.clone();
        let slow = async move || {
            opened.acquire().await.unwrap().forget();
            Ok::<_, &str>(8)
        };
        let mut load = spawn(unconstrained(cache.get_or_try_set_with(&1, MINUTE, slow)));
        assert_pending!(load.poll(), "the batch discarded the error");
        match removes {
            true => assert_eq!(cache.remove_many([&1, &3]).await, 0),
            false => cache.set_many([(1, 9), (3, 9)], None).await,
        }
        gate.add_permits(1);
        assert_eq!(assert_ready!(load.poll()), Ok(8));
        assert_eq!(cache.get(&1).await, if removes { None } else { Some(9) });
        cache.clear().await;
    }
}

/// Each key counts as a call for the cooperative budget.
#[tokio::test]
async fn batches_of_many_keys_yield() {
    const MANY: u32 = 100_000;
    let cache: Cache<u32, u32> = Cache::new();
    let keys: Arc<[u32]> = (0..MANY).collect();
    for method in 0..3 {
        let (cache, keys) = (cache.clone(), keys.clone());
        let work = tokio::spawn(async move {
            match method {
                0 => cache.set_many((0..MANY).map(|key| (key, key)), None).await,
                1 => assert_eq!(cache.get_many(&*keys).await.len(), MANY as usize),
                _ => assert_eq!(cache.remove_many(&*keys).await, MANY as usize),
            }
        });
        let mut turns = 0;
        while !work.is_finished() {
            yield_now().await;
            turns += 1;
        }
        work.await.unwrap();
        // A turn has 128 units of budget, and a unit pays for 61 calls.
        assert!(turns >= MANY / (128 * 61), "method {method}: {turns}");
    }
}

/// Value that is slow to clone and to drop.
struct Slow(u64, u64);

impl Clone for Slow {
    fn clone(&self) -> Self {
        std::thread::sleep(Duration::from_millis(1));
        Self(self.0, self.1)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Uses real time: a call that is slow because of a few keys yields too.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn batches_of_few_slow_keys_yield() {
    for method in 0..3 {
        // If the processor is busy elsewhere, few ticks of the clock are observed.
        let mut turn_counts = Vec::new();
        while turn_counts.last().is_none_or(|turns| *turns <= 4) {
            assert!(turn_counts.len() < 20, "method {method}: {turn_counts:?}");
            turn_counts.push(count_turns_of_another_task(method).await);
        }
    }
}

/// Counts the turns of another task until 80 slow keys are done.
async fn count_turns_of_another_task(method: u32) -> u32 {
    let cache: Cache<u64, Slow> = Cache::new();
    cache.set_many((0..80).map(|key| (key, Slow(key, 0))), Some(MINUTE)).await;
    let (begin, begun) = oneshot::channel();
    let work = tokio::spawn(async move {
        // Waits until the other task exists.
        begun.await.unwrap();
        let keys: Vec<u64> = (0..80).collect();
        match method {
            0 => drop(cache.get_many(&keys).await),
            1 => cache.set_many(keys.iter().map(|key| (*key, Slow(*key, 1))), None).await,
            _ => assert_eq!(cache.remove_many(&keys).await, 80),
        }
    });
    let others = tokio::spawn(async move {
        let mut turns = 0;
        begin.send(()).unwrap();
        while !work.is_finished() {
            yield_now().await;
            turns += 1;
        }
        turns
    });
    others.await.unwrap()
}

/// A cancelled call has written a part of its entries completely, and nothing of the others.
#[tokio::test]
async fn cancelled_batch_has_written_a_part() {
    const MANY: u32 = 100_000;
    let cache: Cache<u32, Arc<u32>> = Cache::new();
    let value = Arc::new(7);
    let put = {
        let (cache, value) = (cache.clone(), value.clone());
        tokio::spawn(async move {
            cache.set_many((0..MANY).map(|key| (key, value.clone())), None).await;
        })
    };
    yield_now().await;
    put.abort();
    assert!(put.await.unwrap_err().is_cancelled());
    let len = cache.len();
    assert!(len > 0 && len < MANY as usize, "{len}");
    assert_eq!((Arc::strong_count(&value), cache.iter().count()), (len + 1, len));
    cache.clear().await;
    assert_eq!(Arc::strong_count(&value), 1);
}

/// Calls from several threads use the same keys: each written value is either resident or has one event.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_batches_lose_no_event() {
    for bounded in [false, true] {
        let builder = Cache::<u32, u32>::builder();
        let cache = if bounded { builder.max_entries(100).build() } else { builder.build() };
        let tasks = (0..4_u32).map(|task| {
            let cache = cache.clone();
            tokio::spawn(async move {
                let mut removed = 0;
                for round in 0..100 {
                    let keys: Vec<u32> =
                        (0..50).map(|n| (n * (round % 7 + 1) + task) % 300).collect();
                    cache.set_many(keys.iter().map(|key| (*key, round)), Some(MINUTE)).await;
                    if round % 3 == task % 3 {
                        removed += cache.remove_many(&keys).await;
                    }
                }
                removed
            })
        });
        let mut removed = 0;
        for task in tasks.collect::<Vec<_>>() {
            removed += task.await.unwrap();
        }
        let stats = cache.stats();
        assert_eq!(stats.removed, removed as u64);
        let accounted_for = stats.evicted + stats.removed + stats.replaced + stats.resident as u64;
        assert_eq!(accounted_for, 4 * 100 * 50);
        assert!(!bounded || cache.len() <= 100);
    }
}
