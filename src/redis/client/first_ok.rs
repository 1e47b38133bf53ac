//! The first good answer of several who would say the same.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

/// After this the next one is asked too: one that is silent keeps nobody waiting.
const MOMENT: Duration = Duration::from_millis(100);

/// Asks one after the other until one answers; where none does, the last error, or `nobody` where there is none to ask.
pub(super) async fn any_answer<T, E, F>(
    asked: impl IntoIterator<Item = F>,
    nobody: E,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut rest = asked.into_iter().fuse();
    let mut waiting: FuturesUnordered<F> = rest.next().into_iter().collect();
    let mut failure = nobody;
    while !waiting.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = waiting.next() => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = error,
            },
            () = sleep(MOMENT) => {}
        }
        waiting.extend(rest.next());
    }
    Err(failure)
}
