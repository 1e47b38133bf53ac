//! Renewing a lock during long work.

use std::{future::Future, io, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep, timeout_at};

use super::Lock;
use crate::dirq::{
    Error, Purge,
    blocking::{Work, run},
};

/// Pause after a failed renewal of `keep_alive`.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl<T: Send + 'static> Lock<T> {
    /// Resets the lock's age to zero, so that no purge removes it while you work.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock, and [`Error::Io`], for instance if the directory of the queue
    /// is away. Stop the work in both cases: another process may do it too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add("encode film.mkv").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// for _chapter in 0..3 {
    ///     // Each chapter takes less than ten minutes.
    ///     job.touch().await?;
    /// }
    /// job.ack().await?;
    /// # Ok(()) }
    /// ```
    pub async fn touch(&self) -> Result<(), Error> {
        let (name, delivery) = (*self.name(), self.guard.delivery().copied());
        run("touch", Work::Short, self.guard.queue(), move |queue| {
            let checked = delivery.map_or(Ok(()), |delivery| delivery.check(queue.root(), &name));
            let renewed = checked.and_then(|()| queue.renew(&name));
            renewed.map_err(|error| queue.root().not_locked_or_away(error))
        })
        .await
    }

    /// Runs long `work`, and resets the lock's age to zero after each interval `every` until the work is done. An
    /// interval below one millisecond is raised to one millisecond.
    ///
    /// If that fails for another reason than a lost lock (the directory of the queue is away, for instance, because its
    /// file system is unmounted for a moment), it is tried again after `every`, or after one second if that
    /// is sooner. `work` continues in the meantime: the lock is valid until a purge finds it too old.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] if a purge removed the lock. If the lock could not be renewed for ten minutes, the default
    /// [`max_lock`](crate::dirq::Purge::max_lock), the error of the last attempt: purges of other processes may then
    /// remove the lock. `work` is then dropped before it is finished.
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
    ///         // If a purge removed the lock, another process may be working on the element.
    ///         let done = job.keep_alive(Duration::from_secs(60), work(job.value())).await;
    ///         if let Ok(Ok(())) = done {
    ///             job.ack().await?;
    ///         } // otherwise it is unlocked and delivered again
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
        // `work` is polled first: a failed renewal does not discard work that is already done.
        match select(Box::pin(work), Box::pin(self.renew_until_lost(every))).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right((error, _)) => Err(error),
        }
    }

    /// Renews the lock after each interval. Returns the error by which it is lost.
    async fn renew_until_lost(&self, every: Duration) -> Error {
        let (mut pause, mut failing_since) = (every, None);
        loop {
            // `sleep` and not an interval: on a slow file system, missed renewals must not be made up for in a burst.
            sleep(pause).await;
            let gives_up_at =
                *failing_since.get_or_insert_with(Instant::now) + Purge::DEFAULT_MAX_LOCK;
            // A disk that hangs fails, too.
            match timeout_at(gives_up_at, self.touch()).await {
                Ok(Ok(())) => (pause, failing_since) = (every, None),
                Ok(Err(error @ Error::NotLocked { .. })) => return error,
                Ok(Err(error)) if Instant::now() >= gives_up_at => return error,
                Ok(Err(_)) => pause = every.min(RENEWAL_PAUSE),
                Err(elapsed) => {
                    let path = self.guard.queue().root().path_of(self.name());
                    return Error::io("touch", path, io::Error::from(elapsed));
                }
            }
        }
    }
}
