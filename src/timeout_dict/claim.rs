//! Claims: the operations of a claim, and the return of its entry on drop.

use std::{fmt, sync::Arc, time::Duration};

use super::{dict_state::DictState, entries::ClaimedEntry};
use crate::engine::{
    clock::{Deadline, Tick},
    coop,
    retries::cut_reason,
};

/// A due entry that is leased to you: finish it with [`ack`](Claim::ack), or drop it to get it again later.
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::TimeoutDict;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// # async fn deliver(_: &str) -> Result<(), &'static str> { Err("550 no such user") }
/// let mails = TimeoutDict::builder().max_attempts(3).build();
/// mails.set("ada", "your code is 1234", Duration::ZERO).await;
///
/// let mail = mails.next_claim(Duration::from_secs(60)).await;
/// match deliver(mail.value()).await {
///     Ok(()) => mail.ack().await,             // removes the entry
///     Err(reason) => mail.fail(reason).await, // a retry follows in about a second
/// };
/// # }
/// ```
///
/// Returned by [`TimeoutDict::claim_expired`](crate::TimeoutDict::claim_expired) and
/// [`next_claim`](crate::TimeoutDict::next_claim).
///
/// # The end of a claim
///
/// The entry stays in the dictionary, readable, until you [acknowledge](Claim::ack) the claim. If the claim ends in
/// another way, the entry is delivered again:
///
/// * **Dropped**, because of an error, a panic or the end of your task: the attempt has failed. The entry is due again
///   after a [backoff](crate::TimeoutDictBuilder::backoff), which doubles with each failure.
/// * [`retry_in`](Claim::retry_in): the attempt has failed. The entry is due again after the delay that you give.
/// * [`fail`](Claim::fail): as a drop, and records why the attempt failed.
/// * [`release`](Claim::release): gives the entry back without a failed attempt.
/// * **The lease ends first**, because the claim was leaked or its holder hangs: the attempt has failed. The entry is
///   due again without a backoff, with its original deadline.
///
/// After [`max_attempts`](crate::TimeoutDictBuilder::max_attempts) failed attempts, the entry is dead.
///
/// # Void claims
///
/// A claim becomes void when its entry is delivered to another caller after the end of the lease. It also becomes void
/// when the entry is set, removed or cleared, and when its deadline is set or removed. Operations on a void claim
/// change nothing.
///
/// The end of the lease alone does not make the claim void. Until another caller gets the entry, you can acknowledge,
/// extend and release it, and [`retry_in`](Claim::retry_in) can delay it. Only [`fail`](Claim::fail) has no effect any
/// more, since the attempt has failed already.
pub struct Claim<K, V> {
    shared: Arc<DictState<K, V>>,
    claimed: ClaimedEntry<K, V>,
    /// True once the entry was acknowledged or given back: drop must then not give it back again.
    is_done: bool,
}

impl<K, V> Claim<K, V> {
    pub(super) fn new(shared: Arc<DictState<K, V>>, claimed: ClaimedEntry<K, V>) -> Self {
        Self { shared, claimed, is_done: false }
    }

    /// Returns the key of the entry.
    pub fn key(&self) -> &K {
        &self.claimed.key
    }

    /// Returns the value as it was when the entry was claimed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let mails = TimeoutDict::new();
    /// mails.set("ada", "hello", Duration::ZERO).await;
    /// let mail = mails.next_claim(Duration::from_secs(60)).await;
    /// assert_eq!((mail.key(), mail.value()), (&"ada", &"hello"));
    /// # }
    /// ```
    pub fn value(&self) -> &V {
        &self.claimed.value
    }

    /// Returns the number of deliveries since the entry was set or revived, including this claim: 1 at the first
    /// delivery. Deliveries that were [released](Self::release) do not count.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let lease = Duration::from_secs(60);
    /// let jobs = TimeoutDict::new();
    /// jobs.set("import", 1, Duration::ZERO).await;
    /// drop(jobs.next_claim(lease).await);
    ///
    /// let job = jobs.next_claim(lease).await;
    /// if job.attempts() > 1 {
    ///     println!("import failed {} times so far", job.attempts() - 1);
    /// }
    /// # assert_eq!(job.attempts(), 2);
    /// # }
    /// ```
    pub fn attempts(&self) -> u32 {
        self.claimed.attempts
    }

    /// Acknowledges that the work is done, and removes the entry. Returns `false` if the claim is void. For each value
    /// that was set, at most one call of `ack` returns `true`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("report", 1, Duration::ZERO).await;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(jobs.contains_key("report").await, "another worker would get it if this one failed");
    /// assert!(job.ack().await);
    /// assert!(jobs.is_empty().await);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the claim is dropped, and the entry is due again after its backoff.
    pub async fn ack(mut self) -> bool {
        coop::proceed().await;
        self.ack_now()
    }

