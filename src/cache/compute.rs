//! Read-modify-write operations, and what each result of a closure changes: [`Cache::update`], [`Cache::compute`] and
//! [`Cache::compute_with`].

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use super::{Cache, SyncCache, reentrancy::ReentrancyScope};
use crate::engine::{
    clock::{CallTime, Deadline, Now},
    coop,
    store::{KeyTurn, Location, Store, WriteDecision},
    to_key::ToKey,
};

/// Change of an entry, which you return from the closure of [`Cache::compute`] or [`Cache::compute_with`].
///
/// ```
/// # use fleeting::{Cache, Op};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let stock = Cache::new();
/// stock.set("book".to_owned(), 1).await;
///
/// // The last one is sold.
/// let sell = |left: Option<&u32>| match left {
///     Some(1) => Op::Remove,
///     Some(left) => Op::Set(left - 1),
///     None => Op::Keep,
/// };
/// stock.compute("book", sell).await;
/// assert_eq!(stock.get("book").await, None);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op<V> {
    /// Leaves the entry as it is.
    Keep,
    /// Sets the value with the default TTL, as [`Cache::set`] does.
    Set(V),
    /// Sets the value with this TTL, as [`Cache::set_ex`] does.
    SetEx(V, Duration),
    /// Sets the value and keeps the TTL, as [`Cache::set_keep_ttl`] does: without a live value the default TTL applies.
    SetKeepTtl(V),
    /// Removes the entry, as [`Cache::remove`] does.
    Remove,
}

