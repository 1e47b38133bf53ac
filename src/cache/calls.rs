//! Steps that most methods of a cache share: its time, its writes and removals, and the flush of the journal.

use std::{
    hash::{BuildHasher, Hash},
    mem::needs_drop,
    time::Duration,
};

use equivalent::Equivalent;

use super::SyncCache;
use crate::engine::{
    clock::{CallTime, Deadline, Now, SHORT},
    coop,
    event::Cause,
};

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Sets the value of `key` and returns the live value it replaced. `deadline` maps the deadline of the replaced
    /// live value to that of the new one.
    #[inline]
    pub(super) fn put(
        &self,
        key: K,
        value: V,
        call: &CallTime<'_>,
        deadline: impl FnOnce(Option<Deadline>) -> Deadline,
    ) -> Option<V> {
        let _flush = self.shared.publisher.flush_on_panic();
        // Before the write, which takes the key.
        let failure = self.failure_hash(&key);
        let replaced = self.shared.store.set(key, value, call, deadline);
        self.discard_failure(failure);
        self.finish_call(call);
        replaced
    }

    /// Returns the deadline of a value that is written now, with `ttl` or the default TTL.
    #[inline]
    pub(super) fn deadline_for(&self, ttl: Option<Duration>, call: &CallTime<'_>) -> Deadline {
        let Some(ttl) = ttl.or(self.freshness_policy.settings.time_to_live) else {
            return Deadline::PERSISTENT;
        };
        // The precise clock is fenced: the cache misses of this call could not overlap those of the code before it.
        let begin = if ttl < SHORT { call.begin() } else { call.at_least() };
        begin.after(self.freshness_policy.with_jitter(ttl))
    }

    /// Returns the hash by which failed loads of `key` are found; `None` if this cache keeps none.
    #[inline]
    pub(super) fn failure_hash<Q>(&self, key: &Q) -> Option<u64>
    where
        Q: Hash + ?Sized,
    {
        let keeps_failed_loads = self.shared.failed_loads.is_some();
        keeps_failed_loads.then(|| self.shared.store.locate(key).hash())
    }

    /// Discards the failed load of a key that was written or removed. Call this after the write: an error recorded
    /// while the write runs is older than the new value and must be discarded too.
    #[inline]
    pub(super) fn discard_failure(&self, hash: Option<u64>) {
        if let (Some(failed_loads), Some(hash)) = (&self.shared.failed_loads, hash) {
            failed_loads.discard(hash);
        }
    }

    /// Removes the live value of `key` with this cause, and returns it.
    pub(super) fn remove_as<Q>(&self, key: &Q, cause: Cause) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let call = self.call();
        let value = self.shared.store.remove(key, &call, cause);
        self.discard_failure(self.failure_hash(key));
        self.finish_call(&call);
        value
    }

    /// True if cloning a value may be slow. A value without drop glue is copied, and a clone of one word with drop glue
    /// is taken for a reference count.
    pub(super) const MAY_CLONE_LONG: bool =
        needs_drop::<V>() && size_of::<V>() > size_of::<usize>();

    /// Returns the time of a call that may clone a value. Its duration is watched only if the clone may be slow.
    #[inline(always)]
    pub(super) fn call(&self) -> CallTime<'_> {
        self.shared.clock.call(Self::MAY_CLONE_LONG)
    }

    /// Ends a call that may have changed something: publishes its events, and charges a long call to the cooperative
    /// budget. Call this after the shard is unlocked: publishing may wake subscribers.
    #[inline]
    pub(super) fn finish_call(&self, call: &CallTime<'_>) {
        self.shared.publisher.flush();
        coop::charge(call);
    }
}
