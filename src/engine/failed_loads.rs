//! Failed loads by key: errors kept by `negative_ttl`, and the backoff of background refreshes. Both caches use it, the
//! embedded one and the one on Redis.
//!
//! 1. Failures are found by the hash of their key. Of two keys with one hash, the later failure replaces the earlier
//!    one. Look-ups compare the key, so no key gets the error of another.
//! 2. Writes take precedence: no error is kept for a key that was written after the load had started. A load first
//!    records its failure and then checks whether a write supersedes it; a writer first counts its write and then looks
//!    for failures to discard. So at least one of the two sees the other. The check is made under the lock of the
//!    record, so no look-up finds a superseded failure.
//! 3. No user code runs under a lock: keys are compared, and keys and errors are dropped, after the unlock.
//! 4. A write or a look-up takes no lock if no key of its stripe has a failure.
//!
//! As much as possible is not generic, and so is compiled with this crate, and not again with each that uses a cache.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    iter, mem,
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;
use futures_core::future::BoxFuture;

use crate::engine::{
    clock::{Clock, Deadline, Now, Tick},
    coop, panics,
    split_mix::GAMMA,
    store::LoadFailure,
    sync::{
        Mutex, MutexGuard,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Maximum number of keys with a failure in a cache that is bounded by weight, and in a process with one on Redis.
pub(crate) const DEFAULT_MAX: usize = 10_000;

/// Backoff after the first failed refresh of a key, doubled by each further one. A popular key would otherwise start
/// the next refresh right after the failed one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff, so that a source that has recovered is tried again within about a minute.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Number of stripes, many compared with the threads that write at once.
const STRIPES: usize = 64;
/// Minimum bound of a stripe. A smaller one would often be full, because of chance, long before the others.
const MIN_PER_STRIPE: usize = 64;

/// Maximum number of ended failures that are removed under one lock.
const MAX_ENDED: usize = 32;

/// End of the first failure of an empty stripe.
const EMPTY: u64 = u64::MAX;

/// Keys whose last load has failed, up to a maximum number.
pub(crate) struct FailedLoads {
    clock: Clock,
    /// TTL of an error; zero if errors are not kept.
    negative_ttl: Duration,
    max_per_stripe: usize,
    stripes: Box<[Stripe]>,
}

/// Failures of some of the keys.
struct Stripe {
    /// End of the failure that ends first. Written under the lock, and read without it.
    first_end: AtomicU64,
    failures: Mutex<StripeState>,
}

#[derive(Default)]
struct StripeState {
    by_hash: BTreeMap<u64, Arc<FailuresOfKey>>,
    /// Ends and hashes of all failures.
    ends: BTreeSet<(u64, u64)>,
}

/// Failed loads of one key since its last success or write.
struct FailuresOfKey {
    key: Box<dyn Any + Send + Sync>,
    /// Last error; `None` for a panic, a timeout, and if errors are not kept.
    error: Option<LoadFailure>,
    error_until: Deadline,
    /// Number of failures in a row.
    consecutive: u32,
    /// End of the backoff: from then on a refresh may be started.
    retry_at: Deadline,
    /// Time until which the next failure counts as one in a row.
    until: Deadline,
}

impl FailedLoads {
    pub(crate) fn new(clock: Clock, negative_ttl: Option<Duration>, max: usize) -> Self {
        let stripes = (max / MIN_PER_STRIPE).clamp(1, STRIPES);
        Self {
            clock,
            negative_ttl: negative_ttl.unwrap_or_default(),
            max_per_stripe: max / stripes,
            stripes: iter::repeat_with(Stripe::new).take(stripes).collect(),
        }
    }

    /// Returns the kept error of `key`, which has this hash, if the error has the type `E`.
    #[inline]
    pub(crate) fn error<K, Q, E>(&self, hash: u64, key: &Q) -> Option<Arc<E>>
    where
        K: 'static,
        Q: Equivalent<K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let failed = self.find(hash, &is_equal::<K, Q>(key))?;
        // A loader with another type of error cannot return it, and loads again.
        self.kept_error(&failed)?.downcast().ok()
    }

    /// Returns whether a refresh of `key` may be started: it has not failed recently, or its backoff has ended.
    pub(crate) fn may_retry<K, Q>(&self, hash: u64, key: &Q) -> bool
    where
        K: 'static,
        Q: Equivalent<K> + ?Sized,
    {
        let failed = self.find(hash, &is_equal::<K, Q>(key));
        failed.is_none_or(|failed| self.clock.is_expired(failed.retry_at))
    }

    /// Records a failed load of `key`, with its error unless it panicked or timed out.
    ///
    /// `is_superseded` returns whether a write has taken precedence over the load. It must see each write that was
    /// counted before this call recorded the failure, or else that writer must see the record: both are `SeqCst`, or
    /// the writes are counted, and read here, under one lock.
    pub(crate) fn record<K>(
        &self,
        hash: u64,
        key: K,
        error: Option<LoadFailure>,
        is_superseded: &dyn Fn() -> bool,
    ) where
        K: Eq + Send + Sync + 'static,
    {
        let last = self.find(hash, &is_equal::<K, K>(&key));
        self.record_after(last, hash, Box::new(key), error, is_superseded);
    }

    /// Discards the failure of keys with this hash. The caller has written such a key, and counted the write.
    #[inline]
    pub(crate) fn discard(&self, hash: u64) {
        let stripe = self.stripe(hash);
        if !stripe.is_empty() {
            stripe.discard(hash);
        }
    }

    /// Discards all failures. The caller has written all keys, and counted the writes.
    pub(crate) fn discard_all(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for stripe in &self.stripes {
                if !stripe.is_empty() {
                    stripe.discard_all();
                    coop::yield_now().await;
                }
            }
        })
    }

    /// Removes some of the ended failures, and returns how many of their drops panicked; `None` if none has ended.
    pub(crate) fn remove_ended(&self) -> Option<usize> {
        let now = self.clock.now();
        let has_ended = |stripe: &&Stripe| stripe.first_end.load(Relaxed) <= now.nanoseconds();
        let stripe = self.stripes.iter().find(has_ended)?;
        let mut failures = stripe.lock();
        let ended = failures.take_ended(now);
        stripe.note_first_end(&failures);
        drop(failures);
        Some(panics::drop_all(ended))
    }

    /// Returns the time until the first failure ends; `None` if none ends.
    pub(crate) fn until_end(&self, now: Tick) -> Option<Duration> {
        let first_end = self.stripes.iter().map(|stripe| stripe.first_end.load(Relaxed)).min()?;
        (first_end != EMPTY).then(|| Tick::from_nanoseconds(first_end).since(now))
    }

    fn kept_error(&self, failed: &FailuresOfKey) -> Option<LoadFailure> {
        failed.error.clone().filter(|_| !self.clock.is_expired(failed.error_until))
    }

    fn record_after(
        &self,
        last: Option<Arc<FailuresOfKey>>,
        hash: u64,
        key: Box<dyn Any + Send + Sync>,
        error: Option<LoadFailure>,
        is_superseded: &dyn Fn() -> bool,
    ) {
        let now = self.clock.now();
        let in_a_row = last.as_ref().filter(|last| !last.until.is_expired(now));
        let consecutive = in_a_row.map_or(0, |last| last.consecutive);
        let backoff =
            FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(consecutive)).min(MAX_BACKOFF);
        let failed = FailuresOfKey {
            key,
            error: error.filter(|_| self.negative_ttl > Duration::ZERO),
            error_until: now.after(self.negative_ttl),
            consecutive: consecutive.saturating_add(1),
            retry_at: now.after(backoff),
            // At least twice the backoff, so that the next failure in a row finds this one and doubles it.
            until: now.after(self.negative_ttl.max(2 * backoff)),
        };
        let stripe = self.stripe(hash);
        let mut failures = stripe.lock();
        let mut removed = failures.take_ended(now);
        removed.extend(last);
        removed.extend(failures.remove(hash));
        if failures.by_hash.len() >= self.max_per_stripe {
            removed.extend(failures.take_first());
        }
        failures.insert(hash, Arc::new(failed));
        stripe.note_first_end(&failures);
        if is_superseded() {
            removed.extend(failures.remove(hash));
            stripe.note_first_end(&failures);
        }
        drop(failures);
        panics::drop_all(removed);
    }

    fn find(&self, hash: u64, is_equal: &dyn Fn(&dyn Any) -> bool) -> Option<Arc<FailuresOfKey>> {
        let stripe = self.stripe(hash);
        if stripe.is_empty() {
            return None;
        }
        let failed = stripe.lock().by_hash.get(&hash).cloned();
        failed.filter(|failed| is_equal(&*failed.key))
    }

    fn stripe(&self, hash: u64) -> &Stripe {
        // Mixed, because the caller's hasher may be a weak one.
        &self.stripes[(hash.wrapping_mul(GAMMA) >> 32) as usize % self.stripes.len()]
    }
}

