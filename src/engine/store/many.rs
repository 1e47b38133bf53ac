//! Many keys at once: the memory of all is fetched at the same time, and a shard is locked once for its keys.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;

use super::{Location, Store, entry::Entry, window};
use crate::engine::clock::Now;

/// How many keys are looked up under one lock at most.
const AT_ONCE: usize = 32;

/// Tables that are smaller together stay in the processor's caches by themselves, in bytes.
const SMALL: usize = 2 << 20;

/// Keys of which it is known where they are, shard by shard.
pub(crate) struct Places {
    /// With the number that each key had.
    places: Vec<(Location, usize)>,
    next: usize,
}

impl Places {
    /// Those of the same shard stay in their order.
    pub(crate) fn new(places: impl Iterator<Item = Location>) -> Self {
        let mut places: Vec<_> = places.zip(0..).collect();
        // By their numbers too, and so in their order.
        places.sort_unstable_by_key(|(place, number)| (place.index, *number));
        Self { places, next: 0 }
    }

    /// The next that may be looked up under one lock.
    fn take(&mut self) -> &[(Location, usize)] {
        let left = &self.places[self.next..];
        let Some((first, _)) = left.first() else { return &[] };
        let same = left.iter().take_while(|(place, _)| place.index == first.index);
        let count = same.take(AT_ONCE).count();
        self.next += count;
        &left[..count]
    }
}

impl<K, V, S> Store<K, V, S>
where
    K: Hash + Eq,
    S: BuildHasher + Clone,
{
    /// Has the memory fetched in which these keys are looked for.
    pub(crate) fn prefetch(&self, places: &Places) {
        let Some((first, _)) = places.places.first() else { return };
        let buckets = self.shard_count() * self.shards.read(first.index).buckets();
        if buckets * size_of::<(K, Entry<V>)>() < SMALL {
            return;
        }
        for look in [window::prefetch_group, window::prefetch_entry] {
            let mut rest = &places.places[..];
            while let Some((first, _)) = rest.first() {
                let index = first.index;
                let shard = self.shards.read(index);
                while let Some(((place, _), others)) =
                    rest.split_first().filter(|((place, _), _)| place.index == index)
                {
                    look(&shard, place.hash);
                    rest = others;
                }
            }
        }
    }

    /// Looks the next keys up, which are of one shard, as [`get`](Self::get) does; false where there are none.
    pub(crate) fn get_next<'a, Q>(
        &self,
        places: &mut Places,
        keys: &[&'a Q],
        values: &mut [Option<V>],
        now: &impl Now,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized + 'a,
        V: Clone,
    {
        let group = places.take();
        let Some((first, _)) = group.first() else { return false };
        if self.minds_reads() || self.has_removed() {
            for (_, number) in group {
                values[*number] = self.get(keys[*number], now);
            }
            return true;
        }
        let mut dead = Vec::new();
        let shard = self.shards.read(first.index);
        for (place, number) in group {
            let Some(entry) = shard.find(place.hash, keys[*number]) else { continue };
            match now.is_dead(entry.deadline()) {
                true => dead.push((*place, *number, entry.deadline())),
                false => values[*number] = Some(entry.value.clone()),
            }
        }
        drop(shard);
        for (place, number, deadline) in dead {
            self.found_dead(place, keys[number], deadline, now);
        }
        for (_, number) in group {
            self.reads.count(values[*number].is_some());
        }
        true
    }
}
