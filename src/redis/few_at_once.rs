//! Number of large requests of one call that are in flight at a time.

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::Error;

const AT_ONCE: usize = 4;

/// Runs calls with large replies, [`AT_ONCE`] at a time, and returns their results in order.
///
/// Not all at once: the replies share one connection, and each must arrive within the timeout of its call.
pub(super) async fn few_at_once<F: Future>(calls: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let calls: Vec<_> = calls.into_iter().collect();
    iter(calls).buffered(AT_ONCE).collect().await
}

/// Runs calls like [`few_at_once`] until one of them fails: while a server is unreachable, each would wait for its
/// timeout.
pub(super) async fn try_few_at_once<T, F>(
    calls: impl IntoIterator<Item = F>,
) -> Result<Vec<T>, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let calls: Vec<_> = calls.into_iter().collect();
    iter(calls).buffered(AT_ONCE).try_collect().await
}
