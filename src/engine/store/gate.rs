//! A turnstile before the lock of a shard. That lock prefers readers: where they overlap, a writer would wait for ever.
//!
//! 1. Who waits to write closes the gate, and opens it once it has the lock. Who is inside goes on.
//! 2. Who comes to read and finds it closed sleeps until it is open, and holds nothing meanwhile: who is inside and
//!    has lost its processor gets one, and who waits keeps nobody waiting.
//! 3. It sleeps for so long and no longer. So a gate bounds what a writer waits, and is no lock: whoever holds the
//!    shard already, and comes again, is let in.
//!
//! Before it closes the gate, a writer tries again for some microseconds. Among those who hold the lock for a hundred
//! nanoseconds it stays away longer each time: each try takes the lock's line of memory away from who holds it, and who is
//! left alone with it writes a dozen times before the other comes. Who holds the lock for microseconds, again and again,
//! says so; then it looks often, as it would miss the moments between.

use std::time::Duration;

use crate::engine::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
    spin, thread,
};

/// How often a writer spins before it closes the gate: two who just meet need no queue. And how much longer where no
/// readers hold the lock, as those who overlap never leave it.
const SPINS_BEFORE_CLOSING: u32 = 30;
const MORE_SPINS_WITHOUT_READERS: u32 = 300;

/// How often between two tries: at most; and where the lock is held for long.
const MAX_SPINS_PER_TRY: u32 = 64;
const MAX_SPINS_PER_TRY_IF_HELD_LONG: u32 = 4;

/// How often whoever looks again and again stays on its processor; then it naps between two looks, as those who hold
/// the lock may be waiting for one. (To yield would not do: a scheduler that is fair gives it back.)
const POLLS_BEFORE_NAPS: u32 = 200;
const NAP: Duration = Duration::from_micros(20);

/// How often it looks at most: some tens of milliseconds.
const MAX_POLLS: u32 = 500;

/// On a line of its own, that readers share as long as nobody closes it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Gate {
    /// A hint and no lock: a reader who still sees it open is one more to wait for.
    closed: AtomicBool,
    /// Of those who close it.
    turn: Mutex<()>,
    /// Who holds the lock does so for microseconds. A hint.
    is_held_long: AtomicBool,
}

impl Gate {
    /// Makes way for who waits to write.
    #[inline(always)]
    pub(super) fn enter(&self) {
        if self.closed.load(Relaxed) {
            self.wait();
        }
    }

    /// Says whether the lock is held for microseconds.
    #[inline]
    pub(super) fn set_held_long(&self, is_held_long: bool) {
        self.is_held_long.store(is_held_long, Relaxed);
    }

    /// Locks what could not be locked at once.
    #[cold]
    pub(super) fn write<T>(
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
        let turn = self.turn.lock().expect("nothing panics while it waits for a lock");
        self.closed.store(true, Relaxed);
        let locked = lock();
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    /// Tries with the gate closed, once and then while `keep_trying`. Not where another has closed it.
    #[cold]
    pub(super) fn try_write_while<T>(
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
