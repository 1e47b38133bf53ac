//! Failed loads: errors kept by `negative_ttl`, and the backoff of background refreshes.

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

use super::refresh_backoff::refresh_backoff;
use crate::engine::{
    clock::{Deadline, Now},
    state::SharedState,
    store::{Entry, Failure, Location, TableCursor},
};

/// Recently failed loads by key. They are kept in a store of their own, which is bounded and swept like that of the
/// values.
pub(super) struct Failures<K, S> {
    /// Store, clock and sweeper of the failed loads.
    shared: Arc<SharedState<K, Failed, S>>,
    /// TTL of an error; `None` if errors are not kept.
    negative_ttl: Option<Duration>,
    /// True once any load has failed. Until then, writes and lookups skip the store of failures.
    has_recorded: AtomicBool,
}

/// Failed loads of one key since its last success or write.
#[derive(Clone)]
pub(super) struct Failed {
    /// Last error; `None` for a panic, a timeout, and if errors are not kept.
    error: Option<Failure>,
    /// End of the negative TTL: from then on `error` is not returned.
    error_expires_at: Deadline,
    /// Number of consecutive failures; 0 if the entry was discarded.
    consecutive: u32,
    /// End of the backoff: from then on a refresh may be started.
    retry_at: Deadline,
}

impl<K, S> Failures<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        shared: Arc<SharedState<K, Failed, S>>,
        negative_ttl: Option<Duration>,
    ) -> Self {
        Self { shared, negative_ttl, has_recorded: AtomicBool::new(false) }
    }

    /// Returns the kept error of `key`, if it has the type `E`.
    pub(super) fn error<Q, E>(&self, key: &Q) -> Option<Arc<E>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let failed = self.find(key)?;
        let is_kept = !self.shared.clock.is_expired(failed.error_expires_at);
        // A loader with another type of error cannot return it, and loads again.
        failed.error.filter(|_| is_kept)?.downcast().ok()
    }

    /// Returns whether a refresh of `key` may be started: it has not failed recently, or its backoff has ended.
    pub(super) fn may_retry<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.find(key).is_none_or(|failed| self.shared.clock.is_expired(failed.retry_at))
    }

    /// Records a failed load of `key`, with its error unless it panicked or timed out.
    ///
    /// `is_superseded` returns whether a write has taken precedence over the load. It is checked before and after the
    /// record, and a writer [discards](Self::discard) the record after its write. So at least one of the two sees the
    /// other, and no error is kept for a key that was written after the load had started.
    pub(super) fn record(&self, key: K, error: Option<Failure>, is_superseded: impl Fn() -> bool) {
        if is_superseded() {
            return;
        }
        let location = self.location(&key);
        let now = self.shared.clock.now();
        let consecutive = self.find(&key).map_or(0, |failed| failed.consecutive);
        let backoff = refresh_backoff(consecutive);
        let negative_ttl = self.negative_ttl.unwrap_or_default();
        let failed = Failed {
            error: error.filter(|_| negative_ttl > Duration::ZERO),
            error_expires_at: now.after(negative_ttl),
            consecutive: consecutive.saturating_add(1),
            retry_at: now.after(backoff),
        };
        // `SeqCst`: this store comes before the second check of the write version below, and a writer increases the
        // version before it reads the flag in `discard`. At least one of the two has to see the other, and `Release`
        // does not order a store before a later load.
        self.has_recorded.store(true, SeqCst);
        // At least twice the backoff, so that the next failure in a row finds this one and doubles it.
        let deadline = now.after(negative_ttl.max(2 * backoff));
        self.shared.store.set(key, failed, &self.shared.clock, |_| deadline);
        self.shared.publisher.flush();
        if is_superseded() {
            self.discard(location);
        }
    }

    /// Returns the location of `key` in the store of failures.
    #[inline]
    pub(super) fn location<Q>(&self, key: &Q) -> Location
    where
        Q: Hash + ?Sized,
    {
        self.shared.store.locate(key)
    }

    /// Discards the failure at `location`. The caller has written the key and no longer owns it, so this finds failures
    /// by hash alone: a failure of another key with the same hash is discarded too.
    #[inline]
    pub(super) fn discard(&self, location: Location) {
        // Pairs with the store in `record`: the caller's write came before this load.
        if !self.has_recorded.load(SeqCst) {
            return;
        }
        // The table compares seven bits of the hash, so most of what it finds belongs to other keys.
        let is_known = |key: &K, failed: &Failed| {
            failed.consecutive > 0 && self.location(key).hash() == location.hash()
        };
        let discard = |entry: &mut Entry<Failed>| {
            entry.value.consecutive = 0;
            entry.value.error.take()
        };
        // Again, because several keys may have this hash. Discarded entries do not match again.
        while let Some(error) = self.shared.store.change_where(location, is_known, discard) {
            // Dropped after the lock is released: its `Drop` is user code.
            drop(error);
        }
    }

    /// Returns the store of the failures, to be swept like that of the values.
    pub(super) fn shared(&self) -> &Arc<SharedState<K, Failed, S>> {
        &self.shared
    }

    /// Discards all failures.
    pub(super) async fn discard_all(&self) {
        for shard in 0..self.shared.store.shard_count() {
            let mut cursor = TableCursor::of(shard);
            while self.shared.store.clear_windows(&mut cursor, &self.shared.clock) {
                consume_budget().await;
            }
        }
    }

    /// Returns the failure of `key`, if there is one that was not discarded.
    fn find<Q>(&self, key: &Q) -> Option<Failed>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        // No ordering is required here, only the one of `discard` reused: a caller that misses a concurrent failure
        // loads again.
        if !self.has_recorded.load(SeqCst) {
            return None;
        }
        self.shared.store.get(key, &self.shared.clock).filter(|failed| failed.consecutive > 0)
    }
}
