//! Groups of subscribers to expirations: their names, and their removal.

use std::{collections::BTreeSet, sync::atomic::Ordering::Relaxed};

use futures_util::future::try_join_all;

use super::{super::Error, Cache};

impl<K, V> Cache<K, V> {
    /// Returns the names of the [groups](Cache::events_lossless) of this cache, sorted.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// for group in carts.groups().await? {
    ///     println!("{group} receives the expirations");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One script per shard.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the cache was built without [events](super::CacheBuilder::events), and the errors [of all
    /// methods](Cache#errors).
    pub async fn groups(&self) -> Result<Vec<String>, Error> {
        self.require_events()?;
        let (commands, client) = (self.commands(), self.client());
        let shards = commands.keyspace.shards();
        let calls =
            shards.map(|shard| commands.groups(shard).send_idempotent::<Vec<String>>(client));
        let names: BTreeSet<String> = try_join_all(calls).await?.into_iter().flatten().collect();
        Ok(names.into_iter().collect())
    }

    /// Removes a [group](Cache::events_lossless) permanently, with the events that it has not acknowledged; returns
    /// whether there was such a group.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// // This release sends no reminders any more.
    /// carts.remove_group("reminders").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Its subscribers, in all processes, receive the events that they have already read, then
    /// [`Error::GroupRemoved`], and then the end of the stream. A later subscription with that name creates a new
    /// group, which receives the events from then on. The same applies to a group that another program has destroyed
    /// with `XGROUP DESTROY`.
    ///
    /// One script per shard. The shards are not changed atomically: a subscription that begins at the same time may end
    /// with this error, too.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the cache was built without [events](super::CacheBuilder::events), and the errors [of all
    /// methods](Cache#errors). After the latter, the group may be removed in some of the shards; call the method again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the group may be removed in some of the shards.
    pub async fn remove_group(&self, group: &str) -> Result<bool, Error> {
        self.require_events()?;
        let (commands, client) = (self.commands(), self.client());
        let shards = commands.keyspace.shards();
        // A retry after a lost reply would return false.
        let calls =
            shards.map(|shard| commands.remove_group(shard, group).send_once::<bool>(client));
        Ok(try_join_all(calls).await?.contains(&true))
    }

    /// Logs a warning, once, if the server may evict expirations.
    pub(super) fn check_eviction(&self) {
        if self.state.is_eviction_checked.swap(true, Relaxed) {
            return;
        }
        let (client, name) = (self.client().clone(), self.state.name.clone());
        // A task, because only the log waits for the reply.
        tokio::spawn(async move {
            if let Some(policy) = client.evicting_policy().await {
                tracing::warn!(
                    cache = name,
                    policy,
                    "server may evict expirations of a cache, set maxmemory-policy to noeviction"
                );
            }
        });
    }

    pub(super) fn require_events(&self) -> Result<(), Error> {
        if self.commands().has_events() { Ok(()) } else { Err(Error::NoEvents) }
    }
}
