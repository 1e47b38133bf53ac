//! Histories of random calls from several threads and runtimes, each checked for linearizability per key, together with
//! events, causes, statistics and weight.
//!
//! `FLEETING_HISTORY_SECONDS` sets the duration (15 by default), and `FLEETING_SEED` the seed of all random choices.
//! The calls of a history depend only on the seed, their timing does not.

mod checker;
mod loads;
mod model;
mod verbs;
mod worker;

use std::{
    collections::HashMap,
    env,
    fmt::Write as _,
    hint,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Cause, Event, LosslessEvents, Stats, Sweep};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use tokio::runtime::{Builder, Handle, Runtime};

use self::{
    checker::{Operation, Verdict},
    model::{Action, Departed},
    worker::{History, Worker},
};

const THREADS: usize = 3;
const CAUSES: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

/// Calls of one thread in one history.
struct Job {
    worker: Worker,
    calls: u32,
    /// Number of threads that are ready. Each spins for the others, so that their first calls overlap.
    ready: Arc<AtomicUsize>,
    callers: usize,
    done: mpsc::Sender<Worker>,
}

/// Numbers of all histories.
#[derive(Debug, Default)]
struct Totals {
    histories: u64,
    operations: u64,
    events: u64,
    loads: u64,
    too_long: u64,
}

#[test]
fn every_history_is_linearizable_per_key() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("FLEETING_HISTORY_SECONDS").unwrap_or(15);
    let seed = number("FLEETING_SEED").unwrap_or(0x5eed);
    println!("seed {seed}, {seconds} s");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (mut totals, begin) = (Totals::default(), Instant::now());
    let jobs: Vec<_> = (0..THREADS).map(|thread| start(thread, runtime.handle())).collect();
    while begin.elapsed() < Duration::from_secs(seconds) {
        totals.histories += 1;
        let random = SmallRng::seed_from_u64(seed ^ (totals.histories << 20));
        run(random, &runtime, &jobs, &mut totals);
    }
    println!("{totals:?}");
    assert!(totals.too_long * 1_000 <= totals.histories, "too many searches were given up");
}

/// Starts a thread that runs jobs: the first one on the runtime of the cache, the others on runtimes of their own.
fn start(thread: usize, handle: &Handle) -> mpsc::Sender<Job> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let (handle, is_shared) = (handle.clone(), thread == 0);
    thread::spawn(move || {
        let own = Builder::new_current_thread().enable_all().build().unwrap();
        for Job { mut worker, calls, ready, callers, done } in jobs {
            ready.fetch_add(1, SeqCst);
            for spins in 1.. {
                if ready.load(SeqCst) == callers {
                    break;
                }
                hint::spin_loop();
                if spins % 1_000 == 0 {
                    thread::yield_now();
                }
            }
            match is_shared {
                true => handle.block_on(worker.run(calls)),
                false => own.block_on(worker.run(calls)),
            }
            // The main thread may have panicked.
            let _ = done.send(worker);
        }
    });
    sender
}

/// Runs and checks one history.
fn run(mut random: SmallRng, runtime: &Runtime, jobs: &[mpsc::Sender<Job>], totals: &mut Totals) {
    let _context = runtime.enter();
    let keys = *[1, 1, 2, 3].choose(&mut random).expect("four");
    // Without a subscriber, departures take other paths. Evictions are known only from their events.
    let bound = random.random_bool(0.3).then(|| random.random_range(1..=3));
    let is_subscribed = bound.is_some() || random.random_bool(0.8);
    let mut builder = Cache::builder().shards(2).sweep(Sweep::manual()).publish(CAUSES);
    if let Some(bound) = bound {
        builder = builder.max_entries(bound);
    }
    let cache = builder.build();
    let mut events = is_subscribed.then(|| cache.events_lossless(1_000));
    let history = Arc::new(History {
        cache,
        keys,
        tags: random.random_range(1..=2),
        plan: verbs::plan(&mut random, bound.is_some()),
        start: Instant::now(),
        loads: AtomicU64::new(0),
    });
    let mut worker = |thread: usize| Worker {
        history: history.clone(),
        random: SmallRng::seed_from_u64(random.random()),
        value: 1_000 * thread as u32,
        log: vec![],
    };
    let mut first = worker(THREADS);
    // Two callers overlap more exactly than three on a machine with two processors.
    let callers = first.random.random_range(2..=THREADS);
    let workers: Vec<_> = (0..callers).map(&mut worker).collect();
    runtime.block_on(first.run_before());
    let (ready, (done, finished)) = (Arc::default(), mpsc::channel());
    let calls = first.random.random_range(1..=7);
    for (worker, jobs) in workers.into_iter().zip(jobs) {
        let (ready, done) = (Arc::clone(&ready), done.clone());
        jobs.send(Job { worker, calls, ready, callers, done }).expect("the thread runs");
    }
    drop(done);
    let mut log = first.log;
    let ended: Vec<Worker> = finished.iter().collect();
    assert_eq!(ended.len(), callers, "a caller panicked; verbs {:?}", history.plan.verbs);
    log.extend(ended.into_iter().flat_map(|worker| worker.log));
    let departed = runtime.block_on(finish(&history, &mut log, events.as_mut()));
    check(&history, &log, departed, totals);
}

