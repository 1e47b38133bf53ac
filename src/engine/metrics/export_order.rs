//! Those who tell what they have read, in the order in which they read it.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

static TELLERS: Mutex<Tellers> = Mutex::new(Tellers { next: 0, ids: BTreeSet::new() });

static ENDED: Condvar = Condvar::new();

thread_local! {
    /// How many of them this thread is.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

struct Tellers {
    next: u64,
    ids: BTreeSet<u64>,
}

/// One who has read, and tells as long as this lives.
pub(super) struct Teller {
    id: u64,
}

impl Teller {
    /// The next one. Who reads makes it before another can read.
    pub(super) fn new() -> Self {
        OWN.set(OWN.get() + 1);
        let mut tellers = tellers();
        let id = tellers.next;
        tellers.next += 1;
        tellers.ids.insert(id);
        Self { id }
    }

    /// Waits until those have told all who read before.
    ///
    /// Not where a recorder publishes that is being told: it would wait for itself.
    pub(super) fn wait_for_earlier(&self) {
        if OWN.get() == 1 {
            let is_earlier =
                |tellers: &mut Tellers| tellers.ids.first().is_some_and(|id| *id < self.id);
            let waited = ENDED.wait_while(tellers(), is_earlier);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        tellers().ids.remove(&self.id);
        ENDED.notify_all();
    }
}

fn tellers() -> MutexGuard<'static, Tellers> {
    TELLERS.lock().unwrap_or_else(PoisonError::into_inner)
}
