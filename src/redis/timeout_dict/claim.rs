//! Claim on a leased entry, which ends when it is acked or dropped, or when the lease expires.
//!
//! A claim is identified by the end of its lease, which is the score of the entry on the server. Each method is a
//! script that does nothing if the score is different. A dropped claim has failed: its [`TakenEntry`] is dropped with
//! it and reports the failure to the server.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    delivery::{OnDrop, TakenEntry, run_to_end},
    dict_state::{Failure, lease_micros},
};
use crate::{engine::retries::cut_reason, redis::Error};

/// A due entry that is leased to you until you have done its work. Returned by
/// [`TimeoutDict::claim_expired`](super::TimeoutDict::claim_expired) and
/// [`next_claim`](super::TimeoutDict::next_claim).
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::redis::TimeoutDict;
/// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
/// # let send = async |_: &str, _: &str| Err::<(), _>("the mailbox is full");
/// let mail = mails.next_claim(Duration::from_secs(60)).await?;
/// match send(mail.key(), mail.value()).await {
///     Ok(()) => mail.ack().await?,
///     Err(reason) => mail.fail(reason).await?,
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Failed attempts
///
/// The entry stays in the dictionary, readable, until you [ack](Claim::ack) the claim. An attempt has failed
///
/// * if you drop the claim without an ack, for example because of an error or a panic: the entry is due again after a
///   [backoff](super::TimeoutDictBuilder::backoff), which doubles with each failure;
/// * if you call [`fail`](Claim::fail), or [`retry_in`](Claim::retry_in), after which it is due after the given delay;
/// * if the lease expires.
///
/// A task on the runtime of the claim reports the drop to the server, because `Drop` cannot wait. If that fails, if the
/// claim is leaked, or if its process crashes, the entry is due again without a backoff when the lease expires. After
/// [`max_attempts`](super::TimeoutDictBuilder::max_attempts) failures, it is a dead letter.
///
/// # Void claims
///
/// A claim becomes void when its entry is leased to another caller after the end of the lease, when the entry is set,
/// removed or cleared, and when its deadline is set or removed. Methods of a void claim change nothing.
///
/// The end of the lease alone does not make a claim void: until another caller gets the entry, you can ack, extend and
/// release it, and delay it by [`retry_in`](Claim::retry_in). Only [`fail`](Claim::fail) has no effect any more, since
/// the attempt has failed already.
pub struct Claim<K, V> {
    key: K,
    value: V,
    /// Reports the failure in a task when it is dropped with the claim: [`OnDrop::Fail`]. Disarmed by all other ends of
    /// the claim.
    delivery: TakenEntry,
}

impl<K, V> Claim<K, V> {
    pub(super) fn new(key: K, value: V, mut delivery: TakenEntry) -> Self {
        // The entry is still on the server, so the value is not needed to return it.
        delivery.value = ::redis::Value::Nil;
        delivery.on_drop = match mem::take(&mut delivery.on_drop) {
            OnDrop::GiveBack { lease_end, score } => {
                let _held = delivery.state.counters.claimed();
                OnDrop::Fail { lease_end: Arc::new(Mutex::new(lease_end)), score, _held }
            }
            on_drop => on_drop,
        };
        Self { key, value, delivery }
    }

    /// Returns the key of the entry.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the value as it was when the entry was claimed.
    pub fn value(&self) -> &V {
        &self.value
    }

