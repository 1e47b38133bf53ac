//! History of each object over the last five minutes and the last hour: levels, and rates per second that are derived
//! from counters. A line has one point per second also if its value was unknown, or if the sampler was late: that point
//! is NaN, which JSON writes as null. Without it, all older points would seem to be later than they are.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::{Serialize, Serializer};

use super::groups::{Counts, DenialCounts, Levels, ObjectGroup, ObjectKind};
use crate::engine::metrics::Histogram;

/// Number of points of a line over five minutes: one per sample.
const POINTS: usize = 300;

/// Number of points of a line over an hour: one per mark.
const HOUR_POINTS: usize = 360;

/// Number of missing samples that are filled in: more would only move all points out of the hour.
const MAX_MISSING: usize = HOUR_POINTS * MARK_EVERY as usize;

/// Number of samples between two marks.
const MARK_EVERY: u64 = 10;

/// Number of marks kept. Ratios and percentiles cover the time since the oldest mark: about the last minute.
const MARKS: usize = 6;

#[derive(Default)]
pub(super) struct Histories {
    number: u64,
    groups: BTreeMap<(ObjectKind, String), HistoryEntry>,
}

struct HistoryEntry {
    now: Counts,
    levels: Levels,
    searchable: bool,
    denied_keys: Vec<DenialCounts>,
    rates: BTreeMap<&'static str, f64>,
    recent: Recent,
    marks: VecDeque<Mark>,
    lines: BTreeMap<&'static str, Line>,
}

/// Values of a past sample.
struct Mark {
    counts: Counts,
    /// Elements that wait to be processed; `None` for kinds without them, and NaN if it is unknown.
    waiting: Option<f64>,
}

/// Values over the last minute; null if there is no data.
#[derive(Default, Serialize)]
struct Recent {
    hit_ratio: Option<f64>,
    denied_ratio: Option<f64>,
    lag_p50_ms: Option<f64>,
    lag_p99_ms: Option<f64>,
    sweep_p99_ms: Option<f64>,
    /// Events missed by slow subscribers.
    missed: Option<u64>,
    /// True if elements were waiting for the whole minute, and none of them was processed.
    not_drained: bool,
    /// True if the number of elements was unknown for the whole minute: the disk or the server does not answer.
    unmeasured: bool,
    /// Share of commands that failed.
    failed_ratio: Option<f64>,
}

/// Points of a line, oldest first.
#[derive(Default)]
struct Line {
    points: VecDeque<f32>,
    hour: VecDeque<f32>,
}

/// Current values of a group.
#[derive(Serialize)]
pub(super) struct CurrentGroup<'a> {
    kind: ObjectKind,
    name: &'a str,
    counts: &'a Counts,
    levels: &'a Levels,
    rates: &'a BTreeMap<&'static str, f64>,
    recent: &'a Recent,
    searchable: bool,
    denied_keys: &'a [DenialCounts],
}

/// Current values of a group, and their history of five minutes.
#[derive(Serialize)]
pub(super) struct GroupWithHistory<'a> {
    #[serde(flatten)]
    current: CurrentGroup<'a>,
    history: BTreeMap<&'static str, Points<'a>>,
}

/// History of a group over an hour.
#[derive(Serialize)]
pub(super) struct GroupHour<'a> {
    kind: ObjectKind,
    name: &'a str,
    history: BTreeMap<&'static str, Points<'a>>,
}

struct Points<'a>(&'a VecDeque<f32>);

impl Histories {
    /// Returns the number of samples taken.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds a sample, `elapsed` after the previous one. Groups that are not in it have ended and are removed.
    pub(super) fn add(&mut self, groups: Vec<ObjectGroup>, elapsed: Duration) {
        let mut before = std::mem::take(&mut self.groups);
        // The thread was stopped, or waited for a processor. The number of the sample shows clients that some are
        // missing.
        let missing = (elapsed.as_secs_f64().round() as u64).saturating_sub(1);
        for number in (self.number..self.number + missing).take(MAX_MISSING) {
            let lines = before.values_mut().flat_map(|entry| entry.lines.values_mut());
            lines.for_each(|line| line.add(f32::NAN, number));
        }
        self.number += missing;
        for group in groups {
            let key = (group.kind, group.name.clone());
            let mut entry = before.remove(&key).unwrap_or_else(|| HistoryEntry::new(&group));
            entry.add(group, elapsed, self.number);
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
            history: entry.points(|line| &line.points),
        })
    }

    pub(super) fn hour(&self) -> impl Iterator<Item = GroupHour<'_>> {
        self.groups.iter().map(|((kind, name), entry)| GroupHour {
            kind: *kind,
            name,
            history: entry.points(|line| &line.hour),
        })
    }
}

impl HistoryEntry {
    /// Starts at the current counts: when earlier events happened is unknown.
    fn new(group: &ObjectGroup) -> Self {
        Self {
            now: group.counts.clone(),
            levels: Levels::default(),
            searchable: false,
            denied_keys: Vec::new(),
            rates: BTreeMap::new(),
            recent: Recent::default(),
            marks: VecDeque::from([Mark::new(group)]),
            lines: BTreeMap::new(),
        }
    }

