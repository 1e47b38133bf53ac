//! History of each cache and limiter over the last minutes: rates per second, derived from counters.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::{Serialize, Serializer};

use super::groups::{Counts, Denied, Group, Kind, Levels};
use crate::engine::metrics::Histogram;

/// Number of points of a chart: five minutes of samples.
const POINTS: usize = 300;

/// Number of samples between two marks.
const MARK_EVERY: u64 = 10;

/// Number of marks kept. Ratios and percentiles cover the time since the oldest mark: about the last minute.
const MARKS: usize = 6;

#[derive(Default)]
pub(super) struct Histories {
    number: u64,
    groups: BTreeMap<(Kind, String), Entry>,
}

struct Entry {
    now: Counts,
    levels: Levels,
    denied_keys: Vec<Denied>,
    rates: Rates,
    recent: Recent,
    marks: VecDeque<Counts>,
    history: History,
}

/// Rates per second since the previous sample.
#[derive(Default, Serialize)]
struct Rates {
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sets: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    denied: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_at: Option<f64>,
    sweeps: f64,
}

/// Values over the last minute; null if there is no data.
#[derive(Default, Serialize)]
struct Recent {
    hit_ratio: Option<f64>,
    denied_ratio: Option<f64>,
    lag_p50_ms: Option<f64>,
    lag_p99_ms: Option<f64>,
    sweep_p99_ms: Option<f64>,
}

/// Points of the charts, oldest first.
#[derive(Default, Serialize)]
struct History {
    #[serde(serialize_with = "points", skip_serializing_if = "VecDeque::is_empty")]
    expired: VecDeque<f32>,
    #[serde(serialize_with = "points", skip_serializing_if = "VecDeque::is_empty")]
    evicted: VecDeque<f32>,
    #[serde(serialize_with = "points", skip_serializing_if = "VecDeque::is_empty")]
    allowed: VecDeque<f32>,
    #[serde(serialize_with = "points", skip_serializing_if = "VecDeque::is_empty")]
    denied: VecDeque<f32>,
}

/// Current values of a group.
#[derive(Serialize)]
pub(super) struct CurrentGroup<'a> {
    kind: Kind,
    name: &'a str,
    counts: &'a Counts,
    levels: &'a Levels,
    rates: &'a Rates,
    recent: &'a Recent,
    denied_keys: &'a [Denied],
}

/// Current values of a group, and their history.
#[derive(Serialize)]
pub(super) struct GroupWithHistory<'a> {
    #[serde(flatten)]
    current: CurrentGroup<'a>,
    history: &'a History,
}

impl Histories {
    /// Returns the number of samples taken.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds a sample, `elapsed` after the previous one. Groups that are not in it have ended and are removed.
    pub(super) fn add(&mut self, groups: Vec<Group>, elapsed: Duration) {
        let mut before = std::mem::take(&mut self.groups);
        for group in groups {
            let key = (group.kind, group.name);
            let mut entry = before.remove(&key).unwrap_or_else(|| Entry::new(&group.counts));
            entry.add(group.counts, elapsed, self.number);
            entry.levels = group.levels;
            entry.denied_keys = group.denied_keys;
            self.groups.insert(key, entry);
        }
        self.number += 1;
    }

    pub(super) fn now(&self) -> impl Iterator<Item = CurrentGroup<'_>> {
        self.groups.iter().map(|((kind, name), entry)| entry.current(*kind, name))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = GroupWithHistory<'_>> {
        self.groups.iter().map(|((kind, name), entry)| GroupWithHistory {
            current: entry.current(*kind, name),
            history: &entry.history,
        })
    }
}

impl Entry {
    /// Starts at the current counts: when earlier events happened is unknown.
    fn new(counts: &Counts) -> Self {
        Self {
            now: counts.clone(),
            levels: Levels::default(),
            denied_keys: Vec::new(),
            rates: Rates::default(),
            recent: Recent::default(),
            marks: VecDeque::from([counts.clone()]),
            history: History::default(),
        }
    }

