//! One load for many keys, and what keys get that it did not return: [`Cache::get_many_or_set_with`].

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    hash::{BuildHasher, Hash},
    mem,
    ops::ControlFlow,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use super::{
    join::{LoadCall, LoadGuard},
    ttl::TimeToLive,
};
use crate::{
    cache::{Cache, SyncCache, reentrancy::ReentrancyScope},
    engine::{
        coop,
        store::{Flight, Lookup},
    },
};

/// Outcome of a flight whose key was not returned by the loader of many keys. Other loader methods that wait for it
/// continue with their own loaders.
struct NotReturned;

/// Slot of a key that a call loads. Without a guard if the call runs inside the flight of the key, for whose loader it
/// would otherwise wait.
type OwnLoad<K, V, S> = (usize, Option<LoadGuard<K, V, S>>);

/// State of a call: its distinct missing keys and their values, by slot.
struct BulkLoad<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    cache: &'a SyncCache<K, V, S>,
    keys: Vec<K>,
    calls: Vec<LoadCall>,
    values: Vec<Option<V>>,
    /// Slots to be looked up.
    pending: Vec<usize>,
    /// Keys that this call loads.
    own_loads: Vec<OwnLoad<K, V, S>>,
    /// Keys that other calls load.
    followed: VecDeque<(usize, LoadGuard<K, V, S>)>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the live values of `keys`, in their order, and loads the missing ones with one call of `loader`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let names: Cache<u64, String> = Cache::new();
    /// let minute = Duration::from_secs(60);
    /// names.set_ex(1, "Ada".to_owned(), minute).await;
    ///
    /// // SELECT id, name FROM users WHERE id = ANY($1)
    /// let query = async |missing: Vec<u64>| {
    ///     assert_eq!(missing, [2, 3]);
    ///     vec![(2, "Bob".to_owned())]
    /// };
    /// let found = names.get_many_or_set_with([1, 2, 3], minute, query).await;
    /// assert_eq!(found, [Some("Ada".to_owned()), Some("Bob".to_owned()), None]);
    /// # }
    /// ```
    ///
    /// `loader` is called at most once, with the distinct missing keys that no other call is loading. The call waits
    /// for other calls' loads of the remaining keys. Loaded values are stored with `ttl`, as by
    /// [`get_or_set_with`](Cache::get_or_set_with), with which this method shares single flight. A write to a key
    /// during its load takes precedence over the loaded value.
    ///
    /// A key that the loader does not return is `None` in the result and is not cached. Keys that were not requested
    /// are ignored. If another call's load of a key is cancelled or fails, the loader of this call loads that key too.
    /// If that loader has already been called, the result for the key is `None`.
    ///
    /// `loader` may borrow, because it runs only inside this call: nothing is refreshed in the background. A value
    /// within its [`stale_while_revalidate`](crate::Builder::stale_while_revalidate) window counts as missing.
    ///
    /// Hits cost as much as in [`get_many`](Cache::get_many). A missing key costs as much as in a call of
    /// [`get_or_set_with`](Cache::get_or_set_with), not counting the loader, which runs once for all of them.
    ///
    /// # Panics
    ///
    /// Panics if the loader does. The panic does not reach other callers.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: waiters continue with their own loaders. A call that is cancelled after its load may have stored
    /// some of the values.
    #[doc(alias = "get_all")]
    #[doc(alias = "getAll")]
    pub fn get_many_or_set_with<F, Fut>(
        &self,
        keys: impl IntoIterator<Item = K>,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> impl Future<Output = Vec<Option<V>>>
    where
        F: FnOnce(Vec<K>) -> Fut,
        Fut: Future<Output = Vec<(K, V)>>,
    {
        // Collected before the first await, so that the future does not hold the caller's iterator.
        let keys: Vec<K> = keys.into_iter().collect();
        async move {
            let mut values = self.get_many(&keys).await;
            let missing =
                keys.into_iter().enumerate().filter(|(index, _)| values[*index].is_none());
            let missing: Vec<(usize, K)> = missing.collect();
            if missing.is_empty() {
                return values;
            }
            // A key that occurs twice has one slot: the call must not wait for its own flight.
            let mut slots = HashMap::new();
            let mut distinct = Vec::new();
            let slot_of_index: Vec<(usize, usize)> = missing
                .into_iter()
                .map(|(index, key)| {
                    let slot = *slots.entry(key.clone()).or_insert(distinct.len());
                    if slot == distinct.len() {
                        distinct.push(key);
                    }
                    (index, slot)
                })
                .collect();
            let load = BulkLoad {
                cache: &self.inner,
                calls: distinct
                    .iter()
                    .map(|key| LoadCall::new(self.inner.shared.store.locate(key)))
                    .collect(),
                values: distinct.iter().map(|_| None).collect(),
                pending: (0..distinct.len()).collect(),
                keys: distinct,
                own_loads: Vec::new(),
                followed: VecDeque::new(),
            };
            let loaded = Box::pin(load.run(&slots, ttl, loader)).await;
            for (index, slot) in slot_of_index {
                values[index] = loaded[slot].clone();
            }
            values
        }
    }
}

