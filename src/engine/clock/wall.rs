//! Wall clock time, which processes and machines share, of an instant of Tokio's clock.

use std::time::{self, Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Maximum distance of two readings that count as simultaneous.
const CLOSE: Duration = Duration::from_micros(5);

/// Number of attempts to get two such readings: the thread may be descheduled between them.
const TRIES: usize = 64;

/// Returns the wall clock time at `instant`, as the time since 1970.
///
/// If Tokio's clock was paused or advanced, the result differs from the machine's wall clock by the same amount.
pub(crate) fn wall_clock(instant: Instant) -> Duration {
    let (now, wall) = one_moment();
    match instant.checked_duration_since(now) {
        Some(ahead) => wall.saturating_add(ahead),
        None => wall.saturating_sub(now - instant),
    }
}

/// Reads the monotonic clock and the wall clock of the machine at one moment.
fn one_moment() -> (Instant, Duration) {
    let mut closest = Duration::MAX;
    let mut moment = (time::Instant::now(), Duration::ZERO);
    for _ in 0..TRIES {
        let before = time::Instant::now();
        let wall = SystemTime::now();
        let apart = before.elapsed();
        if apart < closest {
            closest = apart;
            // A wall clock before 1970 counts as 1970: an export must not fail because the clock is not set.
            moment = (before, wall.duration_since(UNIX_EPOCH).unwrap_or_default());
        }
        if apart <= CLOSE {
            break;
        }
    }
    (Instant::from_std(moment.0), moment.1)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wall_clock_follows_an_advanced_clock() {
        let begin = wall_clock(Instant::now());
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let hour = wall_clock(Instant::now()) - begin;
        let error = hour.abs_diff(Duration::from_secs(3_600));
        assert!(error < Duration::from_millis(1), "one hour of a paused clock became {hour:?}");
    }
}
