//! One load of one key, and those who wait for it.
//!
//! 1. At any time one of its members leads, and only who leads loads; or nobody does, and the next who looks will.
//!    Who leads and goes has one of the others told.
//! 2. A write to the key overtakes it. What began before that is for those who were there by then, and for nobody
//!    else: it is not kept, and who comes later waits until it is over and asks again. So no two loads of a key run at
//!    a time, and nobody gets what is older than a write that it has seen.

use std::{any::Any, mem, pin::pin, sync::Arc};

use tokio::sync::Notify;

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering::Relaxed},
};

pub(crate) struct Flight<V> {
    /// How many writes there were to the key; written under the lock of its shard.
    overtakes: AtomicU32,
    phase: Mutex<Phase<V>>,
    told: Notify,
}

enum Phase<V> {
    Led,
    /// Who led has gone, and nobody has taken its place yet.
    Vacant,
    Landed(Arc<Landing<V>>),
}

/// How a load ended.
pub(crate) struct Landing<V> {
    /// How many writes to the key there had been when it began.
    pub(crate) began: u32,
    pub(crate) outcome: Outcome<V>,
}

pub(crate) type Outcome<V> = Result<V, Failure>;

/// An error, of whichever type its loader has.
pub(crate) type Failure = Arc<dyn Any + Send + Sync>;

/// What comes of waiting.
pub(crate) enum Awaited<V> {
    /// Who waited leads from now on.
    Leads,
    Landed(Arc<Landing<V>>),
}

impl<V> Flight<V> {
    /// Its maker leads.
    pub(super) fn new() -> Self {
        Self { overtakes: AtomicU32::new(0), phase: Mutex::new(Phase::Led), told: Notify::new() }
    }

    pub(super) fn overtake(&self) {
        self.overtakes.store(self.overtakes() + 1, Relaxed);
    }

    pub(crate) fn overtakes(&self) -> u32 {
        self.overtakes.load(Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(*self.phase(), Phase::Landed(_))
    }

    /// Who led goes, with nothing done.
    pub(crate) fn give_up(&self) {
        *self.phase() = Phase::Vacant;
        self.told.notify_one();
    }

    /// Who led is done.
    pub(crate) fn land(&self, landing: Landing<V>) {
        let landed = Phase::Landed(Arc::new(landing));
        let before = mem::replace(&mut *self.phase(), landed);
        debug_assert!(matches!(before, Phase::Led), "only who leads lands");
        self.told.notify_waiters();
    }

    /// Waits until it is over, or there is nobody who leads.
    ///
    /// Cancel safe: who was told and goes has another told.
    pub(crate) async fn wait(&self) -> Awaited<V> {
        loop {
            // Before the look: who then lands or gives up tells us.
            let mut told = pin!(self.told.notified());
            told.as_mut().enable();
            if let Some(awaited) = self.look() {
                return awaited;
            }
            told.await;
        }
    }

    fn look(&self) -> Option<Awaited<V>> {
        let mut phase = self.phase();
        match &*phase {
            Phase::Led => None,
            Phase::Landed(landing) => Some(Awaited::Landed(landing.clone())),
            Phase::Vacant => {
                *phase = Phase::Led;
                Some(Awaited::Leads)
            }
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase<V>> {
        self.phase.lock().expect("no user code runs under this lock")
    }
}
