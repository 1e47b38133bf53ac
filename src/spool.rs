//! What leaves a cache, written to a directory queue, from which any process in any language takes it.
//!
//! 1. An event that is taken off the stream is in hand (`Hand::records`) before anything is awaited, and
//!    leaves it when it is in the queue. A run that is dropped leaves all in hand to the next.
//! 2. A batch is written by a task of its own, which nobody's drop ends: what it wrote is known.
//! 3. One batch at a time is written (`Shared::turn`), so that the queue has the order of the events.

mod record;
mod target;

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    panic::resume_unwind,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use serde::Serialize;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use self::{
    record::{Record, WallClock},
    target::Target,
};
use crate::{
    dirq::{Error, Schema},
    engine::{
        event::{Cause, Event},
        panics::drop_all,
    },
};

/// How many events are in hand at most, of each run, and written at once.
const BATCH: usize = 256;

/// How long it waits after a try that failed; each next time twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
/// *At least once.* An event is in hand, of which there are at most 256, from when it leaves the stream until
/// it is in the queue. Dropping the future of [`run`](Self::run) loses none and doubles none: a batch that is
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
    shared: Arc<Shared>,
    /// The causes that are written, as bits.
    causes: u8,
}

/// What a [`Spool`] has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpoolStats {
    /// Events that are in the queue, or were taken from it again.
    pub written: u64,
    /// Events that were taken off a stream and are not known to be in the queue.
    pub in_hand: usize,
    /// Events that serde could not make JSON of, which were passed over.
    pub unwritable: u64,
    /// Tries to write that failed.
    pub failures: u64,
    /// How long the queue has refused what is in hand; `None` while it takes it.
    pub stalled: Option<Duration>,
}

struct Shared {
    target: Target,
    /// Of one permit, which the task has that writes.
    turn: Arc<Semaphore>,
    hand: Mutex<Hand>,
}

struct Hand {
    /// The oldest first. Only the task that writes takes them out.
    records: VecDeque<Arc<Record>>,
    /// How many to write at once.
    size: usize,
    written: u64,
    unwritable: u64,
    failures: u64,
    stalled_since: Option<Instant>,
}

enum Change {
    Stalls,
    /// After it had stalled for so long.
    Goes(Duration),
}

impl Spool {
    /// A spool that writes to `queue`: what expires, unless [`causes`](Self::causes) says otherwise.
    ///
    /// # Panics
    ///
    /// Where it is a [`Queue`](crate::dirq::Queue) whose schema refuses elements of [`schema`](Self::schema).
    pub fn new(queue: impl Into<Target>) -> Self {
        let target = queue.into();
        if let Err(error) = target.check() {
            panic!("the spool can't write to {}: {error}", target.path().display());
        }
        let turn = Arc::new(Semaphore::new(1));
        let shared = Shared { target, turn, hand: Mutex::new(Hand::new()) };
        Self { shared: Arc::new(shared), causes: Cause::Expired.bit() }
    }

    /// The schema of the elements in a [`Queue`](crate::dirq::Queue): `key:string,value:string,meta:table`.
    pub fn schema() -> Schema {
        record::schema()
    }

    /// Which causes this handle, and clones of it, writes; the others are passed over. Only those come that
    /// the cache [publishes](crate::Builder::publish). Defaults to [`Cause::Expired`].
    #[must_use]
    pub fn causes(self, causes: impl IntoIterator<Item = Cause>) -> Self {
        let causes = causes.into_iter().fold(0, |bits, cause| bits | cause.bit());
        Self { causes, ..self }
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
        let Self { shared, causes } = self.clone();
        async move {
            let mut events = events;
            let mut more = true;
            loop {
                shared.write_all().await;
                if !more {
                    return shared.stats();
                }
                more = poll_fn(|cx| shared.poll_batch(&mut events, causes, cx)).await;
            }
        }
    }

    /// What it has done and holds.
    pub fn stats(&self) -> SpoolStats {
        self.shared.stats()
    }
}

