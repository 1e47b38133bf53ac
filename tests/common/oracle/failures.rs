//! Errors kept by `negative_ttl`, and the backoff of background refreshes.

use std::{collections::BTreeMap, time::Duration};

use super::{Bound, Key, Settings, Value};

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The last failures of keys. A cache with a bound of entries keeps as many of them, and the oracle does not predict
/// which, so an answer may be `None`: unknown.
#[derive(Debug)]
pub(super) struct Failures {
    negative_ttl: Duration,
    /// Number of failures that are certainly kept.
    bound: usize,
    failures: BTreeMap<Key, Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    at: Duration,
    error: Value,
    /// Least and greatest number of failures in a row, this one included.
    in_a_row: (u32, u32),
    is_certain: bool,
}

impl Failures {
    pub(super) fn new(settings: &Settings) -> Self {
        let keeps = settings.negative_ttl.is_some()
            || settings.refresh_ahead > 0.0
            || !settings.stale_while_revalidate.is_zero();
        let bound = match settings.bound {
            _ if !keeps => 0,
            Bound::Entries(bound) => bound as usize,
            // There are fewer keys than failures that the cache keeps.
            Bound::None | Bound::Weight(_) => usize::MAX,
        };
        let negative_ttl = settings.negative_ttl.unwrap_or_default();
        Self { negative_ttl, bound, failures: BTreeMap::new() }
    }

    pub(super) fn record(&mut self, key: Key, error: Value, now: Duration) {
        if self.bound == 0 {
            return;
        }
        let (least, most) = match self.failures.get(&key) {
            Some(last) => last.in_a_row_at(now, self.negative_ttl),
            None => (0, 0),
        };
        self.failures.remove(&key);
        if self.failures.len() >= self.bound {
            self.failures.values_mut().for_each(|failure| failure.is_certain = false);
        }
        let in_a_row = (least + 1, most + 1);
        self.failures.insert(key, Failure { at: now, error, in_a_row, is_certain: true });
    }

    pub(super) fn discard(&mut self, key: Key) {
        self.failures.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        self.failures.clear();
    }

    /// Returns the error that `negative_ttl` keeps for the key, and whether it does.
    pub(super) fn error(&self, key: Key, now: Duration) -> (Value, Option<bool>) {
        match self.failures.get(&key) {
            Some(failure) if now < failure.at.saturating_add(self.negative_ttl) => {
                (failure.error, failure.is_certain.then_some(true))
            }
            _ => (0, Some(false)),
        }
    }

    /// Returns whether a background refresh may be tried.
    pub(super) fn may_retry(&self, key: Key, now: Duration) -> Option<bool> {
        let Some(failure) = self.failures.get(&key) else { return Some(true) };
        let (least, most) = failure.in_a_row;
        if now >= failure.at + backoff(most) {
            return Some(true);
        }
        (failure.is_certain && now < failure.at + backoff(least)).then_some(false)
    }
}

impl Failure {
    /// Returns the number of failures in a row that the cache remembers at `now`.
    fn in_a_row_at(&self, now: Duration, negative_ttl: Duration) -> (u32, u32) {
        let is_forgotten =
            |in_a_row| now >= self.at.saturating_add(negative_ttl.max(2 * backoff(in_a_row)));
        let (least, most) = self.in_a_row;
        match (is_forgotten(least) || !self.is_certain, is_forgotten(most)) {
            (_, true) => (0, 0),
            (true, false) => (0, most),
            (false, false) => (least, most),
        }
    }
}

/// Returns the time for which no refresh is tried after this many failures in a row.
fn backoff(in_a_row: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(in_a_row - 1)).min(MAX_BACKOFF)
}
