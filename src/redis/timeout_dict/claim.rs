//! An entry that is lent, until it is acked, dropped, or its lease is over.
//!
//! A claim is the end of its lease, as the entry's score on the server: each verb is a script that does nothing
//! where the score is another. A dropped claim has failed: its [`Delivery`] says so, when it is dropped with it.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    delivery::{Delivery, OnDrop, run_to_end},
    state::lease_micros,
};
use crate::redis::Error;

/// An entry that is due, lent until the end of a lease. Made by
/// [`TimeoutDict::claim_expired`](super::TimeoutDict::claim_expired) and
/// [`next_claim`](super::TimeoutDict::next_claim).
///
/// The entry itself stays in the dictionary, readable, until the claim is [acked](Claim::ack). A claim that is
/// dropped without it, because of an error, a panic or the end of its task, has failed: the entry is due again after
/// a [backoff](super::TimeoutDictBuilder::backoff), which doubles with each failure, or when
/// [`retry_in`](Claim::retry_in) says. A task of the runtime on which it was claimed tells the server, since nobody
/// waits for the answer. Where that fails, where the claim is leaked, or its process is killed, the entry comes again
/// when the lease is over, at once. After so many failures as there may be
/// ([`max_attempts`](super::TimeoutDictBuilder::max_attempts)), it is dead.
///
/// A claim is void once its entry was given to another, after the end of the lease, or was set, removed,
/// cleared, or given another deadline or none. Whatever is done with a void claim changes nothing. The end of
/// the lease alone does not make it void: as long as nobody else got the entry, it can be acked and extended.
pub struct Claim<K, V> {
    key: K,
    value: V,
    /// Dropped with the claim, it tells of the failure by a task: [`OnDrop::Fail`]. What ends the claim otherwise
    /// disarms it.
    delivery: Delivery,
}

impl<K, V> Claim<K, V> {
    pub(super) fn new(key: K, value: V, mut delivery: Delivery) -> Self {
        // It stays on the server meanwhile, so nothing is to be sent back of it.
        delivery.value = ::redis::Value::Nil;
        if let Some(lease_end) = delivery.lease_end() {
            delivery.on_drop = OnDrop::Fail { lease_end: Arc::new(Mutex::new(lease_end)) };
        }
        Self { key, value, delivery }
    }

    /// The key of the entry.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The value, as it was when the entry was claimed.
    pub fn value(&self) -> &V {
        &self.value
    }

    /// How often the entry was lent since it was set or revived, with this claim: 1 at the first. Always 1 where it is
    /// shared with the [original](super::TimeoutDict::compat), which counts nothing.
    pub fn attempts(&self) -> u32 {
        self.delivery.attempts
    }

    /// Takes the entry out, as it is done with; false where the claim is void. Of all claims that were ever
    /// made on an entry, one at most is acked with true.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`] it is out or not; where it is not, it comes again when the lease is over.
    /// After any other it comes again then.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it was polled drops the claim, which fails. One that is
    /// dropped later may still be carried out; where it is not, the entry comes again when the lease is over.
    pub async fn ack(mut self) -> Result<bool, Error> {
        // From here on it has not failed, whatever happens: it may be acked already.
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

    /// Gives the entry back, so that it comes again in `delay`; false where the claim is void. It counts as a failure:
    /// the last that there may be leaves the entry dead, whatever `delay`. One that ends after the year 2255 is never
    /// over.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After any error it comes again in `delay`, or when the lease is over.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it was polled drops the claim, which fails. One that is dropped later may still be
    /// carried out; where it is not, the entry comes again when the lease is over.
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

    /// Lets the lease be over in `lease` from now, sooner or later than it was; false where the claim is
    /// void.
    ///
    /// One round trip, one script.
    ///
    /// # Errors
    ///
    /// After [`Error::Unanswered`] the lease is extended or not; where it is, this claim is void, and the entry
    /// comes again when that lease is over. After any other the lease is what it was.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped is carried out all the same, by a task; what is done with the claim next waits
    /// for it.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let OnDrop::Fail { lease_end } = &self.delivery.on_drop else { return Ok(false) };
        let (state, key) = (self.delivery.state.clone(), self.delivery.key.clone());
        // Held until the server has answered: what else is done with the claim needs the new number.
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
