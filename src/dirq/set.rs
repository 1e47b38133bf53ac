//! Sets of queues of one kind, merged by the times in their element names.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::{
    TryStreamExt,
    future::{BoxFuture, try_join_all},
};

use super::{
    Error, Lock, Name, Walk,
    protocol::Protocol,
    set_stream::{list_all, lock_all},
};

/// Several queues of one kind that you iterate over as one, oldest element first.
///
/// ```
/// use fleeting::dirq::{QueueSet, QueueSimple};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let north = QueueSimple::open(dir.path().join("north")).await?;
/// let south = QueueSimple::open(dir.path().join("south")).await?;
/// let set = QueueSet::new([north.clone(), south.clone()])?;
/// let first = south.add("one").await?;
/// let second = north.add("two").await?;
///
/// let mut names = set.names();
/// let (queue, name) = names.next().await.transpose()?.unwrap();
/// assert_eq!((queue.path(), name), (south.path(), first));
/// let (queue, name) = names.next().await.transpose()?.unwrap();
/// assert_eq!((queue.path(), name), (north.path(), second));
/// assert!(names.next().await.is_none());
/// # Ok(()) }
/// ```
///
/// The elements of all queues are ordered by the time in their names, and you get each with its queue. As in Perl's
/// `Directory::Queue::Set`, the time is the last 14 digits of the name. Python's `QueueSet` compares the directories
/// first.
#[derive(Clone, Debug)]
pub struct QueueSet<Q> {
    queues: Vec<Q>,
}

impl<Q: SetMember> QueueSet<Q> {
    /// Creates a set of `queues`, which may be empty.
    ///
    /// ```
    /// # use fleeting::dirq::{QueueSet, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let urgent = QueueSimple::open(dir.path().join("urgent")).await?;
    /// let normal = QueueSimple::open(dir.path().join("normal")).await?;
    /// let jobs = QueueSet::new([urgent, normal])?;
    /// assert_eq!(jobs.count().await?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Duplicate`] if two queues are the same directory, even by different paths.
    pub fn new(queues: impl IntoIterator<Item = Q>) -> Result<Self, Error> {
        let mut set = Self { queues: Vec::new() };
        queues.into_iter().try_for_each(|queue| set.add(queue))?;
        Ok(set)
    }

    /// Adds a queue. Iterations that have already begun do not include it.
    ///
    /// ```
    /// # use fleeting::dirq::{Error, QueueSet, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let mut jobs = QueueSet::new([])?;
    /// let customer = QueueSimple::open(dir.path().join("customer 7")).await?;
    /// jobs.add(customer.clone())?;
    /// assert!(matches!(jobs.add(customer), Err(Error::Duplicate { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Duplicate`] if the queue is already in the set.
    pub fn add(&mut self, queue: Q) -> Result<(), Error> {
        if self.queues.iter().any(|other| other.id() == queue.id()) {
            return Err(Error::Duplicate { path: queue.path().to_owned() });
        }
        self.queues.push(queue);
        Ok(())
    }

