//! Snapshots of a full cache whose entries are replaced faster than they are copied.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fleeting::{Cache, WeakCache};
use futures::FutureExt;
use serde::{Serialize, Serializer, ser::Error};

/// A value that inserts new keys when it is written to a snapshot.
#[derive(Clone)]
struct Churn(Arc<State>);

struct State {
    cache: std::sync::OnceLock<WeakCache<u32, Churn>>,
    next_key: AtomicU32,
    new_keys: u32,
    written: AtomicU32,
    max_written: u32,
}

impl Serialize for Churn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.written.fetch_add(1, Relaxed) >= self.0.max_written {
            return Err(S::Error::custom("the snapshot does not end"));
        }
        let cache = self.0.cache.get().and_then(WeakCache::upgrade).expect("the cache exists");
        for _ in 0..self.0.new_keys {
            let key = self.0.next_key.fetch_add(1, Relaxed);
            let set = cache.set(key, self.clone()).now_or_never();
            assert!(set.is_none_or(|replaced| replaced.is_none()), "the key is new");
        }
        serializer.serialize_unit()
    }
}

#[tokio::test]
async fn snapshot_ends_and_is_bounded_while_many_new_keys_displace_others() {
    for (shards, new_keys) in [(2, 4), (2, 64), (16, 64)] {
        const ENTRIES: u32 = 5_000;
        let churn = Churn(Arc::new(State {
            cache: std::sync::OnceLock::new(),
            next_key: AtomicU32::new(ENTRIES),
            new_keys,
            written: AtomicU32::new(0),
            max_written: 8 * ENTRIES,
        }));
        let cache = Cache::builder().shards(shards).max_entries(ENTRIES as usize).build();
        assert!(churn.0.cache.set(cache.downgrade()).is_ok());
        for key in 0..ENTRIES {
            cache.set(key, churn.clone()).await;
        }
        let written = cache.snapshot(&mut Vec::new()).await;
        let written = written.unwrap_or_else(|error| {
            panic!("{shards} shards, {new_keys} new keys per copied entry: {error:?}")
        });
        assert!(written >= u64::from(ENTRIES) / 2, "{written} of {ENTRIES} entries were written");
    }
}
