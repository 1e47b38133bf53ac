//! The stream of all that a queue has, and that of its names.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{BoxStream, iter, once},
};

use super::{
    Error, Name,
    blocking::{Work, run},
    protocol::Protocol,
};

/// What a queue holds, one after another in the order of the names: [`Name`]s, or [`Lock`](super::Lock)s of
/// elements.
///
/// It is a [`Stream`], and has a [`next`](Self::next) of its own. What vanishes while it goes on is passed
/// over. After an error it goes on behind what could not be read; after its end it stays there.
///
/// # Cancel safety
///
/// Cancel safe: who drops a `next` that waits has taken nothing.
///
/// # Examples
///
/// ```
/// use fleeting::dirq::QueueSimple;
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let queue = QueueSimple::open(dir.path()).await?;
/// let first = queue.add("one").await?;
/// let second = queue.add("two").await?;
///
/// let mut names = queue.names();
/// assert_eq!(names.next().await.transpose()?, Some(first));
/// assert_eq!(names.next().await.transpose()?, Some(second));
/// assert!(names.next().await.is_none());
/// # Ok(()) }
/// ```
#[must_use = "streams do nothing unless they are polled"]
pub struct Walk<T>(BoxStream<'static, Result<T, Error>>);

impl<T> Walk<T> {
    pub(super) fn new(stream: impl Stream<Item = Result<T, Error>> + Send + 'static) -> Self {
        Self(stream.fuse().boxed())
    }

    /// The next one; none after the last.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        self.0.next().await
    }
}

impl Walk<Name> {
    pub(super) fn names<P: Protocol + ?Sized>(queue: Arc<P>) -> Self {
        // The directories as the walk begins, and the names of each as it is reached: so it ends, however fast others
        // add, and what it holds at once is one directory.
        let lister = queue.clone();
        let directories = once(async move {
            run("list", Work::Long, &lister, |queue| queue.root().directories()).await
        });
        let elements = move |directory| {
            let queue = queue.clone();
            async move {
                run("list", Work::Long, &queue, move |queue| {
                    let mut names = queue.elements(directory)?;
                    names.sort_unstable();
                    Ok(names)
                })
                .await
            }
        };
        let names = directories
            .map_ok(|directories| iter(directories).map(Ok))
            .try_flatten()
            .and_then(elements)
            .map_ok(|names| iter(names).map(Ok))
            .try_flatten();
        Self::new(names)
    }
}

impl<T> Stream for Walk<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl<T> fmt::Debug for Walk<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}
