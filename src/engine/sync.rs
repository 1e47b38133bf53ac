//! Locks and atomics, as `std` provides them. With `--cfg shuttle`, tests replace them by
//! shuttle's, which explores the interleavings of threads.

#[cfg(not(all(test, shuttle)))]
mod primitives {
    pub(crate) use std::{
        sync::{Mutex, MutexGuard, atomic},
        thread,
    };

    /// Spins for a short time: about ten nanoseconds or more per iteration.
    pub(crate) fn spin(times: u32) {
        (0..times).for_each(|_| std::hint::spin_loop());
    }
}

#[cfg(all(test, shuttle))]
mod primitives {
    pub(crate) use shuttle::{
        sync::{Mutex, MutexGuard, atomic},
        thread,
    };

    /// Gives other threads one turn, for any number of iterations.
    pub(crate) fn spin(_: u32) {
        // Shuttle has no time, so the number of iterations means nothing to it.
        shuttle::hint::spin_loop();
    }
}

pub(crate) use self::primitives::*;
