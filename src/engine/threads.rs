//! A small number for each living thread, that no other living thread has: the place of its own counters.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

/// Not asked for yet.
const UNKNOWN: usize = usize::MAX;

/// That of a thread which is about to end, and has given its own back.
const ENDING: usize = usize::MAX - 1;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Apart from the number itself, so that who reads that need not ask whether it is there.
    static RETURN: Return = const { Return };
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, free: BTreeSet::new() });

struct Numbers {
    next: usize,
    free: BTreeSet<usize>,
}

/// Gives the number back at the end of its thread.
struct Return;

/// The number of this thread: the least that was free when it was first asked. One that ends has none, and gets a
/// number that is too great for anything.
#[inline]
pub(crate) fn number() -> usize {
    // Here all threads are one, and nothing is its own.
    if cfg!(all(test, shuttle)) {
        return ENDING;
    }
    match NUMBER.get() {
        UNKNOWN => take(),
        number => number,
    }
}

#[cold]
fn take() -> usize {
    if RETURN.try_with(|_| ()).is_err() {
        return ENDING;
    }
    let mut numbers = numbers();
    let number = numbers.free.pop_first().unwrap_or_else(|| {
        numbers.next += 1;
        numbers.next - 1
    });
    NUMBER.set(number);
    number
}

impl Drop for Return {
    fn drop(&mut self) {
        let number = NUMBER.replace(ENDING);
        if number < ENDING {
            numbers().free.insert(number);
        }
    }
}

fn numbers() -> MutexGuard<'static, Numbers> {
    NUMBERS.lock().expect("nothing panics while a number is taken")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_live_at_once_have_numbers_of_their_own() {
        let barrier = std::sync::Barrier::new(50);
        let taken = thread::scope(|scope| {
            let ask = || {
                let number = number();
                barrier.wait();
                assert_eq!(super::number(), number);
                number
            };
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<BTreeSet<_>>()
        });
        assert_eq!(taken.len(), 50);
    }

    #[test]
    fn numbers_stay_small_where_threads_come_and_go() {
        for _ in 0..1_000 {
            assert!(thread::spawn(number).join().unwrap() < 500);
        }
    }
}
