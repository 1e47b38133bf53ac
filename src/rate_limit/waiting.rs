//! The lines of those who wait for a key: who asked first is let in first.
//!
//! A line is counted under the lock of all lines, and goes with the last who waits in it.

use std::{
    collections::HashMap,
    future::poll_fn,
    hash::{BuildHasher, Hash},
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
};

/// So many lines are not worth giving back.
const SMALL: usize = 64;

/// Only keys for which somebody waits have a line.
pub(crate) struct Waiting<K, S>(Mutex<HashMap<K, Line, S>>);

#[derive(Default)]
struct Line {
    head: Arc<Head>,
    waiters: usize,
    /// What all have waited for who ever came.
    joined: u64,
}

/// The place that all in a line wait for.
#[derive(Default)]
pub(crate) struct Head {
    /// Whoever holds it is there. Tokio's lock lets in who asked first.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// What those waited for who have been there, or gave up.
    departed: AtomicU64,
}

/// A place in the line of a key.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    place: Place,
}

struct Place {
    head: Arc<Head>,
    /// What it waits for, until it departs.
    cost: u32,
    /// What all waited for who came before.
    before: u64,
    is_first: bool,
}

impl<K, S> Waiting<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self(Mutex::new(HashMap::with_hasher(hasher)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Line, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiting<K, S> {
    /// The last place in the line of `key`, for who waits for `cost` units, and what it waits for.
    pub(crate) fn join(&self, key: K, cost: u32) -> (Waiter<'_, K, S>, Arc<Head>) {
        // Cloned before the lock, and where it is not needed dropped after it: both are the user's code.
        let copy = key.clone();
        let mut lines = self.lock();
        let place = match lines.get_mut(&key) {
            Some(line) => line.join(cost),
            None => {
                let mut line = Line::default();
                let place = line.join(cost);
                lines.insert(copy, line);
                place
            }
        };
        drop(lines);
        let head = place.head.clone();
        (Waiter { waiting: self, key, place }, head)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Waiter<'_, K, S> {
    /// Whether nobody was there before it.
    pub(crate) fn is_first(&self) -> bool {
        self.place.is_first
    }

    /// How many units those wait for, at the least, who are before it and not at the head yet. Who was at the head may
    /// be charged: so this is to be asked after what is in use was looked at, under the same lock.
    pub(crate) fn ahead(&self) -> u64 {
        self.place.before.saturating_sub(self.place.head.departed.load(Relaxed))
    }

    /// It is at the head.
    pub(crate) fn lead(&mut self) {
        self.place.depart();
    }
}

impl Line {
    fn join(&mut self, cost: u32) -> Place {
        let (before, is_first) = (self.joined, self.waiters == 0);
        self.waiters += 1;
        self.joined = self.joined.saturating_add(cost.into());
        Place { head: self.head.clone(), cost, before, is_first }
    }
}

impl Place {
    fn depart(&mut self) {
        // Its charge comes after this, under a lock: who sees that sees this.
        self.head.departed.fetch_add(mem::take(&mut self.cost).into(), Relaxed);
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        let mut lines = self.waiting.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.waiters -= 1;
        self.place.depart();
        let last = if line.waiters == 0 { lines.remove_entry(&self.key) } else { None };
        if lines.capacity() > SMALL && lines.len() < lines.capacity() / 8 {
            let most = 2 * lines.len();
            lines.shrink_to(most);
        }
        // A key's drop is the user's code, which must not find the map locked.
        drop(lines);
        drop(last);
    }
}

/// What `first` gives, unless `end` comes before it.
pub(crate) async fn before<F: Future>(
    mut first: Pin<&mut F>,
    mut end: Pin<&mut impl Future>,
) -> Option<F::Output> {
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|_| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        hint,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        thread,
    };

    use super::*;
    use crate::engine::hasher::DefaultHasher;

    #[test]
    fn of_two_who_give_up_at_once_the_last_takes_the_line_along() {
        let waiting = Waiting::new(DefaultHasher::default());
        let met = AtomicU32::new(0);
        let join_and_leave = || {
            for round in 1..=20_000 {
                let (waiter, _head) = waiting.join(round, 1);
                // Both are awake when they go on.
                met.fetch_add(1, Relaxed);
                while met.load(Relaxed) < 2 * round {
                    hint::spin_loop();
                }
                drop(waiter);
            }
        };
        thread::scope(|scope| {
            scope.spawn(join_and_leave);
            scope.spawn(join_and_leave);
        });
        assert_eq!(waiting.lock().len(), 0);
    }
}
