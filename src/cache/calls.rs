//! What calls of a cache have in common: the time they are made at, what they change, and what they end with.

use std::{
    hash::{BuildHasher, Hash},
    mem::needs_drop,
    time::Duration,
};

use equivalent::Equivalent;

use super::Cache;
use crate::engine::{
    clock::{CallTime, Deadline},
    coop,
    event::Cause,
    store::Location,
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    #[inline]
    pub(super) fn put(
        &self,
        key: K,
        value: V,
        call: &CallTime<'_>,
        deadline: impl FnOnce(Option<Deadline>) -> Deadline,
    ) -> Option<V> {
        let failure = self.failure_at(&key);
        let replaced = self.shared.store.set(key, value, call, deadline);
        self.forget_failure(failure);
        self.end(call);
        replaced
    }

    /// Until when a value lives that is written now, with this TTL or the default one.
    #[inline]
    pub(super) fn until(&self, ttl: Option<Duration>, call: &CallTime<'_>) -> Deadline {
        match ttl.or(self.freshness_policy.settings.time_to_live) {
            Some(ttl) => call.begin().after(self.freshness_policy.shortened(ttl)),
            None => Deadline::PERSISTENT,
        }
    }

    /// Where it is kept how the loads of a key failed, if they did.
    #[inline]
    pub(super) fn failure_at<Q>(&self, key: &Q) -> Option<Location>
    where
        Q: Hash + ?Sized,
    {
        self.freshness_policy.failures.as_ref().map(|failures| failures.place(key))
    }

    /// Who writes to a key, or removes it, wants no error of before. After the write: one that comes in the middle of it
    /// is of before.
    #[inline]
    pub(super) fn forget_failure(&self, at: Option<Location>) {
        if let (Some(failures), Some(at)) = (&self.freshness_policy.failures, at) {
            failures.forget(at);
        }
    }

    pub(super) fn take<Q>(&self, key: &Q, cause: Cause) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let call = self.call();
        let value = self.shared.store.remove(key, &call, cause);
        self.forget_failure(self.failure_at(key));
        self.end(&call);
        value
    }

    /// The time of a call that may clone a value. A copy is short, and so is a clone of what is one word and is dropped:
    /// it counts somebody more who has it.
    #[inline(always)]
    pub(super) fn call(&self) -> CallTime<'_> {
        self.shared.clock.call(needs_drop::<V>() && size_of::<V>() > size_of::<usize>())
    }

    /// What every call that changes something ends with.
    #[inline]
    pub(super) fn end(&self, call: &CallTime<'_>) {
        self.shared.publisher.flush();
        coop::charge(call);
    }
}
