//! A small number for each running thread, unique among running threads: the index of the thread's own counters.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

/// The thread has not requested its number yet.
const UNKNOWN: usize = usize::MAX;

/// The thread is ending and has returned its number.
const ENDING: usize = usize::MAX - 1;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Separate from the number, so that reading the number does not check for a destructor.
    static RETURN: Return = const { Return };
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { next: 0, free: BTreeSet::new() });

struct Numbers {
    next: usize,
    free: BTreeSet<usize>,
}

/// Returns the number when its thread ends.
struct Return;

/// Returns the number of this thread: the smallest number that was free at its first call. In a thread that is ending,
/// it returns [`ENDING`], which is larger than any index.
#[inline]
pub(crate) fn number() -> usize {
    // Shuttle runs all of its threads on one, so they must share their counters.
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
    // The first access registers the destructor that returns the number. It fails in a thread whose destructors have
    // run: a number taken there would never be returned.
    if RETURN.try_with(|_| ()).is_err() {
        return ENDING;
    }
    let mut numbers = numbers();
    // The smallest, so that tables indexed by it stay as small as the number of concurrent threads.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn numbers_of_concurrent_threads_are_unique() {
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
    fn numbers_stay_small_if_threads_come_and_go() {
        for _ in 0..1_000 {
            assert!(thread::spawn(number).join().unwrap() < 500);
        }
    }
}
