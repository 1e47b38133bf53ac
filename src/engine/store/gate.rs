//! A turnstile before the lock of a shard. That lock prefers readers: where they overlap, a writer would wait for ever.
//!
//! 1. Who waits to write closes the gate, and opens it once it has the lock. Who is inside goes on.
//! 2. Who comes to read and finds it closed sleeps until it is open, and holds nothing meanwhile: who is inside and
//!    has lost its processor gets one, and who waits keeps nobody waiting.
//! 3. It sleeps for so long and no longer. So a gate bounds what a writer waits, and is no lock: whoever holds the
//!    shard already, and comes again, is let in.

use std::time::Duration;

use crate::engine::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
    hint, thread,
};

/// How often a writer tries before it closes the gate. Most who hold the lock do so for a hundred nanoseconds, and two
/// writers who just meet need no queue.
const TRIES: u32 = 40;

/// How often whoever looks again and again stays on its processor; then it naps between two looks, as those who hold
/// the lock may be waiting for one. (To yield would not do: a scheduler that is fair gives it back.)
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(20);

/// How often it looks at most: some tens of milliseconds.
const LOOKS: u32 = 500;

/// On a line of its own, that readers share as long as nobody closes it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Gate {
    /// A hint and no lock: a reader who still sees it open is one more to wait for.
    closed: AtomicBool,
    /// Of those who close it.
    turn: Mutex<()>,
}

impl Gate {
    /// Makes way for who waits to write.
    #[inline(always)]
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
        let turn = self.turn.lock().expect("nothing panics while it waits for a lock");
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
        let turn = self.turn.try_lock().ok()?;
        self.closed.store(true, Relaxed);
        let mut looks = 0;
        let locked = loop {
            let locked = try_lock();
            if locked.is_some() || !go_on() {
                break locked;
            }
            pause(&mut looks);
        };
        self.closed.store(false, Relaxed);
        drop(turn);
        locked
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.closed.load(Relaxed) && looks < LOOKS {
            pause(&mut looks);
        }
    }
}

fn pause(looks: &mut u32) {
    *looks += 1;
    if *looks < SPINS { hint::spin_loop() } else { thread::sleep(NAP) }
}
