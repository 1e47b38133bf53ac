//! The end of a cache that still has handles.

use std::hash::{BuildHasher, Hash};

use tokio::task::consume_budget;

use super::Cache;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Stops the sweeper, lets what is dead by now leave, and ends the streams after what they hold.
    ///
    /// It waits for no subscriber: what goes beyond the capacity of a lossless one waits for it as
    /// overflow. Afterwards reads and writes still work, without a sweeper and without events.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done may leave the streams open; call it again.
    pub async fn shutdown(&self) {
        // Not awaited: its runtime may be at rest. A window that it is at ends under its shard's lock,
        // for which the look below waits.
        let failures =
            self.freshness_policy.failures.as_ref().and_then(|kept| kept.of_keys().end_task());
        for task in self.shared.end_task().into_iter().chain(failures) {
            task.abort();
        }
        for shard in 0..self.shared.store.shard_count() {
            consume_budget().await;
            self.shared.expire_shard(shard);
        }
        self.shared.publisher.close();
    }
}