impl<K, V, S> BulkLoad<'_, K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Loads the keys, or waits for their loads, and returns their values.
    ///
    /// A call never waits for another one while it leads a flight, so no two calls wait for each other.
    async fn run<F, Fut>(
        mut self,
        slots: &HashMap<K, usize>,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) -> Vec<Option<V>>
    where
        F: FnOnce(Vec<K>) -> Fut,
        Fut: Future<Output = Vec<(K, V)>>,
    {
        let mut loader = Some((loader, ttl));
        loop {
            while let Some(slot) = self.pending.pop() {
                coop::proceed().await;
                self.look_up(slot);
            }
            // The slots were taken from the end.
            self.own_loads.sort_by_key(|(slot, _)| *slot);
            if loader.is_some() && self.follows_superseded_load() {
                // Its key is looked up again when it has ended, and may then have to be loaded with the others.
                self.give_up_leads();
            } else if !self.own_loads.is_empty() {
                match loader.take() {
                    Some((loader, ttl)) => self.run_own_loads(slots, ttl, loader).await,
                    // The loader was called before these flights lost their leaders. Other callers may take the lead.
                    None => self.own_loads.clear(),
                }
            }
            let Some((slot, load_guard)) = self.followed.pop_front() else { return self.values };
            let lookup = self.cache.wait(load_guard, &self.keys[slot]).await;
            self.handle(slot, lookup);
            if loader.is_some() && !(self.own_loads.is_empty() && self.pending.is_empty()) {
                // The loader is about to be called, once. It also loads the keys whose flights have no leader by now.
                self.end_other_waits().await;
            }
        }
    }

    /// Fills the slot of a live key, or joins the flight of a missing one.
    fn look_up(&mut self, slot: usize) {
        match self.cache.join(&mut self.calls[slot], &self.keys[slot]) {
            ControlFlow::Break(lookup) => self.handle(slot, lookup),
            ControlFlow::Continue(load_guard) => self.followed.push_front((slot, load_guard)),
        }
    }

    /// Handles the result of a look-up or of the wait for another call's load.
    fn handle(&mut self, slot: usize, lookup: Lookup<V, LoadGuard<K, V, S>>) {
        match lookup {
            Lookup::Live(value) | Lookup::Loaded(value) => self.values[slot] = Some(value),
            Lookup::Leader(load_guard) => self.own_loads.push((slot, Some(load_guard))),
            Lookup::Nested => self.own_loads.push((slot, None)),
            Lookup::Failed(error) if error.is::<NotReturned>() => {}
            Lookup::Failed(_) | Lookup::Again => self.pending.push(slot),
        }
    }

    /// Returns whether a write before this call has superseded a load that it follows, and moves that to the front.
    fn follows_superseded_load(&mut self) -> bool {
        let is_superseded =
            |(_, guard): &(_, LoadGuard<K, V, S>)| guard.flight.began_before(guard.preceding);
        let found = self.followed.iter().position(is_superseded);
        if let Some(index) = found {
            self.followed.swap(0, index);
        }
        found.is_some()
    }

    /// Lets other callers load the keys that this call leads, because it is going to wait.
    fn give_up_leads(&mut self) {
        self.pending.extend(self.own_loads.drain(..).map(|(slot, _)| slot));
    }

    /// Calls the loader for the keys that this call leads, stores the values and ends the flights.
    async fn run_own_loads<F, Fut>(
        &mut self,
        slots: &HashMap<K, usize>,
        ttl: impl TimeToLive<V>,
        loader: F,
    ) where
        F: FnOnce(Vec<K>) -> Fut,
        Fut: Future<Output = Vec<(K, V)>>,
    {
        let (cache, mut own_loads) = (self.cache, mem::take(&mut self.own_loads));
        let keys = own_loads.iter().map(|(slot, _)| self.keys[*slot].clone()).collect();
        own_loads
            .iter_mut()
            .filter_map(|(_, guard)| guard.as_mut())
            .for_each(|guard| guard.begin_load(&ttl));
        let start = cache.shared.clock.now();
        let returned = {
            let guards = own_loads.iter().filter_map(|(_, guard)| guard.as_ref());
            let flights: Vec<&Arc<Flight<V>>> = guards.map(|guard| &guard.flight).collect();
            let load = pin!(async move { loader(keys).await });
            ReentrancyScope::run_all(flights, load).await
        };
        cache.freshness_policy.loads.record(cache.shared.clock.now().since(start), false);
        let mut loaded: Vec<Option<V>> = self.keys.iter().map(|_| None).collect();
        for (key, value) in returned {
            if let Some(slot) = slots.get(&key) {
                loaded[*slot] = Some(value);
            }
        }
        for (slot, load_guard) in own_loads {
            coop::proceed().await;
            let value = loaded[slot].take();
            match (&value, load_guard) {
                (Some(value), Some(guard)) => {
                    let (key, ttl) = (self.keys[slot].clone(), ttl.with_tags(value));
                    cache.store_loaded(&guard, key, value, ttl);
                    guard.finish(Lookup::Loaded(value.clone()));
                    cache.finish(()).await;
                }
                (None, Some(guard)) => guard.finish(Lookup::Failed(Arc::new(NotReturned))),
                (_, None) => {}
            }
            self.values[slot] = value;
        }
    }

    /// Ends the waits for flights that have finished or lost their leader, without waiting for the others.
    async fn end_other_waits(&mut self) {
        for _ in 0..self.followed.len() {
            let Some((slot, load_guard)) = self.followed.pop_front() else { return };
            let waited = {
                let mut wait = pin!(load_guard.flight.wait(load_guard.preceding));
                poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await
            };
            match waited {
                Poll::Ready(waited) => {
                    let lookup = self.cache.end_wait(load_guard, &self.keys[slot], waited);
                    self.handle(slot, lookup);
                }
                Poll::Pending => self.followed.push_back((slot, load_guard)),
            }
        }
    }
}