/// Ends a history: removes from memory what cannot be read, reads all keys, and returns the events.
async fn finish(
    history: &History,
    log: &mut Vec<(u8, Operation)>,
    events: Option<&mut LosslessEvents<u8, u32>>,
) -> Option<Vec<(u8, Departed)>> {
    let cache = &history.cache;
    cache.sweep().await;
    let call = history.now();
    let mut resident = 0;
    for key in 0..history.keys {
        let last = cache.get(&key).await;
        resident += usize::from(last.is_some());
        log.push((key, Operation { call, ret: history.now(), action: Action::Saw(last) }));
    }
    let stats = cache.stats();
    let context = || format!("verbs {:?}, {stats:?}", history.plan.verbs);
    assert_eq!((cache.len(), stats.weight), (resident, resident as u64), "{}", context());
    assert_eq!(stats.loads, history.loads.load(SeqCst), "{}", context());
    let mut departed = vec![];
    let events = events?;
    while let Some(Some(event)) = events.recv().now_or_never() {
        let Event { key, value, cause, .. } = *event;
        if cause == Cause::Evicted {
            let action = Action::Evict(value);
            log.push((key, Operation { call: 0, ret: call, action }));
        }
        departed.push((key, (value, cause)));
    }
    for cause in CAUSES {
        let published = departed.iter().filter(|(_, (_, of))| *of == cause).count() as u64;
        assert_eq!(published, counted(&stats, cause), "events of {cause:?}; {}", context());
    }
    Some(departed)
}

fn counted(stats: &Stats, cause: Cause) -> u64 {
    match cause {
        Cause::Expired => stats.expired,
        Cause::Evicted => stats.evicted,
        Cause::Removed => stats.removed,
        _ => stats.replaced,
    }
}

/// Checks the history of each key.
fn check(
    history: &History,
    log: &[(u8, Operation)],
    departed: Option<Vec<(u8, Departed)>>,
    totals: &mut Totals,
) {
    totals.loads += history.loads.load(SeqCst);
    let mut by_key: HashMap<u8, Vec<Operation>> = HashMap::new();
    for (key, operation) in log {
        by_key.entry(*key).or_default().push(*operation);
    }
    for (key, mut operations) in by_key {
        operations.sort_by_key(|operation| operation.call);
        note_possible_discards(&mut operations);
        let events: Option<Vec<Departed>> = departed.as_ref().map(|departed| {
            departed.iter().filter(|(of, _)| *of == key).map(|(_, event)| *event).collect()
        });
        totals.operations += operations.len() as u64;
        totals.events += events.as_ref().map_or(0, Vec::len) as u64;
        match checker::check(&operations, events.as_deref()) {
            Verdict::Linearizable => {}
            Verdict::TooLong => totals.too_long += 1,
            Verdict::Violation(longest) => {
                let mut text = format!("history {} is not linearizable", totals.histories);
                for (at, Operation { call, ret, action }) in operations.iter().enumerate() {
                    let place = longest.iter().position(|ordered| *ordered == at);
                    write!(text, "\n{call:>9}..{ret:<9} {action:?}, ordered: {place:?}").unwrap();
                }
                panic!("{text}\nevents {events:?}; {totals:?}; verbs {:?}", history.plan.verbs);
            }
        }
    }
}

/// Notes for each load whether a concurrent write may have superseded it, even if the write took effect first.
fn note_possible_discards(operations: &mut [Operation]) {
    let writes: Vec<(u64, u64)> = operations
        .iter()
        .filter(|operation| operation.action.is_write())
        .map(|operation| (operation.call, operation.ret))
        .collect();
    let begin_of = |value: u32| {
        let begins = |operation: &&Operation| match operation.action {
            Action::BeginLoad { value: of, .. } => of == value,
            _ => false,
        };
        operations.iter().find(begins).map_or(0, |operation| operation.call)
    };
    let begins: Vec<u64> = operations
        .iter()
        .map(|operation| match operation.action {
            Action::EndLoad { value, .. } => begin_of(value),
            _ => 0,
        })
        .collect();
    for (operation, begin) in operations.iter_mut().zip(begins) {
        if let Action::EndLoad { may_discard, .. } = &mut operation.action {
            *may_discard = writes.iter().any(|(call, ret)| *call <= operation.ret && *ret >= begin);
        }
    }
}