    /// Removes a queue. Returns false if it was not in the set. Iterations that have already begun still include it.
    ///
    /// ```
    /// # use fleeting::dirq::{QueueSet, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let customer = QueueSimple::open(dir.path().join("customer 7")).await?;
    /// let mut jobs = QueueSet::new([customer.clone()])?;
    /// assert!(jobs.remove(&customer));
    /// assert!(!jobs.remove(&customer));
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, queue: &Q) -> bool {
        let before = self.queues.len();
        self.queues.retain(|other| other.id() != queue.id());
        self.queues.len() < before
    }

    /// Returns the number of elements in all queues, including locked ones. Reads all queues, so the cost grows with
    /// the number of elements.
    ///
    /// ```
    /// # use fleeting::dirq::{QueueSet, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let north = QueueSimple::open(dir.path().join("north")).await?;
    /// let south = QueueSimple::open(dir.path().join("south")).await?;
    /// north.add("one").await?;
    /// south.add("two").await?;
    /// assert_eq!(QueueSet::new([north, south])?.count().await?, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// Waits for each queue, even if its disk does not answer, because the sum needs all of them. Limit that by
    /// [`timeout`](tokio::time::timeout) if your disks may hang.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], for the first queue that cannot be counted.
    pub async fn count(&self) -> Result<u64, Error> {
        // Concurrently: a queue that does not answer must not delay the error of another one.
        let counts = try_join_all(self.queues.iter().map(Q::count_all)).await?;
        Ok(counts.into_iter().sum())
    }

    /// Returns the queues and names of all elements in the order of their times, including locked ones.
    ///
    /// An error concerns one queue and contains its path. The iteration continues with the other elements.
    ///
    /// If the disk of a queue does not answer for one second, the stream continues with the elements of the other
    /// queues and returns those of that queue when its disk answers. The stream does not end before that.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver, unless all queues are in memory.
    #[doc(alias = "first")]
    pub fn names(&self) -> Walk<(Q, Name)> {
        let queues = self.queues.clone();
        let in_memory = queues.iter().all(|queue| queue.protocol().root().in_memory());
        let names = list_all(queues.iter().map(Q::all_names).collect(), in_memory);
        Walk::new(names.map_ok(move |(index, name)| (queues[index].clone(), name)))
    }

    /// Returns a stream that locks and reads each element that can be locked, and returns it with its queue. The stream
    /// ends after the last element.
    ///
    /// ```
    /// use fleeting::dirq::{Error, QueueSet, QueueSimple};
    ///
    /// async fn drain(queues: QueueSet<QueueSimple>) -> Result<(), Error> {
    ///     let mut jobs = queues.locked();
    ///     while let Some(job) = jobs.next().await {
    ///         let Ok((queue, job)) = job.inspect_err(|error| eprintln!("{error}")) else { continue };
    ///         println!("{}: {:?}", queue.path().display(), job.value());
    ///         job.ack().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// The stream behaves like [`locked`](super::DirQueue::locked) of one queue. Of the next elements of all queues, it
    /// returns the oldest first. Each queue prefetches elements of its own, unless it counts deliveries.
    ///
    /// If the disk of a queue does not answer for one second, the stream continues with the elements of the other
    /// queues and returns those of that queue when its disk answers. The stream does not end before that.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver, unless all queues are in memory.
    pub fn locked(&self) -> Walk<(Q, Lock<Q::Payload>)> {
        self.walk(None)
    }

    /// Returns a stream that locks and reads each element that can be locked, including elements that are added later
    /// to any of the queues. The stream never ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::{QueueSet, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let north = QueueSimple::open(dir.path().join("north")).await?;
    /// let south = QueueSimple::open(dir.path().join("south")).await?;
    /// let mut jobs = QueueSet::new([north, south.clone()])?.watch(Duration::from_secs(5));
    /// south.add("resize 7.png").await?;
    ///
    /// let (queue, job) = jobs.next().await.transpose()?.unwrap();
    /// assert_eq!((queue.path(), &job.value()[..]), (south.path(), &b"resize 7.png"[..]));
    /// job.ack().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The stream behaves like [`watch`](super::DirQueue::watch) of one queue, and returns elements in the order of
    /// [`locked`](Self::locked). An element that is added during an iteration is returned in its order when its queue
    /// is listed next.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without a time driver.
    pub fn watch(&self, every: Duration) -> Walk<(Q, Lock<Q::Payload>)> {
        self.walk(Some(every))
    }

    fn walk(&self, poll_interval: Option<Duration>) -> Walk<(Q, Lock<Q::Payload>)> {
        let queues = self.queues.clone();
        let protocols = queues.iter().map(Q::protocol).collect();
        let locks = lock_all(protocols, poll_interval);
        Walk::new(locks.map_ok(move |(index, lock)| (queues[index].clone(), lock)))
    }
}

/// A queue that can be in a set: [`QueueSimple`](super::QueueSimple) or [`Queue`](super::Queue).
pub trait SetMember: Clone + Send + 'static {
    /// The content of an element.
    type Payload: Send + 'static;

    /// Returns the device and inode of its directory.
    fn id(&self) -> (u64, u64);
    fn path(&self) -> &Path;
    fn count_all(&self) -> BoxFuture<'_, Result<u64, Error>>;
    fn all_names(&self) -> Walk<Name>;
    fn protocol(&self) -> Arc<dyn Protocol<Payload = Self::Payload>>;
}
