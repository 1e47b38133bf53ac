//! First successful result of several equivalent requests.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

/// Time after which the next attempt starts even if the previous ones are still pending, so that one silent server does
/// not block the others.
const NEXT_ATTEMPT_AFTER: Duration = Duration::from_millis(100);

/// Starts the attempts one after the other and returns the first success.
///
/// If all of them fail, returns the last error; without attempts, `if_empty`.
pub(super) async fn first_ok<T, E, F>(
    attempts: impl IntoIterator<Item = F>,
    if_empty: E,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut rest = attempts.into_iter().fuse();
    let mut pending: FuturesUnordered<F> = rest.next().into_iter().collect();
    let mut failure = if_empty;
    while !pending.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = pending.next() => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = error,
            },
            () = sleep(NEXT_ATTEMPT_AFTER) => {}
        }
        // At once after a failure, otherwise after the pause. Earlier attempts remain pending and may still succeed.
        pending.extend(rest.next());
    }
    Err(failure)
}
