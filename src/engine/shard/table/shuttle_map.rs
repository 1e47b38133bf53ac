//! The part of DashMap's interface that a shard uses, on shuttle's locks, which explore the interleavings of threads.

use std::marker::PhantomData;

use dashmap::SharedValue;
use hashbrown::raw::RawTable;
pub(crate) use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

type Table<K, V> = RawTable<(K, SharedValue<V>)>;

/// See [`dashmap::DashMap`].
pub(crate) struct DashMap<K, V, S> {
    shards: Box<[RwLock<Table<K, V>>]>,
    hasher: PhantomData<S>,
}

pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<K, V, S> DashMap<K, V, S> {
    pub(crate) fn with_capacity_and_hasher_and_shard_amount(
        capacity: usize,
        _: S,
        shards: usize,
    ) -> Self {
        let table = || RawTable::with_capacity(capacity / shards);
        let lock = || RwLock(shuttle::sync::RwLock::new(table()));
        Self { shards: (0..shards).map(|_| lock()).collect(), hasher: PhantomData }
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