/// Place in the queue of the `compute_with` calls of one key; dropping it leaves the queue.
struct TurnGuard<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    location: Location,
    turn: Arc<KeyTurn>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Modifies the live value of `key` in place, and returns the result of `change`, or `None` if there is no live
    /// value.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let visits = Cache::new();
    /// visits.set("home", 1).await;
    /// let after = visits.update("home", |n| { *n += 1; *n }).await;
    /// assert_eq!(after, Some(2));
    /// # }
    /// ```
    ///
    /// The update is atomic and keeps the TTL and the tags. It does not count as a replacement, so the update itself
    /// publishes no event. In a cache with a weigher, the new weight counts immediately; an entry that has become
    /// heavier than the whole bound is removed with cause [`Cause::Evicted`](crate::Cause::Evicted).
    ///
    /// `change` runs while the shard of `key` is locked, and values that it overwrites are dropped under that lock. It
    /// must be short and must not call the cache, because the call may deadlock. If it panics, the value stays as
    /// `change` left it, with its new weight. If the weigher panics, the entry is removed as
    /// [`Cause::Evicted`](crate::Cause::Evicted).
    pub async fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let changed = self.inner.update_now(key, change);
        self.inner.finish(changed).await
    }

    /// Changes the entry of `key` atomically as `change` decides, and returns the live value afterwards.
    ///
    /// ```
    /// use fleeting::{Cache, Op};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let visits: Cache<String, u32> = Cache::new();
    /// let count = |n: Option<&u32>| Op::Set(n.map_or(1, |n| n + 1));
    /// assert_eq!(visits.compute("home", count).await, Some(1));
    /// assert_eq!(visits.compute("home", count).await, Some(2));
    /// assert_eq!(visits.compute("home", |_| Op::Remove).await, None);
    /// # }
    /// ```
    ///
    /// `change` receives the live value, if there is one. The result is `None` if no live value remains: after
    /// [`Op::Remove`], after an [`Op::Keep`] without a live value, or if the new value expires immediately or is
    /// heavier than the whole bound.
    ///
    /// `change` runs while the shard of `key` is locked. It must be short and must not call the cache, because the call
    /// may deadlock. If it panics, nothing is changed. In a cache with a weigher, the new value is weighed under the
    /// same lock.
    #[doc(alias = "and_upsert_with")]
    #[doc(alias = "entry")]
    #[doc(alias = "or_insert")]
    #[doc(alias = "cas")]
    pub async fn compute<Q>(&self, key: &Q, change: impl FnOnce(Option<&V>) -> Op<V>) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::proceed().await;
        let value = self.inner.compute_now(key, change);
        self.inner.finish(value).await
    }

    /// Changes the entry of `key` as an async closure decides, and returns the live value afterwards.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Op};
    ///
    /// # async fn renewed(token: Option<String>) -> String { format!("{}+", token.unwrap_or_default()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let tokens: Cache<u64, String> = Cache::new();
    /// let renew = async |token| Op::SetEx(renewed(token).await, Duration::from_secs(60));
    /// assert_eq!(tokens.compute_with(&7, renew).await.as_deref(), Some("+"));
    /// assert_eq!(tokens.compute_with(&7, renew).await.as_deref(), Some("++"));
    /// # }
    /// ```
    ///
    /// Calls for the same key run one at a time, in the order in which their futures were first polled. No lock is held
    /// while `change` runs. Other methods do not wait for it: if they write to the key in the meantime, `change` does
    /// not see the new value and overwrites it.
    ///
    /// A `change` that calls `compute_with` for its own key in the same task does not deadlock: the inner call runs
    /// immediately. It does deadlock if it waits for another task that calls `compute_with` for that key.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the call is cancelled, it has changed nothing and loses its place in the queue. The exception is
    /// a call that is cancelled while it evicts very many entries: see [`Cache`](Cache#cancel-safety).
    #[doc(alias = "and_compute_with")]
    #[doc(alias = "and_try_compute_with")]
    pub async fn compute_with<Q, F, Fut>(&self, key: &Q, change: F) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
        F: FnOnce(Option<V>) -> Fut,
        Fut: Future<Output = Op<V>>,
    {
        coop::proceed().await;
        let store = &self.inner.shared.store;
        let location = store.locate(key);
        let turn = store.take_turn(location, key, || key.to_key());
        let guard = TurnGuard { store, location, turn };
        // A nested call for the same key runs within the turn of the outer one, for which it would wait forever.
        let turn_lock = match ReentrancyScope::is(&guard.turn) {
            true => None,
            false => Some(guard.turn.lock().await),
        };
        // The closure is called inside, so that a nested call in its synchronous part is detected too. A call that is
        // dropped here has changed nothing, and the next turn begins.
        let op = {
            let change = pin!(async move { change(self.inner.peek(key)).await });
            ReentrancyScope::run(&guard.turn, change).await
        };
        if let Op::Keep = op {
            return self.inner.peek(key);
        }
        let value = self.inner.apply(key, op);
        // Here, because evictions may follow, for which other calls must not wait.
        drop(turn_lock);
        drop(guard);
        self.inner.finish(value).await
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Changes the live value of `key` in place, as [`Cache::update`] does.
    pub fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::count();
        self.evict_deferred(self.update_now(key, change))
    }

    /// Changes the entry of `key` atomically as `change` decides, as [`Cache::compute`] does.
    pub fn compute<Q>(&self, key: &Q, change: impl FnOnce(Option<&V>) -> Op<V>) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::count();
        self.evict_deferred(self.compute_now(key, change))
    }

    /// Does the work of [`update`](Cache::update), except for deferred evictions.
    fn update_now<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        // Tracked for values of any type, because `change` is user code and may be slow.
        let call = self.shared.clock.call(true);
        let change = || self.shared.store.change(key, &call, change);
        let changed = catch_unwind(AssertUnwindSafe(change));
        // A change that panics counts as a write as well.
        if !matches!(changed, Ok(None)) {
            self.discard_failure(self.failure_hash(key));
        }
        self.finish_call(&call);
        changed.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Does the work of [`compute`](Cache::compute), except for deferred evictions.
    fn compute_now<Q>(&self, key: &Q, change: impl FnOnce(Option<&V>) -> Op<V>) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        let _flush = self.shared.publisher.flush_on_panic();
        let call = self.call();
        let default_deadline = self.deadline_for(None, &call);
        let (mut result, mut is_unchanged) = (None, false);
        let decide = |live: Option<(&V, Deadline)>, new_value: &mut Option<V>| {
            let op = change(live.map(|(value, _)| value));
            let current_deadline = live.map(|(_, deadline)| deadline);
            let decision = self.decision(op, current_deadline, default_deadline, &call, new_value);
            match decision {
                WriteDecision::Put(deadline) => {
                    result = new_value.clone().map(|value| (value, deadline));
                }
                WriteDecision::Leave => {
                    is_unchanged = true;
                    result = live.map(|(value, deadline)| (value.clone(), deadline));
                }
                WriteDecision::Remove => {}
            }
            decision
        };
        let mut new = self.shared.store.new_entry(key.to_key());
        let written = self.shared.store.decide(&mut new, &call, decide);
        // Nothing was written to an unchanged entry, so the failure of its last load still counts.
        if !is_unchanged {
            self.discard_failure(self.failure_hash(key));
        }
        self.finish_call(&call);
        let (value, deadline) = result.filter(|_| !written.was_discarded())?;
        // With a TTL of zero, the value that was just set has expired.
        (!call.is_expired(deadline)).then_some(value)
    }

    /// Applies a change. Unlike [`compute`](Cache::compute), `clone` and the weigher run before the lock. Only the user
    /// code that has to run under the lock does.
    fn apply<Q>(&self, key: &Q, op: Op<V>) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        let _flush = self.shared.publisher.flush_on_panic();
        let store = &self.shared.store;
        let call = self.call();
        let default_deadline = self.deadline_for(None, &call);
        let (mut result, mut deadline) = (None, Deadline::PERSISTENT);
        let mut new = store.new_entry(key.to_key());
        if let Op::Set(value) | Op::SetEx(value, _) | Op::SetKeepTtl(value) = &op {
            result = Some(value.clone());
            store.weigh_new(&mut new, value);
        }
        let decide = |live: Option<(&V, Deadline)>, new_value: &mut Option<V>| {
            let current_deadline = live.map(|(_, deadline)| deadline);
            let decision = self.decision(op, current_deadline, default_deadline, &call, new_value);
            if let WriteDecision::Put(new_deadline) = decision {
                deadline = new_deadline;
            }
            decision
        };
        let written = store.decide(&mut new, &call, decide);
        self.discard_failure(self.failure_hash(key));
        self.finish_call(&call);
        result.filter(|_| !written.was_discarded() && !call.is_expired(deadline))
    }

    /// Converts `op` to a decision of the store, and moves its value to `new_value`. `current_deadline` is that of the
    /// live value, if there is one.
    fn decision(
        &self,
        op: Op<V>,
        current_deadline: Option<Deadline>,
        default_deadline: Deadline,
        call: &CallTime<'_>,
        new_value: &mut Option<V>,
    ) -> WriteDecision {
        let (value, deadline) = match op {
            Op::Keep => return WriteDecision::Leave,
            Op::Remove => return WriteDecision::Remove,
            Op::Set(value) => (value, default_deadline),
            Op::SetEx(value, ttl) => (value, self.deadline_for(Some(ttl), call)),
            Op::SetKeepTtl(value) => (value, current_deadline.unwrap_or(default_deadline)),
        };
        *new_value = Some(value);
        WriteDecision::Put(deadline)
    }

    /// Returns a clone of the live value. It does not count as a read in `Stats`, for eviction or for the idle
    /// deadline.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let value = self.shared.store.peek(key, &self.shared.clock);
        self.shared.publisher.flush();
        value
    }
}

impl<K, V, S> Drop for TurnGuard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    fn drop(&mut self) {
        self.store.leave_turn(self.location, &self.turn);
    }
}
