//! Borrowed forms of a key that can be made owned.

use std::hash::Hash;

use equivalent::Equivalent;

/// Borrowed form of a key, from which the key is created if it is missing. It is used by the methods of
/// [`Cache`](crate::Cache) that load or compute, and by those of [`RateLimiter`](crate::RateLimiter) that charge.
///
/// Every type whose [owned form](ToOwned) is the key implements it: `str` for `String`, `u32` for `u32`, but not `str`
/// for `Arc<str>` ([what to pass instead](crate::guide::loaders#keys)). For a key of several parts, implement it for a
/// struct of the borrowed parts. The type must hash as the key that it creates, and be [`Equivalent`] to it; otherwise
/// keys are not found. If the key already exists, a load and a check create no owned key.
///
/// ```
/// use std::{hash::Hash, time::Duration};
/// use fleeting::{Cache, Equivalent, Limit, RateLimiter, ToKey};
///
/// #[derive(Hash)]
/// struct Page<'a>(&'a str, u32);
///
/// impl Equivalent<(String, u32)> for Page<'_> {
///     fn equivalent(&self, (path, number): &(String, u32)) -> bool {
///         self.0 == path && self.1 == *number
///     }
/// }
///
/// impl ToKey<(String, u32)> for Page<'_> {
///     fn to_key(&self) -> (String, u32) {
///         (self.0.to_owned(), self.1)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let pages: Cache<(String, u32), u64> = Cache::new();
/// let limiter: RateLimiter<(String, u32)> = RateLimiter::builder().limit(Limit::per_second(9)).build();
/// let page = Page("/ada", 7);
/// assert!(limiter.check(&page).await.is_ok());
/// assert_eq!(pages.get_or_set_with(&page, Duration::from_secs(60), async || 42).await, 42);
/// assert_eq!(pages.get(&page).await, Some(42));
/// # }
/// ```
pub trait ToKey<K>: Hash + Equivalent<K> {
    /// Returns the owned key.
    fn to_key(&self) -> K;
}

impl<Q, K> ToKey<K> for Q
where
    Q: Hash + Equivalent<K> + ToOwned<Owned = K> + ?Sized,
{
    #[inline]
    fn to_key(&self) -> K {
        self.to_owned()
    }
}
