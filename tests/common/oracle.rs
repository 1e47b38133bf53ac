//! Oracle of the cache: a map that is simple enough to be obviously correct. Model tests and the fuzzer compare the
//! cache with it.
//!
//! It returns the result of each method, and knows the resident entries, the published events and the kept errors. It
//! does not predict chance: the sample of a sweep, the victims of a bound, a refresh ahead, and the effect of jitter.
//! [`Oracle::accept_swept`], [`Oracle::accept_evicted`], [`Oracle::load`] and [`Oracle::settle`] check that the cache
//! may do what it did.

#[path = "oracle/failures.rs"]
mod failures;
#[path = "oracle/loads.rs"]
mod loads;
#[path = "oracle/removals.rs"]
mod removals;
#[cfg(any(feature = "serde", fuzzing))]
#[path = "oracle/snapshots.rs"]
mod snapshots;
#[path = "oracle/steps.rs"]
mod steps;

use std::{collections::BTreeMap, time::Duration};

#[cfg(any(feature = "serde", fuzzing))]
pub(crate) use self::snapshots::Snapshot;
use self::{failures::Failures, removals::Departure};
pub(crate) use self::{
    loads::{Freshness, Load},
    removals::Written,
};

pub(crate) type Key = u16;
pub(crate) type Value = u32;
/// Time of the oracle's clock; `None` is persistent.
pub(crate) type Deadline = Option<Duration>;

/// Time at which the cache is built. The clock starts that much earlier, so that past deadlines are not negative.
pub(crate) const BUILT: Duration = Duration::from_nanos(1 << 58);
/// Later deadlines are persistent, because the cache stores nanoseconds in a `u64`.
const LATEST: Duration = Duration::from_nanos(u64::MAX);
/// Earlier deadlines are moved to this one.
const EARLIEST: Duration = Duration::from_nanos(1);

/// Causes of removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Expired,
    Evicted,
    Removed,
    Replaced,
}

/// Conditions of `expire_if`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Condition {
    NoTtl,
    HasTtl,
    Later,
    Sooner,
}

/// Change of one entry by `compute` and `compute_with`, with the new value if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Keep,
    Set(Value),
    SetEx(Value, Duration),
    SetKeepTtl(Value),
    Remove,
}

/// Content of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) value: Value,
    pub(crate) cause: Cause,
    pub(crate) deadline: Deadline,
}

/// Bound of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    None,
    Entries(u64),
    /// The weight of a value is that by [`weigh`].
    Weight(u64),
}

/// Weight of a value in a cache that is bounded by weight: usually small, rarely heavier than any bound.
pub(crate) fn weigh(value: Value) -> u32 {
    match value % 32 {
        31 => u32::MAX,
        30 => 20,
        rest => rest % 8,
    }
}

/// Settings of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) time_to_idle: Option<Duration>,
    /// Zero if there is a `time_to_idle`, because the cache reports the sooner of the two deadlines only.
    pub(crate) jitter: f64,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) negative_ttl: Option<Duration>,
    pub(crate) refresh_ahead: f64,
    pub(crate) bound: Bound,
}

/// Effect of `remove_tag` on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovedTag {
    None,
    /// The entry was live: it is unreadable, and the next lookup or sweep removes it.
    WhileLive,
    /// The entry was expired: no loader returns it any more, and the next sweep removes it.
    WhileExpired,
}

/// Hard deadline of an entry. The two are equal, except after a write with jitter until the cache has reported the
/// deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HardDeadline {
    earliest: Deadline,
    latest: Deadline,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    value: Value,
    hard_deadline: HardDeadline,
    idle_deadline: Deadline,
    tags: Option<[u8; 2]>,
    removed_tag: RemovedTag,
}

impl Entry {
    /// Returns the sooner of the hard and the idle deadline.
    fn deadline(&self) -> Deadline {
        [self.hard_deadline.latest, self.idle_deadline].into_iter().flatten().min()
    }

    fn is_expired(&self, now: Duration) -> bool {
        self.deadline().is_some_and(|deadline| now >= deadline)
    }

    fn is_live(&self, now: Duration) -> bool {
        !self.is_expired(now) && self.removed_tag != RemovedTag::WhileLive
    }
}

/// The naive map of resident entries, live or expired.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// Time of the next calls; the driver sets it.
    pub(crate) now: Duration,
    pub(crate) settings: Settings,
    /// The published causes.
    pub(crate) causes: Vec<Cause>,
    /// Number of loads, and of those that failed.
    pub(crate) loads: (u64, u64),
    entries: BTreeMap<Key, Entry>,
    failures: Failures,
    /// Events of the calls so far that no caller has taken.
    expected: Vec<Departure>,
    /// Removals of the call, for any cause.
    departures: Vec<Departure>,
    /// Keys and errors of the failed background refreshes of the call.
    failed_refreshes: Vec<(Key, Value)>,
}

