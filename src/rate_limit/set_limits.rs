//! Change of the limits of a running limiter: existing charges stay charged, and count by the new limits.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use super::{
    Limit,
    algorithm::{Algorithm, LimitParams},
    key_state::{KeyState, move_deadline},
    limit_set::LimitSet,
    limiter::Limiter,
};
use crate::engine::store::{Entry, Location};

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn set_limits(&self, limits: Vec<Limit>) {
        let limit_set = Arc::new(LimitSet::new(limits.into(), self.window));
        let old = self.current_limits.replace(limit_set.clone());
        let differs = |(old, new): (&LimitParams, &LimitParams)| {
            old.per != new.per || old.step != new.step || old.fraction != new.fraction
        };
        let is_removed = limit_set.params.len() < old.len();
        // Otherwise existing usage counts in the same way, and for as long, as before.
        if is_removed || old.iter().zip(&*limit_set.params).any(differs) {
            (0..self.shared.store.shard_count())
                .for_each(|shard| self.adapt(shard, &old, &limit_set));
            self.untracked.adapt(&old, &limit_set.params, &self.shared.clock.lazy_now());
        }
        // After the conversion, so that woken waiters find the usage by the new limits.
        self.current_limits.notify_change();
    }

    /// Converts the usage of the keys of one shard, and moves their deadlines.
    fn adapt(&self, shard: usize, old: &[LimitParams], limit_set: &LimitSet) {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        // Key by key and not under one lock: a conversion takes some tenths of a microsecond, and checks would wait for
        // all of a shard.
        for (key, _, _) in store.snapshot(shard, clock) {
            let place: Location = store.locate(&key);
            let adapt = |entry: &mut Entry<KeyState<A>>| {
                let now = clock.lazy_now();
                entry.value.adapt(old, &limit_set.params, &now);
                move_deadline(entry, &limit_set.params);
            };
            // A key that was removed since the snapshot has no usage to convert.
            let _ = store.change_any(place, &key, adapt);
        }
    }
}
