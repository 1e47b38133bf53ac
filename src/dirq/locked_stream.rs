//! The stream of locked elements. Several are locked and read before they are requested, so that they share one round
//! trip to the thread that may block on the disk.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::{Stream, unfold};
use tokio::time::Instant;

use super::{
    Error, Lock, Walk,
    blocking::{Work, run},
    cursor::Cursor,
    delivery::Delivery,
    prefetch_buffer::PrefetchBuffer,
    protocol::Protocol,
    watch::Watch,
};

/// The queues that are iterated over as one.
pub(super) type Queues<T> = Arc<[Arc<dyn Protocol<Payload = T>>]>;

impl<T: Send + 'static> Walk<Lock<T>> {
    /// Locks all elements of a queue that can be locked, once or, with `poll_interval`, repeatedly.
    pub(super) fn locked(
        queue: Arc<dyn Protocol<Payload = T>>,
        poll_interval: Option<Duration>,
    ) -> Self {
        Self::new(lock_all([queue].into(), poll_interval))
    }
}

/// Locks all elements of the queues that can be locked, in the order of their times, once or, with `poll_interval`,
/// repeatedly.
pub(super) fn lock_all<T: Send + 'static>(
    queues: Queues<T>,
    poll_interval: Option<Duration>,
) -> impl Stream<Item = Result<Lock<T>, Error>> + Send {
    let state = (Prefetch::new(queues), poll_interval.map(Watch::new));
    // `unfold` keeps the future of a step in the stream. So dropping the future of `next` loses neither the cursor nor
    // locked elements.
    unfold(state, |(mut prefetch, mut watch)| async move {
        loop {
            if let Some(next) = prefetch.next().await {
                return Some((next.map(Lock::mark_delivered), (prefetch, watch)));
            }
            watch.as_mut()?.wait(&prefetch.queues).await;
        }
    })
}

/// Repeated iterations over the queues, with a buffer of prefetched locks.
///
/// Elements are locked and read in batches, because a round trip to another thread costs as much as the work itself.
/// Buffered elements are locked although no worker uses them, so the batch size adapts to the rate of requests. In
/// memory there is no round trip, and nothing is prefetched.
struct Prefetch<T: Send + 'static> {
    queues: Queues<T>,
    /// The position of the current iteration; `None` before it begins and after it ends.
    cursor: Option<Cursor>,
    has_ended: bool,
    buffer: PrefetchBuffer<T>,
    /// The size of the next batch, and its maximum.
    count: usize,
    max_count: usize,
    filled_at: Instant,
    /// True if the next element is too long to be read in place.
    is_long: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Maximum number of elements in a batch. The docs of `locked` state it.
    const MAX_COUNT: usize = 64;
    /// If a batch is used up within this time, the size of the next one is doubled.
    const FAST_CONSUMER: Duration = Duration::from_millis(10);
    /// Maximum number of names that one call to another thread tries, so that a dropped stream ends soon.
    const MAX_TRIES: usize = 1024;
    /// The same limit in place, where a task must soon let others run.
    const MAX_TRIES_IN_PLACE: usize = 16;

    fn new(queues: Queues<T>) -> Self {
        // If deliveries are counted, a crash of the process would count prefetched elements as failed.
        let counts_deliveries = queues.iter().any(|queue| queue.root().retries.is_some());
        let one_at_a_time = counts_deliveries || in_memory(&queues);
        let max_count = if one_at_a_time { 1 } else { Self::MAX_COUNT };
        let (buffer, filled_at) = (PrefetchBuffer::new(), Instant::now());
        Self {
            queues,
            cursor: None,
            has_ended: false,
            buffer,
            count: 0,
            max_count,
            filled_at,
            is_long: false,
        }
    }

    /// Returns the next element, or `None` at the end, after which a new iteration begins.
    async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        loop {
            if let Some(next) = self.buffer.pop() {
                return Some(next);
            }
            // A flag, because `cursor` is also `None` before the iteration begins.
            if self.has_ended && self.buffer.is_empty() {
                self.has_ended = false;
                return None;
            }
            let is_fast = self.filled_at.elapsed() < Self::FAST_CONSUMER;
            self.count = if is_fast { (self.count * 2).clamp(1, self.max_count) } else { 1 };
            self.fill().await?;
        }
    }

    /// Locks the next batch. Returns `None` if there are no queues.
    async fn fill(&mut self) -> Option<()> {
        let queues = self.queues.clone();
        let first = queues.first()?;
        let limits = self.limits();
        // In memory, a batch that only lists locks nothing, and a short element is locked in place for its caller.
        let filler = self.buffer.filler(limits.length == Work::Long && limits.count > 0);
        let (released, stale) = self.buffer.take_all().await;
        let cursor = match self.has_ended {
            // Only prefetched elements that were unlocked remain to be returned.
            true => Cursor::at_end(&queues),
            false => self.cursor.take().unwrap_or_else(|| Cursor::at_start(&queues)),
        };
        let filled = run("list", limits.length, first, {
            let queues = queues.clone();
            move |_| {
                let mut cursor = cursor;
                // Stale locks are released first: they are as old as the call that acquired them.
                let errors = cursor.requeue(released, stale);
                let mut batch = Batch { locks: errors, locked_at: Instant::now(), is_long: false };
                let has_more = batch.lock_next(&mut cursor, &queues, limits);
                // Here and not when the caller has the result: the caller may be gone.
                filler.fill(batch.locks, batch.locked_at);
                Ok((has_more.then_some(cursor), batch.is_long))
            }
        });
        let (cursor, is_long) = match filled.await {
            Ok(filled) => filled,
            // The runtime is shutting down. The cursor was dropped with the work, so the iteration ends.
            Err(error) => {
                self.buffer.filler(false).fill([Err(error)].into(), Instant::now());
                (None, false)
            }
        };
        self.has_ended = cursor.is_none();
        (self.cursor, self.is_long) = (cursor, is_long);
        self.filled_at = Instant::now();
        Some(())
    }

    /// Returns the limits of the next batch. In memory, names that are already listed are locked in place. Listing may
    /// take long, and so may reading a long element.
    fn limits(&self) -> BatchLimits {
        let (count, listed) = (self.count, self.cursor.as_ref().map_or(0, Cursor::listed));
        let (length, count, tries, max_bytes) = match in_memory(&self.queues) && !self.is_long {
            true if listed > 0 => {
                let tries = listed.min(Self::MAX_TRIES_IN_PLACE);
                (Work::Short, count, tries, Work::SHORT_DATA as u64)
            }
            true => (Work::Long, 0, 1, 0),
            false => (Work::Long, count, Self::MAX_TRIES, u64::MAX),
        };
        BatchLimits { length, count, tries, max_bytes }
    }
}