    fn add(&mut self, group: ObjectGroup, elapsed: Duration, number: u64) {
        let Counts { totals, sweeps, .. } = &group.counts;
        // Zero at the first sample of a thread.
        let per_second = |more: u64| match elapsed.as_secs_f64() {
            0.0 => 0.0,
            seconds => tenths(more as f64 / seconds),
        };
        let since = |(name, now): (&&'static str, &u64)| {
            (*name, per_second(now.saturating_sub(self.now.total(name))))
        };
        self.rates = totals.iter().map(since).collect();
        self.rates.insert("sweeps", per_second(times(sweeps, &self.now.sweeps)));
        self.recent = Recent::between(&self.marks, &group);
        for name in group.lines {
            if let Some(point) = self.rates.get(name).or_else(|| group.levels.get(name)) {
                self.lines.entry(name).or_default().add(*point as f32, number);
            }
        }
        if number.is_multiple_of(MARK_EVERY) {
            self.marks.push_back(Mark::new(&group));
            if self.marks.len() > MARKS {
                self.marks.pop_front();
            }
        }
        self.now = group.counts;
        self.levels = group.levels;
        self.searchable = group.searchable;
        self.denied_keys = group.denied_keys;
    }

    fn current<'a>(&'a self, kind: ObjectKind, name: &'a str) -> CurrentGroup<'a> {
        let Self { now: counts, levels, searchable, denied_keys, rates, recent, .. } = self;
        CurrentGroup {
            kind,
            name,
            counts,
            levels,
            rates,
            recent,
            searchable: *searchable,
            denied_keys,
        }
    }

    fn points(
        &self,
        points_of: impl Fn(&Line) -> &VecDeque<f32>,
    ) -> BTreeMap<&'static str, Points<'_>> {
        self.lines.iter().map(|(name, line)| (*name, Points(points_of(line)))).collect()
    }
}

impl Mark {
    fn new(group: &ObjectGroup) -> Self {
        Self { counts: group.counts.clone(), waiting: group.levels.get("waiting").copied() }
    }
}

impl Line {
    fn add(&mut self, point: f32, number: u64) {
        push(&mut self.points, point, POINTS);
        if number.is_multiple_of(MARK_EVERY) {
            // Fewer points at the beginning, and without unknown ones: NaN if all are unknown.
            let last = self.points.iter().rev().take(MARK_EVERY as usize);
            let known: Vec<f32> = last.copied().filter(|point| point.is_finite()).collect();
            let mean = known.iter().sum::<f32>() / known.len() as f32;
            push(&mut self.hour, mean, HOUR_POINTS);
        }
    }
}

fn push(points: &mut VecDeque<f32>, point: f32, most: usize) {
    points.push_back(point);
    if points.len() > most {
        points.pop_front();
    }
}

impl Counts {
    fn total(&self, name: &str) -> u64 {
        self.totals.get(name).copied().unwrap_or(0)
    }
}

impl Recent {
    fn between(marks: &VecDeque<Mark>, group: &ObjectGroup) -> Self {
        let before = &marks.front().expect("there is one from the start").counts;
        let now = &group.counts;
        let more = |name: &str| {
            let now = *now.totals.get(name)?;
            Some(now.saturating_sub(before.total(name)))
        };
        let [lag_p50_ms, lag_p99_ms] = percentiles(&now.lag, &before.lag, [0.5, 0.99]);
        let [sweep_p99_ms] = percentiles(&now.sweeps, &before.sweeps, [0.99]);
        let waited = waiting_of(marks, group);
        let failed_ratio = match (more("failures"), more("commands")) {
            (Some(failures), Some(commands)) => {
                share(Some(failures), Some(commands.saturating_sub(failures)))
            }
            _ => None,
        };
        let processed: u64 = ["claims", "taken", "removed"].into_iter().filter_map(more).sum();
        Self {
            hit_ratio: share(more("hits"), more("misses")),
            denied_ratio: share(more("denied"), more("allowed")),
            lag_p50_ms,
            lag_p99_ms,
            sweep_p99_ms,
            missed: more("missed"),
            // Never fewer: other processes may take them.
            not_drained: processed == 0
                && waited.as_ref().is_some_and(|all| all[0] > 0.0 && all.is_sorted()),
            unmeasured: waited.is_some_and(|all| all.iter().all(|one| one.is_nan())),
            failed_ratio,
        }
    }
}

