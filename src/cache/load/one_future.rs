//! Loader methods for one key that take a future, which may borrow.

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use super::ttl::TimeToLive;
use crate::{
    cache::Cache,
    engine::{coop, to_key::ToKey},
};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the live value of `key`; if there is none, awaits `future`, stores its output and returns it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// struct Db;
    /// impl Db {
    ///     async fn profile(&self, user: &str) -> String { format!("profile of {user}") }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let profiles = Cache::<String, String>::builder().time_to_live(Duration::from_secs(60)).build();
    /// let (db, user) = (Db, "ada".to_owned());
    /// let profile = profiles.get_or_set(&user, None, db.profile(&user)).await;
    /// assert_eq!(profile, "profile of ada");
    /// # }
    /// ```
    ///
    /// The future may borrow: it is polled only inside this call. This method shares single flight with the `_with`
    /// methods: one load runs per key, and all callers that wait for it get its result. If the caller whose load runs
    /// is cancelled or panics, one of the waiters continues with its own future or loader. A future that is not needed
    /// is dropped unpolled.
    ///
    /// Otherwise the same as [`get_or_set_with`](Cache::get_or_set_with), with one exception: this method never
    /// refreshes in the background. A value within its
    /// [`stale_while_revalidate`](crate::Builder::stale_while_revalidate) window counts as missing, and
    /// [`refresh_ahead`](crate::Builder::refresh_ahead) does not apply. If a background refresh of the key is running,
    /// the call waits for it, and continues with `future` if the refresh fails.
    ///
    /// # Panics
    ///
    /// Panics if the future does and this call polls it. The panic does not reach other callers.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. If the call whose future runs is dropped, that future is dropped, and a waiter continues with its
    /// own future or loader. If there is no waiter, nothing is stored.
    #[doc(alias = "or_insert_with")]
    #[doc(alias = "get_with")]
    // An `async fn` would store its arguments twice, as arguments and as locals, and copy them in each call.
    #[allow(clippy::manual_async_fn)]
    pub fn get_or_set<Q>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        future: impl Future<Output = V>,
    ) -> impl Future<Output = V>
    where
        Q: ToKey<K> + ?Sized,
    {
        async move {
            coop::proceed().await;
            if let Some(value) = self.inner.look_up_live(key) {
                return value;
            }
            let loader = || async move { Ok::<_, Infallible>(future.await) };
            match Box::pin(self.inner.load(key, ttl, loader)).await {
                Ok((value, _)) => value,
                Err(never) => match *never {},
            }
        }
    }

    /// Returns the live value of `key`; if there is none, awaits a fallible `future`, stores its value and returns it.
    ///
    /// ```
    /// use std::{num::ParseIntError, sync::Arc, time::Duration};
    /// use fleeting::Cache;
    ///
    /// # async fn parse(text: &str) -> Result<u32, ParseIntError> { text.parse() }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Arc<ParseIntError>> {
    /// let numbers: Cache<String, u32> = Cache::new();
    /// let text = "42".to_owned();
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(numbers.get_or_try_set(&text, minute, parse(&text)).await?, 42);
    /// assert!(numbers.get_or_try_set("x", minute, parse("x")).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// Otherwise the same as [`get_or_set`](Cache::get_or_set). Errors are shared between waiters and kept by
    /// [`negative_ttl`](crate::Builder::negative_ttl) as in [`get_or_try_set_with`](Cache::get_or_try_set_with).
    ///
    /// # Errors
    ///
    /// Returns the error of the load, or the error kept for `key`. No error is returned while
    /// [`stale_if_error`](crate::Builder::stale_if_error) allows the expired value to be returned instead.
    ///
    /// # Cancel safety
    ///
    /// As for [`get_or_set`](Cache::get_or_set).
    #[doc(alias = "optionally_get_with")]
    #[doc(alias = "or_try_insert_with")]
    #[doc(alias = "try_get_with")]
    #[allow(clippy::manual_async_fn)] // As for `get_or_set`.
    pub fn get_or_try_set<Q, E>(
        &self,
        key: &Q,
        ttl: impl TimeToLive<V>,
        future: impl Future<Output = Result<V, E>>,
    ) -> impl Future<Output = Result<V, Arc<E>>>
    where
        Q: ToKey<K> + ?Sized,
        E: Debug + Send + Sync + 'static,
    {
        async move {
            coop::proceed().await;
            if let Some(value) = self.inner.look_up_live(key) {
                return Ok(value);
            }
            Box::pin(self.inner.load(key, ttl, || future)).await.map(|(value, _)| value)
        }
    }
}
