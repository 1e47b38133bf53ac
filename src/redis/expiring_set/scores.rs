//! Conversion of times to scores, and of time ranges to the bounds of `ZRANGEBYSCORE`: a number, a number after `(` for
//! an exclusive bound, or an infinity.

use std::{
    ops::{Bound, RangeBounds},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Unit of the scores, which count from the Unix epoch.
#[derive(Clone, Copy)]
pub(super) enum ScoreUnit {
    /// Milliseconds, with a fraction that orders the members of the same millisecond: see `millis.lua`.
    Millis,
    /// Seconds as a double, as written by the programs that share a [`compat`](super::ExpiringSet::compat) set.
    Seconds,
}

impl ScoreUnit {
    pub(super) fn score(self, time: SystemTime) -> String {
        match self {
            Self::Millis => millis(time).to_string(),
            Self::Seconds => seconds(time).to_string(),
        }
    }

    pub(super) fn time(self, score: f64) -> Option<SystemTime> {
        let (since, is_later) = match self {
            // `as` saturates, and is exact for all scores that this crate writes.
            Self::Millis => {
                let millis = score.floor() as i64;
                (Duration::from_millis(millis.unsigned_abs()), millis >= 0)
            }
            // Another program may have written a score that is not a valid time.
            Self::Seconds => (Duration::try_from_secs_f64(score.abs()).ok()?, score >= 0.0),
        };
        match is_later {
            true => UNIX_EPOCH.checked_add(since),
            false => UNIX_EPOCH.checked_sub(since),
        }
    }

    pub(super) fn range(self, times: &impl RangeBounds<SystemTime>) -> [String; 2] {
        [self.start(times.start_bound()), self.end(times.end_bound())]
    }

    fn start(self, bound: Bound<&SystemTime>) -> String {
        match (self, bound) {
            (_, Bound::Unbounded) => "-inf".into(),
            (Self::Millis, Bound::Included(time)) => millis(*time).to_string(),
            (Self::Millis, Bound::Excluded(time)) => (millis(*time) + 1).to_string(),
            (Self::Seconds, Bound::Included(time)) => seconds(*time).to_string(),
            (Self::Seconds, Bound::Excluded(time)) => format!("({}", seconds(*time)),
        }
    }

    fn end(self, bound: Bound<&SystemTime>) -> String {
        match (self, bound) {
            (_, Bound::Unbounded) => "+inf".into(),
            // Inclusive bounds include the fractions of their millisecond.
            (Self::Millis, Bound::Included(time)) => format!("({}", millis(*time) + 1),
            (Self::Millis, Bound::Excluded(time)) => format!("({}", millis(*time)),
            // Seconds are not rounded, so both ends have one form.
            (_, bound) => self.start(bound),
        }
    }
}

/// Converts to milliseconds since the Unix epoch, rounded down.
fn millis(time: SystemTime) -> i64 {
    /// Doubles above it are no longer exact integers.
    const MAX_MILLIS: u64 = 1 << 53;
    let millis = |millis: u128| u64::try_from(millis).unwrap_or(MAX_MILLIS).min(MAX_MILLIS) as i64;
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since.as_millis()),
        Err(error) => -millis(error.duration().as_nanos().div_ceil(1_000_000)),
    }
}

fn seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(error) => -error.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_times_rounded_down_to_milliseconds() {
        let noon = UNIX_EPOCH + Duration::from_nanos(1_999_999);
        assert_eq!(ScoreUnit::Millis.score(noon), "1");
        assert_eq!(ScoreUnit::Millis.time(1.9), Some(UNIX_EPOCH + Duration::from_millis(1)));
        let before = UNIX_EPOCH - Duration::from_nanos(1);
        assert_eq!(ScoreUnit::Millis.score(before), "-1");
        assert_eq!(ScoreUnit::Millis.time(-1.0), Some(UNIX_EPOCH - Duration::from_millis(1)));
        assert_eq!(ScoreUnit::Millis.range(&(noon..noon)), ["1", "(1"]);
        assert_eq!(ScoreUnit::Millis.range(&(noon..=noon)), ["1", "(2"]);
        let after = (Bound::Excluded(noon), Bound::Unbounded);
        assert_eq!(ScoreUnit::Millis.range(&after), ["2", "+inf"]);
    }

    #[test]
    fn seconds_scores_round_trip() {
        for score in [1_700_000_000.123_456_7_f64, -1.5, 0.0, 1_700_000_000.0] {
            let time = ScoreUnit::Seconds.time(score).expect("the score is a valid time");
            assert_eq!(ScoreUnit::Seconds.score(time).parse(), Ok(score));
        }
        let noon = UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(ScoreUnit::Seconds.range(&(noon..noon)), ["1.5", "(1.5"]);
        assert_eq!(ScoreUnit::Seconds.range(&(..=noon)), ["-inf", "1.5"]);
    }
}
