//! The builder of both kinds of queues: the settings that they have in common.

use std::time::Duration;

use super::{Purge, root::Options};

/// Builder of a directory queue, for settings of your own.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::dirq::QueueSimple;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let queue = QueueSimple::builder(dir.path())
///     .max_elements(100_000)
///     .max_attempts(5)
///     .backoff(Duration::from_secs(10), Duration::from_secs(3_600))
///     .open()
///     .await?;
/// # Ok(()) }
/// ```
///
/// Each kind of queue has one: [`QueueSimpleBuilder`](super::QueueSimpleBuilder), and
/// [`QueueBuilder`](super::QueueBuilder). `S` holds the settings of one kind.
#[derive(Clone, Debug)]
#[must_use]
pub struct DirQueueBuilder<S> {
    pub(super) options: Options,
    pub(super) settings: S,
}

impl<S> DirQueueBuilder<S> {
    /// Sets the mode bits that are removed from all created files and directories, independently of the process' umask.
    /// Defaults to the process' umask.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // Only this user and the group may read the jobs.
    /// let queue = QueueSimple::builder(dir.path().join("jobs")).umask(0o027).open().await?;
    /// queue.add("a secret").await?;
    /// # Ok(()) }
    /// ```
    pub fn umask(mut self, umask: u32) -> Self {
        self.options.umask = Some(umask);
        self
    }

    /// Sets the last hexadecimal digit of new names, 0 to 15. Writers with different digits never choose the same name.
    /// Defaults to a digit that is chosen at random when the queue is opened.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // Each of up to 16 writers has a digit of its own.
    /// let writer = QueueSimple::builder(dir.path()).rnd_hex(7).open().await?;
    /// let name = writer.add("job").await?;
    /// assert!(name.to_string().ends_with('7'));
    /// # Ok(()) }
    /// ```
    pub fn rnd_hex(mut self, digit: u8) -> Self {
        self.options.rnd_hex = Some(digit);
        self
    }

    /// Makes adds to a bounded queue wait while it is full, and sets the interval `every` at which the free capacity is
    /// checked. So your producers are as fast as the consumers. By default, adds to a full queue fail.
    ///
    /// Waiters are served in FIFO order, except that an add of several elements lets others go first for up to 100
    /// intervals. An add of more elements than the bound fails immediately.
    ///
    /// With this setting, [`add`](super::DirQueue::add) and the other adding methods need a runtime with a time driver.
    /// A waiting future that is not polled keeps only the capacity for its own elements from others, until it is
    /// dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path())
    ///     .max_elements(1)
    ///     .wait_for_room(Duration::from_millis(1))
    ///     .open()
    ///     .await?;
    /// let first = queue.add("first").await?;
    /// let consumer = queue.clone();
    /// tokio::spawn(async move { consumer.dequeue(&first).await });
    /// queue.add("second").await?; // waits until the first is gone
    /// # Ok(()) }
    /// ```
    pub fn wait_for_room(mut self, every: Duration) -> Self {
        self.options.wait_for_room = Some(every);
        self
    }

    /// Sets the interval between purges of the queue by the streams of [`watch`](super::DirQueue::watch): the elements
    /// of killed workers are then delivered again. Defaults to no purges.
    ///
    /// The queue is purged at the end of a scan if the last such purge by this process was at least `every` ago,
    /// however many streams there are. If the purge removes locks, a stream then scans the queue again.
    ///
    /// A purge reads the whole queue, and delays the stream. Errors are logged.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::{Purge, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // If a worker is killed, another one gets its job after an hour.
    /// let queue = QueueSimple::builder(dir.path())
    ///     .purge_every(Duration::from_secs(600), Purge::default().max_lock(Duration::from_secs(3_600)))
    ///     .open()
    ///     .await?;
    /// let jobs = queue.watch(Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    pub fn purge_every(mut self, every: Duration, purge: Purge) -> Self {
        self.options.purge_every = Some((every, purge));
        self
    }

    /// Sets whether new elements survive a crash of the machine. If so, each add waits until its files, their
    /// names, and the names of all parent directories up to the mount point are on disk. Defaults to false, as in the
    /// other implementations.
    ///
    /// Concurrent adds are [synced together](super#cost).
    ///
    /// If this process may write to a directory of the queue and not read it (a drop box), each add syncs the whole
    /// file system, which takes longer.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let orders = QueueSimple::builder(dir.path()).sync(true).open().await?;
    /// orders.add("one book").await?;
    /// // Now it is safe to tell the customer.
    /// # Ok(()) }
    /// ```
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// Sets the maximum size in bytes of an element, or of each field of an element in a [`Queue`](super::Queue).
    /// Longer ones are neither added nor read ([`Error::TooLarge`](super::Error::TooLarge)). Defaults to 1 GiB.
    ///
    /// An element is read into memory as a whole, and any process with write access to the queue can choose its size.
    ///
    /// ```
    /// # use fleeting::dirq::{Error, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_size(1 << 20).open().await?;
    /// let too_large = queue.add(vec![0; (1 << 20) + 1]).await;
    /// assert!(matches!(too_large, Err(Error::TooLarge { .. })));
    /// # Ok(()) }
    /// ```
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.options.max_size = bytes;
        self
    }

    /// Sets the backoff of failed elements: `first` after the first failure, doubled after each further failure, up to
    /// `max`. The actual delay is chosen at random between 0.5 and 1.5 times this value. Defaults to one second and one
    /// minute if [`max_attempts`](Self::max_attempts) is set, otherwise to none: a failed element may be delivered
    /// again immediately.
    ///
    /// This setting [enables the counting of deliveries](super#retries-and-dead-letters).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path())
    ///     .backoff(Duration::from_secs(60), Duration::from_secs(3_600))
    ///     .open()
    ///     .await?;
    /// queue.add("mail to ada").await?;
    /// drop(queue.locked().next().await); // the mail server is down
    /// assert!(queue.locked().next().await.is_none(), "it waits for a minute");
    /// # Ok(()) }
    /// ```
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let retries = self.options.retries();
        (retries.first, retries.max) = (first, max);
        self
    }

    /// Sets the number of failures after which an element is a [dead letter](super::DirQueue::take_dead), so that a
    /// broken job does not keep your workers busy forever. Defaults to no limit.
    ///
    /// This setting [enables the counting of deliveries](super#retries-and-dead-letters).
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await?;
    /// queue.add("mail to ada").await?;
    /// drop(queue.locked().next().await); // fails
    /// assert!(queue.locked().next().await.is_none());
    /// assert_eq!(queue.dead_len().await?, 1);
    /// # Ok(()) }
    /// ```
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.retries().max_attempts = attempts;
        self
    }
}
