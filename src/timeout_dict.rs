//! Deadlines that are pulled: who asks for what is due takes it, and nobody takes it twice.
//!
//! 1. All state is in one [`Entries`](entries::Entries) under one lock ([`SharedState::with`]); what must be
//!    woken is woken, and what leaves is dropped, after it.
//! 2. An op reads the clock once, and hashes its key, before it takes the lock.
//! 3. Those who wait queue for a lock of Tokio's; only the first looks at the entries, and sleeps until the
//!    first deadline or end of a lease, or until one comes that is sooner; by the clock of the dictionary, whatever
//!    that of the runtime says.

mod builder;
mod claim;
mod dead;
mod deadline_queue;
mod entries;
mod expired;
#[cfg(all(test, shuttle))]
mod interleavings;
mod key_index;
#[cfg(feature = "metrics")]
mod metrics;
mod retries;
mod state;

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

#[cfg(feature = "redis")]
pub(crate) use self::retries::Retries;
use self::state::SharedState;
pub use self::{builder::TimeoutDictBuilder, claim::Claim};
use crate::engine::{
    clock::{Deadline, Tick},
    coop,
    hasher::DefaultHasher,
    panics::drop_all,
    ttl::Ttl,
};

/// A map whose entries wait, once their time is over, until somebody takes them.
///
/// A `TimeoutDict` is a handle: cheap to clone, and all clones are one dictionary. An entry may have a
/// deadline; it is due from the instant `now >= deadline`. Unlike in a [`Cache`](crate::Cache), an entry
/// that is due stays readable, and leaves only by somebody's hand: [`take_expired`](Self::take_expired) and
/// [`next_expired`](Self::next_expired) give each entry to exactly one caller, whatever the number of tasks
/// and threads. Where that caller might die with it, [`claim_expired`](Self::claim_expired) and
/// [`next_claim`](Self::next_claim) lend it until it is done with ([`Claim::ack`]).
///
/// What is lent and fails comes again, each time later, and where [`max_attempts`](TimeoutDictBuilder::max_attempts)
/// bounds that, not for ever: what failed so often is *dead*. It stays readable, but no claim and no take returns it,
/// but [`take_dead`](Self::take_dead), unless it is [revived](Self::revive) or set.
///
/// What is due comes oldest deadline first, and of equal deadlines the one first that was set first. An
/// entry on which somebody has a lease is given to nobody else until the lease is over; it is still read,
/// set and removed as any other. Look-ups take any borrowed form of the key (`&str` for `String`).
///
/// A TTL of zero is due at once. One that overflows, as [`Duration::MAX`], makes an entry without deadline.
///
/// # From the timeout dictionary on Redis
///
/// | there | here |
/// | --- | --- |
/// | `set_data(key, data, timeout)` | [`set(k, v, ttl)`](Self::set): the value is replaced as a whole, not merged by fields |
/// | `get_data(key)` | [`get(&k)`](Self::get) |
/// | `remove_data(key)` | [`remove(&k)`](Self::remove): its deadline goes with it |
/// | `set_timeout(key, timeout)` | [`set_timeout(&k, ttl)`](Self::set_timeout): only where there is an entry |
/// | `remove_timeout(key)` | [`remove_timeout(&k)`](Self::remove_timeout): the entry stays |
/// | `get_expired(max_count=100)` | [`take_expired(100)`](Self::take_expired): with the keys, and never to two callers; [`claim_expired`](Self::claim_expired) where nothing may be lost with a caller |
///
/// # Cost
///
/// All is done under one lock, which a call holds for a fraction of a microsecond. A change of one entry, and
/// each entry that is taken, claimed, acked or given back, costs O(log n), look-ups O(1): of them all, now and
/// then one costs O(n), when there is to be room for twice as many. A lease that has ended costs O(log n) to
/// the next call that takes or claims. The entries' memory is given back when none is left.
///
/// Each call takes part in Tokio's cooperative budget. But for the two that wait, that is the only point
/// at which a call waits, and it comes before the call does anything: all are cancel safe.
///
/// # Under the lock
///
/// `Eq` and `Clone` of keys and values run while the dictionary is locked: they must not call it, nor drop a
/// [`Claim`] of it. `Hash` and `Drop` do not (but for what a `Clone` that panics leaves behind), and may. A
/// panic in any of them loses nothing.
///
/// # Runtimes
///
/// A dictionary has no task and needs no runtime, but for the waits of `next_expired` and `next_claim`. It
/// keeps the time of the runtime on which it was made, where that has a clock that tests pause and advance (a
/// `current_thread` one); everywhere else, real time. Who waits on a runtime whose clock is another one, as in a test
/// that pauses it, waits for both, and looks at that of the dictionary each 10 ms.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleeting::TimeoutDict;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let logins = TimeoutDict::new();
/// logins.set("ada", 1, Duration::from_secs(30)).await;
/// logins.set("grace", 2, Duration::from_secs(20)).await;
/// assert!(logins.take_expired(100).await.is_empty());
///
/// tokio::time::advance(Duration::from_secs(30)).await;
/// assert_eq!(logins.get("ada").await, Some(1), "due, and waits to be taken");
/// assert_eq!(logins.take_expired(100).await, [("grace", 2), ("ada", 1)]);
/// assert_eq!(logins.get("ada").await, None);
/// # }
/// ```
pub struct TimeoutDict<K, V, S = DefaultHasher> {
    shared: Arc<SharedState<K, V>>,
    hasher: S,
}

