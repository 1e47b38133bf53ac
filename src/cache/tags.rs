//! Names that values share, by which all of them are removed at once.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use super::Cache;
use crate::engine::{
    clock::{CallTime, Deadline},
    coop,
    store::Written,
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// As [`set_ex`](Cache::set_ex), with tags: [`remove_tag`](Cache::remove_tag) of any of them removes the value.
    ///
    /// The tags are the value's: a new value at the key has those that are given with it, and none from
    /// [`set`](Cache::set) and its like. What changes the value in place, or its TTL, leaves them. A tagged entry takes
    /// some 30 bytes more, and one without tags nothing.
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
    pub fn set_tagged(
        &self,
        key: K,
        value: V,
        ttl: Duration,
        tags: impl IntoIterator<Item = impl Into<String>>,
    ) -> impl Future<Output = Option<V>> {
        // Before the first await, so that the future keeps none of the caller's iterator.
        let tags = tags.into_iter().map(|tag| tag.into().into_boxed_str()).collect();
        async move {
            coop::proceed().await;
            let call = self.call();
            let until = self.until(Some(ttl), &call);
            self.put_tagged(key, value, tags, &call, until)
        }
    }

    /// Removes all values that have this tag. When this returns nobody finds them, however many there are: it takes
    /// the time of one write. The next sweep looks at all entries and takes them out of memory; they leave as
    /// [`Cause::Removed`](crate::Cause::Removed). Until then calls cost a little more. What was being loaded
    /// [ahead](super::Builder::refresh_ahead) for them is not kept.
    pub async fn remove_tag(&self, tag: &str) {
        coop::proceed().await;
        self.shared.store.remove_tag(tag, &self.shared.clock);
        self.shared.publisher.flush();
    }

    /// Puts a value that has tags of these names.
    pub(super) fn put_tagged(
        &self,
        key: K,
        value: V,
        tags: Vec<Box<str>>,
        call: &CallTime<'_>,
        until: Deadline,
    ) -> Option<V> {
        let failure = self.failure_at(&key);
        let tags = self.shared.store.tags(tags);
        let written = self.shared.store.put(key, value, tags, call, |_| Some(until));
        self.forget_failure(failure);
        self.end(call);
        match written {
            Written::Put { replaced, .. } => replaced,
            Written::Unchanged | Written::Removed(_) => unreachable!("a deadline was given"),
        }
    }
}
