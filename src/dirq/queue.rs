//! The public methods of both kinds of queues, written once. Each method checks the name, chooses the thread for its
//! work, and leaves the work to the kind's [`Protocol`].

use std::{fmt, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{task::JoinSet, time::sleep};

use super::{
    Error, Lock, Name, Purge, PurgeReport,
    add::Add,
    blocking::{Work, failed, run, run_read},
    bound::{CapacityPermit, Fairness, QueueBound},
    delivery::DeliveryEnd,
    group,
    lock_guard::{Ended, LockGuard},
    protocol::Protocol,
    set::SetMember,
    shared_purge::purge_all,
    walk::Walk,
};
use crate::engine::panics::resume_panic_of;

/// A queue of jobs in a directory, for your processes in any language, without a server.
///
/// ```
/// use std::time::Duration;
/// use fleeting::dirq::QueueSimple;
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let queue = QueueSimple::open(dir.path()).await?;
/// queue.add("resize 7.png").await?; // survives a crash of the process
///
/// let mut jobs = queue.watch(Duration::from_secs(5));
/// let job = jobs.next().await.transpose()?.unwrap();
/// assert_eq!(job.value(), "resize 7.png");
/// job.ack().await?;
/// # Ok(()) }
/// ```
///
/// There are two kinds: [`QueueSimple`](super::QueueSimple), and [`Queue`](super::Queue). They differ in how they are
/// opened, how elements are added, and the type that is read: [`Bytes`](bytes::Bytes), or an
/// [`Element`](super::Element). All other methods are documented here.
///
/// A `DirQueue` is a handle: it is cheap to clone, and all clones share one queue. Other processes, in any language,
/// may use the same directory at the same time. See the [module documentation](super) for the guarantees of all
/// directory queues.
///
/// # Panics
///
/// Methods may panic outside of a Tokio runtime, because blocking work runs on the runtime's threads.
pub struct DirQueue<P: Protocol> {
    pub(super) protocol: Arc<P>,
}

impl<P: Protocol> DirQueue<P> {
    pub(super) fn new(protocol: P) -> Self {
        let protocol = Arc::new(protocol);
        #[cfg(feature = "metrics")]
        {
            let (root, queue) = (protocol.root(), Arc::downgrade(&protocol));
            root.shared.metrics.register(root.path(), queue);
        }
        Self { protocol }
    }

    /// Returns the queue's directory as an absolute path.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path().join("jobs")).await?;
    /// assert!(queue.path().ends_with("jobs"));
    /// assert!(queue.path().is_absolute());
    /// # Ok(()) }
    /// ```
    pub fn path(&self) -> &Path {
        self.protocol.root().path()
    }

    /// Returns the number of elements, including locked ones; 0 if the queue's directory is missing, for instance
    /// because its disk is not mounted. Reads the whole queue, so the cost grows with the number of elements.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add_many(["one", "two"]).await?;
    /// println!("{} jobs are waiting or in progress", queue.count().await?);
    /// # assert_eq!(queue.count().await?, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub async fn count(&self) -> Result<u64, Error> {
        run("count", Work::Long, &self.protocol, |queue| queue.count()).await
    }

    /// Returns the names of all elements in order, including locked ones. A missing directory is an empty queue.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// queue.add_many(["one", "two"]).await?;
    /// let mut names = queue.names();
    /// while let Some(name) = names.next().await.transpose()? {
    ///     println!("{name}: {:?}", queue.peek(&name).await?);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "first")]
    pub fn names(&self) -> Walk<Name> {
        Walk::names(self.protocol.clone())
    }

    /// Locks an element. Returns false if it is already locked or missing.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// if queue.lock(&name).await? {
    ///     println!("{:?}", queue.get(&name).await?);
    ///     queue.remove(&name).await?;
    /// } // else another process works on it
    /// # assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// Prefer [`locked`](Self::locked) or [`watch`](Self::watch): their [`Lock`] unlocks the element if your work
    /// fails.
    ///
    /// The lock lasts until [`unlock`](Self::unlock) or [`remove`](Self::remove), or until a [`purge`](Self::purge) by
    /// any process removes it because it is too old. Call [`touch`](Self::touch) during long work to keep the lock.
    ///
    /// The format does not record the owner of a lock: [`get`](Self::get), [`unlock`](Self::unlock) and
    /// [`remove`](Self::remove) work on an element that any process has locked. Call them only for elements that you
    /// have locked yourself.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Foreign`] and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped after the lock was acquired, the lock is released.
    pub async fn lock(&self, name: &Name) -> Result<bool, Error> {
        let name = *name;
        name.check()?;
        // The guard releases the lock if the caller drops the future: a dropped caller cannot unlock.
        let guard =
            run("lock", Work::Short, &self.protocol, move |queue| LockGuard::lock(queue, name))
                .await?;
        Ok(guard.map(LockGuard::keep).is_some())
    }

    /// Returns a stream that locks and reads each element that can be locked, in the order of their names: the work
    /// that is there now. Elements that are already locked are skipped. The stream ends after the last element.
    ///
    /// On a disk, one round trip to another thread locks several elements if they are requested quickly. The stream
    /// then locks and reads up to 63 elements, and up to one mebibyte, ahead of the caller. These elements are unlocked
    /// when the stream is dropped, or, by a task of the runtime, if no element was requested for one second: a
    /// current-thread runtime must be driven in the meantime. The same applies to elements that are locked for a call
    /// of `next` whose future was dropped. If the process is killed, they stay locked until a [`purge`](Self::purge)
    /// removes their locks. In [memory](super#cost), each element is locked when it is requested.
    ///
    /// Elements that wait for their backoff, and [dead letters](super#retries-and-dead-letters), are skipped too.
    ///
    /// An element that cannot be read is yielded as an error, is unlocked, and stays in the queue. If deliveries are
    /// counted, this is a failed one. The stream continues with the next element. Your loop over the stream should
    /// continue after an error. Otherwise a single unreadable element stops your worker each time it is started.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver, unless the queue is in memory and its elements have up to 64 KiB.
    ///
    /// # Examples
    ///
    /// A [`Queue`](super::Queue) works in the same way, except that its elements are not bytes.
    ///
    /// ```
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn drain(queue: QueueSimple) -> Result<(), Error> {
    ///     let mut jobs = queue.locked();
    ///     while let Some(job) = jobs.next().await {
    ///         // Unreadable elements must not block the others.
    ///         let Ok(job) = job.inspect_err(|error| eprintln!("{error}")) else { continue };
    ///         if work(job.value()).await.is_ok() {
    ///             job.ack().await?;
    ///         } // otherwise it is unlocked, and delivered again after its backoff, if any
    ///     }
    ///     Ok(())
    /// }
    /// # async fn work(_: &[u8]) -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn locked(&self) -> Walk<Lock<P::Payload>> {
        Walk::locked(self.protocol.clone(), None)
    }

    /// Returns a stream that locks and reads each element that can be locked, including elements that are added later:
    /// the loop of your worker. The stream never ends.
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
    ///
    /// It sleeps until the operating system reports a new element (inotify on Linux). In addition, it scans the queue
    /// after each interval `every`. The scan finds elements that were unlocked or that other machines added on a
    /// network file system, and it is the only mechanism if the system's limit of watches is reached. An element that
    /// was unlocked, or that cannot be read, is therefore yielded again after at most that interval. If the
    /// [backoff](super#retries-and-dead-letters) of an element began in this process, or before the stream went to
    /// sleep, the stream wakes when the backoff ends. Otherwise the next scan finds the element.
    ///
    /// Any number of tasks and processes may watch a queue. Each element is locked by one of them at a time.
    ///
    /// The streams of a process on one path share one watch of the operating system. A new element wakes one stream
    /// that waits, and the others sleep: the cost of an element does not grow with the number of streams. An element
    /// that fails in this process wakes a stream when its backoff ends.
    ///
    /// If your workers may be killed, set [`purge_every`](super::QueueSimpleBuilder::purge_every): only a
    /// [`purge`](Self::purge) removes their locks, and the stream then does that.
    ///
    /// In all other respects the stream behaves like that of [`locked`](Self::locked).
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver.
    pub fn watch(&self, every: Duration) -> Walk<Lock<P::Payload>> {
        Walk::locked(self.protocol.clone(), Some(every))
    }

    /// Unlocks an element.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// assert!(queue.lock(&name).await?);
    /// assert!(!queue.lock(&name).await?);
    /// queue.unlock(&name).await?;
    /// assert!(queue.lock(&name).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], also if the element is missing; [`Error::InvalidName`]; and [`Error::Io`], also if the
    /// directory of the queue is away.
    pub async fn unlock(&self, name: &Name) -> Result<(), Error> {
        self.on("unlock", name, |queue, name| queue.unlock(name)).await
    }

    /// Returns the content of a locked element.
    ///
    /// ```
    /// # use fleeting::dirq::{Error, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// assert!(matches!(queue.get(&name).await, Err(Error::NotLocked { .. })));
    /// queue.lock(&name).await?;
    /// assert_eq!(queue.get(&name).await?, "resize 7.png");
    /// # Ok(()) }
    /// ```
    ///
    /// Files in an element of a [`Queue`](super::Queue) that are not in its schema are ignored.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`], [`Error::TooLarge`], [`Error::Io`], also if the directory of the
    /// queue is away, and [`Error::Foreign`] if the element or one of its files is not a regular file or directory as
    /// the format requires. For a [`Queue`](super::Queue) also [`Error::NoSchema`], and [`Error::MissingFile`],
    /// [`Error::NotUtf8`] and [`Error::InvalidTable`] if the element does not match the schema.
    pub async fn get(&self, name: &Name) -> Result<P::Payload, Error> {
        self.reads("read", name, P::get).await
    }

    /// Returns the content of an element, whether it is locked or not; `None` if it is missing.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// let job = queue.locked().next().await.transpose()?.unwrap();
    /// assert_eq!(queue.peek(&name).await?.unwrap(), "resize 7.png", "although it is locked");
    /// # job.ack().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Use this to look at elements without interfering with their workers.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get), except [`Error::NotLocked`].
    pub async fn peek(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        self.reads("read", name, P::peek).await
    }

    /// Locks an element, reads it and unlocks it. Returns `None` if it is already locked or missing.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// assert_eq!(queue.get_element(&name).await?.unwrap(), "resize 7.png");
    /// assert_eq!(queue.count().await?, 1, "it stays");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock) and [`get`](Self::get). The lock is released.
    pub async fn get_element(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        let name = *name;
        name.check()?;
        run_read("read", &self.protocol, move |queue, limit| {
            let taken = LockGuard::take(queue, &queue.root().opener(), name, limit)?;
            let Some((guard, read)) = taken else { return Ok(None) };
            let unlocked = match guard.try_unlock(&DeliveryEnd::Dropped) {
                Ended::Done => Ok(()),
                // A guard that should try again is dropped, which does so.
                Ended::Failed(error) | Ended::TryAgain(_, error) => Err(error),
            };
            // The original error is more useful than that of the cleanup.
            let element = read?;
            unlocked?;
            Ok(Some(element))
        })
        .await
    }

    /// Locks an element, reads it and removes it. Returns `None` if it is already locked or missing.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("temperature 21.5").await?;
    /// // A lost reading does no harm.
    /// assert_eq!(queue.dequeue(&name).await?.unwrap(), "temperature 21.5");
    /// assert_eq!(queue.dequeue(&name).await?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// Use it for elements that you may lose if your process fails: they are removed before your work begins.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock), [`get`](Self::get) and [`remove`](Self::remove). The element stays and its lock is
    /// released.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the content may be lost. To avoid that, hold the lock until the work
    /// is done.
    pub async fn dequeue(&self, name: &Name) -> Result<Option<P::Payload>, Error> {
        let taken = self.reads("dequeue", name, P::dequeue).await?;
        if taken.is_some() {
            self.protocol.root().shared.metrics.removed();
        }
        Ok(taken)
    }

    /// Removes a locked element, with all its files and its lock.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("resize 7.png").await?;
    /// // The picture was deleted, so the job is not needed any more.
    /// if queue.lock(&name).await? {
    ///     queue.remove(&name).await?;
    /// }
    /// assert_eq!(queue.count().await?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`], and [`Error::Io`], also if the directory of the queue is away. For
    /// a [`Queue`](super::Queue), also [`Error::Foreign`] if the element contains a file whose name is not a valid
    /// field name. After an error, the element stays and remains locked.
    pub async fn remove(&self, name: &Name) -> Result<(), Error> {
        let removed = |queue: &P| queue.root().shared.metrics.removed();
        self.on("remove", name, move |queue, name| queue.remove(name).map(|()| removed(queue)))
            .await
    }

    /// Resets the age of an element, and of its lock, to zero, so that a purge does not consider the lock stale.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let name = queue.add("encode film.mkv").await?;
    /// queue.lock(&name).await?;
    /// for _chapter in 0..3 {
    ///     queue.touch(&name).await?; // each takes less than ten minutes
    /// }
    /// queue.remove(&name).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], and [`Error::Io`] if the element is missing.
    pub async fn touch(&self, name: &Name) -> Result<(), Error> {
        self.on("touch", name, |queue, name| queue.touch(name)).await
    }

    /// Removes the leftovers of crashed processes: stale locks, elements that were not completely added or removed,
    /// empty directories, and the records of elements that no longer exist.
    ///
    /// ```
    /// # use fleeting::dirq::{Purge, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::open(dir.path()).await?;
    /// let report = queue.purge(Purge::default()).await?;
    /// if report.locks > 0 {
    ///     println!("{} jobs of killed workers are delivered again", report.locks);
    /// }
    /// # assert_eq!(report.failed, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// Call this regularly from at least one of your processes, for example every ten minutes. A
    /// [`Spool`](crate::Spool) does so by default, but keeps all locks. A purge never removes an element that is in the
    /// queue. Concurrent purges by other processes are not an error. Reads the whole queue, so the cost grows with the
    /// number of elements.
    ///
    /// Items that cannot be read or removed for lack of permission are skipped and [counted](PurgeReport::failed).
    ///
    /// If stale locks were removed, a waiting stream of [`watch`](Self::watch) of this process gets their elements.
    /// Those of other processes find them at their next scan.
    ///
    /// If the owner of a stale lock unlocks the element during the purge and another process locks it immediately, the
    /// purge may remove the new lock: the format has no atomic way to check and remove a lock. To make this rare,
    /// choose a [`max_lock`](Purge::max_lock) that is well above your longest processing time. Concurrent purges by
    /// this library cannot remove a new lock, because they exclude each other by `flock`, where the file system
    /// supports it for directories. A purge skips a stale lock while another one removes a lock in the same directory.
    /// Purges by other implementations do not exclude each other: let only one process run them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the queue itself cannot be listed.
    pub async fn purge(&self, purge: Purge) -> Result<PurgeReport, Error> {
        run("purge", Work::Long, &self.protocol, move |queue| {
            let report = purge_all(&**queue, &purge)?;
            if report.locks > 0
                && let Some(wakeups) = queue.root().shared.active_wakeups()
            {
                // Their elements can be locked again.
                wakeups.wake_one();
            }
            Ok(report)
        })
        .await
    }

    /// Returns the bound of the queue; `None` if the number of elements is not bounded.
    pub(crate) fn max_elements(&self) -> Option<u64> {
        self.protocol.root().bound.as_ref().map(|bound| bound.max)
    }

    /// Reserves capacity for `count` elements if the queue is bounded. Waits for it if the queue was opened with
    /// `wait_for_room`.
    pub(super) async fn reserve_capacity(
        &self,
        count: u64,
    ) -> Result<Option<CapacityPermit>, Error> {
        let Some(bound) = &self.protocol.root().bound else { return Ok(None) };
        if let Some(permit) = bound.try_reserve(count) {
            return Ok(Some(permit));
        }
        // In a task, because others wait for this add: the future of its caller may be kept without being polled. The
        // task is aborted with that future.
        let mut waiting = JoinSet::new();
        let (queue, bound) = (self.clone(), bound.clone());
        waiting.spawn(async move { queue.wait_for_capacity(&bound, count).await });
        match waiting.join_next().await.expect("it has one task") {
            Ok(permit) => permit.map(Some),
            Err(ended) => {
                resume_panic_of(ended);
                // The runtime is shut down.
                Err(failed("count", self.path()))
            }
        }
    }

    async fn wait_for_capacity(
        &self,
        bound: &Arc<QueueBound>,
        count: u64,
    ) -> Result<CapacityPermit, Error> {
        // The semaphore is fair, so waiters are served in FIFO order. A task that is aborted gives up its place.
        let acquire = async || bound.count_permit.acquire().await.expect("it is never closed");
        let mut count_permit = Some(acquire().await);
        let mut fairness = Fairness::new(count);
        loop {
            let counting = bound.clone();
            let reserved = run("count", Work::Long, &self.protocol, move |queue| {
                counting.reserve(count, || queue.count())
            });
            let free = match reserved.await? {
                Ok(permit) => return Ok(permit),
                Err(free) => free,
            };
            // An add of more elements than the bound can never succeed.
            let Some(every) = bound.poll_interval.filter(|_| count <= bound.max) else {
                let path = self.path().to_owned();
                return Err(Error::Full { path, max_elements: bound.max });
            };
            if fairness.let_others_go(count, free) {
                count_permit.take();
            }
            sleep(every).await;
            if count_permit.is_none() {
                count_permit = Some(acquire().await);
            }
        }
    }

    /// Adds an element, for which there is capacity. If it waits for a disk, it is added together with others.
    pub(super) async fn add_one(
        &self,
        payload: P::Payload,
        permit: Option<CapacityPermit>,
    ) -> Result<Name, Error>
    where
        P: Add,
    {
        let len = self.protocol.len_of(&payload);
        if group::accepts(self.protocol.root(), len) {
            let content = self.protocol.encoder()?(payload)?;
            return group::add(&self.protocol, content, permit).await;
        }
        let work_length = self.protocol.work_for_add(len);
        run("add to", work_length, &self.protocol, move |queue| {
            // Held until the element is in the queue, even if the caller is dropped.
            let _permit = permit;
            queue.add(&queue.encoder()?(payload)?)
        })
        .await
    }

    /// Adds several elements, as soon as there is capacity for all of them.
    pub(super) async fn add_all(&self, payloads: Vec<P::Payload>) -> Result<Vec<Name>, Error>
    where
        P: Add,
    {
        let permit = self.reserve_capacity(payloads.len() as u64).await?;
        run("add to", Work::Long, &self.protocol, move |queue| {
            let _permit = permit;
            let contents: Vec<_> =
                payloads.into_iter().map(queue.encoder()?).collect::<Result<_, _>>()?;
            queue.add_many(&contents)
        })
        .await
    }

    /// Runs work that reads an element.
    async fn reads<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &Name,
        work: impl Fn(&P, &Name, u64) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run_read(operation, &self.protocol, move |queue, limit| {
            work(queue, &name, limit).map_err(|error| queue.root().not_locked_or_away(error))
        })
        .await
    }

    /// Runs work that concerns one element.
    pub(super) async fn on<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &Name,
        work: impl FnOnce(&P, &Name) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run(operation, Work::Short, &self.protocol, move |queue| {
            work(queue, &name).map_err(|error| queue.root().not_locked_or_away(error))
        })
        .await
    }
}

// Not derived: that would require `P: Clone`.
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
