//! What users do with elements that failed too often.

use std::{sync::Arc, time::Duration};

use super::{
    DirQueue, Error, Lock, Name,
    blocking::{Work, run},
    delivery::Delivery,
    protocol::Protocol,
    records::{Record, Records, due_in, element_exists},
};

impl<P: Protocol> DirQueue<P> {
    /// Locks and reads at most `max` elements that are dead, in the order of their names.
    ///
    /// An element is dead when it was given out as often as
    /// [`max_attempts`](super::QueueSimpleBuilder::max_attempts) says, and was never [acked](Lock::ack): by that of
    /// the process that gave it out last. It stays in the queue, where `names` and `count` see it and `lock` and `get`
    /// do as ever, but [`locked`](Self::locked) and [`watch`](Self::watch) of all processes that use this library pass it over, until
    /// it is [revived](Self::revive). Who acks what this returns takes it out; what is given back stays dead.
    ///
    /// Each call costs a list of all that were given out and not acked: where there are many, take many at once.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`get`](Self::get), of the first that can't be locked or read, where there is no
    /// other: it stays, and stays dead. Else the others come.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was locked is given back.
    ///
    /// # Examples
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
                    // Somebody may have revived it since it was listed.
                    let records = Records::open(queue.root()).ok().flatten()?;
                    let is_dead = records.get(&name).ok()? == Some(record);
                    is_dead.then(|| Delivery::for_dead_letter(record))
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

    /// The elements that are dead, locked ones included, in the order of their names, each with how often it was given
    /// out. Costs a look at each that was given out and not acked.
    ///
    /// For a look at them: [`peek`](Self::peek) reads one without its lock.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn dead(&self) -> Result<Vec<(Name, u32)>, Error> {
        run("list", Work::Long, &self.protocol, |queue| {
            let mut found = Vec::new();
            let Some(records) = Records::open(queue.root())? else { return Ok(found) };
            for (name, record) in records.list()? {
                // Another implementation may have removed it.
                if record.is_dead() && element_exists(queue.root(), &name)? {
                    found.push((name, record.attempts));
                }
            }
            Ok(found)
        })
        .await
    }

    /// How many elements are dead, locked ones included. Costs a look at each that was given out and not acked.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn dead_len(&self) -> Result<u64, Error> {
        Ok(self.dead().await?.len() as u64)
    }

    /// Lets an element that is dead come again in `delay`, as if it had never failed; false where it is gone, or not
    /// dead.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether it is done.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::QueueSimple;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// let mail = queue.add("mail to ada").await?;
    /// drop(queue.locked().next().await); // fails, and so for good
    /// assert_eq!(queue.dead_len().await?, 1);
    ///
    /// assert!(queue.revive(&mail, Duration::ZERO).await?);
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!((job.name(), job.attempts()), (&mail, 1));
    /// # Ok(()) }
    /// ```
    pub async fn revive(&self, name: &Name, delay: Duration) -> Result<bool, Error> {
        self.on("revive", name, move |queue, name| {
            let Some(records) = Records::open(queue.root())? else { return Ok(false) };
            let is_dead = records.get(name)?.is_some_and(|record| record.is_dead());
            if !is_dead || !element_exists(queue.root(), name)? {
                return Ok(false);
            }
            match delay.is_zero() {
                true => records.remove(name)?,
                false => records.put(name, Record { attempts: 0, due: Some(due_in(delay)) })?,
            }
            Ok(true)
        })
        .await
    }
}
