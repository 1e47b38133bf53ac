//! What users do with entries that failed too often.

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
    /// Takes out at most `max` entries that are dead, the one first that died first.
    ///
    /// An entry is dead when claims on it failed as often as
    /// [`max_attempts`](crate::TimeoutDictBuilder::max_attempts) says, by whatever end but [`Claim::ack`]. A claim
    /// whose lease is over is not void yet: who is late may still ack a dead entry, and so takes it out.
    ///
    /// [`Claim::ack`]: crate::Claim::ack
    pub async fn take_dead(&self, max: usize) -> Vec<(K, V)> {
        self.take(max, |entries, _| entries.take_dead()).await
    }

    /// How many entries are dead.
    pub async fn dead_len(&self) -> usize {
        coop::proceed().await;
        let now = self.shared.clock.lazy_now();
        self.shared.with(|entries| {
            entries.end_leases(&now);
            entries.dead_len()
        })
    }

    /// Lets the entry of `key`, which is dead, be due in `ttl`, as if it had never failed; false where there is none,
    /// or it is not dead.
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