impl<K, V> TimeoutDict<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty dictionary.
    pub fn new() -> Self {
        Self::with_hasher(DefaultHasher::default())
    }
}

impl<K, V, S> TimeoutDict<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// An empty dictionary that hashes by `hasher`. Where an attacker chooses keys, std's `RandomState`
    /// resists it better than the default.
    pub fn with_hasher(hasher: S) -> Self {
        TimeoutDict::<K, V>::builder().hasher(hasher).build()
    }

    /// Puts `value` at `key`, due in `ttl`; returns the value it replaced, due, dead or not.
    ///
    /// A claim on the replaced value is void: its end changes nothing any more. What failed before does not count for
    /// the new one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{TimeoutDict, Ttl};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let dict = TimeoutDict::new();
    /// dict.set("stays", 1, Duration::MAX).await;
    /// dict.set("is due", 2, Duration::ZERO).await;
    /// assert_eq!(dict.ttl("stays").await, Ttl::Persistent);
    /// assert_eq!(dict.take_expired(9).await, [("is due", 2)]);
    /// assert_eq!(dict.set("stays", 3, Duration::ZERO).await, Some(1));
    /// # }
    /// ```
    pub async fn set(&self, key: K, value: V, ttl: Duration) -> Option<V> {
        coop::proceed().await;
        let deadline = self.now().after(ttl);
        let hash = self.hasher.hash_one(&key);
        let mut new = Some((key, value));
        self.shared.with(|entries| entries.set(hash, &mut new, deadline));
        new.map(|(_, replaced)| replaced)
    }

    /// Lets the entry of `key` be due in `ttl` from now, also where it is due already; false where there is
    /// none, or it is dead. A claim on it is void, and has failed: where it was the last that there may be, the entry is
    /// dead, and not due. What failed before still counts.
    pub async fn set_timeout<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.now();
        self.set_deadline(key, now.after(ttl), now).is_some()
    }

    /// Takes the deadline of the entry of `key` away; true where it had one. The entry stays. A claim on it is void,
    /// and has failed, as by [`set_timeout`](Self::set_timeout).
    pub async fn remove_timeout<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let old = self.set_deadline(key, Deadline::PERSISTENT, self.now());
        old.is_some_and(|old| !old.is_persistent())
    }

    /// A clone of the value of `key`: due or not, claimed or not, dead or not.
    pub async fn get<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.get(hash, key).cloned())
    }

    /// Whether there is an entry of `key`, due or not.
    pub async fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.get(hash, key).is_some())
    }

    /// In how long the entry of `key` is due: [`Ttl::Remaining`] of zero where it is. A dead one is
    /// [`Ttl::Persistent`]: its time has no end any more.
    pub async fn ttl<Q>(&self, key: &Q) -> Ttl
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.now();
        let hash = self.hasher.hash_one(key);
        let deadline = self.shared.with(|entries| {
            entries.end_leases(&now);
            entries.deadline(hash, key)
        });
        match deadline {
            None => Ttl::Missing,
            Some(deadline) => deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining),
        }
    }

    /// Takes the value of `key` out, due or not. A claim on it is void.
    pub async fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.remove(hash, key)).map(|(_, value)| value)
    }

    /// How many entries there are: due or not, claimed or not, dead or not.
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.shared.with(|entries| entries.len())
    }

    /// Whether there is no entry.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Takes all entries out. All claims are void.
    pub async fn clear(&self) {
        coop::proceed().await;
        drop_all(self.shared.with(|entries| entries.clear()));
    }

    fn set_deadline<Q>(&self, key: &Q, deadline: Deadline, now: Tick) -> Option<Deadline>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| {
            // One may leave its entry dead, whether anybody has looked or not.
            entries.end_leases(&now);
            entries.set_deadline(hash, key, deadline)
        })
    }

    fn now(&self) -> Tick {
        self.shared.clock.now()
    }
}

impl<K, V> Default for TimeoutDict<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V, S: Clone> Clone for TimeoutDict<K, V, S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), hasher: self.hasher.clone() }
    }
}

impl<K, V, S> fmt::Debug for TimeoutDict<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.shared.with(|entries| entries.len());
        f.debug_struct("TimeoutDict").field("len", &len).finish_non_exhaustive()
    }
}
