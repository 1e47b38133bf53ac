//! Order of concurrent exports: metrics are exported in the order in which they were read.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

static EXPORT_ORDER: Mutex<ExportOrder> = Mutex::new(ExportOrder { next: 0, ids: BTreeSet::new() });

static ENDED: Condvar = Condvar::new();

thread_local! {
    /// Number of turns of this thread. It is above 1 if a recorder publishes while it is being called.
    static TURNS_OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// Turns in progress.
struct ExportOrder {
    next: u64,
    ids: BTreeSet<u64>,
}

/// Turn of one export; ends when dropped.
pub(super) struct ExportTurn {
    id: u64,
}

impl ExportTurn {
    /// Takes the next turn. The caller still holds the read lock, so turns have the order of reads.
    pub(super) fn new() -> Self {
        TURNS_OF_THREAD.set(TURNS_OF_THREAD.get() + 1);
        let mut export_order = export_order();
        let id = export_order.next;
        export_order.next += 1;
        export_order.ids.insert(id);
        Self { id }
    }

    /// Waits until all earlier turns have ended.
    ///
    /// Returns immediately if this thread already has a turn, because a recorder publishes while it is being called: it
    /// would wait for itself.
    pub(super) fn wait_for_earlier(&self) {
        if TURNS_OF_THREAD.get() == 1 {
            let is_earlier = |export_order: &mut ExportOrder| {
                export_order.ids.first().is_some_and(|id| *id < self.id)
            };
            // No later turn is waited for, so turns cannot wait for each other.
            let waited = ENDED.wait_while(export_order(), is_earlier);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for ExportTurn {
    fn drop(&mut self) {
        TURNS_OF_THREAD.set(TURNS_OF_THREAD.get() - 1);
        export_order().ids.remove(&self.id);
        // All, because the waiters wait for different turns.
        ENDED.notify_all();
    }
}

fn export_order() -> MutexGuard<'static, ExportOrder> {
    EXPORT_ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}
