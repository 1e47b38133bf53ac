//! Timeout dictionary: a map whose due entries are pulled by callers, each by exactly one.
//!
//! 1. All state is in one [`Entries`](entries::Entries) under one lock ([`DictState::with`]). Waiters are woken and
//!    removed values are dropped after the lock is released.
//! 2. An operation reads the clock once and hashes its key before it takes the lock.
//! 3. Waiters queue for their [turn](turns). Only the first waiter examines the entries. It sleeps until the first
//!    deadline or end of a lease, or until an earlier one is added. It measures time by the clock of the dictionary,
//!    even if the clock of the runtime differs.

mod builder;
mod claim;
mod dead;
mod deadline_queue;
mod dict_state;
mod entries;
mod expired;
#[cfg(all(test, shuttle))]
mod interleavings;
#[cfg(feature = "metrics")]
mod metrics;
mod turn_watch;
mod turns;

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use self::dict_state::DictState;
#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) use self::metrics::SERIES;
pub use self::{builder::TimeoutDictBuilder, claim::Claim, dead::DeadLetter};
use crate::engine::{
    clock::{Deadline, Tick},
    coop,
    hasher::DefaultHasher,
    panics::drop_all,
    ttl::Ttl,
};

/// A map of things to do later: each entry has a deadline, stays after it, and is then delivered to exactly one caller.
///
/// Use it for jobs, retries, reminders, or sessions that need work when they end:
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
/// assert_eq!(logins.get("ada").await, Some(1), "due entries stay readable");
/// assert_eq!(logins.take_expired(100).await, [("grace", 2), ("ada", 1)]);
/// assert_eq!(logins.get("ada").await, None);
/// # }
/// ```
///
/// A `TimeoutDict` is a handle to one shared dictionary; cloning it is cheap. You may call it from any number of tasks
/// and threads.
///
/// # Deadlines
///
/// An entry is due as soon as `now >= deadline`. Unlike in a [`Cache`](crate::Cache), a due entry stays readable until
/// a call removes it.
///
/// * An entry with a TTL of zero is due immediately.
/// * If the TTL overflows, as [`Duration::MAX`] does, the entry has no deadline.
/// * You get due entries in the order of their deadlines. Entries with equal deadlines come in the order in which they
///   were set.
/// * You can look up an entry by any borrowed form of its key (`&str` for `String`).
///
/// # At most once, or at least once
///
/// [`take_expired`](Self::take_expired) and [`next_expired`](Self::next_expired) remove the entries that they return.
/// Each entry goes to exactly one caller. If that caller fails, the entry is lost.
///
/// [`claim_expired`](Self::claim_expired) and [`next_claim`](Self::next_claim) lease an entry to you for a given time.
/// You remove it with [`Claim::ack`] when your work is done; otherwise it is delivered again:
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::TimeoutDict;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # let send = async |_: &&str, attempt: u32| attempt > 1;
/// let mails = TimeoutDict::new();
/// mails.set("ada", "your code is 1234", Duration::ZERO).await;
///
/// while !mails.is_empty().await {
///     let mail = mails.next_claim(Duration::from_secs(60)).await;
///     if send(mail.value(), mail.attempts()).await {
///         mail.ack().await;
///     } // else the claim is dropped, and you get the mail again after about a second
/// }
/// # }
/// ```
///
/// A leased entry is not delivered to other callers until its lease ends. It can still be read, set and removed.
///
/// # Retries and dead entries
///
/// If you drop a claim without an acknowledgement, the attempt has failed. The entry is delivered again after a delay
/// that grows with each failure ([`backoff`](TimeoutDictBuilder::backoff)).
///
/// [`max_attempts`](TimeoutDictBuilder::max_attempts) limits the number of failed attempts; an entry that reaches it is
/// *dead*. A dead entry stays readable. No method that takes or claims entries returns it, except
/// [`take_dead`](Self::take_dead), until you [revive](Self::revive) or set it. [`dead_letters`](Self::dead_letters)
/// lists dead entries with the reasons of their failures.
///
/// # Migrating from the Python timeout dictionary
///
/// | Python (stored on Redis) | `TimeoutDict` |
/// | --- | --- |
/// | `set_data(key, data, timeout)` | [`set(k, v, ttl)`](Self::set): the value is replaced as a whole, not merged by fields |
/// | `get_data(key)` | [`get(&k)`](Self::get) |
/// | `remove_data(key)` | [`remove(&k)`](Self::remove): removes the deadline, too |
/// | `set_timeout(key, timeout)` | [`set_timeout(&k, ttl)`](Self::set_timeout): only if there is an entry |
/// | `remove_timeout(key)` | [`remove_timeout(&k)`](Self::remove_timeout): the entry stays |
/// | `get_expired(max_count=100)` | [`take_expired(100)`](Self::take_expired): returns the keys, too, and never the same entry to two callers; use [`claim_expired`](Self::claim_expired) if no entry may be lost when a caller fails |
///
/// # Cost
///
/// All operations use one lock, which a call holds for a fraction of a microsecond. Changing an entry costs O(log n),
/// and so does each entry that is taken, claimed, acknowledged or given back. A lookup costs O(1). Occasionally a call
/// costs O(n), to grow the dictionary to twice its size. The next call that takes or claims entries, or that reads or
/// counts dead ones, first processes all leases that have ended, at O(log n) each. After every 256 leases it releases
/// the lock and may yield. A call for one key processes only the lease of that key. The memory of the entries is freed
/// when the last one is removed.
///
/// Each call takes part in Tokio's cooperative budget and may yield for it, but only before the call has any effect.
/// [`next_expired`](Self::next_expired) and [`next_claim`](Self::next_claim) also wait for an entry. All calls are
/// cancel safe, except that a cancelled method of a [`Claim`] drops the claim if it takes it by value.
///
/// # Under the lock
///
/// `Eq` and `Clone` of keys and values run while the dictionary is locked. They must not call the dictionary or drop
/// one of its [`Claim`]s. `Hash` and `Drop` run outside the lock and may call the dictionary. There is one exception:
/// if `Clone` panics, the partial clone is dropped while the dictionary is locked. If any of them panics, no entry is
/// lost.
///
/// # Runtimes
///
/// A dictionary needs no runtime, except to wait in `next_expired` and `next_claim`. While several calls wait, a task
/// on the runtime of the first of them ensures that due entries are delivered although a waiter is not polled; if that
/// runtime is not driven, they are delivered when the waiter is polled or dropped. A dictionary that is created on a
/// runtime whose clock can be paused (`current_thread`) uses the clock of that runtime; otherwise it uses real time. If
/// the clock of the waiter's runtime is a different one, for example paused by a test, the waiter sleeps until its own
/// clock has reached the deadline. From then on it looks at the dictionary's clock every 10 ms.
pub struct TimeoutDict<K, V, S = DefaultHasher> {
    shared: Arc<DictState<K, V>>,
    hasher: S,
}

