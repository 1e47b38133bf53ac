//! Those who tell what they have read, in the order in which they read it.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

static EXPORT_ORDER: Mutex<ExportOrder> = Mutex::new(ExportOrder { next: 0, ids: BTreeSet::new() });

static ENDED: Condvar = Condvar::new();

thread_local! {
    /// How many of them this thread is.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

struct ExportOrder {
    next: u64,
    ids: BTreeSet<u64>,
}

/// One who has read, and tells as long as this lives.
pub(super) struct ExportTurn {
    id: u64,
}

impl ExportTurn {
    /// The next one. Who reads makes it before another can read.
    pub(super) fn new() -> Self {
        OWN.set(OWN.get() + 1);
        let mut export_order = export_order();
        let id = export_order.next;
        export_order.next += 1;
        export_order.ids.insert(id);
        Self { id }
    }

    /// Waits until those have told all who read before.
    ///
    /// Not where a recorder publishes that is being told: it would wait for itself.
    pub(super) fn wait_for_earlier(&self) {
        if OWN.get() == 1 {
            let is_earlier = |export_order: &mut ExportOrder| {
                export_order.ids.first().is_some_and(|id| *id < self.id)
            };
            let waited = ENDED.wait_while(export_order(), is_earlier);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for ExportTurn {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        export_order().ids.remove(&self.id);
        ENDED.notify_all();
    }
}

fn export_order() -> MutexGuard<'static, ExportOrder> {
    EXPORT_ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}
