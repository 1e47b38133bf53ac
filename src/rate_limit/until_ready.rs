//! The wait until a call passes. Only who is at the head of a key's queue asks and sleeps; the others wait for its
//! place.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{Limited, Permit, algorithm::Algorithm, limiter::Limiter};
use crate::engine::{clock::Deadline, coop};

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) async fn until_ready<Q>(
        &self,
        key: &Q,
        max_wait: Option<Duration>,
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        coop::proceed().await;
        let clock = &self.shared.clock;
        let end = max_wait.map_or(Deadline::PERSISTENT, |wait| clock.now().after(wait));
        let waiter = self.waiting.join(key.to_owned());
        // Declared after the waiter and so dropped before it, as the place in the queue goes with the last who waits.
        let Some(_turn) = clock.timeout_at(end, waiter.queue.lock()).await else {
            // Never at the head, so nothing was asked yet.
            return Err(self.limited(key));
        };
        loop {
            // Again after each sleep, as a check that did not wait may have come first.
            let limited = match self.decide(key, None, 1) {
                Ok(permit) => return Ok(permit),
                Err(limited) => limited,
            };
            match limited.ready_at().map(|ready| clock.deadline_of(ready)) {
                Some(ready) if !ready.is_later_than(end) => clock.sleep_until(ready).await,
                _ => return Err(limited),
            }
        }
    }
}
