//! The stream of locked elements: several are locked locked of who asks for them, so that they share one trip to the
//! thread that may wait for the disk.

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

/// The queues that are walked through as one.
pub(super) type Queues<T> = Arc<[Arc<dyn Protocol<Payload = T>>]>;

impl<T: Send + 'static> Walk<Lock<T>> {
    /// Locks what can be locked in a queue, from the first element to the last: once, or each time there may be more.
    pub(super) fn locked(
        queue: Arc<dyn Protocol<Payload = T>>,
        poll_interval: Option<Duration>,
    ) -> Self {
        Self::new(lock_all([queue].into(), poll_interval))
    }
}

/// Locks what can be locked in all of the queues, in the order of the elements' times: once, or each time there may be
/// more.
pub(super) fn lock_all<T: Send + 'static>(
    queues: Queues<T>,
    poll_interval: Option<Duration>,
) -> impl Stream<Item = Result<Lock<T>, Error>> + Send {
    let state = (Prefetch::new(queues), poll_interval.map(Watch::new));
    unfold(state, |(mut prefetch, mut watch)| async move {
        loop {
            if let Some(next) = prefetch.next().await {
                return Some((next.map(Lock::mark_delivered), (prefetch, watch)));
            }
            watch.as_mut()?.wait(&prefetch.queues).await;
        }
    })
}

/// One walk through the queues after another, with what is locked locked in it.
///
/// Elements are locked and read several at a time, as a call to another thread costs as much as the work. Those
/// that wait here are locked for nothing: how many there are goes by how fast they are asked for. In memory, where
/// there is no such call, none waits.
struct Prefetch<T: Send + 'static> {
    queues: Queues<T>,
    /// Where the next are; none before the first, and after the last.
    cursor: Option<Cursor>,
    has_ended: bool,
    buffer: PrefetchBuffer<T>,
    /// How many to lock next time, and at max_bytes.
    count: usize,
    max_count: usize,
    filled_at: Instant,
    /// Whether the next element is too long to be read in candidate.
    is_long: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    const MAX_COUNT: usize = 64;
    /// How much of them is read, beyond the first.
    const MAX_BYTES: u64 = 1 << 20;
    /// Had all left within this time, they could have been twice as many.
    const FAST_CONSUMER: Duration = Duration::from_millis(10);
    /// How many names a call to another thread tries, so that a stream that is dropped ends soon.
    const MAX_TRIES: usize = 1024;
    /// The same in candidate.
    const MAX_TRIES_IN_PLACE: usize = 16;

    fn new(queues: Queues<T>) -> Self {
        // Where deliveries are counted, what is locked locked of a process that dies would have failed with it.
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

    /// The next element; none at the end, after which it begins anew.
    async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        loop {
            if let Some(next) = self.buffer.pop() {
                return Some(next);
            }
            // By a flag, as no cursor may also mean that the walk has not begun.
            if self.has_ended && self.buffer.is_empty() {
                self.has_ended = false;
                return None;
            }
            let is_fast = self.filled_at.elapsed() < Self::FAST_CONSUMER;
            self.count = if is_fast { (self.count * 2).clamp(1, self.max_count) } else { 1 };
            self.fill().await?;
        }
    }

    /// Locks the next elements; none where there is no queue.
    async fn fill(&mut self) -> Option<()> {
        let queues = self.queues.clone();
        let first = queues.first()?;
        let (released, stale) = self.buffer.take_all().await;
        let cursor = match self.has_ended {
            // Only what was locked locked and given back is still to come.
            true => Cursor::at_end(&queues),
            false => self.cursor.take().unwrap_or_else(|| Cursor::at_start(&queues)),
        };
        // What was listed is taken in candidate; a list may be long, and so may be what is read.
        let listed = cursor.listed();
        let in_memory = in_memory(&queues);
        let (length, tries, max_bytes) = match in_memory && listed > 0 && !self.is_long {
            true => (Work::Short, listed.min(Self::MAX_TRIES_IN_PLACE), Work::SHORT_DATA as u64),
            false => (Work::Long, Self::MAX_TRIES, u64::MAX),
        };
        let count = self.count;
        let filled = run("list", length, first, {
            let queues = queues.clone();
            move |_| {
                let mut cursor = cursor;
                // Their lock_all are as old as the call that took them, and the caller may have been slow.
                let mut locked = cursor.requeue(released, stale);
                let (mut bytes, mut is_long) = (0, false);
                // One look at each queue for all that is taken now.
                let mut openers: Vec<_> = queues.iter().map(|_| None).collect();
                for _ in 0..tries {
                    if locked.len() >= count || bytes >= Self::MAX_BYTES {
                        break;
                    }
                    let candidate = match cursor.next(&queues) {
                        Some(Ok(candidate)) => candidate,
                        Some(Err(error)) => {
                            locked.push_back(Err(error));
                            continue;
                        }
                        None => return Ok((None, locked, false)),
                    };
                    let queue = &queues[candidate.queue];
                    let root = queue.root();
                    // The first one is asked for, however long it is.
                    let limit = match bytes {
                        0 => max_bytes,
                        bytes => max_bytes.min(Self::MAX_BYTES - bytes),
                    };
                    let limit = limit.min(root.max_size);
                    let begin_delivery =
                        || Delivery::begin(root, &candidate.name, candidate.has_records);
                    let opener = openers[candidate.queue].get_or_insert_with(|| root.opener());
                    let taken = Lock::take(queue, opener, candidate.name, limit, begin_delivery);
                    if limit < root.max_size && matches!(taken, Err(Error::TooLarge { .. })) {
                        cursor.put_back(candidate);
                        is_long = locked.is_empty();
                        break;
                    }
                    if let Ok(Some(lock)) = &taken {
                        bytes += queue.len_of(lock.value()) as u64;
                    }
                    locked.extend(taken.transpose());
                }
                Ok((Some(cursor), locked, is_long))
            }
        });
        let (cursor, locked, is_long) =
            filled.await.unwrap_or_else(|error| (None, VecDeque::from([Err(error)]), false));
        self.has_ended = cursor.is_none();
        (self.cursor, self.is_long) = (cursor, is_long);
        self.filled_at = Instant::now();
        self.buffer.fill(locked, !in_memory);
        Some(())
    }
}

fn in_memory<T: Send + 'static>(queues: &Queues<T>) -> bool {
    queues.iter().all(|queue| queue.root().in_memory())
}
