//! Limits that change while the limiter runs: what was charged stays charged, as the new ones count it.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use super::{
    Limit,
    algorithm::{Algorithm, Rule},
    key_state::{KeyState, move_deadline},
    limit_set::Plan,
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
        let plan = Arc::new(Plan::new(limits.into(), self.window));
        let old = self.plan.replace(plan.clone());
        let differs = |(old, new): (&Rule, &Rule)| old.per != new.per || old.step != new.step;
        // Else all that is in use is counted as before, and as long.
        if old.iter().zip(&*plan.rules).any(differs) {
            (0..self.shared.store.shard_count()).for_each(|shard| self.adapt(shard, &old, &plan));
            self.strangers.adapt(&old, &plan.rules, &self.shared.clock.lazy_now());
        }
        // Only now: who is woken finds what it was charged as the new limits count it.
        self.plan.tell();
    }

    /// Counts what the keys of one shard have in use by other rules, and keeps it as long as those say.
    fn adapt(&self, shard: usize, old: &[Rule], plan: &Plan) {
        let (store, clock) = (&self.shared.store, &self.shared.clock);
        for (key, _, _) in store.snapshot(shard, clock) {
            let place: Location = store.place(&key);
            let adapt = |entry: &mut Entry<KeyState<A>>| {
                let now = clock.lazy_now();
                entry.value.adapt(old, &plan.rules, &now);
                move_deadline(entry, &plan.rules);
            };
            let _ = store.change_any(place, &key, adapt);
        }
    }
}
