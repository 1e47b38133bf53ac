//! The lines of those who wait for a key: who asked first is let in first.
//!
//! A line is counted under the lock of all lines, and goes with the last who waits in it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// So many lines are not worth giving back.
const SMALL: usize = 64;

/// Only keys for which somebody waits have a line.
pub(crate) struct Waiting<K, S>(Mutex<HashMap<K, Line, S>>);

#[derive(Default)]
struct Line {
    turn: Turn,
    waiters: usize,
    /// What those behind the head wait for. Not what the head does: it may be charged already.
    units: u64,
}

/// Whoever holds it is at the head. Tokio's lock lets in who asked first.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// A place in the line of a key.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    /// What it waits for, until it is at the head.
    cost: u32,
    /// How many units those wait for who came before, but for the head.
    ahead: u64,
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
    pub(crate) fn join(&self, key: K, cost: u32) -> (Waiter<'_, K, S>, Turn) {
        // Cloned before the lock, and where it is not needed dropped after it: both are the user's code.
        let copy = key.clone();
        let mut lines = self.lock();
        let (turn, ahead, is_first) = match lines.get_mut(&key) {
            Some(line) => line.join(cost),
            None => {
                let mut line = Line::default();
                let place = line.join(cost);
                lines.insert(copy, line);
                place
            }
        };
        drop(lines);
        (Waiter { waiting: self, key, cost, ahead, is_first }, turn)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Waiter<'_, K, S> {
    /// How many units those wait for who are before it, but for the head; `None` where it is the first in the line.
    pub(crate) fn ahead(&self) -> Option<u64> {
        (!self.is_first).then_some(self.ahead)
    }

    /// It is at the head.
    pub(crate) fn lead(&mut self) {
        let mut lines = self.waiting.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.units -= u64::from(mem::take(&mut self.cost));
        }
    }
}

impl Line {
    fn join(&mut self, cost: u32) -> (Turn, u64, bool) {
        let (ahead, is_first) = (self.units, self.waiters == 0);
        self.waiters += 1;
        self.units += u64::from(cost);
        (self.turn.clone(), ahead, is_first)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        let mut lines = self.waiting.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.waiters -= 1;
        line.units -= u64::from(self.cost);
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
                let (waiter, _turn) = waiting.join(round, 1);
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
