//! Recently most frequently denied keys: a sketch of fixed size, which only denials write to.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi, ICDT 2005), started again each minute. A key that is not counted yet
//! takes the counter with the fewest denials, together with its count. That count is an upper bound of the new key's
//! denials; the lower bound is reported.

use std::{
    array,
    collections::HashMap,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard},
};

pub(crate) use crate::engine::shown_hash::shown_hash;
use crate::engine::{
    clock::Tick,
    metrics::{DeniedKey, KeyName},
    text::prefix,
};

/// Number of parts, each with its own lock, so that concurrent denials of different keys rarely contend.
const PARTS: usize = 8;

/// Number of counters per part. More than are reported, so that even the keys of one part can fill the report.
const COUNTERS: usize = 16;

/// Number of keys that are reported.
const REPORTED: usize = 8;

/// Longest text of a key. A key may be as long as a client likes, and each browser gets the texts every second.
const MAX_TEXT_BYTES: usize = 256;

const MINUTE: u64 = 60_000_000_000;

/// Function that formats a key for the dashboard.
pub(crate) type ShowKey<K> = Arc<dyn Fn(&K) -> String + Send + Sync>;

pub(crate) struct TopDenied<K> {
    parts: [Mutex<Minutes>; PARTS],
    show: Option<ShowKey<K>>,
}

/// Denials of the present minute, and of the previous one.
#[derive(Default)]
struct Minutes {
    minute: u64,
    now: Vec<DenialCounter>,
    before: Vec<DenialCounter>,
}

struct DenialCounter {
    /// Hash of the key in its limiter.
    hash: u64,
    /// Hash of the key that is shown, the same in all limiters of the process.
    shown: u64,
    denials: u64,
    /// Maximum number of denials that belong to keys that had this counter before.
    excess: u64,
    text: Option<String>,
}

impl<K> TopDenied<K> {
    pub(crate) fn new(show: Option<ShowKey<K>>) -> Self {
        Self { parts: array::from_fn(|_| Mutex::default()), show }
    }

    /// Counts a denial of the key with this hash. `shown` hashes the key by [`shown_hash`]. The caller holds no lock.
    #[cold]
    pub(crate) fn note(
        &self,
        hash: u64,
        now: Tick,
        shown: impl FnOnce() -> u64,
        key: impl FnOnce() -> K,
    ) {
        let part = &self.parts[(hash >> 7) as usize % PARTS];
        let minute = now.nanoseconds() / MINUTE;
        let mut locked = lock(part);
        if locked.advance_to(minute).bump(hash) {
            return;
        }
        // Released before user code runs: `show` and `Hash` may be slow, panic, or call the limiter.
        drop(locked);
        // User code, which may panic; the denial is counted anyway.
        let shown = catch_unwind(AssertUnwindSafe(shown)).unwrap_or(hash);
        let text = self
            .show
            .as_ref()
            .and_then(|show| catch_unwind(AssertUnwindSafe(|| show(&key()))).ok().map(shortened));
        let mut locked = lock(part);
        let locked = locked.advance_to(minute);
        // A concurrent denial may have inserted the key while the part was unlocked.
        if !locked.bump(hash) {
            locked.insert(hash, shown, text);
        }
    }

    /// Returns the keys with the most denials in this minute and the previous one.
    pub(crate) fn read(&self, now: Tick) -> Vec<DeniedKey> {
        let mut all: HashMap<u64, (u64, u64, Option<String>)> = HashMap::new();
        for part in &self.parts {
            let mut part = lock(part);
            let part = part.advance_to(now.nanoseconds() / MINUTE);
            for counter in part.now.iter().chain(&part.before) {
                let (denials, shown, text) = all.entry(counter.hash).or_default();
                *shown = counter.shown;
                *denials += counter.denials - counter.excess;
                *text = text.take().or_else(|| counter.text.clone());
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        // By hash among equals, so that their order does not change between two samples.
        all.sort_unstable_by_key(|(hash, (denials, ..))| (u64::MAX - denials, *hash));
        all.truncate(REPORTED);
        let reported = all.into_iter().map(|(_, (denials, shown, text))| DeniedKey {
            name: text.map_or(KeyName::Hash(shown), KeyName::Plain),
            denials,
        });
        reported.collect()
    }
}

impl Minutes {
    /// Advances to the given minute, unless it has passed.
    fn advance_to(&mut self, minute: u64) -> &mut Self {
        if minute > self.minute {
            let before = mem::take(&mut self.now);
            // Only the minute directly before counts; an older one is over.
            self.before = if minute == self.minute + 1 { before } else { Vec::new() };
            self.minute = minute;
        }
        self
    }

    /// Counts a denial if the key has a counter; returns `false` if it has none.
    fn bump(&mut self, hash: u64) -> bool {
        let known = self.now.iter_mut().find(|counter| counter.hash == hash);
        known.map(|counter| counter.denials += 1).is_some()
    }

    fn insert(&mut self, hash: u64, shown: u64, text: Option<String>) {
        if self.now.len() < COUNTERS {
            self.now.push(DenialCounter { hash, shown, denials: 1, excess: 0, text });
            return;
        }
        let least = self.now.iter_mut().min_by_key(|counter| counter.denials);
        let least = least.expect("a full part has counters");
        let excess = least.denials;
        *least = DenialCounter { hash, shown, denials: excess + 1, excess, text };
    }
}

/// Cuts a long text at a character boundary.
fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(prefix(&text, MAX_TEXT_BYTES).len());
        text.shrink_to_fit();
    }
    text
}

