//! A locked element with its content, held by the user until the work is done.

mod renewal;

use std::{error::Error as _, fmt, sync::Arc, thread, time::Duration};

use futures_util::future::join_all;

use super::{
    Error, Name,
    blocking::{Work, run},
    delivery::{Delivery, DeliveryEnd},
    lock_guard::{Ended, LockGuard, PAUSES},
    protocol::Protocol,
    root::Opener,
};
use crate::engine::retries::cut_reason;

/// An element that you have locked, with its content: finish it with [`ack`](Self::ack), or drop it to get it again.
///
/// ```
/// # use fleeting::dirq::QueueSimple;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let send = async |_: &[u8]| Err::<(), _>("550 no such user");
/// let queue = QueueSimple::builder(dir.path()).max_attempts(3).open().await?;
/// queue.add("mail to ada").await?;
///
/// let mail = queue.locked().next().await.transpose()?.unwrap();
/// match send(mail.value()).await {
///     Ok(()) => mail.ack().await?,             // removes the element
///     Err(reason) => mail.fail(reason).await?, // a retry follows in about a second
/// }
/// # Ok(()) }
/// ```
///
/// The content is [`Bytes`](bytes::Bytes), or an [`Element`](super::Element).
///
/// # If the lock is dropped
///
/// If you drop the lock before [`ack`](Self::ack), for example because of an error or a panic, the element is unlocked
/// and delivered again, here or to another process. The
/// [module documentation](super#retries-and-dead-letters) describes when and how often.
///
/// Inside of a Tokio runtime, the drop returns immediately, and another thread unlocks the element. Other processes see
/// that a moment later, and later calls of this process to the queue by the same path see it in any case. Outside of a
/// runtime, and in [memory](super#cost), the drop makes the file system call itself. [`unlock`](Self::unlock) waits for
/// it.
///
/// # Long work
///
/// A purge by any process removes a lock that is too old ([`Purge::max_lock`](super::Purge::max_lock), often ten
/// minutes). Then another process may lock the element and do the work too. Renew your lock during long work with
/// [`touch`](Self::touch) or [`keep_alive`](Self::keep_alive).
///
/// The age of a lock counts from the time at which it was acquired. For an element that
/// [`locked`](super::DirQueue::locked) or [`watch`](super::DirQueue::watch) has prefetched, this is before the element
/// is returned.
///
/// A queue that [counts deliveries](super#retries-and-dead-letters) detects a lost lock by the record of the newer
/// delivery. Methods of this lock then return [`Error::NotLocked`] and change nothing, and dropping it changes nothing.
/// If either process does not count deliveries, this `Lock` may unlock or remove the other's element.
#[must_use = "a lock that is dropped is given back"]
pub struct Lock<T: Send + 'static> {
    guard: LockGuard<dyn Protocol<Payload = T>>,
    value: T,
}

