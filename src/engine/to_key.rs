//! What a key is found by, and can be made of.

use std::hash::Hash;

use equivalent::Equivalent;

/// What finds a key, and what the key can be made of where there is none yet: for the verbs of
/// [`Cache`](crate::Cache) that load or compute, and those of [`RateLimiter`](crate::RateLimiter) that charge.
///
/// All that can be [made owned](ToOwned) as the key is one: `str` for `String`, `u32` for `u32`. Of a key that has several
/// parts, implement it for the borrowed parts. It must hash as the key that it makes, and be [`Equivalent`] to that; where
/// it does not, keys are not found. Where the key is there already, a load and a check make none of it.
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
    /// The key.
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