impl<K, V> TimeoutDict<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty dictionary.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions: TimeoutDict<String, u64> = TimeoutDict::new();
    /// sessions.set("token".to_owned(), 7, Duration::from_secs(1_800)).await;
    /// assert_eq!(sessions.get("token").await, Some(7));
    /// # }
    /// ```
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
    /// Creates an empty dictionary that hashes keys with `hasher`. If an attacker can choose keys, std's `RandomState`
    /// resists collisions better than the default.
    ///
    /// ```
    /// # use std::collections::hash_map::RandomState;
    /// # use fleeting::TimeoutDict;
    /// // Users choose the keys.
    /// let logins: TimeoutDict<String, u64, _> = TimeoutDict::with_hasher(RandomState::new());
    /// ```
    pub fn with_hasher(hasher: S) -> Self {
        TimeoutDict::<K, V>::builder().hasher(hasher).build()
    }

    /// Sets the value of `key`, due in `ttl`. You get back the value that it replaces, even if that is due, claimed or
    /// dead.
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
    ///
    /// A claim on the replaced value becomes void. The number of failed attempts is reset to zero.
    pub async fn set(&self, key: K, value: V, ttl: Duration) -> Option<V> {
        coop::proceed().await;
        let deadline = self.now().after(ttl);
        let hash = self.hasher.hash_one(&key);
        let mut new = Some((key, value));
        self.shared.with(|entries| entries.set(hash, &mut new, deadline));
        new.map(|(_, replaced)| replaced)
    }

    /// Sets the value of `key`, due in `ttl`, only if the key has no entry. Returns whether it was set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// assert!(jobs.set_nx("reindex", 1, Duration::ZERO).await);
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(!jobs.set_nx("reindex", 2, Duration::ZERO).await, "it is claimed");
    /// job.ack().await;
    /// assert!(jobs.set_nx("reindex", 3, Duration::ZERO).await);
    /// # }
    /// ```
    ///
    /// So you can queue a job as often as you like: it is there once, until it is acknowledged or removed. An entry
    /// that is due, claimed or dead also prevents the call, and is not changed.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a cancelled call has set nothing.
    #[doc(alias = "SETNX")]
    pub async fn set_nx(&self, key: K, value: V, ttl: Duration) -> bool {
        coop::proceed().await;
        let deadline = self.now().after(ttl);
        let hash = self.hasher.hash_one(&key);
        let mut new = Some((key, value));
        self.shared.with(|entries| entries.set_nx(hash, &mut new, deadline));
        new.is_none()
    }

    /// Sets the deadline of `key` to `ttl` from now, even if the entry is due already. Returns `false` if there is no
    /// entry, or if it is dead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{TimeoutDict, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let half_an_hour = Duration::from_secs(1_800);
    /// let sessions = TimeoutDict::new();
    /// sessions.set("token", "ada", half_an_hour).await;
    /// tokio::time::advance(Duration::from_secs(600)).await;
    ///
    /// // Each request of a session extends it.
    /// assert!(sessions.set_timeout("token", half_an_hour).await);
    /// assert_eq!(sessions.ttl("token").await, Ttl::Remaining(half_an_hour));
    /// # }
    /// ```
    ///
    /// A claim on the entry becomes void and counts as a failed attempt. If that was the last allowed attempt, the
    /// entry becomes dead and the call returns `false`. Earlier failed attempts still count.
    pub async fn set_timeout<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.now();
        self.set_deadline(key, now.after(ttl), now).is_some()
    }

    /// Removes the deadline of `key` and keeps its entry. Returns `true` if it had a deadline.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{TimeoutDict, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let orders = TimeoutDict::new();
    /// orders.set("order 7", "unpaid", Duration::from_secs(900)).await;
    ///
    /// // It is paid: it will not be cancelled.
    /// assert!(orders.remove_timeout("order 7").await);
    /// assert_eq!(orders.ttl("order 7").await, Ttl::Persistent);
    /// # }
    /// ```
    ///
    /// A claim on the entry becomes void and counts as a failed attempt, as in [`set_timeout`](Self::set_timeout).
    pub async fn remove_timeout<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let old = self.set_deadline(key, Deadline::PERSISTENT, self.now());
        old.is_some_and(|old| !old.is_persistent())
    }

    /// Returns a clone of the value of `key`, even if it is due, claimed or dead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let carts = TimeoutDict::new();
    /// carts.set("ada", vec!["book"], Duration::ZERO).await;
    /// assert_eq!(carts.get("ada").await, Some(vec!["book"]), "due, and not taken yet");
    /// assert_eq!(carts.get("bob").await, None);
    /// # }
    /// ```
    pub async fn get<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.get(hash, key).cloned())
    }

    /// Returns whether `key` has an entry, even if that is due, claimed or dead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("nightly report", (), Duration::from_secs(3_600)).await;
    /// assert!(jobs.contains_key("nightly report").await);
    /// # }
    /// ```
    pub async fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.get(hash, key).is_some())
    }

    /// Returns the time until the entry of `key` is due: [`Ttl::Remaining`] of zero if it is due or claimed, and
    /// [`Ttl::Persistent`] if it has no deadline or is dead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{TimeoutDict, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let retries = TimeoutDict::new();
    /// retries.set("webhook", 1, Duration::from_secs(60)).await;
    /// tokio::time::advance(Duration::from_secs(45)).await;
    /// assert_eq!(retries.ttl("webhook").await, Ttl::Remaining(Duration::from_secs(15)));
    /// assert_eq!(retries.ttl("unknown").await, Ttl::Missing);
    /// # }
    /// ```
    pub async fn ttl<Q>(&self, key: &Q) -> Ttl
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.now();
        let hash = self.hasher.hash_one(key);
        let deadline = self.shared.with(|entries| entries.deadline(hash, key, &now));
        match deadline {
            None => Ttl::Missing,
            Some(deadline) => deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining),
        }
    }

    /// Removes the entry of `key` and returns its value, even if it is due, claimed or dead. A claim on it becomes
    /// void.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let reminders = TimeoutDict::new();
    /// reminders.set("ada", "pay your bill", Duration::from_secs(86_400)).await;
    ///
    /// // Ada has paid.
    /// assert_eq!(reminders.remove("ada").await, Some("pay your bill"));
    /// assert!(reminders.is_empty().await);
    /// # }
    /// ```
    pub async fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.remove(hash, key)).map(|(_, value)| value)
    }

    /// Returns the number of entries, including due, claimed and dead ones.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("due", 1, Duration::ZERO).await;
    /// jobs.set("later", 2, Duration::from_secs(60)).await;
    /// let claim = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert_eq!(jobs.len().await, 2, "the claimed job is not done yet");
    /// claim.ack().await;
    /// assert_eq!(jobs.len().await, 1);
    /// # }
    /// ```
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.shared.with(|entries| entries.len())
    }

    /// Returns whether there are no entries.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Removes all entries. All claims become void.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("import", 1, Duration::ZERO).await;
    /// let claim = jobs.next_claim(Duration::from_secs(60)).await;
    /// jobs.clear().await;
    /// assert!(!claim.ack().await, "the claim is void");
    /// # }
    /// ```
    pub async fn clear(&self) {
        coop::proceed().await;
        drop_all(self.shared.with(|entries| entries.clear()));
    }

    fn set_deadline<Q>(&self, key: &Q, deadline: Deadline, now: Tick) -> Option<Deadline>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.set_deadline(hash, key, deadline, now))
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