impl Stripe {
    fn new() -> Self {
        Self { first_end: AtomicU64::new(EMPTY), failures: Mutex::default() }
    }

    /// Returns whether no key has a failure.
    fn is_empty(&self) -> bool {
        // Pairs with the store in `note_first_end`: a writer has counted its write before this load. A look-up needs no
        // ordering. If it misses a concurrent failure, it loads again.
        self.first_end.load(SeqCst) == EMPTY
    }

    fn discard(&self, hash: u64) {
        let mut failures = self.lock();
        let discarded = failures.remove(hash);
        self.note_first_end(&failures);
        drop(failures);
        panics::drop_all(discarded);
    }

    fn discard_all(&self) {
        let mut failures = self.lock();
        let discarded = mem::take(&mut *failures);
        self.note_first_end(&failures);
        drop(failures);
        panics::drop_all(discarded.by_hash.into_values());
    }

    fn note_first_end(&self, failures: &StripeState) {
        let first_end = failures.ends.first().map_or(EMPTY, |(end, _)| *end);
        // `SeqCst`: a record stores this before it checks whether a write supersedes it, and a writer counts its write
        // before it loads this. `Release` does not order a store before a later load.
        self.first_end.store(first_end, SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, StripeState> {
        self.failures.lock().expect("no user code runs under this lock")
    }
}

impl StripeState {
    fn insert(&mut self, hash: u64, failed: Arc<FailuresOfKey>) {
        self.ends.insert((failed.end(), hash));
        self.by_hash.insert(hash, failed);
    }

    fn remove(&mut self, hash: u64) -> Option<Arc<FailuresOfKey>> {
        let removed = self.by_hash.remove(&hash)?;
        self.ends.remove(&(removed.end(), hash));
        Some(removed)
    }

    /// Takes some of the failures that have ended.
    fn take_ended(&mut self, now: Tick) -> Vec<Arc<FailuresOfKey>> {
        let ended = self.ends.iter().take_while(|(end, _)| *end <= now.nanoseconds());
        let ended = ended.take(MAX_ENDED).count();
        (0..ended).filter_map(|_| self.take_first()).collect()
    }

    /// Takes the failure that ends first.
    fn take_first(&mut self) -> Option<Arc<FailuresOfKey>> {
        let (_, hash) = self.ends.pop_first()?;
        self.by_hash.remove(&hash)
    }
}

impl FailuresOfKey {
    /// Returns the nanosecond of its end; that of a failure that never ends is not [`EMPTY`].
    fn end(&self) -> u64 {
        self.until.order().min(EMPTY - 1)
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
