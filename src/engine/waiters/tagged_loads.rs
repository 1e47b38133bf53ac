//! Removals of tags while values are loaded whose tags are known only after the load.
//!
//! The leader of such a load [begins](TaggedLoads::begin) before its loader runs. After it, the leader looks up the
//! tags of the value, passes them to its flight, and then asks for their [first removal](TaggedLoads::first_removal). A
//! removal is [noted](TaggedLoads::note_removal) here first, and then in the tag. So it is seen here or in the tag, and
//! never missed. Of several removals the first decides: callers that began after it accept no value loaded before it.

use std::collections::{BTreeMap, HashMap};

use smallvec::{SmallVec, smallvec};

use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Number of noted removals up to which those that no load needs any more are not searched for.
const MIN_PRUNE_LEN: usize = 64;

/// Running loads of tagged values, and the removals of tags since they began.
pub(crate) struct TaggedLoads {
    /// Number of removals noted so far. Written under the mutex. Relaxed: a caller whose call began after a removal has
    /// seen its increment.
    removals: AtomicU64,
    /// Boxed: few caches use it.
    running: Box<Mutex<RunningLoads>>,
}

struct RunningLoads {
    /// Running loads, counted by the number of removals before they began.
    loads: BTreeMap<u64, usize>,
    /// Names of removed tags, with the numbers of their removals in order: of those between the beginnings of two
    /// loads, only the first.
    removed: HashMap<Box<str>, SmallVec<[u64; 1]>>,
    /// Number of names at which those removed before all running loads are searched for.
    prune_at: usize,
}

impl TaggedLoads {
    pub(crate) fn new() -> Self {
        let running = RunningLoads {
            loads: BTreeMap::new(),
            removed: HashMap::new(),
            prune_at: MIN_PRUNE_LEN,
        };
        Self { removals: AtomicU64::new(0), running: Box::new(Mutex::new(running)) }
    }

    /// Returns the number of removals noted so far.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Relaxed)
    }

    /// Notes removals from now on. Returns the number of those before, with which the load must [end](Self::end).
    pub(crate) fn begin(&self) -> u64 {
        let mut running = self.lock();
        let removals = self.removals();
        *running.loads.entry(removals).or_insert(0) += 1;
        removals
    }

    pub(crate) fn end(&self, began_at: u64) {
        let mut running = self.lock();
        if let Some(count) = running.loads.get_mut(&began_at) {
            *count -= 1;
            if *count == 0 {
                running.loads.remove(&began_at);
            }
        }
        if running.loads.is_empty() {
            (running.removed, running.prune_at) = (HashMap::new(), MIN_PRUNE_LEN);
        }
    }

    /// Notes that the tag of this name is about to be removed.
    pub(crate) fn note_removal(&self, name: &str) {
        let mut running = self.lock();
        let Some((&oldest, _)) = running.loads.first_key_value() else { return };
        let removal = self.removals() + 1;
        self.removals.store(removal, Relaxed);
        let RunningLoads { loads, removed, .. } = &mut *running;
        match removed.get_mut(name) {
            // Without a load that began since the last one, that is the first for all loads.
            Some(removals) if loads.range(removals[removals.len() - 1]..).next().is_none() => {}
            Some(removals) => removals.push(removal),
            None => drop(removed.insert(name.into(), smallvec![removal])),
        }
        if running.removed.len() >= running.prune_at {
            running
                .removed
                .retain(|_, removals| removals.last().is_some_and(|last| *last > oldest));
            running.prune_at = MIN_PRUNE_LEN.max(2 * running.removed.len());
        }
    }

    /// Returns the number of the first removal of one of these names since a load began; 0 if none was removed.
    pub(crate) fn first_removal(&self, names: &[Box<str>], began_at: u64) -> u64 {
        let running = self.lock();
        let removals = names.iter().filter_map(|name| running.removed.get(name)).flatten();
        removals.copied().filter(|removal| *removal > began_at).min().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, RunningLoads> {
        self.running.lock().expect("no user code runs under this lock")
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn removals_are_noted_for_running_loads_only() {
        let loads = TaggedLoads::new();
        let names = ["a".into(), "b".into()];
        loads.note_removal("a");
        let first = loads.begin();
        assert_eq!(loads.first_removal(&names, first), 0, "removed before the load began");
        loads.note_removal("a");
        let second = loads.begin();
        loads.note_removal("c");
        assert_eq!((loads.first_removal(&names, first), loads.removals()), (1, 2));
        assert_eq!(loads.first_removal(&names, second), 0);
        loads.note_removal("b");
        assert_eq!(loads.first_removal(&names, second), 3);
        loads.note_removal("b");
        let late = loads.begin();
        loads.note_removal("a");
        loads.note_removal("a");
        let of_each = [first, second, late].map(|load| loads.first_removal(&names, load));
        assert_eq!(of_each, [1, 3, 5], "the first since each of the loads began");
        assert_eq!(loads.lock().removed["a"][..], [1, 5], "no load began between the last two");
        loads.end(late);
        loads.end(first);
        for n in 0..10_000 {
            loads.note_removal(&n.to_string());
        }
        // The load that is still running needs all of them.
        assert_eq!(loads.lock().removed.len(), 10_003);
        let third = loads.begin();
        loads.end(second);
        for n in 0..10_000 {
            loads.note_removal(&(n % 100).to_string());
        }
        assert!(loads.lock().removed.len() <= 10_003 && loads.first_removal(&names, third) == 0);
        loads.end(third);
        assert!(loads.lock().removed.is_empty());
    }
}
