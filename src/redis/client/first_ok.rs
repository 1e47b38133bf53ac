//! First successful result of several equivalent requests.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

/// Maximum time after which the next attempt starts even if the previous ones are still pending, so that one silent
/// server does not block the others.
const NEXT_ATTEMPT_AFTER: Duration = Duration::from_millis(100);

/// Starts the attempts one after the other, all of them within half of `timeout`, and returns the first success.
///
/// If all of them fail, returns the last of the errors whose `rank` is the highest; `None` without attempts.
pub(super) async fn first_ok<T, E, F, R: Ord>(
    attempts: impl ExactSizeIterator<Item = F>,
    timeout: Duration,
    rank: impl Fn(&E) -> R,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let pause = attempts.len().try_into().ok().and_then(|count| (timeout / 2).checked_div(count));
    let pause = pause.unwrap_or_default().min(NEXT_ATTEMPT_AFTER);
    let mut rest = attempts.fuse();
    let mut pending: FuturesUnordered<F> = rest.next().into_iter().collect();
    let mut failure: Option<E> = None;
    let mut next_at = Instant::now() + pause;
    while !pending.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = pending.next() => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    failure = failure.into_iter().chain([error]).max_by_key(&rank);
                    next_at = Instant::now() + pause;
                }
            },
            // Not by a pause each time: timers are late by up to a millisecond, which may be longer.
            () = sleep_until(next_at), if rest.len() > 0 => next_at += pause,
        }
        // At once after a failure, otherwise after the pause. Earlier attempts remain pending and may still succeed.
        pending.extend(rest.next());
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the time until the last of `count` attempts succeeds, if all others are silent.
    async fn time_until_last(count: usize, timeout: Duration) -> Duration {
        let begin = Instant::now();
        let attempts = (1..=count).map(async |at| match at == count {
            true => Ok::<_, ()>(()),
            false => pending().await,
        });
        let attempts: Vec<_> = attempts.collect();
        first_ok(attempts.into_iter(), timeout, |()| ()).await.unwrap();
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn all_attempts_begin_within_half_of_the_timeout() {
        assert_eq!(time_until_last(1, SECOND).await, Duration::ZERO);
        assert_eq!(time_until_last(4, SECOND).await, 3 * NEXT_ATTEMPT_AFTER);
        assert_eq!(time_until_last(6, 100 * SECOND).await, 5 * NEXT_ATTEMPT_AFTER);
        for (count, timeout) in [(100, SECOND), (4, SECOND / 100), (1_000, SECOND / 100)] {
            let time = time_until_last(count, timeout).await;
            // The resolution of timers.
            let max = timeout / 2 + Duration::from_millis(1);
            assert!(time <= max, "{count} {timeout:?}: {time:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn last_error_of_the_highest_rank_is_returned() {
        let errors = [(1, "a"), (2, "b"), (2, "c"), (0, "d")];
        let attempts = errors.map(|error| ready(Err::<(), _>(error)));
        let error = first_ok(attempts.into_iter(), SECOND, |(rank, _)| *rank).await.unwrap_err();
        assert_eq!(error, Some((2, "c")));
        let none: [std::future::Ready<Result<(), ()>>; 0] = [];
        assert_eq!(first_ok(none.into_iter(), SECOND, |()| ()).await, Err(None));
    }
}
