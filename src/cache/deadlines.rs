//! The verbs on the TTL that a value has, and the one that reads it and gives it another.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;
use tokio::time::Instant;

use super::Cache;
use crate::engine::{
    clock::{CallTime, Deadline},
    coop,
    event::Cause,
    ttl::{Ttl, When},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// A clone of the live value of `key`, which may live for `ttl` from now: sliding expiry
    /// (Redis: `GETEX`). A `ttl` that overflows makes it persistent.
    #[doc(alias = "GETEX")]
    #[inline]
    pub async fn get_ex<Q>(&self, key: &Q, ttl: Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.get_ex_with(key, |_| ttl).await
    }

    /// As [`get_ex`](Cache::get_ex), where each value knows its own TTL. `ttl` runs while the shard of
    /// `key` is locked, as the closure of [`update`](Cache::update) does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// let idle = Duration::from_secs(60);
    /// sessions.set_ex("ada", ("data", idle), idle).await;
    /// tokio::time::advance(Duration::from_secs(59)).await;
    /// assert!(sessions.get_ex_with("ada", |(_, idle)| *idle).await.is_some());
    /// assert_eq!(sessions.ttl("ada").await.as_secs(), 60);
    /// # }
    /// ```
    pub async fn get_ex_with<Q>(&self, key: &Q, ttl: impl FnOnce(&V) -> Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let call = self.call();
        let now = call.begin();
        let value = self.shared.store.get_ex(key, &call, |value| now.after(ttl(value)));
        self.end(&call);
        value
    }

    /// How long the value of `key` has still to live (Redis: `TTL`, `PTTL`).
    #[doc(alias = "TTL")]
    #[doc(alias = "PTTL")]
    pub async fn ttl<Q>(&self, key: &Q) -> Ttl
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let now = self.shared.clock.now();
        let deadline = self.shared.store.deadline(key, &now);
        self.shared.publisher.flush();
        match deadline {
            None => Ttl::Missing,
            Some(deadline) => deadline.remaining(now).map_or(Ttl::Persistent, Ttl::Remaining),
        }
    }

    /// Lets the value of `key` live for `ttl` from now; false where no live value is
    /// (Redis: `EXPIRE`). What is dead stays dead. A `ttl` of zero is dead at once, one that overflows
    /// persistent.
    #[doc(alias = "EXPIRE")]
    #[doc(alias = "PEXPIRE")]
    pub async fn expire<Q>(&self, key: &Q, ttl: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let call = self.call();
        let deadline = call.begin().after(ttl);
        self.change(key, &call, |_| Some(deadline))
    }

    /// Lets the value of `key` live for `ttl` from now where `when` holds; tells whether it did
    /// (Redis: `EXPIRE NX|XX|GT|LT`).
    pub async fn expire_if<Q>(&self, key: &Q, ttl: Duration, when: When) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let call = self.call();
        let new = call.begin().after(ttl);
        self.change(key, &call, |old| {
            let holds = match when {
                When::NoTtl => old.is_persistent(),
                When::HasTtl => !old.is_persistent(),
                When::Later => new.is_later_than(old),
                When::Sooner => old.is_later_than(new),
            };
            holds.then_some(new)
        })
    }

    /// Lets the value of `key` live until `deadline`, dead at once where that is past; false where no
    /// live value is (Redis: `EXPIREAT`).
    #[doc(alias = "EXPIREAT")]
    #[doc(alias = "PEXPIREAT")]
    pub async fn expire_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let deadline = self.shared.clock.deadline_of(deadline);
        self.change(key, &self.call(), |_| Some(deadline))
    }

    /// Puts `value` at `key` to live until `deadline`: with a TTL it would live longer by what passes until it is put.
    #[cfg(feature = "redis")]
    pub(crate) async fn set_until(&self, key: K, value: V, deadline: Instant) -> Option<V> {
        coop::proceed().await;
        let until = self.shared.clock.deadline_of(deadline);
        self.put(key, value, &self.call(), |_| until)
    }

    /// Adds `more` to the TTL that the value of `key` has; false where it is missing or persistent.
    pub async fn extend<Q>(&self, key: &Q, more: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, &self.call(), |deadline| {
            (!deadline.is_persistent()).then(|| deadline.extended(more))
        })
    }

    /// Takes the deadline of the value of `key` away; true where it had one (Redis: `PERSIST`).
    #[doc(alias = "PERSIST")]
    pub async fn persist<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, &self.call(), |deadline| {
            (!deadline.is_persistent()).then_some(Deadline::PERSISTENT)
        })
    }

    /// Ends the life of the value of `key` now, with an [`Expired`](Cause::Expired) event whose deadline
    /// is now; returns the value (TimedDict: `expire_key`).
    pub async fn expire_now<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.take(key, Cause::Expired)
    }

    /// Gives the live value of `key` the deadline that `change` says, if it says one; tells whether it has.
    fn change<Q>(
        &self,
        key: &Q,
        call: &CallTime<'_>,
        change: impl FnOnce(Deadline) -> Option<Deadline>,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let changed = self.shared.store.update(key, call, |_, deadline| {
            let deadline = change(deadline);
            (deadline.is_some(), deadline)
        });
        self.end(call);
        changed == Some(true)
    }
}
