//! Evictions from one shard: how many under one lock, and whether a victim departs as expired or as evicted.

use std::hash::{BuildHasher, Hash};

use super::{Shard, entry::Entry, remove::DropQueue};
use crate::engine::{
    clock::{Deadline, Now},
    event::departure::Cause,
    victims::{
        EvictionState,
        policy::{MAX_EXEMPT, Policy},
    },
};

/// Maximum number of live entries that are evicted under one lock. A small shard evicts fewer: an eighth of its
/// entries.
const MAX_EVICTIONS_PER_LOCK: usize = 32;

impl<K, V, S> Shard<'_, K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// Begins to track accesses, and weights if there is a weigher, so that entries can be evicted.
    pub(crate) fn track_evictions(&mut self, policy: Policy, has_weigher: bool) {
        let (table, state) = self.parts();
        let eviction = EvictionState::new(policy, has_weigher, table.buckets());
        state.side_tables.eviction = Some(Box::new(eviction));
    }

    /// Evicts entries of a locked shard until `weight_to_free` is freed, or a share of the shard was evicted. Returns
    /// the weight freed, which is subtracted from the bound at the unlock unless the caller takes it. If it
    /// `may_decline`, it stops at read entries that other shards may have unread ones for.
    pub(crate) fn evict(
        &mut self,
        weight_to_free: u64,
        mut exempt: [Option<usize>; MAX_EXEMPT],
        may_decline: bool,
        now: &impl Now,
        drop_queue: &mut DropQueue<K, V>,
    ) -> u64 {
        self.release();
        let (context, shard, mut count) = (self.context(), self.index(), 0);
        let max_evictions = MAX_EVICTIONS_PER_LOCK.min(1 + self.len() / 8);
        while self.freed() < weight_to_free && count < max_evictions {
            let (may_have_expired, may_have_tag_removals) =
                (context.is_due(shard, now), context.tag_removals.is_pending());
            let (table, state) = self.parts();
            let Some((eviction, tags)) = state.side_tables.eviction_and_tags() else { break };
            // Expired, or removed by a tag: no look-up returns it.
            let is_unreadable = |bucket| {
                table.entry_at(bucket).is_some_and(|(_, entry)| {
                    let deadline = entry.deadline();
                    may_have_expired && now.is_expired(deadline)
                        || may_have_tag_removals
                            && tags.is_some_and(|tags| tags.is_removed(bucket, deadline))
                })
            };
            let may_have_unreadable = may_have_expired || may_have_tag_removals;
            let is_unreadable: Option<&dyn Fn(usize) -> bool> =
                if may_have_unreadable { Some(&is_unreadable) } else { None };
            let victim = eviction.choose_victim(exempt, may_decline, is_unreadable);
            // The next eviction of a large shard would wait for its victim's memory.
            if let Some(next) = eviction.next_victim() {
                table.prefetch_bucket(next);
            }
            let Some(bucket) = victim else {
                if state.old.is_none() {
                    break;
                }
                // All candidates are still in the old table.
                self.move_candidates(&mut exempt);
                continue;
            };
            // Exactly, as a look-up does, though entries that expire during this call were not searched for: another
            // thread may have found this one expired. A persistent entry needs no clock.
            let deadline =
                table.entry_at(bucket).map_or(Deadline::PERSISTENT, |(_, entry)| entry.deadline());
            let is_expired = !deadline.is_persistent() && now.is_expired(deadline);
            let cause = if is_expired { Cause::Expired } else { Cause::Evicted };
            // Unreadable entries do not count against the limit: they are not evicted, and some of them weigh nothing.
            let cause = self.remove(bucket, cause, now, drop_queue);
            count += usize::from(cause == Cause::Evicted);
        }
        self.freed()
    }

    /// Moves some entries out of the old table. If the table grows for them, exempt entries are then in other buckets.
    #[cold]
    fn move_candidates(&mut self, exempt: &mut [Option<usize>; MAX_EXEMPT]) {
        let mut hashes = [None; MAX_EXEMPT];
        for (hash, bucket) in hashes.iter_mut().zip(&*exempt) {
            let entry = bucket.and_then(|bucket| self.entry_at(bucket));
            *hash = entry.map(|(key, _)| self.context().hash_or_zero(key));
        }
        let generation = self.state().generation;
        let (_, emptied) = self.move_windows();
        debug_assert!(
            emptied.is_none_or(|table| table.is_empty()),
            "a table that was moved is empty"
        );
        if self.state().generation != generation {
            for (bucket, hash) in exempt.iter_mut().zip(hashes) {
                *bucket = hash.and_then(|hash| self.bucket_of_hash(hash));
            }
        }
    }

    /// Returns the bucket of the key with this hash. By the hash alone, as no key is at hand; two keys with the same
    /// hash of 64 bits are rare, and then the wrong one is exempt.
    pub(crate) fn bucket_of_hash(&mut self, hash: u64) -> Option<usize> {
        let context = self.context();
        let matches = |key: &K, _: &Entry<V>| context.hash_or_zero(key) == hash;
        self.parts().0.find_mut(hash, matches).map(|(bucket, _)| bucket)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use crate::engine::{
        clock::{Clock, Deadline},
        hasher::DefaultHasher,
        store::Store,
    };

    /// A call that knows the time at which it began does not search for entries that expire during the call.
    #[tokio::test(start_paused = true)]
    async fn entry_that_expires_during_the_write_that_evicts_it_departs_as_expired() {
        let clock = Clock::new();
        let store =
            Store::<u64, (), _>::new(2, 0, DefaultHasher::default()).evicting(1, None, || 1);
        let second = Duration::from_secs(1);
        store.set(0, (), &clock.now(), |_| clock.now().after(second));
        for key in 1..10 {
            let call = clock.call(true);
            call.begin();
            tokio::time::advance(second).await;
            store.set(key, (), &call, |_| clock.now().after(second));
            let counts = store.counts();
            assert_eq!((counts.expired, counts.evicted), (key, 0));
        }
        store.set(10, (), &clock.now(), |_| Deadline::PERSISTENT);
        let counts = store.counts();
        assert_eq!((counts.expired, counts.evicted), (9, 1));
    }
}
