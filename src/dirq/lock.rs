//! An element that is locked and read, as users hold it until their work is done.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::sleep;

use super::{
    Error, Name,
    blocking::{Work, run},
    delivery::Delivery,
    lock_guard::LockGuard,
    protocol::Protocol,
    root::{DirId, Opener},
};

/// An element that this process has locked, with what it holds: [`Bytes`](bytes::Bytes), or an
/// [`Element`](super::Element).
///
/// [`ack`](Self::ack) removes the element when the work is done. Dropped before, as by an error, a panic or the
/// end of its task, it unlocks the element, and that comes again, here or to another process. The drop calls the
/// file system by itself, with or without a runtime, for some microseconds on a local disk:
/// [`unlock`](Self::unlock) does it on another thread.
///
/// The lock is as old as the call that took it. A purge by any process takes away one that is too old
/// ([`Purge::max_lock`](super::Purge::max_lock), often ten minutes): then another process may lock the element
/// and do the work too, and this lock's drop unlocks that one's. Work that may last renews it with
/// [`touch`](Self::touch) or [`keep_alive`](Self::keep_alive).
///
/// When an element that was given back comes again, and how often, is told in [the module](super#retries-and-dead-letters).
#[must_use = "a lock that is dropped is given back"]
pub struct Lock<T: Send + 'static> {
    guard: LockGuard<dyn Protocol<Payload = T>>,
    value: T,
}

