//! Names that users of other caches try first. Without them, rustc points to a method that does something else, such as
//! `get_ex_with` for `get_with`. Each warns and names the right method.

use std::{
    fmt::Debug,
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use equivalent::Equivalent;

use super::Cache;
use crate::engine::to_key::ToKey;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Is [`get_or_set`](Cache::get_or_set) with the default TTL.
    #[deprecated(
        note = "use `get_or_set`, or `get_or_set_with` for a loader that may run in the background"
    )]
    #[doc(hidden)]
    pub async fn get_with<Q>(&self, key: &Q, future: impl Future<Output = V>) -> V
    where
        Q: ToKey<K> + ?Sized,
    {
        self.get_or_set(key, None, future).await
    }

    /// Is [`get_or_try_set`](Cache::get_or_try_set) with the default TTL.
    #[deprecated(
        note = "use `get_or_try_set`, or `get_or_try_set_with` for a loader that may run in the background"
    )]
    #[doc(hidden)]
    pub async fn try_get_with<Q, E>(
        &self,
        key: &Q,
        future: impl Future<Output = Result<V, E>>,
    ) -> Result<V, Arc<E>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
    {
        self.get_or_try_set(key, None, future).await
    }

    /// Is [`remove`](Cache::remove).
    #[deprecated(note = "use `remove`")]
    #[doc(hidden)]
    pub async fn invalidate<Q>(&self, key: &Q)
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.remove(key).await;
    }
}
