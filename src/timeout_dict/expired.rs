//! What is due leaves: taken or claimed, at once or as soon as there is something.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{TimeoutDict, claim::Claim, entries::Entries};
use crate::engine::{clock::LazyNow, coop};

impl<K, V, S> TimeoutDict<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Takes out at most `max` entries that are due: at most once, as they are lost where the caller is.
    ///
    /// The dictionary is locked until all are out: choose `max` by how long others may wait for it. A future
    /// that is dropped before its end took nothing.
    pub async fn take_expired(&self, max: usize) -> Vec<(K, V)> {
        self.take(max, |entries, now| entries.take_first(now)).await
    }

    /// Lends at most `max` entries that are due for `lease`: at least once, as what is not acked by then
    /// comes again.
    ///
    /// Each entry comes as a [`Claim`], which is ended by [`Claim::ack`] when the work is done. A claim that
    /// is dropped, because of an error, a panic or the end of its task, gives its entry back: it is due again after
    /// a [backoff](crate::TimeoutDictBuilder::backoff). What hangs, or was leaked, holds it until the lease is over,
    /// and then it comes again at once. A lease that overflows is never over; one of zero is at once, so that
    /// anybody may claim the entry next.
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
    pub async fn claim_expired(&self, max: usize, lease: Duration) -> Vec<Claim<K, V>> {
        coop::proceed().await;
        let now = self.now();
        // Outside of the lock: where a clone panics, what was claimed before is given back.
        let mut claims = Vec::new();
        self.shared.with(|entries| {
            entries.end_leases(&now);
            while claims.len() < max
                && let Some(claimed) = entries.claim_first(now, lease)
            {
                claims.push(Claim::new(self.shared.clone(), claimed));
            }
        });
        claims
    }

    /// Waits until an entry is due, and takes it out: at most once, as [`take_expired`](Self::take_expired).
    ///
    /// It sleeps until the first deadline or end of a lease, and is woken where one comes that is sooner, or
    /// a claim is given back. Who waits, here or in [`next_claim`](Self::next_claim), is served in the order
    /// of asking; a call that does not wait may come first.
    ///
    /// # Panics
    ///
    /// Where it has to wait outside of a Tokio runtime, or on one without time.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: who gives up took nothing, and those behind move up. A future that has waited, and is kept without
    /// being polled, holds them up.
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
        self.shared
            .next(|entries, now| {
                entries.end_leases(&now);
                entries.take_first(&now)
            })
            .await
    }

    /// Waits until an entry is due, and lends it for `lease`: at least once, as
    /// [`claim_expired`](Self::claim_expired). Otherwise as [`next_expired`](Self::next_expired).
    ///
    /// # Panics
    ///
    /// Where it has to wait outside of a Tokio runtime, or on one without time.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: who gives up claimed nothing, and those behind move up. A future that has waited, and is kept without
    /// being polled, holds them up.
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
    ///         } // else it is given back, and comes again, each time later
    ///     }
    /// }
    /// # async fn work(_: &u32) -> Result<(), ()> { Ok(()) }
    /// ```
    pub async fn next_claim(&self, lease: Duration) -> Claim<K, V> {
        coop::proceed().await;
        let claimed = |entries: &mut Entries<K, V>, now| {
            entries.end_leases(&now);
            let claimed = entries.claim_first(now, lease)?;
            Some(Claim::new(self.shared.clone(), claimed))
        };
        self.shared.next(claimed).await
    }
    /// Takes out at most `max` entries, each of which is the `next`.
    pub(super) async fn take(
        &self,
        max: usize,
        next: impl Fn(&mut Entries<K, V>, &LazyNow<'_>) -> Option<(K, V)>,
    ) -> Vec<(K, V)> {
        coop::proceed().await;
        let now = self.shared.clock.lazy_now();
        let mut taken = Vec::new();
        self.shared.with(|entries| {
            entries.end_leases(&now);
            while taken.len() < max
                && let Some(entry) = next(entries, &now)
            {
                taken.push(entry);
            }
        });
        taken
    }
}
