//! Methods for all entries of a cache: their number, their removal, and `Debug`.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use tokio::task::consume_budget;

use super::{Cache, SyncCache};
use crate::engine::{block_on::block_on, store::TableCursor};

/// Maximum number of entries printed by `Debug`, so that logging a large cache stays readable.
const DEBUG_ENTRIES: usize = 32;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the number of resident entries: live ones, and expired ones that are not yet swept (Redis: `DBSIZE`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Sweep};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::builder().sweep(Sweep::manual()).build();
    /// sessions.set("ada", 1).await;
    /// sessions.set_ex("bob", 2, Duration::ZERO).await;
    /// assert_eq!(sessions.len(), 2, "the expired session is still in memory");
    /// assert_eq!(sessions.live_len(), 1);
    /// # }
    /// ```
    ///
    /// Costs O(shards). See [`live_len`](Cache::live_len) for the number of live entries.
    #[doc(alias = "entry_count")]
    #[doc(alias = "DBSIZE")]
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Returns whether no entry is resident. Costs O(shards).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let uploads = Cache::new();
    /// assert!(uploads.is_empty());
    /// uploads.set("photo.jpg", 42).await;
    /// assert!(!uploads.is_empty(), "wait with the restart");
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Returns the number of live entries.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// sessions.set_ex("ada", 1, Duration::from_secs(60)).await;
    /// sessions.set_ex("bob", 2, Duration::ZERO).await;
    /// assert_eq!(sessions.live_len(), 1, "one user is online");
    /// # }
    /// ```
    ///
    /// Costs O(n): every entry is examined. One shard is locked for reading at a time.
    pub fn live_len(&self) -> usize {
        self.inner.live_len()
    }

    /// Returns the [name](super::Builder::name) of the cache.
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let sessions: Cache<u64, String> = Cache::builder().name("sessions").build();
    /// println!("the cache {} holds {} entries", sessions.name(), sessions.len());
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Removes all entries, at most one shard at a time (Redis: `FLUSHDB`).
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let templates = Cache::new();
    /// templates.set("page.html", "<h1>{title}</h1>").await;
    ///
    /// // A deployment replaced all templates.
    /// templates.clear().await;
    /// assert!(templates.is_empty());
    /// # }
    /// ```
    ///
    /// Live entries are removed with cause [`Cause::Removed`](crate::Cause::Removed), expired ones with cause
    /// [`Cause::Expired`](crate::Cause::Expired). The method is not atomic: an entry that is inserted concurrently may
    /// or may not be removed.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, some of the entries may have been removed.
    #[doc(alias = "invalidate_all")]
    #[doc(alias = "FLUSHDB")]
    pub async fn clear(&self) {
        self.inner.clear_in_steps().await;
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the number of resident entries, as [`Cache::len`] does.
    pub fn len(&self) -> usize {
        self.shared.store.len()
    }

    /// Returns whether no entry is resident. Costs O(shards).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live entries, as [`Cache::live_len`] does.
    pub fn live_len(&self) -> usize {
        let live = self.shared.store.live_len(&self.shared.clock);
        // The count may have removed entries by tag.
        self.shared.publisher.flush();
        live
    }

    /// Returns the [name](super::Builder::name) of the cache.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Removes all entries, as [`Cache::clear`] does.
    pub fn clear(&self) {
        block_on(self.clear_in_steps());
    }

    async fn clear_in_steps(&self) {
        for shard in 0..self.shared.store.shard_count() {
            let mut cursor = TableCursor::of(shard);
            loop {
                consume_budget().await;
                let has_more = self.shared.store.clear_windows(&mut cursor, &self.shared.clock);
                self.shared.publisher.flush();
                if !has_more {
                    break;
                }
            }
        }
        // After the values: an error that is recorded in the meantime is older than the `clear` and has to go too.
        if let Some(failed_loads) = &self.shared.failed_loads {
            failed_loads.discard_all().await;
        }
    }
}

impl<K, V, S> fmt::Debug for Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + fmt::Debug + 'static,
    V: Clone + Send + Sync + fmt::Debug + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Formats the name of the cache and its first live entries, each with the rest of its TTL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<K, V, S> fmt::Debug for SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + fmt::Debug + 'static,
    V: Clone + Send + Sync + fmt::Debug + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Formats the cache as [`Cache`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache {:?} ", self.name())?;
        let mut entries = self.iter();
        let mut map = f.debug_map();
        for _ in 0..DEBUG_ENTRIES {
            let Some((key, value, deadline)) = entries.next_entry() else { return map.finish() };
            let remaining = deadline.remaining(self.shared.clock.now());
            match remaining {
                Some(remaining) => {
                    map.entry(&key, &format_args!("{value:?} (expires in {remaining:?})"))
                }
                None => map.entry(&key, &value),
            };
        }
        match entries.next_entry() {
            Some(_) => map.finish_non_exhaustive(),
            None => map.finish(),
        }
    }
}