    fn add(&mut self, now: Counts, elapsed: Duration, number: u64) {
        let before = &self.now;
        // Zero at the first sample of a thread.
        let per_second = |more: u64| match elapsed.as_secs_f64() {
            0.0 => 0.0,
            seconds => tenths(more as f64 / seconds),
        };
        let rate = |now: Option<u64>, before: Option<u64>| {
            Some(per_second(now?.saturating_sub(before.unwrap_or(0))))
        };
        let reads = |counts: &Counts| Some(counts.hits? + counts.misses?);
        self.rates = Rates {
            expired: rate(now.expired, before.expired),
            evicted: rate(now.evicted, before.evicted),
            sets: rate(now.sets, before.sets),
            reads: rate(reads(&now), reads(before)),
            allowed: rate(now.allowed, before.allowed),
            denied: rate(now.denied, before.denied),
            looked_at: rate(now.looked_at, before.looked_at),
            sweeps: per_second(times(&now.sweeps, &before.sweeps)),
        };
        let mark = self.marks.front().expect("there is one from the start");
        self.recent = Recent::between(mark, &now);
        self.history.add(&self.rates);
        if number.is_multiple_of(MARK_EVERY) {
            self.marks.push_back(now.clone());
            if self.marks.len() > MARKS {
                self.marks.pop_front();
            }
        }
        self.now = now;
    }

    fn current<'a>(&'a self, kind: Kind, name: &'a str) -> CurrentGroup<'a> {
        let Self { now: counts, levels, denied_keys, rates, recent, .. } = self;
        CurrentGroup { kind, name, counts, levels, rates, recent, denied_keys }
    }
}

impl Recent {
    fn between(before: &Counts, now: &Counts) -> Self {
        let more =
            |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
        let hits = more(now.hits, before.hits);
        let misses = more(now.misses, before.misses);
        let allowed = more(now.allowed, before.allowed);
        let denied = more(now.denied, before.denied);
        let [lag_p50_ms, lag_p99_ms] = percentiles(&now.lag, &before.lag, [0.5, 0.99]);
        let [sweep_p99_ms] = percentiles(&now.sweeps, &before.sweeps, [0.99]);
        Self {
            hit_ratio: share(hits, misses),
            denied_ratio: share(denied, allowed),
            lag_p50_ms,
            lag_p99_ms,
            sweep_p99_ms,
        }
    }
}

impl History {
    fn add(&mut self, rates: &Rates) {
        for (points, rate) in [
            (&mut self.expired, rates.expired),
            (&mut self.evicted, rates.evicted),
            (&mut self.allowed, rates.allowed),
            (&mut self.denied, rates.denied),
        ] {
            points.extend(rate.map(|rate| rate as f32));
            if points.len() > POINTS {
                points.pop_front();
            }
        }
    }
}

/// Returns the share of `some` in the sum of both; `None` if the sum is zero.
fn share(some: Option<u64>, others: Option<u64>) -> Option<f64> {
    let (some, others) = (some?, others?);
    (some + others > 0).then(|| some as f64 / (some + others) as f64)
}

/// Returns these percentiles of the durations recorded since `before`, in milliseconds.
fn percentiles<const N: usize>(
    now: &Histogram,
    before: &Histogram,
    shares: [f64; N],
) -> [Option<f64>; N] {
    let all = times(now, before);
    shares.map(|share| {
        // Rounded up, so that the rank is at least 1 if there is any value.
        let mut left = (all as f64 * share).ceil() as u64;
        now.since(before).find_map(|(seconds, count)| {
            left = left.saturating_sub(count);
            (left == 0).then(|| thousandths(seconds * 1_000.0))
        })
    })
}

/// Returns the number of durations recorded since `before`.
fn times(now: &Histogram, before: &Histogram) -> u64 {
    now.since(before).map(|(_, count)| count).sum()
}

fn points<S: Serializer>(points: &VecDeque<f32>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(points.iter().map(|&point| tenths(f64::from(point))))
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn thousandths(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}
