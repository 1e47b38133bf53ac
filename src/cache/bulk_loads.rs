//! One load for many keys: [`Cache::get_many_or_set_with`].

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    hash::{BuildHasher, Hash},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use super::{Cache, freshness::TimeToLive, load_guard::LoadGuard, reentrancy::ReentrancyScope};
use crate::engine::{
    coop,
    store::{Flight, LoadLookup, WaitOutcome},
};

/// Outcome of a flight whose key was not returned by the loader of many keys. Other loader methods that wait for it
/// continue with their own loaders.
struct NotReturned;

/// A missing key that this call loads.
struct OwnLoad<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    slot: usize,
    /// `None` if this call runs inside the flight of the key, whose loader it would otherwise wait for.
    load_guard: Option<LoadGuard<K, V, S>>,
    started_at_version: u32,
}

/// A missing key that another call loads.
struct Followed<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    slot: usize,
    load_guard: LoadGuard<K, V, S>,
    joined_at_version: u32,
}

/// State of a call: its distinct missing keys and their values, by slot.
struct BulkLoad<'a, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    cache: &'a Cache<K, V, S>,
    keys: Vec<K>,
    values: Vec<Option<V>>,
    /// Slots to be looked up.
    pending: Vec<usize>,
    own_loads: Vec<OwnLoad<K, V, S>>,
    followed: VecDeque<Followed<K, V, S>>,
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the live values of `keys`, in their order, and loads the missing ones with one call of `loader`.
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
    /// within its [`stale_while_revalidate`](super::Builder::stale_while_revalidate) window counts as missing.
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
    ///
    /// # Examples
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
                cache: self,
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
            self.own_loads.sort_by_key(|load| load.slot);
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
            let Some(followed) = self.followed.pop_front() else { return self.values };
            let outcome = self.cache.wait_for_load(&followed.load_guard).await;
            self.end_wait(followed, outcome);
            if loader.is_some() && !(self.own_loads.is_empty() && self.pending.is_empty()) {
                // The loader is about to be called, once. It also loads the keys whose flights have no leader by now.
                self.end_other_waits().await;
            }
        }
    }

    /// Fills the slot of a live key, or joins the flight of a missing one.
    fn look_up(&mut self, slot: usize) {
        let (cache, key) = (self.cache, &self.keys[slot]);
        let location = cache.shared.store.locate(key);
        match cache.lookup_or_join(location, key, &cache.shared.clock) {
            LoadLookup::Live(value) => self.values[slot] = Some(value),
            LoadLookup::Leader(flight) => {
                let load_guard = Some(cache.load_guard(location, flight, true));
                self.own_loads.push(OwnLoad { slot, load_guard, started_at_version: 0 });
            }
            LoadLookup::Follower(flight, joined_at_version) => {
                let load_guard = cache.load_guard(location, flight, false);
                if ReentrancyScope::is(&load_guard.flight) {
                    self.own_loads.push(OwnLoad { slot, load_guard: None, started_at_version: 0 });
                } else {
                    self.followed.push_front(Followed { slot, load_guard, joined_at_version });
                }
            }
        }
    }

    /// Returns whether a write before this call may have superseded a load that it follows, and moves that to the
    /// front.
    fn follows_superseded_load(&mut self) -> bool {
        let found = self.followed.iter().position(|followed| followed.joined_at_version > 0);
        if let Some(index) = found {
            self.followed.swap(0, index);
        }
        found.is_some()
    }

    /// Lets other callers load the keys that this call leads, because it is going to wait.
    fn give_up_leads(&mut self) {
        self.pending.extend(self.own_loads.drain(..).map(|load| load.slot));
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
        let (cache, own_loads) = (self.cache, std::mem::take(&mut self.own_loads));
        let keys = own_loads.iter().map(|load| self.keys[load.slot].clone()).collect();
        let start = cache.shared.clock.now();
        let returned = {
            let guards = own_loads.iter().filter_map(|load| load.load_guard.as_ref());
            let flights: Vec<&Arc<Flight<V>>> = guards.map(|guard| &guard.flight).collect();
            ReentrancyScope::run_all(flights, async move { loader(keys).await }).await
        };
        cache.freshness_policy.loads.record(cache.shared.clock.now().since(start), false);
        let mut loaded: Vec<Option<V>> = self.keys.iter().map(|_| None).collect();
        for (key, value) in returned {
            if let Some(slot) = slots.get(&key) {
                loaded[*slot] = Some(value);
            }
        }
        for OwnLoad { slot, load_guard, started_at_version } in own_loads {
            coop::proceed().await;
            let value = loaded[slot].take();
            match (&value, load_guard) {
                (Some(value), Some(guard)) => {
                    let (key, ttl) = (self.keys[slot].clone(), ttl.of(value));
                    cache.store_loaded(&guard.flight, started_at_version, key, value.clone(), ttl);
                    guard.finish(started_at_version, Ok(value.clone()));
                    if cache.has_deferred_evictions() {
                        cache.finish_evictions(()).await;
                    }
                }
                (None, Some(guard)) => guard.finish(started_at_version, Err(Arc::new(NotReturned))),
                (_, None) => {}
            }
            self.values[slot] = value;
        }
    }

    /// Handles the end of the wait for another call's load.
    fn end_wait(&mut self, followed: Followed<K, V, S>, outcome: WaitOutcome<V>) {
        let Followed { slot, mut load_guard, joined_at_version } = followed;
        match outcome {
            WaitOutcome::Leader => {
                load_guard.is_leader = true;
                // The version is read before the value: a write in between is noticed when the load is stored.
                let started_at_version = load_guard.flight.write_version();
                if let Some(value) = self.cache.peek(&self.keys[slot]) {
                    load_guard.finish_without_load(started_at_version, value.clone());
                    self.values[slot] = Some(value);
                } else {
                    self.own_loads.push(OwnLoad {
                        slot,
                        load_guard: Some(load_guard),
                        started_at_version,
                    });
                }
            }
            WaitOutcome::Finished(result) if result.started_at_version >= joined_at_version => {
                match &result.outcome {
                    Ok(value) => self.values[slot] = Some(value.clone()),
                    Err(error) if error.is::<NotReturned>() => {}
                    Err(_) => self.pending.push(slot),
                }
            }
            // A write preceded this call and superseded the load, or a refresh made no progress: look up again.
            WaitOutcome::Finished(_) | WaitOutcome::Stalled => self.pending.push(slot),
        }
    }

    /// Ends the waits for flights that have finished or lost their leader, without waiting for the others.
    async fn end_other_waits(&mut self) {
        for _ in 0..self.followed.len() {
            let Some(followed) = self.followed.pop_front() else { return };
            let outcome = {
                let mut wait = pin!(followed.load_guard.flight.wait());
                poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await
            };
            match outcome {
                Poll::Ready(outcome) => self.end_wait(followed, outcome),
                Poll::Pending => self.followed.push_back(followed),
            }
        }
    }
}
