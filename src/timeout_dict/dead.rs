//! Public methods for dead entries.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;

use super::TimeoutDict;
use crate::engine::coop;

impl<K, V, S> TimeoutDict<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Removes and returns up to `max` dead entries, in the order in which they became dead.
    ///
    /// An entry is dead after [`max_attempts`](crate::TimeoutDictBuilder::max_attempts) claims on it ended
    /// without [`Claim::ack`]. If the lease of the last attempt has ended, the entry is dead, but the
    /// holder of that claim may still acknowledge it, which removes the entry.
    ///
    /// [`Claim::ack`]: crate::Claim::ack
    pub async fn take_dead(&self, max: usize) -> Vec<(K, V)> {
        self.take(max, |entries, _| entries.take_dead()).await
    }

    /// Returns the number of dead entries.
    pub async fn dead_len(&self) -> usize {
        coop::proceed().await;
        let now = self.shared.clock.lazy_now();
        self.shared.with(|entries| {
            entries.end_leases(&now);
            entries.dead_len()
        })
    }

    /// Revives a dead entry: the entry of `key` becomes due in `ttl`, and its number of failed attempts is
    /// reset to zero. Returns `false` if there is no entry, or if it is not dead.
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
        self.shared.with(|entries| {
            entries.end_leases(&now);
            entries.revive(hash, key, now.after(ttl))
        })
    }
}
