//! Failed loads: errors kept by `negative_ttl`, and the backoff of background refreshes.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use equivalent::Equivalent;
use futures_core::future::BoxFuture;
use tokio::task::{JoinHandle, consume_budget};

use super::{
    any_key::{AnyKey, KeyQuery, KnownHash},
    sweeping::sweep,
};
use crate::engine::{
    clock::{Deadline, Now},
    state::SharedState,
    store::{Entry, Failure, Location, TableCursor},
    sweeper::{self, Sweep},
};

/// Backoff after the first failed refresh of a key, doubled by each further one. A popular key would otherwise start
/// the next refresh right after the failed one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff, so that a source that has recovered is tried again within about a minute.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Recently failed loads by key. They are kept in a store of their own, which is bounded and swept like that of the
/// values.
///
/// As much as possible is not generic, and so is compiled with this crate, and not again with each that uses a cache. A
/// future is boxed for the same reason.
pub(super) struct Failures {
    /// Store, clock and sweeper of the failed loads.
    shared: Arc<SharedState<AnyKey, Failed, KnownHash>>,
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

impl Failures {
    pub(super) fn new(
        shared: Arc<SharedState<AnyKey, Failed, KnownHash>>,
        negative_ttl: Option<Duration>,
    ) -> Self {
        Self { shared, negative_ttl, has_recorded: AtomicBool::new(false) }
    }

    /// Returns the kept error of `key`, which has this hash, if the error has the type `E`.
    #[inline]
    pub(super) fn error<K, Q, E>(&self, hash: u64, key: &Q) -> Option<Arc<E>>
    where
        K: 'static,
        Q: Equivalent<K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let error = self.kept_error(hash, &is_equal(key))?;
        // A loader with another type of error cannot return it, and loads again.
        error.downcast().ok()
    }

    fn kept_error(&self, hash: u64, is_equal: &dyn Fn(&dyn Any) -> bool) -> Option<Failure> {
        let failed = self.find(hash, is_equal)?;
        let is_kept = !self.shared.clock.is_expired(failed.error_expires_at);
        failed.error.filter(|_| is_kept)
    }

    /// Returns whether a refresh of `key` may be started: it has not failed recently, or its backoff has ended.
    pub(super) fn may_retry<K, Q>(&self, hash: u64, key: &Q) -> bool
    where
        K: 'static,
        Q: Equivalent<K> + ?Sized,
    {
        let failed = self.find(hash, &is_equal(key));
        failed.is_none_or(|failed| self.shared.clock.is_expired(failed.retry_at))
    }

    /// Records a failed load of `key`, with its error unless it panicked or timed out.
    ///
    /// `is_superseded` returns whether a write has taken precedence over the load. It is checked before and after the
    /// record, and a writer [discards](Self::discard) the record after its write. So at least one of the two sees the
    /// other, and no error is kept for a key that was written after the load had started.
    pub(super) fn record(
        &self,
        key: AnyKey,
        error: Option<Failure>,
        is_superseded: &dyn Fn() -> bool,
    ) {
        if is_superseded() {
            return;
        }
        let location = self.location(key.hash());
        let now = self.shared.clock.now();
        let last = self.find(key.hash(), &|other| key.equals(other));
        let consecutive = last.map_or(0, |failed| failed.consecutive);
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

    /// Returns the location of keys with this hash in the store of failures.
    #[inline]
    pub(super) fn location(&self, hash: u64) -> Location {
        self.shared.store.locate_hash(hash)
    }

    /// Discards the failure at `location`. The caller has written the key and no longer owns it, so this finds failures
    /// by hash alone: a failure of another key with the same hash is discarded too.
    #[inline]
    pub(super) fn discard(&self, location: Location) {
        // Pairs with the store in `record`: the caller's write came before this load.
        if !self.has_recorded.load(SeqCst) {
            return;
        }
        self.discard_recorded(location);
    }

    fn discard_recorded(&self, location: Location) {
        // The table compares seven bits of the hash, so most of what it finds belongs to other keys.
        let is_known =
            |key: &AnyKey, failed: &Failed| failed.consecutive > 0 && key.hash() == location.hash();
        let discard = |entry: Option<&mut Entry<Failed>>| {
            let entry = entry?;
            entry.value.consecutive = 0;
            entry.value.error.take()
        };
        // Again, because several keys may have this hash. Discarded entries do not match again.
        while let Some(error) = self.shared.store.change_where(location, is_known, discard) {
            // Dropped after the lock is released: its `Drop` is user code.
            drop(error);
        }
    }

    /// Sweeps the store of the failures.
    pub(super) fn sweep(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { _ = sweep(&self.shared).await })
    }

    pub(super) fn set_sweep(&self, sweep: Sweep) {
        sweeper::set_sweep(&self.shared, sweep);
    }

    /// Returns the task of the sweeper, to be aborted. No further one is started.
    pub(super) fn end_task(&self) -> Option<JoinHandle<()>> {
        self.shared.end_task()
    }

    /// Discards all failures.
    pub(super) fn discard_all(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for shard in 0..self.shared.store.shard_count() {
                let mut cursor = TableCursor::of(shard);
                while self.shared.store.clear_windows(&mut cursor, &self.shared.clock) {
                    consume_budget().await;
                }
            }
        })
    }

    /// Returns the failure of the key with this hash, if there is one that was not discarded.
    fn find(&self, hash: u64, is_equal: &dyn Fn(&dyn Any) -> bool) -> Option<Failed> {
        // No ordering is required here, only the one of `discard` reused: a caller that misses a concurrent failure
        // loads again.
        if !self.has_recorded.load(SeqCst) {
            return None;
        }
        let failed = self.shared.store.get(&KeyQuery { hash, is_equal }, &self.shared.clock);
        failed.filter(|failed| failed.consecutive > 0)
    }
}

/// Returns a function that returns whether a key of any type equals `key`.
fn is_equal<K, Q>(key: &Q) -> impl Fn(&dyn Any) -> bool
where
    K: 'static,
    Q: Equivalent<K> + ?Sized,
{
    |other| other.downcast_ref().is_some_and(|other: &K| key.equivalent(other))
}

/// Returns the time until a refresh may be tried again, after one more failure than `consecutive`.
pub(crate) fn refresh_backoff(consecutive: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(consecutive)).min(MAX_BACKOFF)
}