/// Returns the number of waiting elements over the last minute; `None` for kinds without them, and before it has
/// passed.
fn waiting_of(marks: &VecDeque<Mark>, group: &ObjectGroup) -> Option<Vec<f64>> {
    let waiting = marks.iter().map(|mark| mark.waiting);
    let waiting = waiting.chain([group.levels.get("waiting").copied()]);
    if marks.len() == MARKS { waiting.collect() } else { None }
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

impl Serialize for Points<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&point| tenths(f64::from(point))))
    }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn thousandths(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, to_value};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(removed: u64, waiting: f64) -> ObjectGroup {
        ObjectGroup {
            kind: ObjectKind::Queue,
            name: "jobs".to_owned(),
            counts: Counts { totals: [("removed", removed)].into(), ..Counts::default() },
            levels: [("waiting", waiting)].into(),
            lines: &["waiting", "removed"],
            searchable: false,
            denied_keys: Vec::new(),
        }
    }

    fn all(histories: &Histories) -> Value {
        to_value(histories.all().next()).expect("numbers can be written")
    }

    /// Returns whether a queue whose removals and length are these is reported as not drained.
    fn is_stuck(sample: impl Fn(u64) -> (u64, f64)) -> bool {
        let mut histories = Histories::default();
        for second in 0..100 {
            let (removed, waiting) = sample(second);
            histories.add(vec![queue(removed, waiting)], SECOND);
        }
        all(&histories)["recent"]["not_drained"] == true
    }

    #[test]
    fn queue_is_not_drained_if_no_element_is_processed_for_a_minute() {
        assert!(is_stuck(|_| (7, 3.0)));
        assert!(is_stuck(|second| (7, second as f64 + 1.0)));
        assert!(!is_stuck(|_| (0, 0.0)), "an empty queue");
        assert!(!is_stuck(|second| (second, 3.0)), "this process removes elements");
        assert!(!is_stuck(|second| (0, 200.0 - second as f64)), "other processes remove elements");
        assert!(
            !is_stuck(|second| (0, f64::from(u8::from(second > 80)))),
            "for less than a minute"
        );
    }

    #[test]
    fn unknown_value_is_a_gap_that_does_not_move_older_points() {
        let mut histories = Histories::default();
        for second in 0..=40 {
            // Unknown for twenty seconds: its disk did not answer.
            let waiting = if (11..=30).contains(&second) { f64::NAN } else { second as f64 };
            histories.add(vec![queue(0, waiting)], SECOND);
        }
        let five_minutes = all(&histories);
        let points = five_minutes["history"]["waiting"].as_array().expect("a list");
        assert_eq!(points.len(), 41);
        for (second, point) in points.iter().enumerate() {
            let expected =
                if (11..=30).contains(&second) { Value::Null } else { json!(second as f64) };
            assert_eq!(point, &expected, "at {second}");
        }
        let hour = to_value(histories.hour().next()).expect("numbers can be written");
        assert_eq!(hour["history"]["waiting"], json!([0.0, 5.5, null, null, 35.5]));
        // A level that is unknown now is null, and not zero.
        histories.add(vec![queue(0, f64::NAN)], SECOND);
        assert_eq!(all(&histories)["levels"], json!({ "waiting": null }));
    }

    #[test]
    fn late_sampler_leaves_a_gap_that_clients_notice() {
        let mut histories = Histories::default();
        for second in 0..5 {
            histories.add(vec![queue(0, second as f64)], SECOND);
        }
        histories.add(vec![queue(0, 8.0)], 4 * SECOND);
        assert_eq!(histories.number(), 9);
        assert_eq!(
            all(&histories)["history"]["waiting"],
            json!([0.0, 1.0, 2.0, 3.0, 4.0, null, null, null, 8.0])
        );
        // A process that was stopped for a day has no history.
        histories.add(vec![queue(0, 1.0)], 86_400 * SECOND);
        let points = &all(&histories)["history"]["waiting"];
        assert!((0..299).all(|at| points[at].is_null()) && points[299] == 1.0, "{points}");
    }

    #[test]
    fn queue_is_unmeasured_if_its_length_is_unknown_for_a_minute() {
        let is_unmeasured = |unknown_from: u64| {
            let mut histories = Histories::default();
            for second in 0..100 {
                let waiting = if second < unknown_from { 3.0 } else { f64::NAN };
                histories.add(vec![queue(second, waiting)], SECOND);
            }
            all(&histories)["recent"]["unmeasured"] == true
        };
        assert!(is_unmeasured(0) && is_unmeasured(30));
        assert!(!is_unmeasured(80) && !is_unmeasured(100));
    }

    #[test]
    fn lines_have_a_point_per_second_and_a_mean_per_ten_seconds_of_an_hour() {
        let mut histories = Histories::default();
        for second in 0..=4_000 {
            histories.add(vec![queue(10 * second, (second % 10) as f64)], SECOND);
        }
        let five_minutes = all(&histories);
        let hour = to_value(histories.hour().next()).expect("numbers can be written");
        for (history, name, len) in [
            (&five_minutes, "removed", 300),
            (&five_minutes, "waiting", 300),
            (&hour, "removed", 360),
        ] {
            let points = history["history"][name].as_array().expect("a list");
            assert_eq!(points.len(), len, "{name}");
            assert_eq!(name == "removed", points.iter().all(|point| *point == 10.0));
        }
        assert_eq!(five_minutes["history"]["waiting"][299], 0.0);
        let means = hour["history"]["waiting"].as_array().expect("a list");
        assert!(means.iter().all(|mean| *mean == 4.5), "{means:?}");
        assert_eq!(five_minutes["rates"]["removed"], json!(10.0));
    }
}
