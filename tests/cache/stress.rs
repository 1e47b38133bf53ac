//! Random calls on real threads: results of the callers, events and the remaining entries must agree.
//!
//! `FLEETING_STRESS_SECONDS` sets the duration of the first test (4 by default); the others take half as long.

use std::{
    collections::HashMap,
    io::Write,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Event, Events, LosslessEvents, Sweep, When};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::task::{JoinHandle, yield_now};

use crate::clock::until_enough;

const TASKS: u64 = 8;
const KEYS: u64 = 16;
const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

/// Maximum number of events that a temporary subscriber reads.
const MAX_EVENTS_PER_VISIT: u64 = 200;

/// Number of errors logged by caches named `stress`. No test here may cause one.
static ERRORS: AtomicUsize = AtomicUsize::new(0);

/// Value that is written once per run: `id` is `task << 40 | counter`, and `id % KEYS` is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    id: u64,
    updates: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Removal {
    key: u64,
    value: Value,
    cause: Cause,
}

/// Results that the callers got.
#[derive(Default)]
struct CallResults {
    put: Vec<u64>,
    removal_of: Vec<Removal>,
    /// Pairs of a replaced value and its replacement.
    replaced: Vec<(u64, u64)>,
    updates: u64,
    calls: u64,
}

/// Item that a subscriber received.
#[derive(Clone, Copy)]
enum Received {
    Event(Removal),
    Missed(u64),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_and_events_agree_on_four_threads() {
    until_enough(async || callers_and_events_agree(seconds(1.0), 0x5eed_0001).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_subscribers_do_not_affect_others() {
    until_enough(temporary_subscribers).await;
}

async fn temporary_subscribers() -> bool {
    let cache = cache(16);
    let witness = tokio::spawn(receive_all(cache.events_lossless(64)));
    let permanent = tokio::spawn(receive_until_end(cache.events()));
    let stop = Arc::new(AtomicBool::new(false));
    let visitors: Vec<_> =
        (0..4).map(|id| tokio::spawn(visit(cache.clone(), stop.clone(), id))).collect();
    let results = run_tasks(&cache, seconds(0.5), 0x5eed_0002).await;
    stop.store(true, Relaxed);
    let mut visits = Vec::new();
    for visitor in visitors {
        visits.extend(visitor.await.unwrap());
    }
    let remaining = finish(&cache).await;
    let witness = witness.await.unwrap();
    let much_happened = check(&cache, &results, &witness, &remaining);

    let position: HashMap<u64, usize> =
        witness.iter().enumerate().map(|(position, event)| (event.value.id, position)).collect();
    for visit in &visits {
        check_visit(visit, &witness, &position);
    }
    let permanent_items = permanent.await.unwrap();
    assert_eq!(
        check_gaps(&permanent_items, &witness, 0),
        witness.len(),
        "received and missed events must add up to the published ones"
    );
    assert_eq!(cache.stats().subscribers, 0, "dropped streams must not be counted");
    let has_lagged = permanent_items.iter().any(|received| matches!(received, Received::Missed(_)));
    println!("{} visits; lagged: {has_lagged}", visits.len());
    much_happened && has_lagged && visits.len() > 50
}

#[tokio::test]
async fn callers_and_events_agree_on_one_thread() {
    until_enough(async || callers_and_events_agree(seconds(0.5), 0x5eed_0003).await).await;
}

async fn callers_and_events_agree(time: Duration, seed: u64) -> bool {
    let cache = cache(4_096);
    let witness = tokio::spawn(receive_all(cache.events_lossless(1_024)));
    let results = run_tasks(&cache, time, seed).await;
    let remaining = finish(&cache).await;
    check(&cache, &results, &witness.await.unwrap(), &remaining)
}

/// If a shard's table was replaced by a smaller one, and was empty at the next sweep, later sweeps of this shard
/// started beyond the end of its table.
#[tokio::test(start_paused = true)]
async fn shard_emptied_and_shrunk_is_still_swept() {
    count_errors();
    let sweep = Sweep::manual().sample(0.5).repeat_at(1.0);
    let cache: Cache<u64, u64> = Cache::builder().name("stress").shards(2).sweep(sweep).build();
    for key in 0..100_000 {
        cache.set(key, key).await;
    }
    // The first sweep examines all entries, because they have moved; the second stops in the middle.
    cache.sweep().await;
    cache.sweep().await;
    cache.clear().await;
    let set_expired = async || {
        for key in 0..20 {
            cache.set_ex(key, key, Duration::ZERO).await;
        }
    };
    set_expired().await;
    for key in 0..20 {
        assert_eq!(cache.get(&key).await, None, "a TTL of zero expires immediately");
    }
    cache.sweep().await;
    set_expired().await;
    for _ in 0..2 {
        cache.sweep().await;
    }
    assert_eq!(cache.len(), 0, "two sweeps of half of the entries see all of them");
    assert_eq!(ERRORS.load(Relaxed), 0, "a sweep panicked");
}

/// The same in normal operation: a mass expiry, after which the sweeper shrinks the table.
#[tokio::test(start_paused = true)]
async fn sweeper_continues_after_a_mass_expiry() {
    count_errors();
    for sample in [0.1, 0.3, 0.5, 0.7] {
        let sweep = Sweep::default().sample(sample).repeat_at(1.0);
        let cache: Cache<u64, u64> = Cache::builder().name("stress").shards(2).sweep(sweep).build();
        for round in 0..10 {
            let many = if round % 2 == 0 { 100_000 } else { 10 };
            for key in 0..many {
                cache.set_ex(key, key, Duration::from_secs(1)).await;
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!(
                cache.len(),
                0,
                "sample {sample}, round {round}: expired entries stay in memory"
            );
        }
    }
    assert_eq!(ERRORS.load(Relaxed), 0, "a sweep panicked");
}

fn cache(event_capacity: usize) -> Cache<u64, Value> {
    count_errors();
    let sweep = Sweep::default().every(Duration::from_millis(2)).sample(0.5).seed(7);
    Cache::builder()
        .name("stress")
        .time_to_live(Duration::from_millis(5))
        .sweep(sweep)
        .shards(4)
        .event_capacity(event_capacity)
        .publish(ALL)
        .build()
}

fn seconds(share: f64) -> Duration {
    let seconds = std::env::var("FLEETING_STRESS_SECONDS")
        .map_or(4.0, |text| text.parse().expect("FLEETING_STRESS_SECONDS must be a number"));
    Duration::from_secs_f64(seconds * share)
}

/// Runs all tasks for `time`.
async fn run_tasks(cache: &Cache<u64, Value>, time: Duration, seed: u64) -> CallResults {
    println!("seed {seed:#x}, {time:?}");
    let finish = Instant::now() + time;
    let tasks: Vec<JoinHandle<CallResults>> = (0..TASKS)
        .map(|task| tokio::spawn(run_task(cache.clone(), task, seed ^ (task << 32), finish)))
        .collect();
    let mut all = CallResults::default();
    for task in tasks {
        let results = task.await.expect("no task panics");
        all.put.extend(results.put);
        all.removal_of.extend(results.removal_of);
        all.replaced.extend(results.replaced);
        all.updates += results.updates;
        all.calls += results.calls;
    }
    all
}

async fn run_task(cache: Cache<u64, Value>, task: u64, seed: u64, finish: Instant) -> CallResults {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut results = CallResults::default();
    let mut counter = task << 36;
    while results.calls % 64 != 0 || Instant::now() < finish {
        results.calls += 1;
        let key = random.random_range(0..KEYS);
        counter += 1;
        let value = Value { id: counter * KEYS + key, updates: 0 };
        let ttl = some_ttl(&mut random);
        match random.random_range(0..1_000) {
            0..120 => results.put(value, cache.set(key, value).await),
            120..300 => results.put(value, cache.set_ex(key, value, ttl).await),
            300..360 => results.put(value, cache.set_keep_ttl(key, value).await),
            360..420 => {
                let ttl = random.random_bool(0.7).then_some(ttl);
                if cache.set_nx(key, value, ttl).await {
                    results.put(value, None);
                }
            }
            420..520 => check_read(key, cache.get(&key).await),
            520..560 => check_read(key, cache.get_ex(&key, ttl).await),
            560..600 => check_read(key, cache.get_ex_with(&key, |_| ttl).await),
            600..660 => results.removed(Cause::Removed, cache.remove(&key).await),
            660..720 => results.removed(Cause::Expired, cache.expire_now(&key).await),
            720..760 => drop(cache.expire(&key, ttl).await),
            760..800 => {
                let whens = [When::NoTtl, When::HasTtl, When::Later, When::Sooner];
                let when = whens[random.random_range(0..whens.len())];
                cache.expire_if(&key, ttl, when).await;
            }
            800..830 => drop(cache.expire_at(&key, tokio::time::Instant::now() + ttl).await),
            830..860 => drop(cache.extend(&key, ttl).await),
            860..880 => drop(cache.persist(&key).await),
            880..960 => {
                let updated = cache.update(&key, |value| value.updates += 1).await;
                results.updates += u64::from(updated.is_some());
            }
            960..970 => drop(cache.sweep().await),
            970..980 => cache.iter().for_each(|(key, value)| check_read(key, Some(value))),
            980..982 => cache.clear().await,
            982..990 => yield_now().await,
            // Sleeps, so that values expire and the sweeper finds them before a call does.
            _ => tokio::time::sleep(random.random_range(0..3) * Duration::from_millis(1)).await,
        }
    }
    results
}

impl CallResults {
    fn put(&mut self, value: Value, replaced: Option<Value>) {
        self.put.push(value.id);
        if let Some(old) = replaced {
            self.replaced.push((old.id, value.id));
        }
        self.removed(Cause::Replaced, replaced);
    }

    fn removed(&mut self, cause: Cause, value: Option<Value>) {
        let removal_of = value.map(|value| Removal { key: value.id % KEYS, value, cause });
        self.removal_of.extend(removal_of);
    }
}

fn some_ttl(random: &mut SmallRng) -> Duration {
    match random.random_range(0..4) {
        0 => Duration::ZERO,
        1 => Duration::from_micros(random.random_range(0..200)),
        _ => Duration::from_micros(random.random_range(0..20_000)),
    }
}

fn check_read(key: u64, value: Option<Value>) {
    if let Some(value) = value {
        assert_eq!(value.id % KEYS, key, "the value {value:?} was read at a key it was not put at");
    }
}

/// Makes the remaining entries persistent and shuts the cache down; returns the remaining entries.
async fn finish(cache: &Cache<u64, Value>) -> HashMap<u64, Value> {
    for key in 0..KEYS {
        cache.persist(&key).await;
    }
    cache.shutdown().await;
    cache.iter().collect()
}

/// Checks all results, and returns whether enough happened to be meaningful.
fn check(
    cache: &Cache<u64, Value>,
    results: &CallResults,
    received: &[Removal],
    remaining: &HashMap<u64, Value>,
) -> bool {
    let count = |cause| received.iter().filter(|event| event.cause == cause).count() as u64;
    let [expired, removed, replaced] = [Cause::Expired, Cause::Removed, Cause::Replaced].map(count);
    println!(
        "{} calls wrote {} values: {expired} expired ({} swept), {removed} were removed, \
         {replaced} replaced, {} remain",
        results.calls,
        results.put.len(),
        cache.stats().swept.expired,
        remaining.len()
    );
    check_each_once(results, received, remaining);
    check_results(results, received);
    check_order(results, received, remaining);

    let stats = cache.stats();
    assert_eq!(
        (stats.expired, stats.removed, stats.replaced),
        (expired, removed, replaced),
        "stats and events must count the same removals"
    );
    assert_eq!(
        (cache.len(), stats.overflow),
        (remaining.len(), 0),
        "the cache and the iterator must agree"
    );
    assert_eq!(ERRORS.load(Relaxed), 0, "the cache has logged an error: a sweep panicked");
    [expired, removed, replaced, stats.swept.expired].iter().all(|count| *count > 20)
}

/// Each written value has exactly one event or is still present.
fn check_each_once(results: &CallResults, received: &[Removal], remaining: &HashMap<u64, Value>) {
    let mut put = results.put.clone();
    let mut accounted_for: Vec<u64> = received.iter().map(|event| event.value.id).collect();
    accounted_for.extend(remaining.values().map(|value| value.id));
    put.sort_unstable();
    accounted_for.sort_unstable();
    if let Some(twice) = accounted_for.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("the value {:#x} has two events, or one event and is still present", twice[0]);
    }
    if put != accounted_for {
        let lost = put.iter().find(|id| accounted_for.binary_search(id).is_err());
        let made_up = accounted_for.iter().find(|id| put.binary_search(id).is_err());
        panic!(
            "the value {lost:x?} has no event and is not present, or {made_up:x?} was never written"
        );
    }
    for event in received {
        assert_eq!(event.key, event.value.id % KEYS, "{event:?} has the key of another");
    }
    let updates = received.iter().map(|event| event.value.updates).sum::<u64>()
        + remaining.values().map(|value| value.updates).sum::<u64>();
    assert_eq!(updates, results.updates, "an update was lost, or was made to a removed value");
}

/// A value returned by a removal has an event with this cause, and was returned to one caller only.
fn check_results(results: &CallResults, received: &[Removal]) {
    let events: HashMap<u64, Removal> =
        received.iter().map(|event| (event.value.id, *event)).collect();
    let mut given: Vec<u64> =
        results.removal_of.iter().map(|removal_of| removal_of.value.id).collect();
    given.sort_unstable();
    if let Some(twice) = given.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("the value {:#x} was given to two callers", twice[0]);
    }
    for removal_of in &results.removal_of {
        let event = events.get(&removal_of.value.id);
        assert_eq!(event, Some(removal_of), "the event must match the result of the call");
    }
    let replaced = received.iter().filter(|event| event.cause == Cause::Replaced).count();
    assert_eq!(
        replaced,
        results.replaced.len(),
        "each replaced value must be returned to a caller"
    );
}

/// The value that replaced another is the next one of this key to be removed, or is still present.
fn check_order(results: &CallResults, received: &[Removal], remaining: &HashMap<u64, Value>) {
    let mut next: HashMap<u64, u64> = HashMap::new();
    let mut last: HashMap<u64, u64> = HashMap::new();
    for event in received {
        if let Some(before) = last.insert(event.key, event.value.id) {
            next.insert(before, event.value.id);
        }
    }
    for (key, value) in remaining {
        if let Some(before) = last.insert(*key, value.id) {
            next.insert(before, value.id);
        }
    }
    for (old, new) in &results.replaced {
        assert_eq!(
            next.get(old),
            Some(new),
            "{old:#x} was replaced by {new:#x}, but another one comes after it"
        );
    }
}

async fn receive_all(mut events: LosslessEvents<u64, Value>) -> Vec<Removal> {
    let mut received = Vec::new();
    while let Some(event) = events.recv().await {
        received.push(removal_of(&event));
    }
    received
}

async fn receive_until_end(events: Events<u64, Value>) -> Vec<Received> {
    let mut received = Vec::new();
    receive_some(events, u64::MAX, &mut SmallRng::seed_from_u64(1), &mut received).await;
    received
}

/// Reads up to `most` events with occasional pauses, so that the subscriber lags.
async fn receive_some(
    mut events: Events<u64, Value>,
    most: u64,
    random: &mut SmallRng,
    received: &mut Vec<Received>,
) {
    for _ in 0..most {
        match events.recv().await {
            None => break,
            Some(Ok(event)) => received.push(Received::Event(removal_of(&event))),
            Some(Err(missed)) => received.push(Received::Missed(missed.0)),
        }
        if random.random_bool(0.02) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Subscribes, reads for a while, drops the stream, and starts again. Returns the received items of each subscription.
async fn visit(cache: Cache<u64, Value>, stop: Arc<AtomicBool>, id: u64) -> Vec<Vec<Received>> {
    let mut random = SmallRng::seed_from_u64(id);
    let mut visits = Vec::new();
    while !stop.load(Relaxed) {
        // The timeout also cancels `recv` while it waits.
        let visit_time = Duration::from_millis(random.random_range(1..20));
        let mut received = Vec::new();
        let subscribe_for_a_while = subscribe_for_a_while(&cache, &mut random, &mut received);
        let _ = tokio::time::timeout(visit_time, subscribe_for_a_while).await;
        visits.push(received);
    }
    visits
}

async fn subscribe_for_a_while(
    cache: &Cache<u64, Value>,
    random: &mut SmallRng,
    received: &mut Vec<Received>,
) {
    let most = random.random_range(0..MAX_EVENTS_PER_VISIT);
    if random.random_bool(0.5) {
        return receive_some(cache.events(), most, random, received).await;
    }
    let mut events = cache.events_lossless(random.random_range(1..64));
    for _ in 0..most {
        let event = events.recv().await.expect("the cache is not shut down yet");
        received.push(Received::Event(removal_of(&event)));
    }
}

fn check_visit(visit: &[Received], witness: &[Removal], position: &HashMap<u64, usize>) {
    let first = visit.iter().position(|received| matches!(received, Received::Event(_)));
    let Some(first) = first else { return };
    let Received::Event(event) = visit[first] else { unreachable!("it was just found") };
    let start =
        *position.get(&event.value.id).expect("every received event is known to the witness");
    check_gaps(&visit[first..], witness, start);
}

/// Matches received and missed events with those of the witness, starting at `position`; returns the end position.
fn check_gaps(received: &[Received], witness: &[Removal], mut position: usize) -> usize {
    for received in received {
        match received {
            Received::Missed(missed) => position += *missed as usize,
            Received::Event(event) => {
                assert_eq!(
                    witness.get(position),
                    Some(event),
                    "two subscribers received different events as number {position}"
                );
                position += 1;
            }
        }
    }
    position
}

fn removal_of(event: &Event<u64, Value>) -> Removal {
    Removal { key: event.key, value: event.value, cause: event.cause }
}

fn count_errors() {
    static ONCE: Once = Once::new();
    let errors = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_ansi(false);
    ONCE.call_once(|| errors.with_writer(|| CountsErrors).init());
}

struct CountsErrors;

impl Write for CountsErrors {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        // Other tests of this process make their sweepers panic on purpose.
        ERRORS.fetch_add(usize::from(text.contains("cache=\"stress\"")), Relaxed);
        print!("{text}");
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
