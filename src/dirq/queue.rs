//! What users call on a queue of either kind, written once: each method checks the name, chooses where its work is
//! done, and leaves the work to the kind's [`Protocol`].

use std::{fmt, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::{
    Error, Lock, Name, Purge, PurgeReport,
    blocking::{Work, run, run_read},
    bound::CapacityPermit,
    lock_guard::LockGuard,
    protocol::Protocol,
    records::Records,
    set::SetMember,
    walk::Walk,
};

/// A directory queue of either kind: [`QueueSimple`](super::QueueSimple), or [`Queue`](super::Queue).
///
/// They differ in what an element is, and so in how they are opened, how elements are added, and what is read: a
/// [`Bytes`](bytes::Bytes), or an [`Element`](super::Element). All else is here.
///
/// It is a handle: cheap to clone, and all clones are one. Other processes, in whatever language, may use the
/// same directory at the same time. What holds for all directory queues is in [the module](super).
///
/// # Panics
///
/// Its calls may panic outside of a Tokio runtime, which has the threads that wait for the disk.
pub struct DirQueue<P: Protocol> {
    pub(super) protocol: Arc<P>,
}

impl<P: Protocol> DirQueue<P> {
    /// The queue's directory, as an absolute path.
    pub fn path(&self) -> &Path {
        self.protocol.root().path()
    }

    /// How many elements there are, locked ones included. Costs a look at each.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn count(&self) -> Result<u64, Error> {
        run("count", Work::Long, &self.protocol, |queue| queue.count()).await
    }

    /// The names of all elements in order, locked ones included.
    #[doc(alias = "first")]
    pub fn names(&self) -> Walk<Name> {
        Walk::names(self.protocol.clone())
    }

    /// Locks an element; false where somebody else has, or it is gone.
    ///
    /// The lock lasts until [`unlock`](Self::unlock) or [`remove`](Self::remove), or until a
    /// [`purge`](Self::purge) of any process finds it too old: [`touch`](Self::touch) it in long work.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Foreign`] and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: where the future is dropped, the lock is given back, if it was got.
    pub async fn lock(&self, name: &Name) -> Result<bool, Error> {
        let name = *name;
        name.check()?;
        // As a guard until it is here: who no longer waits for it can't give it back.
        let guard =
            run("lock", Work::Short, &self.protocol, move |queue| LockGuard::lock(queue, name))
                .await?;
        Ok(guard.map(LockGuard::keep).is_some())
    }

    /// Locks and reads all elements that can be locked, in order, and then ends. Those that others have locked
    /// are passed over.
    ///
    /// Whoever works on many elements does it by this: several are locked by one call to another thread, as long
    /// as they are asked for quickly. So up to 63 are locked and read ahead, of a mebibyte in all. They are given back
    /// when the stream is dropped, or when nobody has asked for them for a second; but where the process is killed they
    /// stay locked, until a [`purge`](Self::purge) finds their locks too old. In [memory](super#cost), each is locked
    /// when it is asked for.
    ///
    /// Those that [rest or are dead](super#retries-and-dead-letters) are passed over, too.
    ///
    /// An element that can't be read comes as an error, is unlocked, and stays. The stream goes on behind it: a worker
    /// that ends at an error ends there each time.
    ///
    /// # Panics
    ///
    /// On a runtime without time, unless the queue is in memory.
    ///
    /// # Examples
    ///
    /// The same with a [`Queue`](super::Queue), whose elements are not bytes.
    ///
    /// ```
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn drain(queue: QueueSimple) -> Result<(), Error> {
    ///     let mut jobs = queue.locked();
    ///     while let Some(job) = jobs.next().await {
    ///         // What can't be read must not keep the rest from being done.
    ///         let Ok(job) = job.inspect_err(|error| eprintln!("{error}")) else { continue };
    ///         if work(job.value()).await.is_ok() {
    ///             job.ack().await?;
    ///         } // else it is unlocked, and comes again to who asks anew, after its backoff if it has one
    ///     }
    ///     Ok(())
    /// }
    /// # async fn work(_: &[u8]) -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn locked(&self) -> Walk<Lock<P::Payload>> {
        Walk::locked(self.protocol.clone(), None)
    }

    /// Locks and reads all elements that can be locked, and those that are added later: it never ends.
    ///
    /// It sleeps until the system says that an element was added (inotify on Linux), and looks by itself `every`
    /// so often: for elements that were unlocked, for those that other machines add on a file system of the
    /// network, and where the system has no more watches to give. An element that was given back, or that can't
    /// be read, so comes again after at most that time, as an element or an error. One that
    /// [rests](super#retries-and-dead-letters) wakes it when it is due, if it was put to rest before the wait. Any number of tasks and
    /// processes may watch a queue: each element goes to one of them.
    ///
    /// Otherwise it is as [`locked`](Self::locked).
    ///
    /// # Panics
    ///
    /// On a runtime without time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::{Error, Queue};
    ///
    /// async fn worker(queue: Queue) -> Result<(), Error> {
    ///     let mut jobs = queue.watch(Duration::from_secs(5));
    ///     while let Some(job) = jobs.next().await {
    ///         let Ok(job) = job.inspect_err(|error| eprintln!("{error}")) else { continue };
    ///         println!("{}: {:?}", job.name(), job.value());
    ///         job.ack().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn watch(&self, every: Duration) -> Walk<Lock<P::Payload>> {
        Walk::locked(self.protocol.clone(), Some(every))
    }

    /// Gives a lock back.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], also where the element is gone, [`Error::InvalidName`] and [`Error::Io`].
    pub async fn unlock(&self, name: &Name) -> Result<(), Error> {
        self.on("unlock", name, |queue, name| queue.unlock(name)).await
    }

    /// What an element that is locked holds.
    ///
    /// Files in the element of a [`Queue`](super::Queue) that are not in its schema are passed over.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`], [`Error::TooLarge`], [`Error::Foreign`] where something else has
    /// the place of the element or of a file of it, and [`Error::Io`]. Of a [`Queue`](super::Queue) [`Error::NoSchema`], too, and
    /// [`Error::MissingFile`], [`Error::NotUtf8`] and [`Error::InvalidTable`] where the element is not as the schema
    /// says.
    pub async fn get(&self, name: &Name) -> Result<P::Payload, Error> {
        self.reads("read", name, P::get).await
    }

    /// What an element holds, whether locked or not; none where it is gone.
    ///
    /// For a look at what others leave lying, without being in their way.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), but for [`Error::NotLocked`].
    pub async fn peek(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        self.reads("read", name, P::peek).await
    }

    /// Locks an element, reads it and unlocks it; none where somebody else has the lock, or it is gone.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`get`](Self::get). The lock is given back.
    pub async fn get_element(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        let name = *name;
        name.check()?;
        run_read("read", &self.protocol, move |queue, limit| {
            let taken = LockGuard::take(queue, &queue.root().opener(), name, limit)?;
            let Some((guard, element)) = taken else { return Ok(None) };
            guard.unlock(None)?;
            Ok(Some(element))
        })
        .await
    }

    /// Locks an element, reads it and removes it; none where somebody else has the lock, or it is gone.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), [`get`](Self::get) and [`remove`](Self::remove): then the element stays, and
    /// its lock is given back.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: what it read may be lost with the future. Who can't lose it holds the lock until the
    /// work is done.
    pub async fn dequeue(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        let taken = self.reads("dequeue", name, P::dequeue).await?;
        if taken.is_some() {
            self.protocol.root().metrics.removed();
        }
        Ok(taken)
    }

    /// Removes an element that is locked, with all its files and its lock.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`] and [`Error::Io`]. Of a [`Queue`](super::Queue)
    /// [`Error::Foreign`], too, where a file in it can't be a field. In each case it stays, and stays locked.
    pub async fn remove(&self, name: &Name) -> Result<(), Error> {
        let removed = |queue: &P| queue.root().metrics.removed();
        self.on("remove", name, move |queue, name| queue.remove(name).map(|()| removed(queue)))
            .await
    }

    /// Makes the age of an element zero, and so that of its lock: a purge lets it be for as long again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], and [`Error::Io`] where it is gone.
    pub async fn touch(&self, name: &Name) -> Result<(), Error> {
        self.on("touch", name, |queue, name| queue.touch(name)).await
    }

    /// Takes away what dead processes left: locks, elements that were on their way in or out and are too old,
    /// empty directories, and what is remembered of elements that are gone.
    ///
    /// Somebody has to, from time to time. It never takes an element that is in the queue. What others take away
    /// at the same time is no error. Costs a look at each element.
    ///
    /// What it may not look at or take away stays, and is [counting](PurgeReport::failed); the rest is done.
    ///
    /// A lock that is too old, and that its owner gives back just now, for another to take it at once, may be taken from
    /// that one: the format knows of no step by which a lock is looked at and taken away. A
    /// [`max_lock`](Purge::max_lock) well above the longest work makes that rare.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the queue itself can't be listed.
    pub async fn purge(&self, purge: Purge) -> Result<PurgeReport, Error> {
        run("purge", Work::Long, &self.protocol, move |queue| {
            let mut report = queue.purge(&purge)?;
            match Records::open(queue.root()) {
                Ok(Some(records)) => records.purge(queue.root(), &mut report)?,
                Ok(None) => {}
                Err(error) => report.fail(error),
            }
            Ok(report)
        })
        .await
    }

    /// CapacityPermit for so many elements more, where there is a bound; waits for it, if it is to.
    pub(super) async fn reserve_capacity(
        &self,
        count: u64,
    ) -> Result<Option<CapacityPermit>, Error> {
        let Some(bound) = &self.protocol.root().bound else { return Ok(None) };
        if let Some(permit) = bound.try_reserve(count) {
            return Ok(Some(permit));
        }
        let _count_permit = bound.count_permit.acquire().await.expect("nobody closes it");
        loop {
            let counting = bound.clone();
            let reserved = run("count", Work::Long, &self.protocol, move |queue| {
                counting.reserve(count, || queue.count())
            });
            if let Some(permit) = reserved.await? {
                return Ok(Some(permit));
            }
            match bound.poll_interval {
                // More than there may ever be is never waited for.
                Some(every) if count <= bound.max => sleep(every).await,
                _ => {
                    let path = self.path().to_owned();
                    return Err(Error::Full { path, max_elements: bound.max });
                }
            }
        }
    }

    /// Does what reads an element.
    async fn reads<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &Name,
        work: impl Fn(&P, &Name, u64) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run_read(operation, &self.protocol, move |queue, limit| work(queue, &name, limit)).await
    }

    /// Does what is about one element.
    pub(super) async fn on<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &Name,
        work: impl FnOnce(&P, &Name) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run(operation, Work::Short, &self.protocol, move |queue| work(queue, &name)).await
    }
}

// Not derived, as that would ask it of the protocol as well.
impl<P: Protocol> Clone for DirQueue<P> {
    fn clone(&self) -> Self {
        Self { protocol: self.protocol.clone() }
    }
}

impl<P: Protocol> SetMember for DirQueue<P> {
    type Payload = P::Payload;

    fn id(&self) -> (u64, u64) {
        self.protocol.root().id()
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn count_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.count())
    }

    fn all_names(&self) -> Walk<Name> {
        self.names()
    }

    fn protocol(&self) -> Arc<dyn Protocol<Payload = P::Payload>> {
        self.protocol.clone()
    }
}

impl<P: Protocol> fmt::Debug for DirQueue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.protocol.type_name())
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
