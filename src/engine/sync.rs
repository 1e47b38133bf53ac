//! Locks, atomics and the sharded map, as `std` and DashMap provide them. With `--cfg shuttle`, tests replace them by
//! shuttle's, which explores the interleavings of threads.

#[cfg(not(all(test, shuttle)))]
mod primitives {
    pub(crate) use std::{
        sync::{Mutex, MutexGuard, atomic},
        thread,
    };

    pub(crate) use dashmap::{DashMap, RwLockReadGuard, RwLockWriteGuard};

    /// Spins for a short time: about ten nanoseconds or more per iteration.
    pub(crate) fn spin(times: u32) {
        (0..times).for_each(|_| std::hint::spin_loop());
    }
}

#[cfg(all(test, shuttle))]
mod primitives {
    use std::hash::BuildHasher;

    use dashmap::SharedValue;
    use hashbrown::raw::RawTable;
    pub(crate) use shuttle::{
        sync::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic},
        thread,
    };

    /// Gives other threads one turn, for any number of iterations.
    pub(crate) fn spin(_: u32) {
        // Shuttle has no time, so the number of iterations means nothing to it.
        shuttle::hint::spin_loop();
    }

    type Table<K, V> = RawTable<(K, SharedValue<V>)>;

    /// The part of DashMap's interface that the store uses, on shuttle's locks.
    pub(crate) struct DashMap<K, V, S> {
        shards: Box<[RwLock<Table<K, V>>]>,
        hasher: S,
    }

    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<K, V, S: BuildHasher> DashMap<K, V, S> {
        pub(crate) fn with_capacity_and_hasher_and_shard_amount(
            capacity: usize,
            hasher: S,
            shards: usize,
        ) -> Self {
            let table = || RawTable::with_capacity(capacity / shards);
            let lock = || RwLock(shuttle::sync::RwLock::new(table()));
            Self { shards: (0..shards).map(|_| lock()).collect(), hasher }
        }

        pub(crate) fn shards(&self) -> &[RwLock<Table<K, V>>] {
            &self.shards
        }

        pub(crate) fn determine_shard(&self, hash: usize) -> usize {
            hash % self.shards.len()
        }
    }

    impl<T> RwLock<T> {
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("nothing panics under it here")
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("nothing panics under it here")
        }

        pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}

pub(crate) use self::primitives::*;
