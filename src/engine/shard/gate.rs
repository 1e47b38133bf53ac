//! A gate in front of the lock of a shard, so that readers do not starve writers. DashMap's lock prefers readers: a
//! writer would wait forever if their read locks overlap.
//!
//! 1. A waiting writer closes the gate and opens it once it has the lock. Readers that already hold the lock finish.
//! 2. A reader that finds the gate closed waits, holding no lock, until it opens. It sleeps while it waits, so that a
//!    preempted holder of the lock gets a processor.
//! 3. The wait of a reader is limited in time. So the gate limits how long a writer waits, but is not a lock: a caller
//!    that already holds the shard and locks it again for reading passes after that time instead of deadlocking.
//!
//! Before a writer closes the gate, it retries for some microseconds, with exponential backoff. Each attempt takes the
//! lock's cache line away from its holder; without attempts, the holder can lock and unlock it a dozen times in a row.
//! If the holder is a sweep, which holds the lock for microseconds again and again, the backoff stays short, so that
//! the writer does not miss the moments in between.

use std::time::Duration;

use crate::engine::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
    spin, thread,
};

/// Number of spins before a writer closes the gate: two callers that meet by chance need no queue. And the additional
/// number if no reader holds the lock; with readers it would be useless, since their locks overlap.
const SPINS_BEFORE_CLOSING: u32 = 30;
const MORE_SPINS_WITHOUT_READERS: u32 = 300;

/// Maximum number of spins between two attempts, in general and while the lock is held for microseconds at a time.
const MAX_SPINS_PER_TRY: u32 = 64;
const MAX_SPINS_PER_TRY_IF_HELD_LONG: u32 = 4;

/// Number of polls without sleeping; after them a waiting thread naps between polls, because the holder of the lock may
/// be waiting for its processor. Yielding would not be enough: a fair scheduler may return the processor to the
/// yielding thread.
const POLLS_BEFORE_NAPS: u32 = 200;
const NAP: Duration = Duration::from_micros(20);

/// Maximum number of polls of a waiting reader: some tens of milliseconds.
const MAX_POLLS: u32 = 500;

/// The state of one gate. On cache lines of its own: while the gate is not closed, all readers share them unmodified.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Gate {
    /// Relaxed, since it is a hint and not a lock: a reader that still sees the gate open is one more reader to wait
    /// for.
    closed: AtomicBool,
    /// Held by the writer that has closed the gate, so that another one does not open it too early.
    turn: Mutex<()>,
    /// True while the lock is held for microseconds at a time. A hint, and thus Relaxed.
    is_held_long: AtomicBool,
}

impl Gate {
    /// Waits if a writer has closed the gate.
    #[inline(always)]
    pub(crate) fn enter(&self) {
        if self.closed.load(Relaxed) {
            self.wait();
        }
    }

    /// Sets whether the lock is held for microseconds at a time.
    #[inline]
    pub(crate) fn set_held_long(&self, is_held_long: bool) {
        self.is_held_long.store(is_held_long, Relaxed);
    }

    /// Locks a shard for a writer whose first attempt failed. Lock order: the mutex of the gate before the lock of the
    /// shard.
    #[cold]
    pub(crate) fn write<T>(
        &self,
        try_lock: impl Fn() -> Option<T>,
        is_read: impl FnOnce() -> bool,
        lock: impl FnOnce() -> T,
    ) -> T {
        let mut spins = 1;
        let mut try_for = |max_spins| {
            let mut spun = 0;
            while spun < max_spins {
                spin(spins);
                if let Some(locked) = try_lock() {
                    return Some(locked);
                }
                spun += spins;
                let max_spins_per_try = if self.is_held_long.load(Relaxed) {
                    MAX_SPINS_PER_TRY_IF_HELD_LONG
                } else {
                    MAX_SPINS_PER_TRY
                };
                spins = max_spins_per_try.min(2 * spins);
            }
            None
        };
        if let Some(locked) = try_for(SPINS_BEFORE_CLOSING) {
            return locked;
        }
        if !is_read()
            && let Some(locked) = try_for(MORE_SPINS_WITHOUT_READERS)
        {
            return locked;
        }
        let turn = self.turn.lock().expect("no user code runs while the gate is closed");
        self.closed.store(true, Relaxed);
        let locked = lock();
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    /// Closes the gate and tries to lock, once and then as long as `keep_trying` returns true. Returns `None` at once
    /// if another writer has closed the gate.
    #[cold]
    pub(crate) fn try_write_while<T>(
        &self,
        try_lock: impl Fn() -> Option<T>,
        mut keep_trying: impl FnMut() -> bool,
    ) -> Option<T> {
        let turn = self.turn.try_lock().ok()?;
        self.closed.store(true, Relaxed);
        let mut polls = 0;
        let locked = loop {
            let locked = try_lock();
            if locked.is_some() || !keep_trying() {
                break locked;
            }
            pause(&mut polls);
        };
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    #[cold]
    fn wait(&self) {
        let mut polls = 0;
        while self.closed.load(Relaxed) && polls < MAX_POLLS {
            pause(&mut polls);
        }
    }
}

fn pause(polls: &mut u32) {
    *polls += 1;
    if *polls < POLLS_BEFORE_NAPS { spin(1) } else { thread::sleep(NAP) }
}
