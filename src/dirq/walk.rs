//! The streams over a queue's elements, and the stream of their names.

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

/// A stream over the elements of a queue in the order of their names: [`Name`]s, or [`Lock`](super::Lock)s of elements.
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
///
/// It implements [`Stream`], and has its own [`next`](Self::next), so you need no `StreamExt`. Elements that are
/// removed during the iteration are skipped. After an error it continues with the next element. After its end it
/// returns `None` forever.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future of [`next`](Self::next) loses no element.
#[must_use = "streams do nothing unless they are polled"]
pub struct Walk<T>(BoxStream<'static, Result<T, Error>>);

impl<T> Walk<T> {
    pub(super) fn new(stream: impl Stream<Item = Result<T, Error>> + Send + 'static) -> Self {
        Self(stream.fuse().boxed())
    }

    /// Returns the next item, or `None` after the last.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add("resize 7.png").await?;
    /// let mut jobs = queue.locked();
    /// while let Some(job) = jobs.next().await.transpose()? {
    ///     job.ack().await?;
    /// }
    /// # assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        self.0.next().await
    }
}

impl Walk<Name> {
    pub(super) fn names<P: Protocol + ?Sized>(queue: Arc<P>) -> Self {
        // Directories are listed when the iteration begins, and the names of each when it is reached. So it ends,
        // however fast others add, and only the names of one directory are in memory.
        let lister = queue.clone();
        let directories = once(async move {
            run("list", Work::Long, &lister, |queue| queue.root().directories()).await
        });
        let elements = move |directory| {
            let queue = queue.clone();
            async move {
                run("list", Work::Long, &queue, move |queue| {
                    let mut names = queue.elements(directory)?;
                    // A listing has no order.
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