impl<T: Send + 'static> Lock<T> {
    /// Locks and reads an element; none where somebody else has the lock, or it is gone, or `begin_delivery` says that it
    /// rests. Where it can't be read, the lock is given back.
    pub(super) fn take(
        queue: &Arc<dyn Protocol<Payload = T>>,
        opener: &Opener<'_>,
        name: Name,
        limit: u64,
        begin_delivery: impl FnOnce() -> Option<Delivery>,
    ) -> Result<Option<Self>, Error> {
        let Some((mut guard, value)) = LockGuard::take(queue, opener, name, limit)? else {
            return Ok(None);
        };
        let Some(delivery) = begin_delivery() else { return Ok(None) };
        guard.set_delivery(delivery);
        Ok(Some(Self { guard, value }))
    }

    /// Gives it to the user: from here on, one that comes back has failed.
    pub(super) fn mark_delivered(mut self) -> Self {
        self.guard.mark_delivered();
        self
    }

    /// Which queue it is of, and which element of that.
    pub(super) fn queue_and_name(&self) -> (DirId, Name) {
        (self.guard.queue().root().id(), *self.name())
    }

    /// The element's name.
    pub fn name(&self) -> &Name {
        self.guard.name()
    }

    /// What the element holds.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// How often the element was given out, with this time: 1 at the first.
    ///
    /// A queue counts all its deliveries where it is opened with [`max_attempts`](super::QueueSimpleBuilder::max_attempts)
    /// or [`backoff`](super::QueueSimpleBuilder::backoff), else only those that end in [`retry_in`](Self::retry_in).
    pub fn attempts(&self) -> u32 {
        self.guard.delivery().map_or(1, Delivery::attempts)
    }

    /// Removes the element: the work is done.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] where a purge took the lock, and [`Error::Io`]. The element may then come again.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether the element is removed; most probably it is.
    pub async fn ack(self) -> Result<(), Error> {
        let guard = self.guard;
        let queue = guard.queue().clone();
        // The guard goes with the work: where nobody waits for it any more, it is done all the same.
        run("remove", Work::Short, &queue, move |_| guard.remove()).await
    }

    /// Removes the elements of all `locks`: on a disk at once, and so quicker than one by one.
    ///
    /// # Errors
    ///
    /// The first of those that [`ack`](Self::ack) would give. The others are removed all the same.
    ///
    /// # Cancel safety
    ///
    /// As [`ack`](Self::ack).
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::dirq::{Lock, QueueSimple};
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add_many((0..100).map(|n: u32| n.to_string())).await?;
    ///
    /// let mut chunks = queue.locked().ready_chunks(64);
    /// while let Some(chunk) = chunks.next().await {
    ///     // Work on all that can be read.
    ///     Lock::ack_all(chunk.into_iter().flatten()).await?;
    /// }
    /// assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn ack_all(locks: impl IntoIterator<Item = Self>) -> Result<(), Error> {
        let guards = locks.into_iter().map(|lock| lock.guard);
        let (in_place, others): (Vec<_>, Vec<_>) =
            guards.partition(|guard| guard.queue().root().in_memory());
        let mut done = Ok(());
        // In place, each of them lets others run before it begins, and all at once would not.
        for guard in in_place {
            let queue = guard.queue().clone();
            done = done.and(run("remove", Work::Short, &queue, move |_| guard.remove()).await);
        }
        let Some(queue) = others.first().map(|guard| guard.queue().clone()) else { return done };
        let removed = run("remove", Work::Long, &queue, move |_| {
            others.into_iter().map(LockGuard::remove).fold(Ok(()), Result::and)
        });
        done.and(removed.await)
    }

    /// Gives the lock back: the element stays, and comes again; where deliveries are counted, when its backoff is over.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] where a purge took the lock, and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Who drops the future gives the lock back, too.
    pub async fn unlock(self) -> Result<(), Error> {
        self.unlock_with_delay(None).await
    }

    /// Gives the lock back, so that [`locked`](super::DirQueue::locked) and [`watch`](super::DirQueue::watch) of all
    /// processes that use this library pass the element over for `delay`. It counts as a failure, also in a queue that
    /// counts no others: the last that there may be leaves the element dead, whatever `delay`. One that overflows is
    /// never over.
    ///
    /// Other implementations give it out at once.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] where a purge took the lock, and [`Error::Io`], as on a full disk: the lock is given back all
    /// the same, and the element may come sooner.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future gives the lock back; whether with the delay is not known.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::QueueSimple;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(2).open().await?;
    /// let mail = queue.add("mail to ada").await?;
    /// for attempt in 1..=2 {
    ///     let job = queue.locked().next().await.transpose()?.unwrap();
    ///     assert_eq!(job.attempts(), attempt);
    ///     job.retry_in(Duration::ZERO).await?; // fails
    /// }
    /// assert!(queue.locked().next().await.is_none());
    /// assert_eq!(queue.take_dead(9).await?[0].name(), &mail);
    /// # Ok(()) }
    /// ```
    pub async fn retry_in(self, delay: Duration) -> Result<(), Error> {
        self.unlock_with_delay(Some(delay)).await
    }

    /// Makes the lock's age zero.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] where a purge took the lock, and [`Error::Io`]. The work had better stop.
    pub async fn touch(&self) -> Result<(), Error> {
        let name = *self.name();
        run("touch", Work::Short, self.guard.queue(), move |queue| queue.renew(&name)).await
    }

    /// Does long work, and makes the lock's age zero `every` so often until it is done. Less than a millisecond is one.
    ///
    /// # Errors
    ///
    /// As [`touch`](Self::touch): then `work` is dropped where it stands.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn worker(queue: QueueSimple) -> Result<(), Error> {
    ///     let mut jobs = queue.watch(Duration::from_secs(5));
    ///     while let Some(job) = jobs.next().await {
    ///         let Ok(job) = job.inspect_err(|error| eprintln!("{error}")) else { continue };
    ///         // Where a purge took the lock, another works on it by now.
    ///         let done = job.keep_alive(Duration::from_secs(60), work(job.value())).await;
    ///         if let Ok(Ok(())) = done {
    ///             job.ack().await?;
    ///         } // else it is unlocked, and comes again
    ///     }
    ///     Ok(())
    /// }
    /// # async fn work(_: &[u8]) -> Result<(), ()> { Ok(()) }
    /// ```
    pub async fn keep_alive<R>(
        &self,
        every: Duration,
        work: impl Future<Output = R>,
    ) -> Result<R, Error> {
        // A shorter interval would be a busy loop.
        let every = every.max(Duration::from_millis(1));
        let beat = async {
            loop {
                // Not an interval: a system that is too slow to keep up need not hurry after.
                sleep(every).await;
                if let Err(error) = self.touch().await {
                    return error;
                }
            }
        };
        match select(Box::pin(work), Box::pin(beat)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right((error, _)) => Err(error),
        }
    }

    async fn unlock_with_delay(self, delay: Option<Duration>) -> Result<(), Error> {
        let guard = self.guard;
        let queue = guard.queue().clone();
        run("unlock", Work::Short, &queue, move |_| guard.unlock(delay)).await
    }
}

impl<T: Send + 'static + fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", self.name()).field("value", &self.value).finish()
    }
}