fn lock(part: &Mutex<Minutes>) -> MutexGuard<'_, Minutes> {
    part.lock().expect("no user code runs under this lock")
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const UNUSED_KEY: fn() -> u64 = || unreachable!("the key is not needed without a formatter");

    fn at(minute: u64) -> Tick {
        Tick::from_nanoseconds(minute * MINUTE + 1)
    }

    fn counts(top_denied: &TopDenied<u64>, minute: u64) -> Vec<u64> {
        top_denied.read(at(minute)).iter().map(|key| key.denials).collect()
    }

    #[test]
    fn top_denied_keys_of_a_flood_are_reported_with_a_lower_bound_of_their_denials() {
        let top_denied = TopDenied::<u64>::new(Some(Arc::new(|key| format!("key {key}"))));
        // One denial in a hundred is of each of the four keys. Their hashes are spread, as those of real keys are.
        for n in 0..100_000_u64 {
            let key = if n % 25 == 0 { n / 25 % 4 } else { 1_000 + n };
            top_denied.note(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), at(7), || key, || key);
        }
        let reported = top_denied.read(at(7));
        let names: std::collections::BTreeSet<_> = reported[..4]
            .iter()
            .map(|key| &key.name)
            .cloned()
            .map(|name| match name {
                KeyName::Plain(text) => text,
                KeyName::Hash(_) => panic!("the formatter names every key"),
            })
            .collect();
        assert_eq!(names, ["key 0", "key 1", "key 2", "key 3"].map(str::to_owned).into());
        assert!(reported.iter().all(|key| key.denials <= 1_000), "{reported:?}");
    }

    #[test]
    fn denials_are_reported_for_one_to_two_minutes() {
        let top_denied = TopDenied::<u64>::new(None);
        for minute in [7, 8, 7] {
            top_denied.note(1, at(minute), || 1, UNUSED_KEY);
        }
        assert_eq!(counts(&top_denied, 8), [3]);
        assert_eq!(counts(&top_denied, 9), [2]);
        assert_eq!(counts(&top_denied, 10), [0; 0]);
    }

    #[test]
    fn text_of_a_key_is_cut_at_256_bytes() {
        let top_denied = TopDenied::<u64>::new(Some(Arc::new(|_| "é".repeat(50_000) + "x")));
        top_denied.note(1, at(0), || 1, || 1);
        let name = top_denied.read(at(0)).remove(0).name;
        assert_eq!(name, KeyName::Plain("é".repeat(128)));
    }

    #[test]
    fn key_is_reported_by_its_hash_if_show_keys_panics() {
        let top_denied = TopDenied::<u64>::new(Some(Arc::new(|_| panic!("no name"))));
        for _ in 0..2 {
            top_denied.note(1, at(0), || shown_hash(&1), || 1);
        }
        let reported = top_denied.read(at(0));
        assert!(
            matches!(reported[..], [DeniedKey { name: KeyName::Hash(_), denials: 2 }]),
            "{reported:?}"
        );
        let other = TopDenied::<u64>::new(None);
        other.note(9, at(0), || shown_hash(&1), UNUSED_KEY);
        assert_eq!(other.read(at(0))[0].name, reported[0].name, "a key has one hash in a process");
    }
}
