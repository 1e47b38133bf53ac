//! Limits that change while the limiter runs: what was charged stays charged, as the new ones count it.

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
        let old = self.limit_set.replace(limit_set.clone());
        let differs =
            |(old, new): (&LimitParams, &LimitParams)| old.per != new.per || old.step != new.step;
        // Else all that is in use is counted as before, and as long.
        if old.iter().zip(&*limit_set.params).any(differs) {
            (0..self.shared.store.shard_count())
                .for_each(|shard| self.adapt(shard, &old, &limit_set));
            self.untracked.adapt(&old, &limit_set.params, &self.shared.clock.lazy_now());
        }
        // Only now: who is woken finds what it was charged as the new limits count it.
        self.limit_set.tell();
    }

    /// Counts what the keys of one shard have in use by other rules, and keeps it as long as those say.
    fn adapt(&self, shard: usize, old: &[LimitParams], limit_set: &LimitSet) {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        for (key, _, _) in store.snapshot(shard, clock) {
            let place: Location = store.place(&key);
            let adapt = |entry: &mut Entry<KeyState<A>>| {
                let now = clock.lazy_now();
                entry.value.adapt(old, &limit_set.params, &now);
                move_deadline(entry, &limit_set.params);
            };
            let _ = store.change_any(place, &key, adapt);
        }
    }
}
