//! The stream of locked elements: several are locked ahead of who asks for them, so that they share one trip to the
//! thread that may wait for the disk.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::stream::unfold;

use super::{
    Error, Lock, Name, Walk,
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
    ahead: VecDeque<Result<Lock<T>, Error>>,
    /// How many to lock next time.
    count: usize,
    /// A system instant and no Tokio one: it is about how fast a disk and the caller are, whatever a test makes of
    /// time.
    filled: Instant,
}

impl<T: Send + 'static> Prefetch<T> {
    const MAX_COUNT: usize = 64;
    /// Had all left within this time, they could have been twice as many.
    const QUICK: Duration = Duration::from_millis(10);
    /// Who waited longer is given back, and asked for anew.
    const STALE: Duration = Duration::from_secs(1);
    /// How many names a call to another thread tries, so that a stream that is dropped ends soon.
    const TRIES: usize = 1024;
    /// The same in place.
    const TRIES_IN_PLACE: usize = 16;

    fn new(queue: Arc<dyn Protocol<Payload = T>>) -> Self {
        let ahead = VecDeque::new();
        Self { queue, cursor: None, ended: false, ahead, count: 0, filled: Instant::now() }
    }

    /// The next element; none at the end, after which it begins anew.
    async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        loop {
            let age = self.filled.elapsed();
            if age < Self::STALE
                && let Some(next) = self.ahead.pop_front()
            {
                return Some(next);
            }
            // By a flag, as no cursor may also mean that the walk has not begun.
            if self.ended && self.ahead.is_empty() {
                self.ended = false;
                return None;
            }
            self.count = match age < Self::QUICK && !self.queue.root().in_memory() {
                true => (self.count * 2).clamp(1, Self::MAX_COUNT),
                false => 1,
            };
            self.fill().await;
        }
    }

    /// Locks the next elements.
    async fn fill(&mut self) {
        let (count, stale) = (self.count, mem::take(&mut self.ahead));
        let cursor = match self.ended {
            // Only what was locked ahead and is stale is still to come.
            true => Some(Cursor::default()),
            false => self.cursor.take(),
        };
        // What was listed is taken in place; a list may be long.
        let listed = cursor.as_ref().map_or(0, |cursor| cursor.names.len());
        let (length, tries) = match self.queue.root().in_memory() && listed > 0 {
            true => (Work::Short, listed.min(Self::TRIES_IN_PLACE)),
            false => (Work::Long, Self::TRIES),
        };
        let filled = run("list", length, &self.queue, move |queue| {
            let mut cursor = match cursor {
                Some(cursor) => cursor,
                None => Cursor::at_start(queue)?,
            };
            // Their locks are as old as the call that took them, and the caller may have been slow.
            let mut ahead = cursor.take_back(stale);
            for _ in 0..tries {
                if ahead.len() >= count {
                    break;
                }
                match cursor.next(queue) {
                    Some(Ok(name)) => ahead.extend(Lock::take(queue, name).transpose()),
                    Some(Err(error)) => ahead.push_back(Err(error)),
                    None => return Ok((None, ahead)),
                }
            }
            Ok((Some(cursor), ahead))
        });
        (self.cursor, self.ahead) =
            filled.await.unwrap_or_else(|error| (None, VecDeque::from([Err(error)])));
        self.ended = self.cursor.is_none();
        self.filled = Instant::now();
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

    /// Unlocks elements that come anew, and returns the errors between them.
    fn take_back<T: Send + 'static>(
        &mut self,
        stale: VecDeque<Result<Lock<T>, Error>>,
    ) -> VecDeque<Result<Lock<T>, Error>> {
        let (locks, errors): (VecDeque<_>, _) = stale.into_iter().partition(Result::is_ok);
        for lock in locks.into_iter().flatten().rev() {
            self.names.push_front(*lock.name());
        }
        errors
    }
}
