//! What a race could go through. Under `--cfg shuttle` the tests of interleavings exchange it for
//! shuttle's, which tries the orders in which threads may meet.

#[cfg(not(all(test, shuttle)))]
mod primitives {
    pub(crate) use std::{
        sync::{Mutex, MutexGuard, atomic},
        thread,
    };

    pub(crate) use dashmap::{DashMap, RwLockReadGuard, RwLockWriteGuard};

    /// Some ten nanoseconds each time, or some more.
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

    /// However often, it is one turn for the others.
    pub(crate) fn spin(_: u32) {
        shuttle::hint::spin_loop();
    }

    type Table<K, V> = RawTable<(K, SharedValue<V>)>;

    /// As much of DashMap as the store uses, on shuttle's locks.
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

        pub(crate) fn hasher(&self) -> &S {
            &self.hasher
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
