//! What becomes of a key, decided by its present value.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;

use super::{Cache, reentrancy::ReentrancyScope};
use crate::engine::{
    clock::{CallTime, Deadline, Now},
    coop,
    store::{Decision, Location, Store, Turn},
    to_key::ToKey,
};

/// What is to become of a key. Returned by the closure of [`Cache::compute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op<V> {
    /// All stays as it is.
    Keep,
    /// This value, with the default TTL, as [`Cache::set`] gives it.
    Set(V),
    /// This value, to live for so long.
    SetEx(V, Duration),
    /// This value, with the TTL that there is; the default one where there is no live value.
    SetKeepTtl(V),
    /// The value leaves.
    Remove,
}

/// A place in the line of those who change a value one after the other, until it is dropped.
struct TurnGuard<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    store: &'a Store<K, V, S>,
    place: Location,
    turn: Arc<Turn>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Asks `change` what is to become of `key`, and does it, atomically. Returns the live value afterwards: none of one
    /// that is dead at once, or heavier than the whole bound.
    ///
    /// `change` gets the live value, if there is one. It runs while the shard of `key` is locked: let it be short, and
    /// don't call the cache in it, as it may wait for itself for ever. Where it panics, nothing is changed. A weigher
    /// says under the same lock what a new value weighs.
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
    pub async fn compute<Q>(&self, key: &Q, change: impl FnOnce(Option<&V>) -> Op<V>) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::proceed().await;
        let call = self.call();
        let fresh = self.until(None, &call);
        let (mut after, mut keeps, mut held) = (None, false, None);
        let decide = |live: Option<(&V, Deadline)>| {
            let op = change(live.map(|(value, _)| value));
            let kept = live.map(|(_, deadline)| deadline);
            match self.decision(op, kept, fresh, &call) {
                Decision::Put(value, until) => {
                    // Out there, so that it is dropped after the lock where the clone panics.
                    after = Some((held.insert(value).clone(), until));
                    held.take().map_or(Decision::Leave, |value| Decision::Put(value, until))
                }
                Decision::Leave => {
                    keeps = true;
                    after = live.map(|(value, until)| (value.clone(), until));
                    Decision::Leave
                }
                Decision::Remove => Decision::Remove,
            }
        };
        let written = self.shared.store.decide(key.to_key(), None, None, &call, decide);
        if !keeps {
            self.forget_failure(self.failure_at(key));
        }
        self.end(&call);
        let (value, until) = after.filter(|_| !written.was_discarded())?;
        (!call.is_dead(until)).then_some(value)
    }

    /// As [`compute`](Cache::compute), with a closure that awaits. Those for one key run one at a time, in the order in
    /// which they came, and no lock is held meanwhile.
    ///
    /// Other verbs don't wait for it. What they write to the key while `change` runs, it does not see, and writes over.
    ///
    /// A `change` that calls this for its own key, in the same task, does not wait for itself: the inner one runs at
    /// once. Through another task, which it waits for, it would wait for itself for ever.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is dropped leaves its place in the line, and has changed nothing.
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
    pub async fn compute_with<Q, F, Fut>(&self, key: &Q, change: F) -> Option<V>
    where
        Q: ToKey<K> + ?Sized,
        F: FnOnce(Option<V>) -> Fut,
        Fut: Future<Output = Op<V>>,
    {
        coop::proceed().await;
        let store = &self.shared.store;
        let place = store.place(key);
        let turn = store.take_turn(place, key, || key.to_key());
        let guard = TurnGuard { store, place, turn };
        let _turn = match ReentrancyScope::is(&guard.turn) {
            true => None,
            false => Some(guard.turn.lock().await),
        };
        let value = self.peek(key);
        let op = ReentrancyScope::run(&guard.turn, async move { change(value).await }).await;
        if let Op::Keep = op {
            return self.peek(key);
        }
        // Not `compute`: nothing of the user's runs under the lock but what must.
        let call = self.call();
        let fresh = self.until(None, &call);
        let mut after = None;
        let weight = match &op {
            Op::Set(value) | Op::SetEx(value, _) | Op::SetKeepTtl(value) => {
                after = Some(value.clone());
                store.weigh(&key.to_key(), value)
            }
            Op::Keep | Op::Remove => None,
        };
        let mut until = Deadline::PERSISTENT;
        let decide = |live: Option<(&V, Deadline)>| {
            let kept = live.map(|(_, deadline)| deadline);
            let decision = self.decision(op, kept, fresh, &call);
            if let Decision::Put(_, deadline) = &decision {
                until = *deadline;
            }
            decision
        };
        let written = store.decide(key.to_key(), weight, None, &call, decide);
        self.forget_failure(self.failure_at(key));
        self.end(&call);
        after.filter(|_| !written.was_discarded() && !call.is_dead(until))
    }

    fn decision(
        &self,
        op: Op<V>,
        kept: Option<Deadline>,
        fresh: Deadline,
        call: &CallTime<'_>,
    ) -> Decision<V> {
        match op {
            Op::Keep => Decision::Leave,
            Op::Set(value) => Decision::Put(value, fresh),
            Op::SetEx(value, ttl) => Decision::Put(value, self.until(Some(ttl), call)),
            Op::SetKeepTtl(value) => Decision::Put(value, kept.unwrap_or(fresh)),
            Op::Remove => Decision::Remove,
        }
    }

    /// The live value, which is not read for that.
    fn peek<Q>(&self, key: &Q) -> Option<V>
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
        self.store.leave_turn(self.place, &self.turn);
    }
}
