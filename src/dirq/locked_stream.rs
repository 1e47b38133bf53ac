//! The stream of locked elements. Several are locked and read before they are requested, so that they share one round
//! trip to the thread that may block on the disk.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::unfold;
use tokio::time::Instant;

use super::{
    Error, Lock, Name, Walk,
    blocking::{Work, run},
    cursor::Cursor,
    delivery::Delivery,
    prefetch_buffer::PrefetchBuffer,
    protocol::Protocol,
    watch::Watch,
};

/// A queue whose elements are locked.
pub(super) type LockedQueue<T> = Arc<dyn Protocol<Payload = T>>;

impl<T: Send + 'static> Walk<Lock<T>> {
    /// Locks all elements of a queue that can be locked, once or, with `poll_interval`, repeatedly.
    pub(super) fn locked(queue: LockedQueue<T>, poll_interval: Option<Duration>) -> Self {
        // `unfold` keeps the future of a step in the stream. So dropping the future of `next` loses neither the cursor
        // nor locked elements.
        Self::new(unfold(LockedStream::new(queue, poll_interval), |mut stream| async move {
            loop {
                if let Some(next) = stream.next().await {
                    return Some((next, stream));
                }
                if !stream.wait().await {
                    return None;
                }
            }
        }))
    }
}

/// Iterations over a queue that lock its elements, and the pauses between them.
pub(super) struct LockedStream<T: Send + 'static> {
    prefetch: Prefetch<T>,
    /// `None` if there is only one iteration.
    watch: Option<Watch>,
}

impl<T: Send + 'static> LockedStream<T> {
    pub(super) fn new(queue: LockedQueue<T>, poll_interval: Option<Duration>) -> Self {
        let watch = poll_interval.map(|every| Watch::new(&queue, every));
        Self { prefetch: Prefetch::new(queue), watch }
    }

    /// Returns the next element, or `None` at the end of an iteration.
    pub(super) async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        let next = self.prefetch.next().await?;
        if let (Some(watch), Ok(lock)) = (&mut self.watch, &next) {
            watch.pass_turn_on(*lock.name());
        }
        Some(next.map(Lock::mark_delivered))
    }

    /// Returns the number of the next element, which begins with its time, without locking it; 0 for an error. Returns
    /// `None` at the end of an iteration.
    pub(super) async fn peek(&mut self) -> Option<u64> {
        self.prefetch.peek().await
    }

    /// Waits until there may be new elements. Returns false if there is only one iteration.
    pub(super) async fn wait(&mut self) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        self.prefetch.begins_after = watch.wait(&self.prefetch.queue).await;
        true
    }
}