impl Shared {
    /// Takes a batch in hand, or what of it is there; waits only for the first. False where the stream has
    /// ended.
    fn poll_batch<K, V, E>(&self, events: &mut E, causes: u8, cx: &mut Context<'_>) -> Poll<bool>
    where
        K: Serialize,
        V: Serialize,
        E: Stream<Item = Arc<Event<K, V>>> + Unpin,
    {
        let wall_clock = WallClock::now();
        let mut taken = 0;
        while taken < BATCH {
            match Pin::new(&mut *events).poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    taken += 1;
                    if event.cause.bit() & causes != 0 {
                        self.take(&event, &wall_clock);
                    }
                    drop_all([event]);
                }
                Poll::Ready(None) => return Poll::Ready(false),
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(true)
    }

    fn take<K: Serialize, V: Serialize>(&self, event: &Event<K, V>, wall_clock: &WallClock) {
        match Record::of(event, wall_clock) {
            Ok(record) => self.lock().records.push_back(Arc::new(record)),
            Err(error) => {
                self.lock().unwritable += 1;
                let queue = self.target.path().display();
                tracing::error!(%queue, %error, "an event that can't be written is passed over");
            }
        }
    }

    /// Returns when nothing is in hand any more.
    async fn write_all(self: &Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let turn = self.turn.clone().acquire_owned().await.expect("nobody closes it");
            if self.lock().records.is_empty() {
                return;
            }
            let shared = self.clone();
            let writing = tokio::spawn(async move {
                let _turn = turn;
                shared.write_batch().await
            });
            match writing.await {
                Ok(0) => {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Ok(_) => pause = FIRST_PAUSE,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime shuts down, and with it this run at its next pause.
                    Err(_) => sleep(pause).await,
                },
            }
        }
    }

    /// Writes a batch of what is in hand; tells how many went in.
    async fn write_batch(&self) -> usize {
        let batch = self.lock().batch();
        let (written, result) = self.target.add(&batch).await;
        let (gone, change) = {
            let mut hand = self.lock();
            (hand.take_out(written), hand.tried(&result))
        };
        drop(gone);
        let queue = self.target.path().display();
        match (change, result) {
            (Some(Change::Stalls), Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%queue, error, "the spool can't write, and holds events back");
            }
            (Some(Change::Goes(stalled)), _) => {
                tracing::info!(%queue, ?stalled, "the spool writes again");
            }
            _ => {}
        }
        written
    }

    fn stats(&self) -> SpoolStats {
        let hand = self.lock();
        SpoolStats {
            written: hand.written,
            in_hand: hand.records.len(),
            unwritable: hand.unwritable,
            failures: hand.failures,
            stalled: hand.stalled_since.map(|since| since.elapsed()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().expect("no user code runs under this lock")
    }
}

impl Hand {
    fn new() -> Self {
        Self {
            records: VecDeque::new(),
            size: BATCH,
            written: 0,
            unwritable: 0,
            failures: 0,
            stalled_since: None,
        }
    }

    fn batch(&self) -> Vec<Arc<Record>> {
        self.records.iter().take(self.size).cloned().collect()
    }

    /// To be dropped outside of the lock.
    fn take_out(&mut self, written: usize) -> Vec<Arc<Record>> {
        self.written += written as u64;
        self.records.drain(..written).collect()
    }

    fn tried(&mut self, result: &Result<(), Error>) -> Option<Change> {
        if result.is_err() {
            self.failures += 1;
            // A disk that has no room for a batch may have some for one.
            self.size = 1;
            let begins = self.stalled_since.is_none();
            self.stalled_since.get_or_insert_with(Instant::now);
            return begins.then_some(Change::Stalls);
        }
        self.size = BATCH.min(2 * self.size);
        // Where one goes in now and then, it has not come to take them all.
        if self.size < BATCH && !self.records.is_empty() {
            return None;
        }
        self.stalled_since.take().map(|since| Change::Goes(since.elapsed()))
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.target.path();
        f.debug_struct("Spool").field("queue", &queue).field("stats", &self.stats()).finish()
    }
}
