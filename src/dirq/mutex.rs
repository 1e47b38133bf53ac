//! Locking a mutex regardless of earlier panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of a directory queue, whose values are consistent at every point where a thread can panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