/// Repeated iterations over a queue, with a buffer of prefetched locks.
///
/// Elements are locked and read in batches, because a round trip to another thread costs as much as the work itself.
/// Buffered elements are locked although no worker uses them, so the batch size adapts to the rate of requests. In
/// memory there is no round trip, and nothing is prefetched.
struct Prefetch<T: Send + 'static> {
    queue: LockedQueue<T>,
    /// The position of the current iteration; `None` before it begins and after it ends.
    cursor: Option<Cursor>,
    /// The element after which the next iteration begins.
    begins_after: Option<Name>,
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

    fn new(queue: LockedQueue<T>) -> Self {
        // If deliveries are counted, a crash of the process would count prefetched elements as failed.
        let one_at_a_time = queue.root().retries.is_some() || queue.root().in_memory();
        let max_count = if one_at_a_time { 1 } else { Self::MAX_COUNT };
        let (buffer, filled_at) = (PrefetchBuffer::new(), Instant::now());
        Self {
            queue,
            cursor: None,
            begins_after: None,
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
            if self.take_end() {
                return None;
            }
            let is_fast = self.filled_at.elapsed() < Self::FAST_CONSUMER;
            self.count = if is_fast { (self.count * 2).clamp(1, self.max_count) } else { 1 };
            self.fill(self.limits()).await;
        }
    }

    /// Returns the number of the next element; 0 for an error. Returns `None` at the end, as `next` does.
    async fn peek(&mut self) -> Option<u64> {
        loop {
            if let Some(next) = self.buffer.peek() {
                return Some(next);
            }
            if self.take_end() {
                return None;
            }
            if let Some(name) = self.cursor.as_ref().and_then(Cursor::front) {
                return Some(name.element);
            }
            self.fill(BatchLimits::LIST).await;
        }
    }

    /// Returns whether the iteration is at its end, and resets that.
    fn take_end(&mut self) -> bool {
        // A flag, because `cursor` is also `None` before the iteration begins.
        let is_at_end = self.has_ended && self.buffer.is_empty();
        self.has_ended &= !is_at_end;
        is_at_end
    }

    /// Locks the next batch.
    async fn fill(&mut self, limits: BatchLimits) {
        let (released, stale) = self.buffer.take_all().await;
        // In memory, a short element is locked in place for its caller. Listing locks nothing.
        let may_lock = limits.count > 0 || !stale.is_empty();
        let filler = self.buffer.filler(limits.length == Work::Long && may_lock);
        let cursor = match self.has_ended {
            // Only prefetched elements that were unlocked remain to be returned.
            true => Cursor::at_end(),
            false => {
                let begins_after = self.begins_after.take();
                self.cursor.take().unwrap_or_else(|| Cursor::after(begins_after))
            }
        };
        let filled = run("list", limits.length, &self.queue, move |queue| {
            let (mut cursor, mut stale, locked_at) = (cursor, stale, Instant::now());
            // The first element was requested. On a slow disk its lock may be stale as soon as it is acquired.
            let is_held =
                |next: &Result<Lock<T>, _>| next.as_ref().is_ok_and(|lock| !lock.is_lost());
            let requested =
                if stale.front().is_some_and(is_held) { stale.pop_front() } else { None };
            // Other stale locks are released first: they are as old as the call that acquired them.
            let mut batch =
                LockedBatch { locks: cursor.requeue(released, stale), locked_at, is_long: false };
            let has_more = match requested {
                // Alone, because it would be stale again after a slow lock of another element.
                Some(requested) => {
                    batch.locks.push_back(requested);
                    true
                }
                None => batch.lock_next(&mut cursor, queue, limits),
            };
            // Here and not when the caller has the result: the caller may be gone.
            filler.fill(batch.locks, batch.locked_at);
            Ok((has_more.then_some(cursor), batch.is_long))
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
    }

    /// Returns the limits of the next batch. In memory, names that are already listed are locked in place. Listing may
    /// take long, and so may reading a long element.
    fn limits(&self) -> BatchLimits {
        let (count, listed) = (self.count, self.cursor.as_ref().map_or(0, Cursor::listed));
        match self.queue.root().in_memory() && !self.is_long {
            true if listed == 0 => BatchLimits::LIST,
            true => BatchLimits {
                length: Work::Short,
                count,
                tries: listed.min(Self::MAX_TRIES_IN_PLACE),
                max_bytes: Work::SHORT_DATA as u64,
            },
            false => BatchLimits {
                length: Work::Long,
                count,
                tries: Self::MAX_TRIES,
                max_bytes: u64::MAX,
            },
        }
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

impl BatchLimits {
    /// Lists names and locks none.
    const LIST: Self = Self { length: Work::Long, count: 0, tries: 1, max_bytes: 0 };
}

/// Elements that are locked and read by one call to another thread.
struct LockedBatch<T: Send + 'static> {
    locks: VecDeque<Result<Lock<T>, Error>>,
    /// Time before the first lock.
    locked_at: Instant,
    /// True if the next element is too long for the batch and nothing was locked.
    is_long: bool,
}

impl<T: Send + 'static> LockedBatch<T> {
    /// Maximum size of a batch in bytes. The first element may be longer, because it was requested.
    const MAX_BYTES: u64 = 1 << 20;
    /// Time after which a slow disk locks no more elements for the batch, so that the first does not become stale.
    const MAX_TIME: Duration = Duration::from_millis(250);

    /// Locks and reads elements from the cursor up to the limits. Returns false if the cursor is at its end.
    fn lock_next(
        &mut self,
        cursor: &mut Cursor,
        queue: &LockedQueue<T>,
        limits: BatchLimits,
    ) -> bool {
        let (root, mut bytes) = (queue.root(), 0);
        // The queue's cached directories are validated once per batch.
        let mut opener = None;
        for _ in 0..limits.tries {
            let has_locked = self.locks.iter().any(Result::is_ok);
            if !has_locked {
                self.locked_at = Instant::now();
            }
            let is_late = has_locked && self.locked_at.elapsed() > Self::MAX_TIME;
            if is_late || bytes >= Self::MAX_BYTES || limits.count.max(1) <= self.locks.len() {
                break;
            }
            let name = match cursor.next(queue) {
                Some(Ok(name)) => name,
                Some(Err(error)) => {
                    self.locks.push_back(Err(error));
                    continue;
                }
                None => return false,
            };
            if limits.count == 0 {
                cursor.put_back(name);
                break;
            }
            // The first element was requested, so it is read however long it is.
            let limit = match bytes {
                0 => limits.max_bytes,
                bytes => limits.max_bytes.min(Self::MAX_BYTES - bytes),
            };
            let limit = limit.min(root.max_size);
            let begin_delivery = || Delivery::begin(root, &name, cursor.may_have_records(root));
            let opener = opener.get_or_insert_with(|| root.opener());
            let mut taken = Lock::take(queue, opener, name, limit, begin_delivery);
            if limit < root.max_size && matches!(taken, Err(Error::TooLarge { .. })) {
                cursor.put_back(name);
                self.is_long = self.locks.is_empty();
                break;
            }
            if taken.as_ref().is_err_and(Error::is_out_of_space) {
                // No other element can be locked either. The next iteration tries again.
                cursor.end();
            }
            if let Ok(Some(lock)) = &mut taken {
                bytes += queue.len_of(lock.value()) as u64;
                // In place, it is delivered at once.
                if limits.length == Work::Long {
                    lock.mark_prefetched(opener);
                }
            }
            self.locks.extend(taken.transpose());
        }
        true
    }
}
