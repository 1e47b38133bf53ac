use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Limited, Permit, algorithm::Algorithm, limiter::Limiter};
use crate::engine::coop;

/// So many queues are not worth giving back.
const SMALL: usize = 64;

/// The queues of those who wait for a key; only keys for which somebody waits have one.
pub(crate) struct Waiting<K, S>(Mutex<HashMap<K, Queue, S>>);

/// Whoever holds it is at the head. Tokio's lock lets in who asked first.
type Queue = Arc<tokio::sync::Mutex<()>>;

/// A place in the queue of a key.
pub(crate) struct Waiter<'a, K: Hash + Eq, S: BuildHasher> {
    waiting: &'a Waiting<K, S>,
    key: K,
    pub(crate) queue: Queue,
}

impl<K, S> Waiting<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self(Mutex::new(HashMap::with_hasher(hasher)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Queue, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> Waiting<K, S> {
    pub(crate) fn join(&self, key: K) -> Waiter<'_, K, S> {
        let queue = self.lock().entry(key.clone()).or_default().clone();
        Waiter { waiting: self, key, queue }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Drop for Waiter<'_, K, S> {
    fn drop(&mut self) {
        let mut queues = self.waiting.lock();
        // The map's and ours: nobody else waits.
        let is_last = Arc::strong_count(&self.queue) == 2;
        let last = if is_last { queues.remove_entry(&self.key) } else { None };
        if queues.capacity() > SMALL && queues.len() < queues.capacity() / 8 {
            let most = 2 * queues.len();
            queues.shrink_to(most);
        }
        drop(queues);
        drop(last);
    }
}

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
        let end = max_wait.and_then(|wait| Instant::now().checked_add(wait));
        let waiter = self.waiting.join(key.to_owned());
        let turn = waiter.queue.lock();
        let _turn = match end {
            None => turn.await,
            Some(end) => match timeout_at(end, turn).await {
                Ok(turn) => turn,
                Err(_) => return Err(self.limited(key)),
            },
        };
        loop {
            let limited = match self.decide(key, None, 1) {
                Ok(permit) => return Ok(permit),
                Err(limited) => limited,
            };
            match limited.ready_at() {
                Some(ready) if end.is_none_or(|end| ready <= end) => sleep_until(ready).await,
                _ => return Err(limited),
            }
        }
    }
}