impl<T: Send + 'static> Lock<T> {
    /// Locks and reads an element. Returns `None` if it is already locked or missing, or if `begin_delivery` returns
    /// `None`. If it cannot be read, the lock is released, and the delivery has failed.
    pub(super) fn take(
        queue: &Arc<dyn Protocol<Payload = T>>,
        opener: &Opener<'_>,
        name: Name,
        limit: u64,
        begin_delivery: impl FnOnce() -> Result<Option<Delivery>, Error>,
    ) -> Result<Option<Self>, Error> {
        let Some((mut guard, read)) = LockGuard::take(queue, opener, name, limit)? else {
            return Ok(None);
        };
        // These fail not because of the element. Returning drops the guard, which unlocks.
        let is_put_back = limit < queue.root().max_size;
        let read = match read {
            Err(error @ Error::TooLarge { .. }) if is_put_back => return Err(error),
            Err(error) if error.is_passing() => return Err(error),
            read => read,
        };
        // Under the lock, because only its owner may write the record. Returning drops the guard, which unlocks.
        let Some(delivery) = begin_delivery()? else { return Ok(None) };
        guard.set_delivery(delivery);
        match read {
            Ok(value) => Ok(Some(Self { guard, value })),
            Err(error) => {
                guard.mark_delivered();
                let reason = cut_reason(error_chain(&error)).into_string();
                // The error of reading is more useful than that of the record. A guard that should try again is
                // dropped, which does so.
                drop(guard.try_unlock(&DeliveryEnd::Unreadable(reason)));
                Err(error)
            }
        }
    }

    /// Marks the element as handed to the user. From now on, unlocking it counts as a failure.
    pub(super) fn mark_delivered(mut self) -> Self {
        self.guard.mark_delivered();
        self
    }

    /// Marks the element as prefetched: its lock is released only if it is not [lost](Self::is_lost).
    pub(super) fn mark_prefetched(&mut self, opener: &Opener<'_>) {
        self.guard.mark_prefetched(opener);
    }

    /// Returns whether the lock of a prefetched element is missing, or is another process's.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Returns the element's name.
    pub fn name(&self) -> &Name {
        self.guard.name()
    }

    /// Returns the element's content.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add("resize 7.png").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// println!("{}: {:?}", job.name(), job.value());
    /// # assert_eq!(job.value(), "resize 7.png");
    /// # Ok(()) }
    /// ```
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the number of deliveries of the element, including this one: 1 for the first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(9).open().await?;
    /// queue.add("import").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// job.retry_in(Duration::ZERO).await?;
    ///
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!(job.attempts(), 2, "be careful: it has failed before");
    /// # Ok(()) }
    /// ```
    ///
    /// A queue counts all deliveries if it is opened with [`max_attempts`](super::QueueSimpleBuilder::max_attempts) or
    /// [`backoff`](super::QueueSimpleBuilder::backoff). Otherwise it counts only deliveries that end with
    /// [`retry_in`](Self::retry_in) or [`fail`](Self::fail).
    pub fn attempts(&self) -> u32 {
        self.guard.delivery().map_or(1, Delivery::attempts)
    }

    /// Removes the element, because your work is done.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add("resize 7.png").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!(queue.count().await?, 1, "it would be delivered again after a crash");
    /// job.ack().await?;
    /// assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, [`Error::Foreign`] if another program has put something into
    /// the element, and [`Error::Io`]. The element may then be delivered again: it is unlocked if the lock is still
    /// yours, except if the directory of the queue is away ([`Error::Io`] with its path). Then it stays locked when the
    /// directory is back, until a purge removes the lock.
    ///
    /// In memory and on a local disk (see [*Cost*](super#cost)), only one ack succeeds, even if a purge has let another
    /// worker lock the element. If the process or the system is short of file descriptors or memory, the removal is
    /// tried again for a second before it fails.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the element may or may not be removed; most likely it is.
    pub async fn ack(self) -> Result<(), Error> {
        acknowledge(self.guard).await
    }

    /// Removes the elements of all `locks`. On a disk this takes one round trip to another thread per queue, which is
    /// faster than one call of [`ack`](Self::ack) per element.
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
    ///     // Work on all elements that can be read.
    ///     Lock::ack_all(chunk.into_iter().flatten()).await?;
    /// }
    /// assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The first error that [`ack`](Self::ack) would return. The other elements are removed nevertheless.
    ///
    /// # Cancel safety
    ///
    /// As for [`ack`](Self::ack).
    pub async fn ack_all(locks: impl IntoIterator<Item = Self>) -> Result<(), Error> {
        let guards = locks.into_iter().map(|lock| lock.guard);
        let (in_place, others): (Vec<_>, Vec<_>) =
            guards.partition(|guard| guard.queue().root().in_memory());
        let mut done = Ok(());
        // Separate calls: each consumes cooperative budget before it begins. One call for all would block other tasks.
        for guard in in_place {
            done = done.and(acknowledge(guard).await);
        }
        // One call per queue, on its own threads: the disk of one may hang.
        let mut queues: Vec<Vec<Guard<T>>> = Vec::new();
        for guard in others {
            let is_same = |guards: &&mut Vec<Guard<T>>| {
                let [own, other] = [&guards[0], &guard].map(|guard| &guard.queue().root().shared);
                Arc::ptr_eq(own, other)
            };
            match queues.iter_mut().find(is_same) {
                Some(guards) => guards.push(guard),
                None => queues.push(vec![guard]),
            }
        }
        let removed = join_all(queues.into_iter().map(acknowledge_all)).await;
        removed.into_iter().fold(done, Result::and)
    }

    /// Unlocks the element: it stays in the queue and is delivered again, after its backoff if deliveries are counted.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add("resize 7.png").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// job.unlock().await?; // the tool is missing on this machine: another one may do it
    /// assert!(queue.locked().next().await.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, and [`Error::Io`]. If the directory of the queue is away
    /// ([`Error::Io`] with its path), the element stays locked when the directory is back, until a purge removes the
    /// lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, the lock is released too.
    pub async fn unlock(self) -> Result<(), Error> {
        self.unlock_after(DeliveryEnd::Dropped).await
    }

    /// Unlocks the element as a failed attempt with a reason. The element is delivered again after its backoff, or is a
    /// dead letter if it was the last allowed attempt.
    ///
    /// ```
    /// use fleeting::dirq::QueueSimple;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// queue.add("mail to nobody").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// job.fail("550 no such user").await?;
    ///
    /// let dead = &queue.dead().await?[0];
    /// assert_eq!((dead.attempts, dead.reason.as_deref()), (1, Some("550 no such user")));
    /// # Ok(()) }
    /// ```
    ///
    /// Differs from [`unlock`](Self::unlock) in the reason, which [`dead`](super::DirQueue::dead) returns if the
    /// element becomes a dead letter. It replaces the reason of an earlier attempt. A reason longer than 1,024 bytes is
    /// cut at a character boundary. In a queue that does not count deliveries, this one counts nevertheless, and the
    /// backoff is one second, doubled after each further failure up to one minute. A dead letter stays one, with the
    /// new reason.
    ///
    /// Other implementations may deliver the element immediately.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, and [`Error::Io`], for instance if the disk is full. The lock
    /// is released nevertheless, except as for [`unlock`](Self::unlock) if the directory of the queue is away. The
    /// failure or its reason may not be recorded.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released, but the reason may or may not be recorded.
    pub async fn fail(self, reason: impl Into<String>) -> Result<(), Error> {
        // Outside of the lock's calls: a panic of the conversion drops the lock.
        let reason = cut_reason(reason.into()).into_string();
        self.unlock_after(DeliveryEnd::Failed(reason)).await
    }

    /// Is [`fail`](Lock::fail) with the reason "nack". rustc would otherwise offer `ack`, which does the opposite.
    ///
    /// # Errors
    ///
    /// As for [`fail`](Lock::fail).
    #[deprecated(
        note = "use `fail`, or `release` if the element should be available again at once"
    )]
    #[doc(hidden)]
    pub async fn nack(self) -> Result<(), Error> {
        self.fail("nack").await
    }

    /// Unlocks the element as if it had not been delivered: it can be locked again immediately, and this does not count
    /// as a failed attempt. When your worker shuts down, release the elements that it has not begun.
    ///
    /// ```
    /// use fleeting::dirq::QueueSimple;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// queue.add("mail to ada").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// job.release().await?;
    ///
    /// let again = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!(again.attempts(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// A waiting stream of [`watch`](super::DirQueue::watch) of this process gets the element. Those of other processes
    /// find it at their next scan.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, and [`Error::Io`]. The lock is released nevertheless, except
    /// as for [`unlock`](Self::unlock) if the directory of the queue is away. The delivery may count as a failed
    /// attempt.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is polled, the delivery is a failed attempt; afterwards, it most likely is
    /// not. The lock is released in both cases.
    pub async fn release(self) -> Result<(), Error> {
        self.unlock_after(DeliveryEnd::Released).await
    }

    /// Unlocks the element, to be delivered again after `delay`, for example the time that a server asked you to wait.
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
    ///
    /// [`locked`](super::DirQueue::locked) and [`watch`](super::DirQueue::watch) of all processes that use this library
    /// skip it for `delay`. This counts as a failure, even in a queue that does not count other failures. If it is the
    /// last allowed attempt, the element becomes a dead letter, regardless of `delay`. If `delay` overflows, this
    /// library never delivers the element again.
    ///
    /// Other implementations may deliver the element immediately.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, and [`Error::Io`], for instance if the disk is full. The lock
    /// is released nevertheless, except as for [`unlock`](Self::unlock) if the directory of the queue is away. The
    /// element may be delivered before `delay` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released, but the delay may or may not be recorded.
    pub async fn retry_in(self, delay: Duration) -> Result<(), Error> {
        self.unlock_after(DeliveryEnd::RetryIn(delay)).await
    }

    async fn unlock_after(self, outcome: DeliveryEnd) -> Result<(), Error> {
        let outcome = Arc::new(outcome);
        end("unlock", self.guard, move |guard| guard.try_unlock(&outcome)).await
    }
}

