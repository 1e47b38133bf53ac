//! Randomized test of a group of subscribers of `redis::Cache` in four processes. Each expiration is delivered, no
//! replaced or removed value is, and none is delivered again after its ack. All faults of [`history`](crate::history)
//! are injected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client, Error, LosslessEvents};
use rand::{RngExt, rngs::SmallRng};
use tokio::time::{sleep, timeout};

use crate::{
    clock::ms,
    history::{History, Outcome, Process, check, max_delay, now, numbers_of},
    patience::patience,
    servers::connect,
};

/// Tasks that write, and after them those that subscribe.
const WRITERS: usize = 4;
const TASKS: usize = WRITERS + 2;

const GROUP: &str = "g";

struct Group {
    cache: Cache<String, u64>,
    process: Process,
    /// Number of the last value and of the last subscription of this process.
    last: AtomicU64,
}

fn cache(client: &Client) -> Cache<String, u64> {
    let builder = Cache::builder(client, "h").events(Duration::from_secs(3_600)).lease(ms(400));
    builder.time_to_live(ms(100)).poll_every(ms(20)).build().unwrap()
}

/// Returns the items of a record for a method that returned the previous value.
fn previous(outcome: Outcome<Option<u64>>) -> String {
    match outcome {
        Outcome::Done(None) => "done".into(),
        Outcome::Done(Some(old)) => format!("done {old}"),
        Outcome::Refused => "refused".into(),
        Outcome::Unknown => "unknown".into(),
    }
}

impl Group {
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) << 8 | self.process.number as u64
    }

    /// Writes values at a new key, until a call has failed with an unknown outcome: the server may still execute it
    /// after a later one.
    async fn write(&self, random: &mut SmallRng) {
        let key = self.next();
        let name = key.to_string();
        let mut is_known = true;
        while is_known && random.random_ratio(19, 20) && self.process.is_running() {
            match random.random_range(0..12) {
                0 => {
                    let old = self.process.outcome(self.cache.remove(&name).await, true);
                    let old = previous(old);
                    is_known = old != "unknown";
                    self.process.record(format_args!("remove {key} {old}"));
                }
                1 => {
                    let old = self.process.outcome(self.cache.expire_now(&name).await, true);
                    let old = previous(old);
                    is_known = old != "unknown";
                    self.process.record(format_args!("expire {key} {old}"));
                }
                2 => {
                    let begin = now();
                    let got = self.process.outcome(self.cache.get(&name).await, false);
                    if let Some(Some(value)) = got.done() {
                        self.process.record(format_args!("get {key} {value} {begin}"));
                    }
                }
                method => {
                    let value = self.next();
                    let (set, is_written) = self.set(&name, value, method, random).await;
                    let old = previous(self.process.outcome(set, true));
                    is_known = old != "unknown";
                    if is_written {
                        self.process.record(format_args!("set {key} {value} {old}"));
                    }
                }
            }
            sleep(Duration::from_millis(random.random_range(0..40))).await;
        }
    }

    /// Returns the previous value, and whether the new one may have been written.
    async fn set(
        &self,
        name: &str,
        value: u64,
        method: u32,
        random: &mut SmallRng,
    ) -> (Result<Option<u64>, Error>, bool) {
        let (cache, key) = (&self.cache, name.to_owned());
        let ttl = Duration::from_millis(random.random_range(1..150));
        let set = match method {
            3 => {
                let set = cache.set_nx(key, value, Some(ttl)).await;
                let is_present = matches!(set, Ok(false));
                return (set.map(|_| None), !is_present);
            }
            4 => cache.set(key, value).await,
            5 => cache.set_keep_ttl(key, value).await,
            6 => cache.set_tagged(key, value, ttl, ["tag"]).await,
            _ => cache.set_ex(key, value, ttl).await,
        };
        (set, true)
    }

    async fn subscribe(&self, random: &mut SmallRng) {
        let begin = now();
        let subscribed = self.cache.events_lossless(GROUP).await;
        let Some(mut events) = self.process.outcome(subscribed, true).done() else {
            // Calls fail immediately during an outage.
            return sleep(Duration::from_millis(10)).await;
        };
        let subscription = self.next();
        while random.random_ratio(199, 200) && self.process.is_running() {
            let Ok(item) = timeout(Duration::from_millis(100), events.recv()).await else {
                continue;
            };
            let item = item.expect("the cache exists");
            let event = match self.process.outcome(item, false) {
                Outcome::Done(event) => event,
                Outcome::Refused | Outcome::Unknown => continue,
            };
            let value = event.value;
            self.process.record(format_args!("out {value} {subscription} {begin} {}", now()));
            self.acknowledge(value, subscription, &mut events, random).await;
        }
    }

    async fn acknowledge(
        &self,
        value: u64,
        subscription: u64,
        events: &mut LosslessEvents<String, u64>,
        random: &mut SmallRng,
    ) {
        match random.random_range(0..20) {
            0 => {
                let delay = Duration::from_millis(random.random_range(0..100));
                self.process.outcome(events.retry_in(delay).await, false);
            }
            // Longer than the lease, which the subscription renews.
            1 if random.random_ratio(1, 10) => sleep(ms(600)).await,
            // By the next call of `recv`.
            2..6 => {}
            _ => {
                let acked = self.process.outcome(events.ack().await, false);
                if acked.done().is_some() {
                    self.process.record(format_args!("ack {value} {subscription} {}", now()));
                }
            }
        }
    }
}

