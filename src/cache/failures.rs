//! Loads that failed: errors that are kept for a while, and when it may be tried again.

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use equivalent::Equivalent;
use tokio::task::consume_budget;

use crate::engine::{
    clock::{Deadline, Now},
    state::SharedState,
    store::{Entry, Failure, Location, TableCursor},
};

/// How long it takes at first until a refresh that failed is tried again, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Failures of late, in a store of their own, and so bounded as the values are, and swept.
pub(super) struct Failures<K, S> {
    of_keys: Arc<SharedState<K, Failed, S>>,
    /// How long an error is kept.
    negative_ttl: Option<Duration>,
    /// Whether there ever was any: where there was none, a write has nothing to forget.
    any: AtomicBool,
}

#[derive(Clone)]
pub(super) struct Failed {
    error: Option<Failure>,
    /// The error is forgotten then.
    until: Deadline,
    /// How often in a row; zero where it is forgotten.
    times: u32,
    /// It may be tried again then.
    pause: Deadline,
}

impl<K, S> Failures<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        of_keys: Arc<SharedState<K, Failed, S>>,
        negative_ttl: Option<Duration>,
    ) -> Self {
        Self { of_keys, negative_ttl, any: AtomicBool::new(false) }
    }

    /// The error of a load that failed of late.
    pub(super) fn error<Q, E>(&self, key: &Q) -> Option<Arc<E>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let failed = self.find(key)?;
        let is_kept = !self.of_keys.clock.is_dead(failed.until);
        failed.error.filter(|_| is_kept)?.downcast().ok()
    }

    /// Whether a refresh may be tried.
    pub(super) fn may_retry<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.find(key).is_none_or(|failed| self.of_keys.clock.is_dead(failed.pause))
    }

    /// A load has failed, with this error if it was no panic. `is_superseded` tells whether a write has won over it: who
    /// writes [forgets](Self::forget) after that, so that one of the two sees the other.
    pub(super) fn note(&self, key: K, error: Option<Failure>, is_superseded: impl Fn() -> bool) {
        if is_superseded() {
            return;
        }
        let place = self.place(&key);
        let now = self.of_keys.clock.now();
        let times = self.find(&key).map_or(0, |failed| failed.times);
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(times)).min(LONGEST_PAUSE);
        let kept = self.negative_ttl.unwrap_or_default();
        let failed = Failed {
            error: error.filter(|_| kept > Duration::ZERO),
            until: now.after(kept),
            times: times.saturating_add(1),
            pause: now.after(pause),
        };
        self.any.store(true, SeqCst);
        // So long that the next failure in a row finds it.
        let until = now.after(kept.max(2 * pause));
        self.of_keys.store.set(key, failed, &self.of_keys.clock, |_| until);
        self.of_keys.publisher.flush();
        if is_superseded() {
            self.forget(place);
        }
    }

    #[inline]
    pub(super) fn place<Q>(&self, key: &Q) -> Location
    where
        Q: Hash + ?Sized,
    {
        self.of_keys.store.place(key)
    }

    /// Forgets how the key failed that has this place: who has written it has it no more. Where another has the same
    /// hash, that one is forgotten too.
    #[inline]
    pub(super) fn forget(&self, place: Location) {
        if !self.any.load(SeqCst) {
            return;
        }
        let is_known = |_: &K, failed: &Failed| failed.times > 0;
        let forget = |entry: &mut Entry<Failed>| {
            entry.value.times = 0;
            entry.value.error.take()
        };
        while let Some(error) = self.of_keys.store.change_where(place, is_known, forget) {
            // Out here, after the lock.
            drop(error);
        }
    }

    /// What is swept as the values are.
    pub(super) fn of_keys(&self) -> &Arc<SharedState<K, Failed, S>> {
        &self.of_keys
    }

    pub(super) async fn forget_all(&self) {
        for shard in 0..self.of_keys.store.shard_count() {
            let mut pass = TableCursor::of(shard);
            while self.of_keys.store.clear_windows(&mut pass, &self.of_keys.clock) {
                consume_budget().await;
            }
        }
    }

    fn find<Q>(&self, key: &Q) -> Option<Failed>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if !self.any.load(SeqCst) {
            return None;
        }
        self.of_keys.store.get(key, &self.of_keys.clock).filter(|failed| failed.times > 0)
    }
}