/// The limits of a batch.
#[derive(Clone, Copy)]
struct BatchLimits {
    length: Work,
    /// Maximum number of elements; 0 if the batch only lists names.
    count: usize,
    /// Maximum number of names to try.
    tries: usize,
    /// Maximum size of the first element in bytes.
    max_bytes: u64,
}

/// Elements that are locked and read by one call to another thread.
struct Batch<T: Send + 'static> {
    locks: VecDeque<Result<Lock<T>, Error>>,
    /// Time before the first lock.
    locked_at: Instant,
    /// True if the next element is too long for the batch and nothing was locked.
    is_long: bool,
}

impl<T: Send + 'static> Batch<T> {
    /// Maximum size of a batch in bytes. The first element may be longer, because it was requested.
    const MAX_BYTES: u64 = 1 << 20;
    /// Time after which a slow disk locks no more elements for the batch, so that the first does not become stale.
    const MAX_TIME: Duration = Duration::from_millis(250);

    /// Locks and reads elements from the cursor up to the limits. Returns false if the cursor is at its end.
    fn lock_next(&mut self, cursor: &mut Cursor, queues: &Queues<T>, limits: BatchLimits) -> bool {
        let mut bytes = 0;
        // Each queue's cached directories are validated once per batch.
        let mut openers: Vec<_> = queues.iter().map(|_| None).collect();
        for _ in 0..limits.tries {
            let has_locked = self.locks.iter().any(Result::is_ok);
            if !has_locked {
                self.locked_at = Instant::now();
            }
            let is_late = has_locked && self.locked_at.elapsed() > Self::MAX_TIME;
            if is_late || bytes >= Self::MAX_BYTES || limits.count.max(1) <= self.locks.len() {
                break;
            }
            let candidate = match cursor.next(queues) {
                Some(Ok(candidate)) => candidate,
                Some(Err(error)) => {
                    self.locks.push_back(Err(error));
                    continue;
                }
                None => return false,
            };
            if limits.count == 0 {
                cursor.put_back(candidate);
                break;
            }
            let queue = &queues[candidate.queue];
            let root = queue.root();
            // The first element was requested, so it is read however long it is.
            let limit = match bytes {
                0 => limits.max_bytes,
                bytes => limits.max_bytes.min(Self::MAX_BYTES - bytes),
            };
            let limit = limit.min(root.max_size);
            let begin_delivery = || Delivery::begin(root, &candidate.name, candidate.has_records);
            let opener = openers[candidate.queue].get_or_insert_with(|| root.opener());
            let taken = Lock::take(queue, opener, candidate.name, limit, begin_delivery);
            if limit < root.max_size && matches!(taken, Err(Error::TooLarge { .. })) {
                cursor.put_back(candidate);
                self.is_long = self.locks.is_empty();
                break;
            }
            if let Ok(Some(lock)) = &taken {
                bytes += queue.len_of(lock.value()) as u64;
            }
            self.locks.extend(taken.transpose());
        }
        true
    }
}

fn in_memory<T: Send + 'static>(queues: &Queues<T>) -> bool {
    queues.iter().all(|queue| queue.root().in_memory())
}
