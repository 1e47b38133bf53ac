//! The end of a load: its value is stored, or its error is kept, unless a write takes precedence.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::join::LoadGuard;
use crate::{
    cache::SyncCache,
    engine::{
        shared_state::SharedState,
        store::{Flight, LoadFailure},
    },
};

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Stores a loaded value, unless a write or the removal of one of its tags takes precedence. Without tags of its
    /// own, it keeps those of the value that it replaces.
    pub(super) fn store_loaded(
        &self,
        load_guard: &LoadGuard<K, V, S>,
        key: K,
        value: &V,
        (ttl, tags): (Option<Duration>, Option<Vec<String>>),
    ) {
        let _flush = self.shared.publisher.flush_on_panic();
        let flight = &load_guard.flight;
        let failure = self.failure_hash(&key);
        let mut new = self.shared.store.new_entry_with(key, value.clone());
        new.tags = match tags {
            None => flight.replaced_tags(),
            Some(names) => {
                let names: Vec<_> = names.into_iter().map(String::into_boxed_str).collect();
                let tags = self.shared.store.tags(names.clone());
                flight.set_tags(tags.clone());
                // In this order: a later removal is counted by the flight.
                let first_removal =
                    |since| self.shared.store.tagged_loads.first_removal(&names, since);
                flight.set_tag_removal(load_guard.tagged_since.map_or(0, first_removal));
                tags
            }
        };
        let call = self.call();
        let deadline = self.deadline_for(ttl, &call);
        let deadline = || flight.deadline_to_store(deadline, &call);
        self.shared.store.decide(&mut new, &call, |_, _| deadline().into());
        self.discard_failure(failure);
        self.finish_call(&call);
    }

    /// Records a failed load, unless a write takes precedence.
    pub(super) fn record_failure(&self, flight: &Flight<V>, key: K, error: Option<LoadFailure>) {
        let SharedState { failed_loads: Some(failed_loads), store, .. } = &*self.shared else {
            return;
        };
        let location = store.locate(&key);
        let is_superseded = || store.is_superseded(location, flight);
        failed_loads.record(location.hash(), key, error, &is_superseded);
        store.wake_if_resting();
        self.shared.publisher.flush();
    }
}
