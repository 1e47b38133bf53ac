//! Dead letters: elements that have failed too often.

use std::{sync::Arc, time::Duration};

use super::{
    DirQueue, Error, Lock, Name,
    blocking::{Work, run},
    delivery::Delivery,
    protocol::Protocol,
    record::{Record, due_in},
    records::{Records, element_exists},
};

/// A dead letter of a directory queue, with the reason of its last failure. Returned by [`DirQueue::dead`], which has
/// an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadElement {
    /// Name of the element.
    pub name: Name,
    /// Number of failed deliveries.
    pub attempts: u32,
    /// Reason of the last failed delivery that had one: given to [`Lock::fail`], or the error of an element that could
    /// not be read.
    pub reason: Option<String>,
}

impl<P: Protocol> DirQueue<P> {
    /// Locks and reads up to `max` dead letters, in the order of their names. Ack a returned lock to remove the dead
    /// letter. If you drop or unlock it, the element stays a dead letter.
    ///
    /// ```
    /// use fleeting::dirq::{Error, Lock, QueueSimple};
    ///
    /// async fn bury(queue: QueueSimple) -> Result<(), Error> {
    ///     loop {
    ///         let dead = queue.take_dead(500).await?;
    ///         if dead.is_empty() {
    ///             return Ok(());
    ///         }
    ///         for letter in &dead {
    ///             eprintln!("{} failed {} times", letter.name(), letter.attempts());
    ///         }
    ///         Lock::ack_all(dead).await?;
    ///     }
    /// }
    /// ```
    ///
    /// An element becomes a dead letter when its [`max_attempts`](super::QueueSimpleBuilder::max_attempts)-th delivery
    /// ends without an [ack](Lock::ack). The limit of the process of that delivery applies. If that process crashed,
    /// the element becomes a dead letter when a purge has removed the lock and the next [`locked`](Self::locked) or
    /// [`watch`](Self::watch) of a queue with this setting reaches it.
    ///
    /// The element stays in the queue: `names` and `count` include it, and `lock` and `get` work as usual. But `locked`
    /// and `watch` of all processes that use this library skip it until it is [revived](Self::revive).
    ///
    /// Each call reads the records of all elements that were delivered and not acked. If there are many dead letters,
    /// take many per call.
    ///
    /// # Errors
    ///
    /// If no dead letter could be locked and read, returns the first error, as for [`lock`](Self::lock) and
    /// [`get`](Self::get). If at least one was locked and read, errors are not reported. An element that cannot be read
    /// stays a dead letter.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the locks are released.
    #[doc(alias = "dead letter")]
    pub async fn take_dead(&self, max: usize) -> Result<Vec<Lock<P::Payload>>, Error> {
        run("list", Work::Long, &self.protocol, move |queue| {
            let (mut taken, mut failed) = (Vec::new(), None);
            let Some(records) = Records::open(queue.root())? else { return Ok(taken) };
            for found in records.iter()? {
                if taken.len() >= max {
                    break;
                }
                let (name, record) = match found {
                    Ok(found) if found.1.is_dead() => found,
                    Ok(_) => continue,
                    Err(error) => {
                        failed = failed.or(Some(error));
                        continue;
                    }
                };
                let begin_delivery = || {
                    // Another process may have revived it since it was listed.
                    let Some(records) = Records::open(queue.root())? else { return Ok(None) };
                    let is_dead = records.get(&name)? == Some(record);
                    Ok(is_dead.then(|| Delivery::for_dead_letter(record)))
                };
                let limit = queue.root().max_size;
                let queue: Arc<dyn Protocol<Payload = P::Payload>> = queue.clone();
                match Lock::take(&queue, &queue.root().opener(), name, limit, begin_delivery) {
                    Ok(lock) => taken.extend(lock),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match failed {
                Some(error) if taken.is_empty() => Err(error),
                _ => Ok(taken),
            }
        })
        .await
    }

    /// Returns all dead letters, including locked ones, in the order of their names, with the reasons of their
    /// failures. Reads the records of all elements that were delivered and not acked.
    ///
    /// ```
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn report(queue: &QueueSimple) -> Result<(), Error> {
    ///     for dead in queue.dead().await? {
    ///         let reason = dead.reason.as_deref().unwrap_or("no reason");
    ///         println!("{} failed {} times: {reason}", dead.name, dead.attempts);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Use [`peek`](Self::peek) to read a dead letter without locking it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn dead(&self) -> Result<Vec<DeadElement>, Error> {
        run("list", Work::Long, &self.protocol, |queue| {
            let Some(records) = Records::open(queue.root())? else { return Ok(Vec::new()) };
            let dead = records.dead(queue.root())?.into_iter();
            dead.map(|(name, attempts, has_reason)| {
                let reason = has_reason.then(|| records.reason(&name)).transpose()?.flatten();
                Ok(DeadElement { name, attempts, reason })
            })
            .collect()
        })
        .await
    }

    /// Returns the number of dead letters, including locked ones. Reads all records, as [`dead`](Self::dead) does.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// queue.add("mail to ada").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// job.fail("550 no such user").await?;
    ///
    /// // A health check may warn above some number.
    /// assert_eq!(queue.dead_len().await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn dead_len(&self) -> Result<u64, Error> {
        run("list", Work::Long, &self.protocol, |queue| {
            let Some(records) = Records::open(queue.root())? else { return Ok(0) };
            Ok(records.dead(queue.root())?.len() as u64)
        })
        .await
    }

    /// Makes a dead letter available again after `delay`, as if it had never failed. Returns false if the element is
    /// missing, or is not a dead letter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::QueueSimple;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// let mail = queue.add("mail to ada").await?;
    /// drop(queue.locked().next().await); // fails for the last time
    /// assert_eq!(queue.dead_len().await?, 1);
    ///
    /// assert!(queue.revive(&mail, Duration::ZERO).await?);
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!((job.name(), job.attempts()), (&mail, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// A waiting stream of [`watch`](Self::watch) of this process then gets it. Those of other processes find it at
    /// their next scan.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the element may or may not have been revived.
    pub async fn revive(&self, name: &Name, delay: Duration) -> Result<bool, Error> {
        self.on("revive", name, move |queue, name| {
            let Some(records) = Records::open(queue.root())? else { return Ok(false) };
            let is_dead = records.get(name)?.is_some_and(|record| record.is_dead());
            if !is_dead || !element_exists(queue.root(), name)? {
                return Ok(false);
            }
            // First: a revived element must not keep the reason of an earlier failure.
            records.remove_reason(name)?;
            match delay.is_zero() {
                // Without a record, the element counts as never delivered.
                true => records.remove(name)?,
                false => records.revive(name, Record { attempts: 0, due: Some(due_in(delay)) })?,
            }
            if let Some(wakeups) = queue.root().shared.active_wakeups() {
                wakeups.set_due_in(delay);
            }
            Ok(true)
        })
        .await
    }
}