/// The guard of a locked element with content `T`.
type Guard<T> = LockGuard<dyn Protocol<Payload = T>>;

/// Removes an element and its lock. Tries again after errors that pass: otherwise its work would be done again.
async fn acknowledge<T: Send + 'static>(guard: Guard<T>) -> Result<(), Error> {
    end("remove", guard, LockGuard::try_remove).await
}

/// Removes or unlocks an element by `attempt`, which is made again after errors that pass.
async fn end<T: Send + 'static>(
    operation: &'static str,
    guard: Guard<T>,
    attempt: impl Fn(Guard<T>) -> Ended<dyn Protocol<Payload = T>> + Clone + Send + 'static,
) -> Result<(), Error> {
    let (queue, first) = (guard.queue().clone(), attempt.clone());
    let mut pauses = PAUSES.into_iter();
    // The closure owns the guard: if the caller drops the future, the attempt is still made.
    let mut ended = run(operation, Work::Short, &queue, move |_| Ok(first(guard))).await?;
    loop {
        let (guard, pause) = match ended {
            Ended::Done => return Ok(()),
            Ended::Failed(error) => return Err(error),
            Ended::TryAgain(guard, error) => match pauses.next() {
                Some(pause) => (guard, pause),
                None => return Err(error),
            },
        };
        let again = attempt.clone();
        // On a thread that may block, because the runtime may have no time driver.
        ended = run(operation, Work::Long, &queue, move |_| {
            thread::sleep(pause);
            Ok(again(guard))
        })
        .await?;
    }
}

/// Removes elements of one queue, of which there is at least one, and their locks. Returns the first error.
async fn acknowledge_all<T: Send + 'static>(guards: Vec<Guard<T>>) -> Result<(), Error> {
    let queue = guards[0].queue().clone();
    let removed = run("remove", Work::Long, &queue, move |_| {
        let (mut done, mut left) = (Ok(()), Vec::new());
        for guard in guards {
            match guard.try_remove() {
                Ended::Done => {}
                Ended::Failed(error) => done = done.and(Err(error)),
                Ended::TryAgain(guard, _) => left.push(guard),
            }
        }
        Ok((done, left))
    });
    let (mut done, left) = removed.await?;
    for guard in left {
        done = done.and(acknowledge(guard).await);
    }
    done
}

/// Returns the message of an error and of its sources.
fn error_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

impl<T: Send + 'static + fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", self.name()).field("value", &self.value).finish()
    }
}
