//! The stream of locked elements: several are locked ahead of who asks for them, so that they share one trip to the
//! thread that may wait for the disk.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::unfold;
use tokio::time::Instant;

use super::{
    Error, Lock, Name, Walk,
    ahead::Ahead,
    blocking::{Work, run},
    protocol::Protocol,
    watch::Watch,
};

impl<T: Send + 'static> Walk<Lock<T>> {
    /// Locks what can be locked, from the first element to the last: once, or each time there may be more.
    pub(super) fn locked(queue: Arc<dyn Protocol<Payload = T>>, again: Option<Duration>) -> Self {
        let state = (Prefetch::new(queue), again.map(Watch::new));
        Self::new(unfold(state, |(mut locks, mut watch)| async move {
            loop {
                if let Some(next) = locks.next().await {
                    return Some((next, (locks, watch)));
                }
                watch.as_mut()?.wait(&locks.queue).await;
            }
        }))
    }
}

/// One walk through a queue after another, with what is locked ahead in it.
///
/// Elements are locked and read several at a time, as a call to another thread costs as much as the work. Those
/// that wait here are locked for nothing: how many there are goes by how fast they are asked for. In memory, where
/// there is no such call, none waits.
struct Prefetch<T: Send + 'static> {
    queue: Arc<dyn Protocol<Payload = T>>,
    /// Where the next are; none before the first, and after the last.
    cursor: Option<Cursor>,
    ended: bool,
    ahead: Ahead<T>,
    /// How many to lock next time.
    count: usize,
    filled: Instant,
    /// Whether the next element is too long to be read in place.
    is_long: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    const MAX_COUNT: usize = 64;
    /// How much of them is read, beyond the first.
    const MAX_BYTES: u64 = 1 << 20;
    /// Had all left within this time, they could have been twice as many.
    const QUICK: Duration = Duration::from_millis(10);
    /// How many names a call to another thread tries, so that a stream that is dropped ends soon.
    const TRIES: usize = 1024;
    /// The same in place.
    const TRIES_IN_PLACE: usize = 16;

    fn new(queue: Arc<dyn Protocol<Payload = T>>) -> Self {
        let (ahead, filled) = (Ahead::new(), Instant::now());
        Self { queue, cursor: None, ended: false, ahead, count: 0, filled, is_long: false }
    }

    /// The next element; none at the end, after which it begins anew.
    async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        loop {
            if let Some(next) = self.ahead.pop() {
                return Some(next);
            }
            // By a flag, as no cursor may also mean that the walk has not begun.
            if self.ended && self.ahead.is_empty() {
                self.ended = false;
                return None;
            }
            let quick = self.filled.elapsed() < Self::QUICK;
            self.count = match quick && !self.queue.root().in_memory() {
                true => (self.count * 2).clamp(1, Self::MAX_COUNT),
                false => 1,
            };
            self.fill().await;
        }
    }

    /// Locks the next elements.
    async fn fill(&mut self) {
        let (given_back, stale) = self.ahead.take().await;
        let cursor = match self.ended {
            // Only what was locked ahead and given back is still to come.
            true => Some(Cursor::default()),
            false => self.cursor.take(),
        };
        // What was listed is taken in place; a list may be long, and so may be what is read.
        let listed = cursor.as_ref().map_or(0, |cursor| cursor.names.len());
        let max_size = self.queue.root().max_size;
        let in_place = self.queue.root().in_memory() && listed > 0 && !self.is_long;
        let (length, tries, limit) = match in_place {
            true => (Work::Short, listed.min(Self::TRIES_IN_PLACE), Work::SHORT_DATA as u64),
            false => (Work::Long, Self::TRIES, max_size),
        };
        let limit = limit.min(max_size);
        let count = self.count;
        let filled = run("list", length, &self.queue, move |queue| {
            let mut cursor = match cursor {
                Some(cursor) => cursor,
                None => Cursor::at_start(queue)?,
            };
            // Their locks are as old as the call that took them, and the caller may have been slow.
            let mut ahead = cursor.take_back(given_back, stale);
            let (mut bytes, mut is_long) = (0, false);
            for _ in 0..tries {
                if ahead.len() >= count || bytes >= Self::MAX_BYTES {
                    break;
                }
                let name = match cursor.next(queue) {
                    Some(Ok(name)) => name,
                    Some(Err(error)) => {
                        ahead.push_back(Err(error));
                        continue;
                    }
                    None => return Ok((None, ahead, false)),
                };
                // The first one is asked for, however long it is.
                let limit = match bytes {
                    0 => limit,
                    bytes => limit.min(Self::MAX_BYTES - bytes),
                };
                let taken = Lock::take(queue, name, limit);
                if limit < max_size && matches!(taken, Err(Error::TooLarge { .. })) {
                    cursor.names.push_front(name);
                    is_long = ahead.is_empty();
                    break;
                }
                if let Ok(Some(lock)) = &taken {
                    bytes += queue.len_of(lock.value()) as u64;
                }
                ahead.extend(taken.transpose());
            }
            Ok((Some(cursor), ahead, is_long))
        });
        let (cursor, ahead, is_long) =
            filled.await.unwrap_or_else(|error| (None, VecDeque::from([Err(error)]), false));
        self.ended = cursor.is_none();
        (self.cursor, self.is_long) = (cursor, is_long);
        self.filled = Instant::now();
        self.ahead.put(ahead, !self.queue.root().in_memory());
    }
}

/// The names that are still to come.
#[derive(Default)]
struct Cursor {
    names: VecDeque<Name>,
    directories: VecDeque<u32>,
}

impl Cursor {
    fn at_start<P: Protocol + ?Sized>(queue: &Arc<P>) -> Result<Self, Error> {
        Ok(Self { names: VecDeque::new(), directories: queue.root().directories()?.into() })
    }

    fn next<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> Option<Result<Name, Error>> {
        loop {
            if let Some(name) = self.names.pop_front() {
                return Some(Ok(name));
            }
            match queue.unlocked(self.directories.pop_front()?) {
                Ok(mut names) => {
                    names.sort_unstable();
                    self.names = names.into();
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Lets elements come anew that were given back, and those that are by this; returns the errors between them.
    fn take_back<T: Send + 'static>(
        &mut self,
        given_back: Vec<Name>,
        stale: VecDeque<Result<Lock<T>, Error>>,
    ) -> VecDeque<Result<Lock<T>, Error>> {
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        let stale = locks.iter().flatten().map(|lock| *lock.name());
        let again: Vec<_> = given_back.into_iter().chain(stale).collect();
        again.into_iter().rev().for_each(|name| self.names.push_front(name));
        errors
    }
}
