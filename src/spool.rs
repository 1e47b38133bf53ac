//! Writes events of a cache to a directory queue, from which processes in any language can take them.
//!
//! 1. An event that is taken off the stream is in the backlog before anything is awaited, and stays there until it is
//!    in the queue. If a run is dropped, the next run writes its backlog.
//! 2. A batch is written by a separate task, which runs to its end even if the run is dropped. So it is always known
//!    what was written.
//! 3. One batch is written at a time (`Writer::write_permit`), so that the queue has the order of the events.

mod any_queue;
mod backlog;
mod batch_size;
#[cfg(feature = "metrics")]
mod metrics;
mod record;
mod stats;
mod writer;

use std::{fmt, future::poll_fn, sync::Arc, time::Duration};

use futures_core::Stream;
use serde::Serialize;

pub use self::stats::SpoolStats;
use self::{
    any_queue::AnyQueue,
    writer::{Writer, WriterSettings},
};
use crate::{
    dirq::{Purge, Schema},
    engine::event::{Cause, Event},
};

/// Default interval between purges of the queue.
const PURGE_EVERY: Duration = Duration::from_secs(600);

/// An event stream written to a directory queue, so that expirations survive a restart of your process and can be
/// consumed by a program in any language.
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Cache, Spool, dirq::QueueSimple};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("expired");
/// let sessions = Cache::new();
/// let spool = Spool::new(QueueSimple::open(&path).await?);
/// let writing = tokio::spawn(spool.run(sessions.events_lossless(1_024)));
///
/// sessions.set_ex("ada", 42, Duration::from_millis(10)).await;
/// # tokio::time::sleep(Duration::from_millis(20)).await;
/// sessions.shutdown().await; // delivers pending events, and ends the stream
/// assert_eq!(writing.await?.written, 1);
/// # Ok(())
/// # }
/// ```
///
/// By default, each expired value becomes an element of the queue; you choose other events by [`causes`](Self::causes).
/// A `Spool` is a handle: it is cheap to clone, and all clones share one spool.
///
/// # Failures
///
/// A spool reads further events from your stream only when the previous ones are in the queue. If they cannot be
/// written, for instance because the disk is full or permissions have changed, it holds them and retries after 50 ms,
/// doubled after each failure up to 5 s. This delays the sweeper, but never a reader or a writer of your cache. The
/// failure is logged once as a warning, and you see the time since it began as [`stalled`](SpoolStats::stalled) in the
/// [statistics](Self::stats).
///
/// # Guarantees
///
/// *At least once while the process runs.* A spool keeps each event in memory from the time it is received until it is
/// in the queue. Events that are still in memory are lost if the process crashes. Events that are already in the queue
/// are not written a second time after a restart. An event that cannot be serialized, or contains NaN or infinity,
/// which JSON cannot represent, is skipped, [counted](SpoolStats::unwritable) and logged as an error.
///
/// Each run receives at most 256 events at a time, and stops receiving when their data reaches one mebibyte. If you
/// drop the future of [`run`](Self::run), you neither lose nor duplicate an event: a batch that is being written is
/// completed, and the remaining events are written by the next run. Duplicates are possible in one case only: if a
/// runtime is shut down during a write and the same spool is run on another runtime, up to one batch may be written
/// twice.
///
/// Events are added to the queue in order. The names of elements contain the time: if the system clock goes back before
/// a restart, later events may precede earlier ones.
///
/// # Format
///
/// In a [`QueueSimple`](crate::dirq::QueueSimple), each event is a line of JSON:
///
/// ```json
/// {"key":"ada","value":42,"meta":{"deadline":1763731230.5,"at":1763731230.731,"cause":"expired"}}
/// ```
///
/// In a [`Queue`](crate::dirq::Queue), it has the fields `key` and `value`, both as JSON, and the table `meta`; see
/// [`schema`](Self::schema). Keys and values are serialized with serde. The times `deadline` (absent if the value was
/// persistent) and `at` (the time of the removal) are in seconds since the Unix epoch. They are converted to the wall
/// clock when the spool receives the event.
#[derive(Clone)]
pub struct Spool {
    writer: Arc<Writer>,
    settings: WriterSettings,
}

impl Spool {
    /// Creates a spool that writes to `queue`. It writes `Expired` events, unless [`causes`](Self::causes) is set.
    ///
    /// ```
    /// # use fleeting::{Cache, Spool, dirq::QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// let sessions: Cache<String, u64> = Cache::new();
    /// let spool = Spool::new(QueueSimple::open(&path).await?);
    /// tokio::spawn(spool.run(sessions.events_lossless(1_024)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `queue` is a [`Queue`](crate::dirq::Queue) whose schema does not accept elements of
    /// [`schema`](Self::schema).
    pub fn new(queue: impl Into<AnyQueue>) -> Self {
        let queue = queue.into();
        // Checked now and not at the first event, which may occur long after a deployment.
        if let Err(error) = queue.check() {
            panic!("the spool cannot write to queue {}: {error}", queue.path().display());
        }
        let purge = (PURGE_EVERY, Purge::default().max_lock(Duration::ZERO));
        let causes = Cause::Expired.bit();
        let settings = WriterSettings { causes, skip_too_large: false, purge: Some(purge) };
        let writer = Arc::new(Writer::new(queue));
        #[cfg(feature = "metrics")]
        metrics::register_spool(&writer);
        Self { writer, settings }
    }

