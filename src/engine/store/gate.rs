//! A turnstile before the lock of a shard. That lock prefers readers: where they overlap, a writer would wait for ever.
//!
//! 1. Who waits to write closes the gate, and opens it once it has the lock. Who is inside goes on.
//! 2. Who comes to read and finds it closed queues behind the writer, and then goes in whatever the gate is: so
//!    writers who follow each other don't keep readers out.
//! 3. Nobody who holds the lock ever waits at its gate: what runs under the lock must not call the cache.

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering::Relaxed},
    hint, thread,
};

/// How often a writer tries before it closes the gate. Most who hold the lock do so for a hundred nanoseconds, and two
/// writers who just meet need no queue.
const TRIES: u32 = 40;

/// How often whoever tries again and again stays on its processor; then it makes way between two tries, as those who
/// hold the lock may be waiting for one.
const SPINS: u32 = 200;

/// On a line of its own, that readers share as long as nobody closes it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Gate {
    /// A hint and no lock: a reader who still sees it open is one more to wait for.
    closed: AtomicBool,
    queue: Mutex<()>,
}

impl Gate {
    /// Waits behind a writer who waits.
    #[inline]
    pub(super) fn pass(&self) {
        if self.closed.load(Relaxed) {
            self.wait();
        }
    }

    /// Locks what could not be locked at once.
    #[cold]
    pub(super) fn write<T>(&self, try_lock: impl Fn() -> Option<T>, lock: impl FnOnce() -> T) -> T {
        for _ in 0..TRIES {
            hint::spin_loop();
            if let Some(locked) = try_lock() {
                return locked;
            }
        }
        let turn = self.queue();
        self.closed.store(true, Relaxed);
        let locked = lock();
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    /// Tries with the gate closed, once and then while `go_on`. Not where another has closed it.
    #[cold]
    pub(super) fn try_write_while<T>(
        &self,
        try_lock: impl Fn() -> Option<T>,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<T> {
        let turn = self.queue.try_lock().ok()?;
        self.closed.store(true, Relaxed);
        let mut tries = 0;
        let locked = loop {
            let locked = try_lock();
            if locked.is_some() || !go_on() {
                break locked;
            }
            tries += 1;
            if tries < SPINS { hint::spin_loop() } else { thread::yield_now() }
        };
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    #[cold]
    fn wait(&self) {
        drop(self.queue());
    }

    fn queue(&self) -> MutexGuard<'_, ()> {
        self.queue.lock().expect("nothing panics while it waits for a lock")
    }
}
