//! Public methods for dead entries.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;

use super::TimeoutDict;
use crate::engine::coop;

/// A dead entry, with the reason of its last failure. Returned by [`TimeoutDict::dead_letters`], which has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter<K, V> {
    /// Key of the entry.
    pub key: K,
    /// Value of the entry.
    pub value: V,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Reason of the last failed attempt that had one, given to [`Claim::fail`](crate::Claim::fail).
    pub reason: Option<String>,
}

impl<K, V, S> TimeoutDict<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Removes and returns up to `max` dead entries, in the order in which they became dead. Move them to a log or a
    /// table of failures, so that they do not stay in memory.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::builder().max_attempts(1).build();
    /// jobs.set("mail", "to ada", Duration::ZERO).await;
    /// drop(jobs.next_claim(Duration::from_secs(30)).await);
    ///
    /// for (key, value) in jobs.take_dead(100).await {
    ///     println!("gave up: {key} {value}");
    /// }
    /// assert!(jobs.is_empty().await);
    /// # }
    /// ```
    ///
    /// An entry is dead after [`max_attempts`](crate::TimeoutDictBuilder::max_attempts) claims on it ended without
    /// [`Claim::ack`]. If the lease of the last attempt has ended, the entry is dead, but the holder of that claim may
    /// still acknowledge it, which removes the entry.
    ///
    /// [`Claim::ack`]: crate::Claim::ack
    pub async fn take_dead(&self, max: usize) -> Vec<(K, V)> {
        self.take(max, |entries, _| entries.take_dead()).await
    }

    /// Returns clones of up to `max` dead entries with the reasons of their failures, in the order in which they became
    /// dead. Removes nothing.
    ///
    /// An attempt that ends without [`Claim::fail`] has no reason and keeps that of an earlier attempt.
    /// [`set`](Self::set), [`revive`](Self::revive) and all calls that remove the entry clear the reason.
    ///
    /// The dictionary is locked until all of them are cloned, so a large `max` blocks other callers for longer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a cancelled call has changed nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::builder().max_attempts(1).build();
    /// jobs.set("mail", "to ada", Duration::ZERO).await;
    /// jobs.next_claim(Duration::from_secs(30)).await.fail("mailbox full").await;
    ///
    /// for dead in jobs.dead_letters(100).await {
    ///     let reason = dead.reason.as_deref().unwrap_or("no reason");
    ///     println!("{} failed {} times: {reason}", dead.key, dead.attempts);
    ///     assert!(jobs.revive(dead.key, Duration::ZERO).await);
    /// }
    /// # }
    /// ```
    ///
    /// [`Claim::fail`]: crate::Claim::fail
    #[doc(alias = "dead letter")]
    pub async fn dead_letters(&self, max: usize) -> Vec<DeadLetter<K, V>> {
        coop::proceed().await;
        // Declared outside of the lock: if a clone panics, the earlier ones are dropped after unlock.
        let mut letters = Vec::new();
        self.shared
            .after_leases(|entries, _| letters.extend(entries.dead_letters().take(max)))
            .await;
        letters
    }

    /// Returns the number of dead entries.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::builder().max_attempts(1).build();
    /// jobs.set("mail", "to ada", Duration::ZERO).await;
    /// drop(jobs.next_claim(Duration::from_secs(30)).await);
    ///
    /// // A health check may warn above some number.
    /// assert_eq!(jobs.dead_len().await, 1);
    /// # }
    /// ```
    pub async fn dead_len(&self) -> usize {
        coop::proceed().await;
        self.shared.after_leases(|entries, _| entries.dead_len()).await
    }

    /// Revives a dead entry: the entry of `key` becomes due in `ttl`, and its number of failed attempts is reset to
    /// zero. Returns `false` if there is no entry, or if it is not dead.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let lease = Duration::from_secs(30);
    /// let jobs = TimeoutDict::builder().max_attempts(1).build();
    /// jobs.set("mail", "to ada", Duration::ZERO).await;
    /// drop(jobs.next_claim(lease).await);
    /// assert_eq!(jobs.dead_len().await, 1);
    ///
    /// assert!(jobs.revive("mail", Duration::ZERO).await);
    /// assert_eq!(jobs.next_claim(lease).await.attempts(), 1);
    /// # }
    /// ```
    pub async fn revive<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.now();
        let hash = self.hasher.hash_one(key);
        self.shared.with(|entries| entries.revive(hash, key, now.after(ttl), &now))
    }
}