    /// Returns how often the entry was delivered since it was set or revived, including this claim: 1 at the first
    /// delivery. Always 1 in a dictionary shared with the [original](super::TimeoutDict::compat), in which failures are
    /// not counted.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// let mail = mails.next_claim(Duration::from_secs(60)).await?;
    /// if mail.attempts() > 1 {
    ///     println!("attempt {} to send a mail to {}", mail.attempts(), mail.key());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempts(&self) -> u32 {
        self.delivery.attempts
    }

    /// Removes the entry, because you have processed it; returns false if the claim is void. For each value that was
    /// set, at most one call of `ack` returns `true`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// # let send = async |_: &str| Ok::<_, fleeting::redis::Error>(());
    /// let mail = mails.next_claim(Duration::from_secs(60)).await?;
    /// send(mail.value()).await?; // after an error, the mail is delivered again
    /// mail.ack().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`], the entry may or may not have been removed. If not, and after any other error, it
    /// is due again when the lease expires.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, the claim is dropped with it and fails. If it is dropped later,
    /// the server may still execute the ack; if it does not, the entry is due again when the lease expires.
    pub async fn ack(mut self) -> Result<bool, Error> {
        let Some((lease_end, _)) = self.end().await else { return Ok(false) };
        let TakenEntry { state, key, .. } = &self.delivery;
        let call = state.key_call(key, |scripts| &scripts.ack).arg(lease_end);
        let is_acked = state.send_once(key, call).await?;
        if is_acked {
            state.counters.acked();
        }
        Ok(is_acked)
    }

    /// Returns the entry to the dictionary, due in `delay`; returns false if the claim is void.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(mails: TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// # let is_mailbox_full = async |_: &str| true;
    /// let mail = mails.next_claim(Duration::from_secs(60)).await?;
    /// if is_mailbox_full(mail.key()).await {
    ///     mail.retry_in(Duration::from_secs(3_600)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// This counts as a failed attempt: after the last allowed attempt, the entry becomes a dead letter, regardless of
    /// `delay`. If the delay ends after the year 2255, the entry is never due again.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After any error, the entry is due again in `delay`, or when the lease expires.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, the claim is dropped with it and fails. If it is dropped later,
    /// the server may still execute the call; if it does not, the entry is due again when the lease expires.
    pub async fn retry_in(self, delay: Duration) -> Result<bool, Error> {
        self.end_failed(Some(delay), None).await
    }

    /// Returns the entry to the dictionary as a failed attempt with a reason, due again after its backoff; returns
    /// false if the claim is void, or if its lease has expired: the attempt then has failed already, without a reason,
    /// and the entry is due (or a dead letter) without a backoff.
    ///
    /// ```no_run
    /// # async fn send(_: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn f(mails: fleeting::redis::TimeoutDict<String, String>) -> Result<(), fleeting::redis::Error> {
    /// use std::time::Duration;
    ///
    /// let mail = mails.next_claim(Duration::from_secs(60)).await?;
    /// match send(mail.value()).await {
    ///     Ok(()) => mail.ack().await?,
    ///     Err(error) => mail.fail(error.to_string()).await?,
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// Differs from a drop of the claim in that the call waits for the server, and in the reason, which
    /// [`dead_letters`](super::TimeoutDict::dead_letters) returns if the entry becomes a dead letter. It replaces the
    /// reason of an earlier attempt. A reason longer than 1,024 bytes is cut at a character boundary. A dictionary
    /// shared with the [original](super::TimeoutDict::compat) stores no reasons.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After any error, the entry is due again after its backoff, or when the lease expires.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`retry_in`](Self::retry_in): if the future is dropped, the reason may not be recorded.
    pub async fn fail(self, reason: impl Into<String>) -> Result<bool, Error> {
        let reason = cut_reason(reason.into());
        self.end_failed(None, Some(reason)).await
    }

    /// Is [`fail`](Claim::fail) with the reason "nack". rustc would otherwise offer `ack`, which does the opposite.
    ///
    /// # Errors
    ///
    /// As for [`fail`](Claim::fail).
    #[deprecated(note = "use `fail`, or `release` if the entry should be available again at once")]
    #[doc(hidden)]
    pub async fn nack(self) -> Result<bool, Error> {
        self.fail("nack").await
    }

    /// Returns the entry to the dictionary as if it had not been delivered: it is due immediately, with its original
    /// deadline, and this does not count as a failed attempt; returns false if the claim is void.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(jobs: TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// # let is_shutting_down = || true;
    /// let job = jobs.next_claim(Duration::from_secs(60)).await?;
    /// if is_shutting_down() {
    ///     job.release().await?; // another worker gets it now
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// When your worker shuts down, release the claims that it has not begun, so that a restart does not use up
    /// [attempts](super::TimeoutDictBuilder::max_attempts). After the end of the lease, you can still
    /// release a claim that is not void, even if its entry is a dead letter by then.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`], the entry may or may not have been released. If not, and after any other error, the
    /// entry is due again when the lease expires, which counts as a failed attempt.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`retry_in`](Self::retry_in).
    pub async fn release(mut self) -> Result<bool, Error> {
        let Some((lease_end, score)) = self.end().await else { return Ok(false) };
        let TakenEntry { state, key, .. } = &self.delivery;
        state.give_back(key, lease_end, &score).await
    }

    /// Sets the end of the lease to `lease` from now, earlier or later than before; returns false if the claim is void.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::TimeoutDict;
    /// # async fn f(jobs: TimeoutDict<String, Vec<u32>>) -> Result<(), fleeting::redis::Error> {
    /// let minute = Duration::from_secs(60);
    /// let job = jobs.next_claim(minute).await?;
    /// for part in job.value() {
    ///     println!("part {part}");
    ///     if !job.extend(minute).await? {
    ///         return Ok(()); // it took too long: another worker has the job now
    ///     }
    /// }
    /// job.ack().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`], the lease may or may not have been extended. If it was, this claim is void, and the
    /// entry is due again when the extended lease expires. After any other error, the lease is unchanged.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a task completes the call. The next method of the claim waits for it.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let OnDrop::Fail { lease_end, .. } = &self.delivery.on_drop else { return Ok(false) };
        let (state, key) = (self.delivery.state.clone(), self.delivery.key.clone());
        // Locked until the server has replied, because all other methods need the new end of the lease.
        let mut lease_end = lease_end.clone().lock_owned().await;
        run_to_end(async move {
            let call = state.key_call(&key, |scripts| &scripts.extend).arg(*lease_end);
            let call = call.arg(lease_micros(lease));
            match state.send_change::<Option<i64>>(&key, call).await? {
                Some(end) => *lease_end = end,
                None => return Ok(false),
            }
            Ok(true)
        })
        .await
    }

    /// Ends the claim as a failed attempt.
    async fn end_failed(
        mut self,
        delay: Option<Duration>,
        reason: Option<Box<str>>,
    ) -> Result<bool, Error> {
        let Some((lease_end, _)) = self.end().await else { return Ok(false) };
        let TakenEntry { state, key, attempts, .. } = &self.delivery;
        state.fail(key, lease_end, Failure { attempt: *attempts, delay, reason }).await
    }

    /// Returns the end of the lease and the former score of the entry. After that, the drop of the claim does nothing.
    ///
    /// Before the request: the server may execute it even if the reply is lost, so the claim must not fail as well.
    async fn end(&mut self) -> Option<(i64, Vec<u8>)> {
        let OnDrop::Fail { lease_end, score, .. } = mem::take(&mut self.delivery.on_drop) else {
            return None;
        };
        let lease_end = *lease_end.lock().await;
        Some((lease_end, score))
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
