//! Methods that take or claim due entries, with and without waiting.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{TimeoutDict, claim::Claim, entries::Entries};
use crate::engine::{
    clock::{LazyNow, Now},
    coop,
};

impl<K, V, S> TimeoutDict<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Removes and returns up to `max` due entries. Each entry is delivered at most once: if your program fails before
    /// it has handled the entry, that is lost. [`claim_expired`](Self::claim_expired) delivers such entries again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = TimeoutDict::new();
    /// sessions.set("ada", "token 1", Duration::from_secs(10)).await;
    /// sessions.set("bob", "token 2", Duration::from_secs(90)).await;
    /// tokio::time::advance(Duration::from_secs(60)).await;
    ///
    /// for (user, token) in sessions.take_expired(100).await {
    ///     println!("{user} was logged out of {token}");
    /// #     assert_eq!(user, "ada");
    /// }
    /// # assert_eq!(sessions.len().await, 1);
    /// # }
    /// ```
    ///
    /// The dictionary is locked until all of them are removed, so a large `max` blocks other callers for longer. If the
    /// call is cancelled, no entry is removed.
    pub async fn take_expired(&self, max: usize) -> Vec<(K, V)> {
        self.take(max, |entries, now| entries.take_first(now)).await
    }

    /// Claims up to `max` due entries for `lease`. Each entry is delivered at least once: an entry that is not
    /// acknowledged within the lease is delivered again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let lease = Duration::from_secs(10);
    /// let logins = TimeoutDict::new();
    /// logins.set("ada", 1, Duration::ZERO).await;
    ///
    /// let fails = logins.claim_expired(100, lease).await;
    /// assert!(logins.claim_expired(100, lease).await.is_empty());
    /// drop(fails);
    /// assert!(logins.claim_expired(100, lease).await.is_empty());
    ///
    /// tokio::time::advance(Duration::from_secs(2)).await;
    /// for claim in logins.claim_expired(100, lease).await {
    ///     assert_eq!((claim.key(), claim.value()), (&"ada", &1));
    ///     assert!(claim.ack().await);
    /// }
    /// assert!(logins.is_empty().await);
    /// # }
    /// ```
    ///
    /// You get each entry as a [`Claim`]; call [`Claim::ack`] when your work is done. If you drop a claim, for example
    /// because of an error or a panic, its entry is due again after a [backoff](crate::TimeoutDictBuilder::backoff). A
    /// claim that is leaked or never finished keeps its entry until the lease ends; the entry is then due again
    /// immediately. A lease that overflows never ends. A lease of zero ends immediately, so that any caller may claim
    /// the entry next.
    pub async fn claim_expired(&self, max: usize, lease: Duration) -> Vec<Claim<K, V>> {
        coop::proceed().await;
        // Declared outside of the lock: if a clone panics, the earlier claims are dropped after unlock, which gives
        // their entries back.
        let mut claims = Vec::new();
        self.shared
            .after_leases(|entries, now| {
                let now = now.tick();
                while claims.len() < max
                    && let Some(claimed) = entries.claim_first(now, lease)
                {
                    claims.push(Claim::new(self.shared.clone(), claimed));
                }
            })
            .await;
        claims
    }

    /// Waits until an entry is due, then removes and returns it. The entry is delivered at most once: if your program
    /// fails before it has handled the entry, that is lost.
    ///
    /// The call sleeps until the first deadline or end of a lease. It is woken if an entry with an earlier deadline is
    /// added or a claim is returned. Waiters, here and in [`next_claim`](Self::next_claim), are served in the order of
    /// their calls; a call that does not wait may be served before them.
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a Tokio runtime, or on a runtime without a time driver.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a cancelled call has taken nothing, and the waiters behind it move up. If a future
    /// has begun to wait and is neither polled nor dropped, the next due entry goes to the waiter behind it, about 0.1
    /// s late.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    /// use tokio::time::Instant;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let dict = TimeoutDict::new();
    /// dict.set("a", 1, Duration::from_secs(30)).await;
    /// dict.set("b", 2, Duration::from_secs(20)).await;
    /// let start = Instant::now();
    /// assert_eq!(dict.next_expired().await, ("b", 2));
    /// assert_eq!(dict.next_expired().await, ("a", 1));
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # }
    /// ```
    pub async fn next_expired(&self) -> (K, V) {
        coop::proceed().await;
        self.shared.next(|entries, now| entries.take_first(&now)).await
    }

    /// Waits until an entry is due, then claims it for `lease`. The entry is delivered at least once, as by
    /// [`claim_expired`](Self::claim_expired). In all other respects the method works like
    /// [`next_expired`](Self::next_expired).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a Tokio runtime, or on a runtime without a time driver.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a cancelled call has claimed nothing, and the waiters behind it move up. If a future
    /// has begun to wait and is neither polled nor dropped, the next due entry goes to the waiter behind it, about 0.1
    /// s late.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// async fn worker(jobs: TimeoutDict<String, u32>) {
    ///     loop {
    ///         let job = jobs.next_claim(Duration::from_secs(60)).await;
    ///         if work(job.value()).await.is_ok() {
    ///             job.ack().await;
    ///         } // else it is given back, and delivered again after a growing delay
    ///     }
    /// }
    /// # async fn work(_: &u32) -> Result<(), ()> { Ok(()) }
    /// ```
    pub async fn next_claim(&self, lease: Duration) -> Claim<K, V> {
        coop::proceed().await;
        let claimed = |entries: &mut Entries<K, V>, now| {
            let claimed = entries.claim_first(now, lease)?;
            Some(Claim::new(self.shared.clone(), claimed))
        };
        self.shared.next(claimed).await
    }

    /// Removes up to `max` entries, each selected by `next`.
    pub(super) async fn take(
        &self,
        max: usize,
        next: impl Fn(&mut Entries<K, V>, &LazyNow<'_>) -> Option<(K, V)>,
    ) -> Vec<(K, V)> {
        coop::proceed().await;
        let mut taken = Vec::new();
        self.shared
            .after_leases(|entries, now| {
                while taken.len() < max
                    && let Some(entry) = next(entries, now)
                {
                    taken.push(entry);
                }
            })
            .await;
        taken
    }
}
