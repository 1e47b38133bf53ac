//! Randomized test of the claims of `redis::TimeoutDict` in four processes. No job is lost, none is acked twice, and
//! none is handed out after its ack. All faults of [`history`](crate::history) are injected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Claim, TimeoutDict};
use rand::{RngExt, rngs::SmallRng};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    history::{History, Outcome, Process, check, max_delay, now},
    patience::patience,
    servers::connect,
};

const TASKS: usize = 5;

/// Key, and the number of the job among those of the key: a later one replaces an earlier one.
type Dict = TimeoutDict<String, u32>;

struct Jobs {
    dict: Dict,
    process: Process,
    keys: AtomicU64,
}

impl Jobs {
    /// Sets a job at a new key, and possibly others at the same key.
    async fn produce(&self, random: &mut SmallRng) {
        let key = format!("{}.{}", self.process.number, self.keys.fetch_add(1, Relaxed));
        for number in 0..random.random_range(1..4) {
            let ttl = Duration::from_millis(random.random_range(0..100));
            let is_new = random.random_ratio(1, 4);
            let begin = now();
            let set = match is_new {
                true => self.dict.set_nx(key.clone(), number, ttl).await.map(|done| (done, None)),
                false => self.dict.set(key.clone(), number, ttl).await.map(|old| (true, old)),
            };
            let outcome = match self.process.outcome(set, true) {
                Outcome::Done((false, _)) => "present".to_owned(),
                Outcome::Done((true, old)) => old.map_or("set".into(), |old| format!("set {old}")),
                Outcome::Refused => "refused".into(),
                Outcome::Unknown => "unknown".into(),
            };
            self.process.record(format_args!("set {key} {number} {begin} {} {outcome}", now()));
            if outcome == "unknown" {
                // The server may still execute the call after a later one.
                return;
            }
            sleep(Duration::from_millis(random.random_range(0..40))).await;
            if random.random_ratio(1, 8) {
                let set = self.dict.set_timeout(&key, Duration::ZERO).await;
                self.process.outcome(set, false);
            }
        }
        if random.random_ratio(1, 8) {
            let begin = now();
            let removed = self.dict.remove(&key).await;
            let outcome = match self.process.outcome(removed, false) {
                Outcome::Done(None) => "missing".to_owned(),
                Outcome::Done(Some(number)) => format!("removed {number}"),
                Outcome::Refused => "refused".into(),
                Outcome::Unknown => "unknown".into(),
            };
            self.process.record(format_args!("remove {key} {begin} {} {outcome}", now()));
        }
    }

    async fn work(&self, random: &mut SmallRng) {
        // Few different leases: while the clock stands still, those of the same length end at the same time.
        let lease = Duration::from_millis(50 << random.random_range(0..4));
        let (begin, most) = (now(), random.random_range(1..8));
        let polls = if random.random_ratio(1, 20) { random.random_range(0..20) } else { u32::MAX };
        let is_waiting = random.random_bool(0.5);
        let call = async {
            if is_waiting {
                let wait = Duration::from_millis(random.random_range(1..200));
                let claim = timeout(wait, self.dict.next_claim(lease)).await;
                claim.map_or(Ok(Vec::new()), |claim| claim.map(|claim| vec![claim]))
            } else {
                self.dict.claim_expired(most, lease).await
            }
        };
        let claimed = tokio::select! {
            biased;
            claimed = call => self.process.outcome(claimed, false).done(),
            () = async { for _ in 0..polls { yield_now().await } } => None,
        };
        let claims = claimed.unwrap_or_default();
        for claim in &claims {
            let (key, number, attempts) = (claim.key(), claim.value(), claim.attempts());
            self.process.record(format_args!("out {key} {number} {attempts} {begin} {}", now()));
        }
        for claim in claims {
            self.end(claim, lease, random).await;
        }
        if !is_waiting {
            sleep(Duration::from_millis(random.random_range(0..20))).await;
        }
    }

    async fn end(&self, claim: Claim<String, u32>, lease: Duration, random: &mut SmallRng) {
        let job = format!("{} {}", claim.key(), claim.value());
        let attempts = claim.attempts();
        match random.random_range(0..16) {
            0 => {
                self.process.record(format_args!("release {job} {attempts}"));
                self.process.outcome(claim.release().await, false);
                return;
            }
            1 => {
                let delay = Duration::from_millis(random.random_range(0..30));
                self.process.outcome(claim.retry_in(delay).await, false);
                return;
            }
            2 => {
                self.process.outcome(claim.fail("busy").await, false);
                return;
            }
            3 => return,
            // As if the process had crashed.
            4 => return std::mem::forget(claim),
            5 => {
                self.process.outcome(claim.extend(lease * 2).await, false);
                sleep(lease).await;
            }
            6 => sleep(lease).await,
            _ => {}
        }
        let begin = now();
        let outcome = match self.process.outcome(claim.ack().await, false) {
            Outcome::Done(true) => "acked",
            Outcome::Done(false) => "void",
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        };
        self.process.record(format_args!("ack {job} {begin} {} {outcome}", now()));
    }
}

