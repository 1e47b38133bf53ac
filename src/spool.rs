//! What leaves a cache, written to a directory queue, from which any process in any language takes it.
//!
//! 1. An event that is taken off the stream is in the backlog before anything is awaited, and leaves it when it is in
//!    the queue. A run that is dropped leaves the backlog to the next.
//! 2. A batch is written by a task of its own, which nobody's drop ends: what it wrote is known.
//! 3. One batch at a time is written (`Writer::write_permit`), so that the queue has the order of the events.

mod any_queue;
mod backlog;
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
    writer::{Settings, Writer},
};
use crate::{
    dirq::{Purge, Schema},
    engine::event::{Cause, Event},
};

/// How often the queue is purged, unless something else is wanted.
const PURGE_EVERY: Duration = Duration::from_secs(600);

/// An event stream written to a directory queue, so that an expiration outlives the process, and a program
/// in any language can take it.
///
/// Each value that expires becomes an element of the queue. A spool takes the next events only when those
/// before are in the queue: while they can't be written, because the disk is full or a right was taken away,
/// it holds them, tries again (after 50 ms, then twice as long each time, up to 5 s) and so holds back the
/// sweeper, but never a reader or a writer of the cache. [`stats`](Self::stats) and one warning tell of it.
///
/// A `Spool` is a handle: cheap to clone, and all clones are one spool.
///
/// # What is guaranteed
///
/// *At least once.* An event is in hand, of which there are at most 256, or a mebibyte and one more, from when it
/// leaves the stream until it is in the queue. Dropping the future of [`run`](Self::run) loses none and doubles none: a batch that is
/// being written is written to its end, and what is left in hand belongs to the next run. Where the whole
/// process dies, what was not in the queue dies as all that is in memory; nothing that was in it is written
/// again. The one way to a double is a runtime that is shut down in mid-write, and another that runs the
/// same spool: up to a batch may come twice.
///
/// The order in the queue is that of the events, as far as names by time can tell it.
///
/// # What is written
///
/// In a [`QueueSimple`](crate::dirq::QueueSimple), a line of JSON:
///
/// ```json
/// {"key":"ada","value":42,"meta":{"deadline":1763731230.5,"at":1763731230.731,"cause":"expired"}}
/// ```
///
/// In a [`Queue`](crate::dirq::Queue), the fields `key` and `value`, each as JSON, and the table `meta` of
/// texts; [`schema`](Self::schema) is theirs. Key and value are what they are to serde. The times are seconds
/// since 1970 by the wall clock, as it stood when the event came to the spool: `deadline` (none where the
/// value was persistent) and `at`, when it was seen to leave.
///
/// # Examples
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
/// sessions.shutdown().await; // delivers what is due, and ends the stream
/// assert_eq!(writing.await?.written, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Spool {
    writer: Arc<Writer>,
    settings: Settings,
}

impl Spool {
    /// A spool that writes to `queue`: what expires, unless [`causes`](Self::causes) says otherwise.
    ///
    /// # Panics
    ///
    /// Where it is a [`Queue`](crate::dirq::Queue) whose schema refuses elements of [`schema`](Self::schema).
    pub fn new(queue: impl Into<AnyQueue>) -> Self {
        let queue = queue.into();
        // Now, and not at the first event: that may come when nobody looks any more.
        if let Err(error) = queue.check() {
            panic!("the spool can't write to {}: {error}", queue.path().display());
        }
        let purge = (PURGE_EVERY, Purge::default().max_lock(Duration::ZERO));
        let causes = Cause::Expired.bit();
        let settings = Settings { causes, skip_too_large: false, purge: Some(purge) };
        let writer = Arc::new(Writer::new(queue));
        #[cfg(feature = "metrics")]
        metrics::register_spool(&writer);
        Self { writer, settings }
    }

    /// The schema of the elements in a [`Queue`](crate::dirq::Queue): `key:string,value:string,meta:table`.
    pub fn schema() -> Schema {
        record::schema()
    }

    /// Which causes this handle, and clones of it, writes; the others are passed over. Only those come that
    /// the cache [publishes](crate::Builder::publish). Defaults to [`Cause::Expired`].
    #[must_use]
    pub fn causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.settings.causes = Cause::bits(causes);
        self
    }

    /// Whether this handle, and clones of it, skips an event that is longer than the queue takes
    /// ([`max_size`](crate::dirq::QueueSimpleBuilder::max_size)): it is lost, [counted](SpoolStats::skipped), and an
    /// error is logged. Defaults to false: it is held, and with it all that is behind it.
    ///
    /// Whatever else the queue refuses, it may take later, and so is never skipped.
    #[must_use]
    pub fn skip_too_large(mut self, skip: bool) -> Self {
        self.settings.skip_too_large = skip;
        self
    }

    /// Purges the queue when this handle, or a clone of it, writes, and the last purge of the spool is `every` ago.
    /// [`Duration::MAX`] is never but the first time. Defaults to ten minutes, with
    /// [`max_lock`](Purge::max_lock) off: what writers have left half done when they died is taken away, and locks of
    /// those who take the elements are let be.
    ///
    /// It costs a look at each element. What can't be purged is logged, and holds up nothing.
    #[must_use]
    pub fn purge_every(mut self, every: Duration, purge: Purge) -> Self {
        self.settings.purge = Some((every, purge));
        self
    }

    /// Writes the events of a stream, such as [`LosslessEvents`](crate::LosslessEvents), until it ends and
    /// all of them are in the queue.
    ///
    /// First it writes what a run before has left in hand. It never gives up: where the queue refuses
    /// what is in hand for good, it never ends. Several runs at once, of several streams, take turns.
    ///
    /// # Panics
    ///
    /// When it is polled outside of a Tokio runtime, or on one without time.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is in hand stays in the spool, for the next run. Lend it the stream (`&mut`) to have
    /// that go on with the same one.
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
                // First, for what a run before this one has left.
                writer.write_all(settings).await;
                if !more {
                    return writer.stats();
                }
                more = poll_fn(|cx| writer.poll_batch(&mut events, settings.causes, cx)).await;
            }
        }
    }

    /// What it has done and holds.
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
