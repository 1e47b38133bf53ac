//! The wall clock, by which processes and machines agree, at an instant of Tokio's clock.

use std::time::{self, Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Two readings that are no further apart are taken to be of one moment.
const CLOSE: Duration = Duration::from_micros(5);

/// How often they are tried to get so close: a thread may be kept waiting between them.
const TRIES: usize = 64;

/// What the wall clock shows at `instant`, since 1970.
///
/// A clock of Tokio's that was paused or advanced is ahead of the machine's or behind it, and by as much is this.
pub(crate) fn wall_clock(instant: Instant) -> Duration {
    let (now, wall) = one_moment();
    match instant.checked_duration_since(now) {
        Some(ahead) => wall.saturating_add(ahead),
        None => wall.saturating_sub(now - instant),
    }
}

/// The machine's two clocks.
fn one_moment() -> (Instant, Duration) {
    let mut closest = Duration::MAX;
    let mut moment = (time::Instant::now(), Duration::ZERO);
    for _ in 0..TRIES {
        let before = time::Instant::now();
        let wall = SystemTime::now();
        let apart = before.elapsed();
        if apart < closest {
            closest = apart;
            moment = (before, wall.duration_since(UNIX_EPOCH).unwrap_or_default());
        }
        if apart <= CLOSE {
            break;
        }
    }
    (Instant::from_std(moment.0), moment.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_a_paused_clock_is_advanced_by_counts() {
        let begin = wall_clock(Instant::now());
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let hour = wall_clock(Instant::now()) - begin;
        let error = hour.abs_diff(Duration::from_secs(3_600));
        assert!(error < Duration::from_millis(1), "an hour of a paused clock is {hour:?}");
    }
}
