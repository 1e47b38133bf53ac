//! Claim on a leased entry, which ends when it is acked or dropped, or when the lease expires.
//!
//! A claim is identified by the end of its lease, which is the score of the entry on the server. Each method is a
//! script that does nothing if the score is different. A dropped claim has failed: its [`Delivery`] is dropped with it
//! and reports the failure to the server.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    delivery::{Delivery, OnDrop, run_to_end},
    state::lease_micros,
};
use crate::redis::Error;

/// A due entry that is leased to the caller. Returned by
/// [`TimeoutDict::claim_expired`](super::TimeoutDict::claim_expired) and
/// [`next_claim`](super::TimeoutDict::next_claim).
///
/// The entry stays in the dictionary, readable, until the claim is [acked](Claim::ack). An attempt has failed if the
/// claim is dropped without an ack, for example because of an error or a panic, if [`retry_in`](Claim::retry_in) is
/// called, or if the lease expires. After a drop, the entry is due again after a
/// [backoff](super::TimeoutDictBuilder::backoff), which doubles with each failure; after `retry_in`, it is due after
/// the given delay. A task on the runtime of the claim reports the drop to the server, because `Drop` cannot wait. If
/// that fails, if the claim is leaked, or if its process crashes, the entry is due again without a backoff when the
/// lease expires. After [`max_attempts`](super::TimeoutDictBuilder::max_attempts) failures, it is a dead letter.
///
/// A claim becomes void when its entry is leased to another caller after the end of the lease, when the entry is set,
/// removed or cleared, and when its deadline is set or removed. Methods of a void claim change nothing. The end of the
/// lease alone does not make a claim void: until another caller gets the entry, it can be acked and extended.
pub struct Claim<K, V> {
    key: K,
    value: V,
    /// Reports the failure in a task when it is dropped with the claim: [`OnDrop::Fail`]. Disarmed by all other ends of
    /// the claim.
    delivery: Delivery,
}

impl<K, V> Claim<K, V> {
    pub(super) fn new(key: K, value: V, mut delivery: Delivery) -> Self {
        // The entry is still on the server, so the value is not needed to return it.
        delivery.value = ::redis::Value::Nil;
        if let Some(lease_end) = delivery.lease_end() {
            delivery.on_drop = OnDrop::Fail { lease_end: Arc::new(Mutex::new(lease_end)) };
        }
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
    pub fn attempts(&self) -> u32 {
        self.delivery.attempts
    }

    /// Removes the entry, because it was processed; returns false if the claim is void. For each value that was set, at
    /// most one call of `ack` returns `true`.
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
        // Disarmed before the request: the entry may be acked even if the reply is lost, so it must not fail.
        let OnDrop::Fail { lease_end } = mem::take(&mut self.delivery.on_drop) else {
            return Ok(false);
        };
        let Delivery { state, key, .. } = &self.delivery;
        let lease_end = *lease_end.lock().await;
        let call = state.key_call(key, |scripts| &scripts.ack).arg(lease_end);
        match call.send_once(&state.client).await {
            Ok(is_acked) => Ok(is_acked),
            Err(error) => {
                let shard = state.layout.shard_of(key);
                Err(state.name_wrong_type(error, shard, Some(key)).await)
            }
        }
    }

    /// Returns the entry to the dictionary, due in `delay`; returns false if the claim is void.
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
    pub async fn retry_in(mut self, delay: Duration) -> Result<bool, Error> {
        let OnDrop::Fail { lease_end } = mem::take(&mut self.delivery.on_drop) else {
            return Ok(false);
        };
        let Delivery { state, key, attempts, .. } = &self.delivery;
        let lease_end = *lease_end.lock().await;
        match state.fail(key, lease_end, Some(delay), *attempts).await {
            Ok(was_held) => Ok(was_held),
            Err(error) => {
                let shard = state.layout.shard_of(key);
                Err(state.name_wrong_type(error, shard, Some(key)).await)
            }
        }
    }

    /// Sets the end of the lease to `lease` from now, earlier or later than before; returns false if the claim is void.
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
        let OnDrop::Fail { lease_end } = &self.delivery.on_drop else { return Ok(false) };
        let (state, key) = (self.delivery.state.clone(), self.delivery.key.clone());
        // Locked until the server has replied, because all other methods need the new end of the lease.
        let mut lease_end = lease_end.clone().lock_owned().await;
        run_to_end(async move {
            let call = state.key_call(&key, |scripts| &scripts.extend).arg(*lease_end);
            let call = call.arg(lease_micros(lease));
            match call.send_once::<Option<i64>>(&state.client).await {
                Ok(Some(end)) => *lease_end = end,
                Ok(None) => return Ok(false),
                Err(error) => {
                    let shard = state.layout.shard_of(&key);
                    return Err(state.name_wrong_type(error, shard, Some(&key)).await);
                }
            }
            Ok(true)
        })
        .await
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
