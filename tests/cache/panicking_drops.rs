//! Keys and values whose `Drop` panics, when the last handle of their cache is dropped.

use std::{
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use fleeting::Cache;

const ENTRIES: usize = 64;

/// Counts its drops, and panics in each of them.
#[derive(Clone)]
struct Panics {
    id: usize,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
        panic!("user code panics");
    }
}

impl PartialEq for Panics {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Panics {}

impl Hash for Panics {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Without isolation, the second panic during the first one's unwinding would abort the process.
#[tokio::test]
async fn last_handle_may_be_dropped_if_drops_of_values_in_different_shards_panic() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let cache = Cache::builder().shards(8).build();
    for id in 0..ENTRIES {
        cache.set(id, Panics { id, dropped: dropped.clone() }).await;
    }
    check(move || drop(cache), &dropped);
}

#[tokio::test]
async fn last_handle_may_be_dropped_if_drops_of_keys_in_different_shards_panic() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let cache = Cache::builder().shards(8).max_entries(ENTRIES).build();
    for id in 0..ENTRIES {
        cache.set(Panics { id, dropped: dropped.clone() }, id).await;
    }
    check(move || drop(cache), &dropped);
}

fn check(drop_cache: impl FnOnce(), dropped: &AtomicUsize) {
    assert_eq!(dropped.load(Relaxed), 0, "all are in the cache");
    let result = catch_unwind(AssertUnwindSafe(drop_cache));
    assert!(result.is_ok(), "the panics do not reach the caller, as in `clear`");
    assert_eq!(dropped.load(Relaxed), ENTRIES, "each is dropped");
}