    /// Returns the entry to the dictionary, due in `delay`, for example after the time that a server asked you to wait.
    /// Returns `false` if the claim is void.
    ///
    /// This counts as a failed attempt: after the last allowed attempt the entry is dead, regardless of `delay`. If
    /// `delay` overflows, the entry is never due again.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the claim is dropped, and the entry is due again after its backoff.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("report", 1, Duration::ZERO).await;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(job.retry_in(Duration::from_secs(3600)).await);
    ///
    /// tokio::time::advance(Duration::from_secs(3600)).await;
    /// assert_eq!(jobs.take_expired(9).await, [("report", 1)]);
    /// # }
    /// ```
    pub async fn retry_in(mut self, delay: Duration) -> bool {
        coop::proceed().await;
        self.return_entry(Some(delay), self.shared.clock.now())
    }

    /// Gives the entry back as a failed attempt with a reason, to be delivered again after its backoff. Returns `false`
    /// if the claim is void, or if its lease has ended: the attempt then has failed already, without a reason, and the
    /// entry is due (or dead) without a backoff.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::builder().max_attempts(1).build();
    /// jobs.set("mail", "to nobody", Duration::ZERO).await;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(job.fail("550 no such user").await);
    ///
    /// let dead = &jobs.dead_letters(9).await[0];
    /// assert_eq!((dead.key, dead.reason.as_deref()), ("mail", Some("550 no such user")));
    /// # }
    /// ```
    ///
    /// Differs from a drop of the claim only in the reason, which [`dead_letters`](crate::TimeoutDict::dead_letters)
    /// returns if the entry becomes dead. It replaces the reason of an earlier attempt. A reason longer than 1,024
    /// bytes is cut at a character boundary.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the claim is dropped: the entry is due again after its backoff, and no reason is
    /// recorded.
    pub async fn fail(mut self, reason: impl Into<String>) -> bool {
        // First, so that a panic of the conversion drops the claim outside of the lock.
        let reason = cut_reason(reason.into());
        coop::proceed().await;
        self.is_done = true;
        let now = self.shared.clock.now();
        self.shared.with(|entries| entries.fail(self.claimed.id, reason, now))
    }

    /// Is [`fail`](Claim::fail) with the reason "nack". rustc would otherwise offer `ack`, which does the opposite.
    #[deprecated(note = "use `fail`, or `release` if the entry should be due again at once")]
    #[doc(hidden)]
    pub async fn nack(self) -> bool {
        self.fail("nack").await
    }

    /// Gives the entry back as if it had not been delivered: it is due immediately, with its original deadline, and
    /// this does not count as a failed attempt. Returns `false` if the claim is void.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::new();
    /// jobs.set("report", 1, Duration::ZERO).await;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert!(job.release().await);
    ///
    /// let again = jobs.next_claim(Duration::from_secs(60)).await;
    /// assert_eq!(again.attempts(), 1);
    /// # }
    /// ```
    ///
    /// When your worker shuts down, release the claims that it has not begun: a restart then does not use up
    /// [attempts](crate::TimeoutDictBuilder::max_attempts). After the end of the lease, a claim that is not void can
    /// still be released, even if the entry is dead by then.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the claim is dropped, which counts as a failed attempt.
    pub async fn release(mut self) -> bool {
        coop::proceed().await;
        self.is_done = true;
        self.shared.with(|entries| entries.release(self.claimed.id))
    }

    /// Sets the end of the lease to `lease` from now, earlier or later than before. Returns `false` if the claim is
    /// void.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::sleep;
    /// let lease = Duration::from_secs(60);
    /// let jobs = TimeoutDict::new();
    /// jobs.set("video", 1, Duration::ZERO).await;
    /// let job = jobs.next_claim(lease).await;
    /// for _part in 0..10 {
    ///     sleep(Duration::from_secs(45)).await; // work on a part
    ///     assert!(job.extend(lease).await);
    /// }
    /// assert!(job.ack().await);
    /// # }
    /// ```
    ///
    /// Call it during work that may take longer than the lease, and stop that work on `false`: the entry then belongs
    /// to another caller, or is gone.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: if the call is cancelled, the lease is unchanged.
    pub async fn extend(&self, lease: Duration) -> bool {
        coop::proceed().await;
        let now = self.shared.clock.now();
        self.extend_to(now.after(lease), now)
    }

    pub(super) fn extend_to(&self, end: Deadline, now: Tick) -> bool {
        self.shared.with(|entries| entries.extend(self.claimed.id, end, now))
    }

    pub(super) fn return_entry(&mut self, delay: Option<Duration>, now: Tick) -> bool {
        // Set first, so that drop does not return the entry a second time, even if the claim is void.
        self.is_done = true;
        self.shared.with(|entries| entries.return_entry(self.claimed.id, delay, now))
    }

    pub(super) fn ack_now(&mut self) -> bool {
        // Set first, so that drop does not give the entry back, regardless of the result.
        self.is_done = true;
        // Moved out of the lock: dropping its key and value runs user code.
        let entry = self.shared.with(|entries| entries.ack(self.claimed.id));
        entry.is_some()
    }
}

impl<K, V> Drop for Claim<K, V> {
    fn drop(&mut self) {
        if !self.is_done {
            self.return_entry(None, self.shared.clock.now());
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Claim<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", self.key())
            .field("value", self.value())
            .finish_non_exhaustive()
    }
}
