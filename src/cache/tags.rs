//! Tags: labels by which any number of entries are removed in one call.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::{Cache, SyncCache};
use crate::engine::{
    clock::{CallTime, Deadline},
    coop,
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Sets the value of `key` with the given TTL and tags, and returns the live value it replaced.
    /// [`remove_tag`](Cache::remove_tag) with any of the tags removes the value.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let pages: Cache<&str, &str> = Cache::new();
    /// let hour = Duration::from_secs(3_600);
    /// pages.set_tagged("/ada", "...", hour, ["user:ada", "layout"]).await;
    /// pages.set_tagged("/bob", "...", hour, ["user:bob", "layout"]).await;
    ///
    /// pages.remove_tag("user:ada").await;
    /// assert_eq!(pages.get("/ada").await, None);
    /// assert!(pages.get("/bob").await.is_some());
    /// # }
    /// ```
    ///
    /// Tags belong to the value. A new value has only the tags it is written with, so [`set`](Cache::set) and the like
    /// leave it without tags. [`update`](Cache::update), methods that change the TTL, and refreshes keep the tags.
    /// Loaded values get tags by [`Tagged`](crate::Tagged). A tagged entry takes about 30 additional bytes, an untagged
    /// one none.
    pub fn set_tagged(
        &self,
        key: K,
        value: V,
        ttl: Duration,
        tags: impl IntoIterator<Item = impl Into<String>>,
    ) -> impl Future<Output = Option<V>> {
        // Collected before the first await, so that the future does not hold the caller's iterator.
        let tags = tags.into_iter().map(|tag| tag.into().into_boxed_str()).collect();
        async move {
            coop::proceed().await;
            let replaced = self.inner.set_tagged_now(key, value, ttl, tags);
            self.inner.finish(replaced).await
        }
    }

    /// Removes all entries that have the tag `tag`, with cause [`Cause::Removed`](crate::Cause::Removed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let pages = Cache::new();
    /// let hour = Duration::from_secs(3_600);
    /// pages.set_tagged("/ada", "Ada", hour, ["user:7"]).await;
    /// pages.set_tagged("/ada/posts", "Posts", hour, ["user:7", "posts"]).await;
    /// pages.set_tagged("/about", "About", hour, ["static"]).await;
    ///
    /// // User 7 changes her name.
    /// pages.remove_tag("user:7").await;
    /// assert_eq!(pages.get("/ada/posts").await, None);
    /// assert_eq!(pages.get("/about").await, Some("About"));
    /// # }
    /// ```
    ///
    /// When this method returns, none of these entries can be read any more. The call takes as long as a single write,
    /// for any number of tagged entries: the next sweep examines all entries and removes the tagged ones from memory.
    /// Until then, other calls cost slightly more. An entry that has already expired, and is in its
    /// [stale window](crate::guide::loaders#stale-values), is removed then, too, with cause
    /// [`Cause::Expired`](crate::Cause::Expired), as by [`remove`](Cache::remove).
    ///
    /// If the value of such an entry is being loaded again ([ahead](super::Builder::refresh_ahead) of its deadline,
    /// within its stale window, or by [`refresh_with`](Cache::refresh_with)), the loaded value is not stored. Neither
    /// is a value that is being loaded with this tag ([`Tagged`](crate::Tagged)).
    pub async fn remove_tag(&self, tag: &str) {
        coop::proceed().await;
        self.inner.remove_tag(tag);
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Sets the value of `key` with the given TTL and tags, as [`Cache::set_tagged`] does.
    pub fn set_tagged(
        &self,
        key: K,
        value: V,
        ttl: Duration,
        tags: impl IntoIterator<Item = impl Into<String>>,
    ) -> Option<V> {
        coop::count();
        let tags = tags.into_iter().map(|tag| tag.into().into_boxed_str()).collect();
        self.evict_deferred(self.set_tagged_now(key, value, ttl, tags))
    }

    /// Removes all entries that have the tag `tag`, as [`Cache::remove_tag`] does.
    pub fn remove_tag(&self, tag: &str) {
        coop::count();
        self.shared.store.remove_tag(tag, &self.shared.clock);
        self.shared.publisher.flush();
    }

    fn set_tagged_now(&self, key: K, value: V, ttl: Duration, tags: Vec<Box<str>>) -> Option<V> {
        let call = self.call();
        let deadline = self.deadline_for(Some(ttl), &call);
        self.put_tagged(key, value, tags, &call, deadline)
    }

    /// Sets the value of `key` with tags of these names, and returns the live value it replaced.
    pub(super) fn put_tagged(
        &self,
        key: K,
        value: V,
        tags: Vec<Box<str>>,
        call: &CallTime<'_>,
        deadline: Deadline,
    ) -> Option<V> {
        let _flush = self.shared.publisher.flush_on_panic();
        let failure = self.failure_hash(&key);
        let replaced = self.shared.store.set_tagged(key, value, tags, call, deadline);
        self.discard_failure(failure);
        self.finish_call(call);
        replaced
    }
}
