//! Shutdown of a cache that still has handles.

use std::hash::{BuildHasher, Hash};

use tokio::task::consume_budget;

use super::Cache;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Stops the sweeper, removes all entries that have expired by now, and ends the event streams.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let sessions = Cache::new();
    /// let mut ended = sessions.events_lossless(1_024);
    /// sessions.set_ex("token", "ada", Duration::ZERO).await;
    ///
    /// // The program ends: deliver pending events, then the end of the stream.
    /// sessions.shutdown().await;
    /// assert_eq!(ended.recv().await.unwrap().value, "ada");
    /// assert!(ended.recv().await.is_none());
    /// # }
    /// ```
    ///
    /// Subscribers still receive the events that their streams hold, and then the end of the stream. This method does
    /// not wait for them: events beyond the capacity of a lossless stream are kept for it as overflow.
    ///
    /// Afterwards you can still read and write, without a sweeper and without events. Expired values are still never
    /// returned. Tasks that wait for a removal by [`expired`](Cache::expired) get `None`.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call may leave the streams open; call it again.
    pub async fn shutdown(&self) {
        // The aborted task is not awaited, because its runtime may not be running. A window that the sweeper is
        // examining ends under the lock of its shard, and `expire_shard` waits for that lock.
        if let Some(task) = self.inner.shared.end_task() {
            task.abort();
        }
        for shard in 0..self.inner.shared.store.shard_count() {
            consume_budget().await;
            self.inner.shared.expire_shard(shard);
        }
        // Last, so that streams receive the events of all shards before their end.
        self.inner.shared.close();
    }
}