async fn run_process(process: Process) {
    let builder = Dict::builder(&process.client(), "jobs");
    let (first, max) = (Duration::from_millis(5), Duration::from_millis(40));
    let builder = builder.backoff(first, max).ask_every(Duration::from_millis(100));
    let dict = builder.build().unwrap();
    let jobs = Arc::new(Jobs { dict, process, keys: AtomicU64::new(0) });
    let task = |number, mut random| {
        let jobs = jobs.clone();
        async move {
            while jobs.process.is_running() {
                match number {
                    0 | 1 => jobs.produce(&mut random).await,
                    _ => jobs.work(&mut random).await,
                }
            }
        }
    };
    jobs.process.run(TASKS, task).await;
    jobs.process.end();
}

/// Records of one job.
#[derive(Default)]
struct Job {
    /// Time at which the call that stored it began. `None` if none was sent, or if the server refused it.
    set_begin: Option<u64>,
    is_stored: bool,
    /// Ends of the calls that removed it: acks, replacements and removals.
    removed: Vec<u64>,
    /// True if a call whose outcome is unknown may have removed it.
    may_be_removed: bool,
    /// Beginning and end of each call that handed it out, and the attempt.
    handed_out: Vec<(u64, u64, u32)>,
    /// Attempts of the claims that were released.
    released: BTreeSet<u32>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_is_lost_or_acked_twice() {
    if let Some(process) = Process::of_environment() {
        return run_process(process).await;
    }
    check(async || {
        let mut history = History::new(&[]).await;
        let name = "claims_history::no_job_is_lost_or_acked_twice";
        let mut records = history.run(name, max_delay()).await;
        history.end_leases();
        records.push(drain(&history).await);
        check_jobs(&records);
    })
    .await;
}

/// Acks the remaining jobs, and returns the records of that.
async fn drain(history: &History) -> Vec<String> {
    let dict = Dict::new(&connect(history.master().url()).await, "jobs").unwrap();
    let (begun, mut records) = (Instant::now(), Vec::new());
    while !dict.is_empty().await.unwrap() {
        assert!(begun.elapsed() < patience(), "{} jobs are never due", dict.len().await.unwrap());
        let begin = now();
        for claim in dict.claim_expired(100, patience()).await.unwrap() {
            let (job, attempts) = (format!("{} {}", claim.key(), claim.value()), claim.attempts());
            records.push(format!("out {job} {attempts} {begin} {}", now()));
            let begin = now();
            assert!(claim.ack().await.unwrap(), "{job}: the only claim is void");
            records.push(format!("ack {job} {begin} {} acked", now()));
        }
    }
    records
}

fn check_jobs(records: &[Vec<String>]) {
    let mut jobs: BTreeMap<(String, u32), Job> = BTreeMap::new();
    for line in records.iter().flatten() {
        let words: Vec<&str> = line.split(' ').collect();
        let at = |at: usize| words[at].parse::<u64>().unwrap();
        let jobs = &mut jobs;
        let mut change = |number: &str, change: &dyn Fn(&mut Job)| {
            change(jobs.entry((words[1].to_owned(), number.parse().unwrap())).or_default());
        };
        let mut may_remove = |numbers| {
            for number in 0..numbers {
                change(&number.to_string(), &|job| job.may_be_removed = true);
            }
        };
        match words[0] {
            "set" => {
                if words[5] == "unknown" {
                    may_remove(at(2));
                } else if let Some(old) = words.get(6) {
                    change(old, &|job| job.removed.push(at(4)));
                }
                change(words[2], &|job| {
                    job.is_stored = words[5] == "set";
                    job.set_begin = ["set", "unknown"].contains(&words[5]).then(|| at(3));
                });
            }
            "remove" => match words[4] {
                "unknown" => may_remove(4),
                "removed" => change(words[5], &|job| job.removed.push(at(3))),
                _ => {}
            },
            "out" => change(words[2], &|job| job.handed_out.push((at(4), at(5), at(3) as u32))),
            "release" => change(words[2], &|job| job.released.extend([at(3) as u32])),
            "ack" => match words[5] {
                "acked" => change(words[2], &|job| job.removed.push(at(4))),
                "unknown" => change(words[2], &|job| job.may_be_removed = true),
                _ => {}
            },
            _ => {}
        }
    }
    let stored = jobs.values().filter(|job| job.is_stored).count();
    let out: usize = jobs.values().map(|job| job.handed_out.len()).sum();
    println!("{stored} jobs, handed out {out} times");
    assert!(stored > 0 && out > 0);
    for (name, job) in jobs {
        check_job(&name, job);
    }
}

fn check_job((key, number): &(String, u32), mut job: Job) {
    let name = format!("job {number} of key {key}");
    assert!(job.removed.len() <= 1, "{name} was removed twice: {:?}", job.removed);
    assert!(!job.is_stored || !job.removed.is_empty() || job.may_be_removed, "{name} is lost");
    let removed = job.removed.first().copied().unwrap_or(u64::MAX);
    job.handed_out.sort_unstable();
    for (at, (begin, end, attempt)) in job.handed_out.iter().enumerate() {
        let set_begin = job.set_begin.unwrap_or_else(|| panic!("{name} was never set"));
        assert!(*end > set_begin, "{name} was handed out before it was set");
        assert!(*begin < removed, "{name} was handed out after it was removed");
        for (_, before, earlier) in &job.handed_out[..at] {
            let is_new = attempt > earlier || attempt == earlier && job.released.contains(attempt);
            assert!(is_new || before >= begin, "{name}: attempt {attempt} after {earlier}");
        }
    }
}