    /// Returns the schema of the elements in a [`Queue`](crate::dirq::Queue): `key:string,value:string,meta:table`.
    ///
    /// ```
    /// # use fleeting::{Spool, dirq::Queue};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// let queue = Queue::builder(&path).schema(Spool::schema()).open().await?;
    /// let spool = Spool::new(queue);
    /// # Ok(()) }
    /// ```
    pub fn schema() -> Schema {
        record::schema()
    }

    /// Sets the causes of the events to write; events with other causes are ignored. The cache must
    /// [publish](crate::Builder::publish) these causes, too. Applies to this handle and to clones made from it
    /// afterwards. Defaults to [`Cause::Expired`].
    ///
    /// ```
    /// # use fleeting::{Cache, Cause, Spool, dirq::QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// // Logouts, too.
    /// let causes = [Cause::Expired, Cause::Removed];
    /// let sessions: Cache<String, u64> = Cache::builder().publish(causes).build();
    /// let spool = Spool::new(QueueSimple::open(&path).await?).causes(causes);
    /// tokio::spawn(spool.run(sessions.events_lossless(1_024)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.settings.causes = Cause::bits(causes);
        self
    }

    /// Sets whether to skip events that exceed the queue's [`max_size`](crate::dirq::QueueSimpleBuilder::max_size).
    /// Applies to this handle and to clones made from it afterwards. A skipped event is lost,
    /// [counted](SpoolStats::skipped), and logged as an error. Defaults to false: the event is held, and all later
    /// events wait behind it.
    ///
    /// Other write errors may be temporary, so no event is skipped because of them. An event that cannot be serialized
    /// is always skipped, [counted](SpoolStats::unwritable) and logged as an error.
    ///
    /// ```
    /// # use fleeting::{Spool, dirq::QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// // The consumer reads elements of at most a kilobyte. Rather lose a larger event than delay all others.
    /// let queue = QueueSimple::builder(&path).max_size(1_000).open().await?;
    /// let spool = Spool::new(queue).skip_too_large(true);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn skip_too_large(mut self, skip: bool) -> Self {
        self.settings.skip_too_large = skip;
        self
    }

    /// Sets the interval between purges of the queue. The queue is purged before a write if the last purge by this
    /// spool was at least `every` ago. Applies to this handle and to clones made from it afterwards. [`Duration::MAX`]
    /// purges only once, at the first write. Defaults to ten minutes and a [`max_lock`](Purge::max_lock) of zero, so
    /// that leftovers of crashed writers are removed and the locks of consumers are kept.
    ///
    /// A purge reads the whole queue. Errors are logged and do not delay the events.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Spool, dirq::{Purge, QueueSimple}};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// // Also free the elements whose consumer has crashed an hour ago.
    /// let hour = Duration::from_secs(3_600);
    /// let purge = Purge::default().max_lock(hour);
    /// let spool = Spool::new(QueueSimple::open(&path).await?).purge_every(hour, purge);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn purge_every(mut self, every: Duration, purge: Purge) -> Self {
        self.settings.purge = Some((every, purge));
        self
    }

    /// Writes the events of a stream, such as [`LosslessEvents`](crate::LosslessEvents), until the stream ends and all
    /// its events are in the queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Spool, dirq::QueueSimple};
    /// use tokio::time::timeout;
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("expired");
    /// let cache: Cache<u32, u32> = Cache::new();
    /// let mut events = cache.events_lossless(1_024);
    /// let spool = Spool::new(QueueSimple::open(&path).await?);
    ///
    /// cache.set_ex(1, 1, Duration::ZERO).await;
    /// let _ = timeout(Duration::from_millis(1), spool.run(&mut events)).await;
    /// cache.shutdown().await;
    /// assert_eq!(spool.run(&mut events).await.written, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Events that remain from a previous run are written first. `run` retries without a limit: if the queue
    /// permanently rejects an event, it does not return. If several runs write different streams to one spool, they
    /// write their batches in turn.
    ///
    /// # Panics
    ///
    /// Panics if it is polled outside of a Tokio runtime, or on a runtime without a time driver.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: events that were not written stay in the spool and are written by the next run. Pass the stream by
    /// `&mut` to continue with the same stream.
    pub fn run<K, V, E>(&self, events: E) -> impl Future<Output = SpoolStats> + use<K, V, E>
    where
        K: Serialize,
        V: Serialize,
        E: Stream<Item = Arc<Event<K, V>>> + Unpin,
    {
        let Self { writer, settings } = self.clone();
        async move {
            let mut events = events;
            let mut more = true;
            loop {
                // First, because a previous run may have left events.
                writer.write_all(settings).await;
                if !more {
                    return writer.stats();
                }
                more = poll_fn(|cx| writer.poll_batch(&mut events, settings.causes, cx)).await;
            }
        }
    }

    /// Returns statistics of this spool.
    ///
    /// ```
    /// # use fleeting::{Spool, dirq::QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ended");
    /// let spool = Spool::new(QueueSimple::open(&path).await?);
    /// if let Some(time) = spool.stats().stalled {
    ///     eprintln!("the queue has accepted nothing for {time:?}; is the disk full?");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> SpoolStats {
        self.writer.stats()
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.writer.queue().path();
        f.debug_struct("Spool").field("queue", &queue).field("stats", &self.stats()).finish()
    }
}