impl Oracle {
    pub(crate) fn new(settings: Settings, causes: Vec<Cause>) -> Self {
        Self {
            now: BUILT,
            settings,
            causes,
            loads: (0, 0),
            entries: BTreeMap::new(),
            failures: Failures::new(&settings),
            expected: Vec::new(),
            departures: Vec::new(),
            failed_refreshes: Vec::new(),
        }
    }

    /// Returns the deadline of an entry that gets this TTL now.
    fn after(&self, ttl: Duration) -> Deadline {
        deadline_at(self.now.saturating_add(ttl))
    }

    /// Returns the deadline of a value that is written now, with the default TTL if `ttl` is `None`.
    fn written(&self, ttl: Option<Duration>) -> HardDeadline {
        let Some(ttl) = ttl.or(self.settings.default_ttl) else { return HardDeadline::at(None) };
        let shortest = ttl.as_secs_f64() * (1.0 - self.settings.jitter);
        // A TTL near `Duration::MAX` may be out of range as a float.
        let shortest = Duration::try_from_secs_f64(shortest).map_or(ttl, |short| short.min(ttl));
        let shortest = if self.settings.jitter == 0.0 { ttl } else { shortest };
        HardDeadline { earliest: self.after(shortest), latest: self.after(ttl) }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<Value> {
        let entry = self.live(key)?;
        self.touch(key);
        Some(entry.value)
    }

    pub(crate) fn get_ex(&mut self, key: Key, ttl: Duration) -> Option<Value> {
        let entry = self.live(key)?;
        self.set_deadline(key, self.after(ttl));
        Some(entry.value)
    }

    /// `set` for a `ttl` of `None`, else `set_ex`.
    pub(crate) fn set(&mut self, key: Key, value: Value, ttl: Option<Duration>) -> Option<Value> {
        self.put(key, value, self.written(ttl))
    }

    pub(crate) fn set_nx(&mut self, key: Key, value: Value, ttl: Option<Duration>) -> bool {
        let is_missing = self.live(key).is_none();
        if is_missing {
            self.put(key, value, self.written(ttl));
        }
        is_missing
    }

    pub(crate) fn set_keep_ttl(&mut self, key: Key, value: Value) -> Option<Value> {
        let kept = self.live(key).map_or(self.written(None), |entry| entry.hard_deadline);
        self.put(key, value, kept)
    }

    pub(crate) fn set_tagged(
        &mut self,
        key: Key,
        value: Value,
        ttl: Duration,
        tags: [u8; 2],
    ) -> Option<Value> {
        let replaced = self.put(key, value, self.written(Some(ttl)));
        self.tag(key, Some(tags));
        replaced
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Value> {
        self.failures.discard(key);
        self.live_or_remove(key)?;
        self.depart(key, Cause::Removed)
    }

    pub(crate) fn remove_if(&mut self, predicate: impl Fn(Key) -> bool) -> usize {
        let matching = self.live_entries().into_keys().filter(|key| predicate(*key));
        let matching: Vec<Key> = matching.collect();
        matching.iter().for_each(|key| _ = self.remove(*key));
        matching.len()
    }

    pub(crate) fn remove_tag(&mut self, tag: u8) {
        for entry in self.entries.values_mut() {
            let is_tagged = entry.tags.is_some_and(|tags| tags.contains(&tag));
            if is_tagged && entry.removed_tag == RemovedTag::None {
                entry.removed_tag = match entry.is_expired(self.now) {
                    true => RemovedTag::WhileExpired,
                    false => RemovedTag::WhileLive,
                };
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        for key in self.keys() {
            self.remove(key);
        }
        self.failures.clear();
    }

    /// Returns the time left of a live value; the inner `None` is persistent.
    pub(crate) fn ttl(&mut self, key: Key) -> Option<Option<Duration>> {
        let entry = self.live(key)?;
        Some(entry.deadline().map(|deadline| deadline - self.now))
    }

    pub(crate) fn contains_key(&mut self, key: Key) -> bool {
        self.live(key).is_some()
    }

    pub(crate) fn expire(&mut self, key: Key, ttl: Duration) -> bool {
        let new = self.after(ttl);
        self.change_deadline(key, |_| Some(new))
    }

    pub(crate) fn expire_if(&mut self, key: Key, ttl: Duration, condition: Condition) -> bool {
        let new = self.after(ttl);
        let order = |deadline: Deadline| deadline.unwrap_or(Duration::MAX);
        self.change_deadline(key, |old| {
            let holds = match condition {
                Condition::NoTtl => old.is_none(),
                Condition::HasTtl => old.is_some(),
                Condition::Later => order(new) > order(old),
                Condition::Sooner => order(new) < order(old),
            };
            holds.then_some(new)
        })
    }

    pub(crate) fn expire_at(&mut self, key: Key, at: Duration) -> bool {
        self.change_deadline(key, |_| Some(deadline_at(at)))
    }

    pub(crate) fn extend(&mut self, key: Key, more: Duration) -> bool {
        self.change_deadline(key, |old| Some(deadline_at(old?.saturating_add(more))))
    }

    pub(crate) fn persist(&mut self, key: Key) -> bool {
        self.change_deadline(key, |old| old.map(|_| None))
    }

    pub(crate) fn expire_now(&mut self, key: Key) -> Option<Value> {
        self.failures.discard(key);
        self.live_or_remove(key)?;
        let now = self.now;
        let entry = self.entry(key);
        (entry.hard_deadline, entry.idle_deadline) = (HardDeadline::at(Some(now)), None);
        self.depart(key, Cause::Expired)
    }

    /// Returns the old value.
    pub(crate) fn update(&mut self, key: Key, value: Value) -> Option<Value> {
        let old = self.live(key)?.value;
        self.entry(key).value = value;
        self.failures.discard(key);
        Some(old)
    }

    /// `compute`, or `compute_with` if `is_async`. Returns the live value before and afterwards.
    pub(crate) fn compute(
        &mut self,
        key: Key,
        change: Change,
        is_async: bool,
    ) -> (Option<Value>, Option<Value>) {
        let before = self.entries.get(&key).filter(|entry| entry.is_live(self.now)).copied();
        let kept = before.map_or(self.written(None), |entry| entry.hard_deadline);
        match change {
            // `compute` that keeps the entry removes no expired one, but one that was removed by tag.
            Change::Keep if is_async || self.is_removed_by_tag(key) => _ = self.live(key),
            Change::Keep => {}
            Change::Remove => _ = self.remove(key),
            Change::Set(value) => _ = self.put(key, value, self.written(None)),
            Change::SetEx(value, ttl) => _ = self.put(key, value, self.written(Some(ttl))),
            Change::SetKeepTtl(value) => _ = self.put(key, value, kept),
        }
        let after = self.entries.get(&key).filter(|entry| entry.is_live(self.now));
        let after = after.filter(|entry| self.fits(entry.value)).map(|entry| entry.value);
        (before.map(|entry| entry.value), after)
    }

    /// Returns the live entries, with their values.
    pub(crate) fn live_entries(&self) -> BTreeMap<Key, Value> {
        let live = self.entries.iter().filter(|(_, entry)| entry.is_live(self.now));
        live.map(|(key, entry)| (*key, entry.value)).collect()
    }

    /// Returns the live entries, as iterators do: they remove entries that were removed by tag.
    pub(crate) fn iterate(&mut self) -> BTreeMap<Key, Value> {
        for key in self.keys() {
            if self.is_removed_by_tag(key) {
                self.live(key);
            }
        }
        self.live_entries()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the live value of `key`, which no method has read.
    pub(crate) fn peek(&self, key: Key) -> Option<Value> {
        self.entries.get(&key).filter(|entry| entry.is_live(self.now)).map(|entry| entry.value)
    }

    /// Returns the live value whose removal `expired` waits for. The call removes no expired entry, but one that was
    /// removed by tag.
    pub(crate) fn await_removal(&mut self, key: Key) -> Option<Value> {
        if self.is_removed_by_tag(key) {
            self.live(key);
        }
        self.peek(key)
    }

    /// Returns the keys whose deadlines jitter has shortened by an unknown time.
    pub(crate) fn unsettled(&self) -> Vec<Key> {
        let unsettled = |entry: &Entry| entry.hard_deadline.earliest != entry.hard_deadline.latest;
        let entries = self.entries.iter().filter(|(_, entry)| unsettled(entry));
        entries.map(|(key, _)| *key).collect()
    }

    /// Gives an entry the deadline that the cache reports.
    pub(crate) fn settle(&mut self, key: Key, deadline: Deadline) {
        let jittered = &mut self.entry(key).hard_deadline;
        assert!(jittered.may_be(deadline), "key {key}: {deadline:?} is not in {jittered:?}");
        *jittered = HardDeadline::at(deadline);
    }

    /// Returns the weight of all resident entries, each 1 unless the bound is one of weight.
    pub(crate) fn weight(&self) -> u64 {
        self.entries.values().map(|entry| self.weight_of(entry.value)).sum()
    }
}

impl HardDeadline {
    fn at(deadline: Deadline) -> Self {
        Self { earliest: deadline, latest: deadline }
    }

    fn may_be(self, deadline: Deadline) -> bool {
        let order = |deadline: Deadline| deadline.unwrap_or(Duration::MAX);
        (order(self.earliest)..=order(self.latest)).contains(&order(deadline))
    }
}

fn deadline_at(at: Duration) -> Deadline {
    (at <= LATEST).then_some(at.max(EARLIEST))
}
