//! Several queues of one kind, merged by the times in their names.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::{TryStreamExt, future::BoxFuture, stream::unfold};

use super::{Error, Lock, Name, Walk, prefetch::lock_all, protocol::Protocol};

/// Several queues of one kind that are walked through as one.
///
/// Names come in the order of their times, whatever queue they are in, each with its queue. As in Perl's
/// `Directory::Queue::Set` these are the last 14 digits; Python's compares the directories first.
///
/// # Examples
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
#[derive(Clone, Debug)]
pub struct QueueSet<Q> {
    queues: Vec<Q>,
}

impl<Q: SetMember> QueueSet<Q> {
    /// A set of `queues`; none is allowed.
    ///
    /// # Errors
    ///
    /// [`Error::Duplicate`] where two are the same directory, whatever their paths.
    pub fn new(queues: impl IntoIterator<Item = Q>) -> Result<Self, Error> {
        let mut set = Self { queues: Vec::new() };
        queues.into_iter().try_for_each(|queue| set.add(queue))?;
        Ok(set)
    }

    /// Adds a queue. Walks that were begun go on without it.
    ///
    /// # Errors
    ///
    /// [`Error::Duplicate`] where it is in the set already.
    pub fn add(&mut self, queue: Q) -> Result<(), Error> {
        if self.queues.iter().any(|other| other.id() == queue.id()) {
            return Err(Error::Duplicate { path: queue.path().to_owned() });
        }
        self.queues.push(queue);
        Ok(())
    }

    /// Takes a queue out; false where it was not in the set. Walks that were begun go on with it.
    pub fn remove(&mut self, queue: &Q) -> bool {
        let before = self.queues.len();
        self.queues.retain(|other| other.id() != queue.id());
        self.queues.len() < before
    }

    /// How many elements there are in all queues, locked ones included. Costs a look at each.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], of the first queue that can't be counted.
    pub async fn count(&self) -> Result<u64, Error> {
        let mut count = 0;
        for queue in &self.queues {
            count += queue.count_all().await?;
        }
        Ok(count)
    }

    /// The queues and names of all elements in the order of their times, locked ones included.
    ///
    /// An error is of one queue, of which it names the path; the walk goes on.
    #[doc(alias = "first")]
    pub fn names(&self) -> Walk<(Q, Name)> {
        let sources: Vec<_> =
            self.queues.iter().map(|queue| MergeSource::new(queue.clone())).collect();
        Walk::new(unfold(sources, |mut sources| async move {
            // Each must have told its next before the first of all is known.
            for source in &mut sources {
                if let Err(error) = source.fill().await {
                    return Some((Err(error), sources));
                }
            }
            sources.retain(|source| source.next.is_some());
            let first =
                sources.iter_mut().min_by_key(|source| source.next.map(|name| name.element))?;
            let name = first.next.take().expect("a queue without a next name is out");
            Some((Ok((first.queue.clone(), name)), sources))
        }))
    }

    /// Locks and reads all elements that can be locked, each with its queue, and then ends.
    ///
    /// It is as [`locked`](super::DirQueue::locked) of one queue; of the elements that the queues are at, the oldest
    /// comes first. Where one of the queues counts its deliveries, none is locked ahead.
    ///
    /// # Panics
    ///
    /// On a runtime without time, unless all queues are in memory.
    ///
    /// # Examples
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
    pub fn locked(&self) -> Walk<(Q, Lock<Q::Payload>)> {
        self.walk(None)
    }

    /// Locks and reads all elements that can be locked, and those that are added later to any of the queues: it never
    /// ends.
    ///
    /// It is as [`watch`](super::DirQueue::watch) of one queue, and in the order of [`locked`](Self::locked): an element
    /// that is added while others still come takes its place among them when its queue is listed next.
    ///
    /// # Panics
    ///
    /// On a runtime without time.
    pub fn watch(&self, every: Duration) -> Walk<(Q, Lock<Q::Payload>)> {
        self.walk(Some(every))
    }

    fn walk(&self, poll_interval: Option<Duration>) -> Walk<(Q, Lock<Q::Payload>)> {
        let queues = self.queues.clone();
        let protocols: Arc<[_]> = queues.iter().map(Q::protocol).collect();
        Walk::new(lock_all(protocols, poll_interval).map_ok(move |lock| {
            let (id, _) = lock.queue_and_name();
            let queue = queues.iter().find(|queue| queue.id() == id);
            (queue.expect("it is of one of them").clone(), lock)
        }))
    }
}

/// A queue of a set with its next name.
struct MergeSource<Q> {
    queue: Q,
    names: Walk<Name>,
    /// None before it is looked for, and after the last.
    next: Option<Name>,
}

impl<Q: SetMember> MergeSource<Q> {
    fn new(queue: Q) -> Self {
        Self { names: queue.all_names(), queue, next: None }
    }

    async fn fill(&mut self) -> Result<(), Error> {
        if self.next.is_none() {
            self.next = self.names.next().await.transpose()?;
        }
        Ok(())
    }
}

/// What can be in a set: [`QueueSimple`](super::QueueSimple) and [`Queue`](super::Queue).
pub trait SetMember: Clone + Send + 'static {
    /// What an element is.
    type Payload: Send + 'static;

    /// Of device and inode.
    fn id(&self) -> (u64, u64);
    fn path(&self) -> &Path;
    fn count_all(&self) -> BoxFuture<'_, Result<u64, Error>>;
    fn all_names(&self) -> Walk<Name>;
    fn protocol(&self) -> Arc<dyn Protocol<Payload = Self::Payload>>;
}