async fn run_process(process: Process) {
    let group =
        Arc::new(Group { cache: cache(&process.client()), process, last: AtomicU64::new(0) });
    let task = |number, mut random| {
        let group = group.clone();
        async move {
            while group.process.is_running() {
                match number {
                    0..WRITERS => group.write(&mut random).await,
                    _ => group.subscribe(&mut random).await,
                }
            }
        }
    };
    group.process.run(TASKS, task).await;
    group.process.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_expiration_is_delivered_and_none_after_its_ack() {
    if let Some(process) = Process::of_environment() {
        return run_process(process).await;
    }
    check(async || {
        let mut history = History::new(&[]).await;
        let client = connect(history.master().url()).await;
        // A new group receives events from its creation on.
        drop(cache(&client).events_lossless(GROUP).await.unwrap());
        let name = "events_history::each_expiration_is_delivered_and_none_after_its_ack";
        let records = history.run(name, max_delay()).await;
        history.end_leases();
        let mut deliveries = Deliveries::of(&records);
        let values = values(&records);
        drain(&history, &values, &mut deliveries).await;
        check_values(&values, &deliveries, history.first_fault());
    })
    .await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Expired,
    /// Replaced or removed, so that its expiration has no event.
    Replaced,
    /// A call of unknown outcome may have written, replaced or removed it.
    Unknown,
}

/// Returns the final state of each value that may have been written.
fn values(records: &[Vec<String>]) -> BTreeMap<u64, State> {
    let (mut values, mut live) = (BTreeMap::new(), BTreeMap::<&str, u64>::new());
    for line in records.iter().flatten() {
        let words: Vec<&str> = line.split(' ').collect();
        let (key, set, outcome) = match words[..] {
            ["set", key, value, ref outcome @ ..] => (key, value.parse::<u64>().ok(), outcome),
            ["remove" | "expire", key, ref outcome @ ..] => (key, None, outcome),
            _ => continue,
        };
        let present = live.get(key).copied();
        match *outcome {
            ["refused"] => continue,
            ["unknown"] => {
                values.extend(present.into_iter().chain(set).map(|it| (it, State::Unknown)));
                live.remove(key);
                continue;
            }
            ["done"] => values.extend(present.map(|it| (it, State::Expired))),
            ["done", old] => {
                assert_eq!(Some(old), present.map(|it| it.to_string()).as_deref(), "{line}");
                let state = if words[0] == "expire" { State::Expired } else { State::Replaced };
                values.extend(present.map(|it| (it, state)));
            }
            _ => panic!("{line}"),
        }
        match set {
            Some(value) => drop(live.insert(key, value)),
            None => drop(live.remove(key)),
        }
    }
    values.extend(live.into_values().map(|it| (it, State::Expired)));
    values
}

/// Deliveries and acks of events, by value.
struct Deliveries {
    /// The subscription, when it began, and when it returned the event.
    out: BTreeMap<u64, Vec<(u64, u64, u64)>>,
    /// The subscription, and when its ack had succeeded.
    acks: BTreeMap<u64, Vec<(u64, u64)>>,
    /// When the latest call of `get` that returned the value began.
    reads: BTreeMap<u64, u64>,
}

impl Deliveries {
    fn of(records: &[Vec<String>]) -> Self {
        let (mut out, mut acks, mut reads) = Default::default();
        for [value, subscription, begin, at] in numbers_of(records, "out") {
            let all: &mut Vec<_> = BTreeMap::entry(&mut out, value).or_default();
            all.push((subscription, begin, at));
        }
        for [value, subscription, at] in numbers_of(records, "ack") {
            let all: &mut Vec<_> = BTreeMap::entry(&mut acks, value).or_default();
            all.push((subscription, at));
        }
        for [_, value, begin] in numbers_of(records, "get") {
            let latest = BTreeMap::entry(&mut reads, value).or_insert(begin);
            *latest = begin.max(*latest);
        }
        Self { out, acks, reads }
    }
}

/// Receives the remaining events: until all expired values were delivered, and then until no more arrive.
async fn drain(history: &History, values: &BTreeMap<u64, State>, deliveries: &mut Deliveries) {
    let mut missing: BTreeSet<u64> = BTreeSet::new();
    for (value, state) in values {
        if *state == State::Expired && !deliveries.out.contains_key(value) {
            missing.insert(*value);
        }
    }
    println!("{} values, {} of them not delivered yet", values.len(), missing.len());
    let cache = cache(&connect(history.master().url()).await);
    let (begin, until) = (now(), Instant::now() + patience());
    let mut events = cache.events_lossless(GROUP).await.unwrap();
    loop {
        assert!(Instant::now() < until, "{} expirations are lost: {missing:?}", missing.len());
        match timeout(ms(600), events.recv()).await {
            Ok(item) => {
                let value = item.expect("the cache exists").unwrap().value;
                missing.remove(&value);
                deliveries.out.entry(value).or_default().push((u64::MAX, begin, now()));
                events.ack().await.unwrap();
            }
            Err(_) if missing.is_empty() => return,
            Err(_) => {}
        }
    }
}

fn check_values(values: &BTreeMap<u64, State>, deliveries: &Deliveries, first_fault: u64) {
    for (value, all) in &deliveries.out {
        let state = values.get(value);
        assert!(
            matches!(state, Some(State::Expired | State::Unknown)),
            "{value} was delivered, but is {state:?}"
        );
        let first = all.iter().map(|(.., at)| *at).min().expect("it was delivered");
        if let Some(begin) = deliveries.reads.get(value) {
            assert!(*begin < first, "{value} was read after its expiration was delivered");
        }
        for (acked_by, acked) in deliveries.acks.get(value).into_iter().flatten() {
            for (subscription, begin, at) in all {
                // A process that was stopped for longer than its lease may still return an event that it had read.
                let is_read_later = begin > acked || subscription == acked_by || *at < first_fault;
                assert!(
                    at < acked || !is_read_later,
                    "{value} was delivered to {subscription} after {acked_by} had acked it"
                );
            }
        }
    }
    let delivered: usize = deliveries.out.values().map(Vec::len).sum();
    println!("{delivered} deliveries, {} acked", deliveries.acks.len());
    assert!(!deliveries.acks.is_empty());
    assert!(values.values().any(|it| *it == State::Replaced));
}
