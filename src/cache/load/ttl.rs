//! The TTL argument of a loader method.

use std::time::Duration;

/// TTL of a loaded value: a [`Duration`], an `Option<Duration>`, or a closure that computes it from the value.
///
/// ```
/// use std::time::Duration;
/// use fleeting::Cache;
///
/// #[derive(Clone)]
/// struct Token { expires_in: Duration }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let tokens = Cache::<u64, Token>::new();
/// let ttl = |token: &Token| token.expires_in;
/// tokens.get_or_set_with(&7, ttl, async || Token { expires_in: Duration::from_secs(60) }).await;
/// assert_eq!(tokens.ttl(&7).await.as_secs(), 60);
///
/// let hour = Duration::from_secs(3_600);
/// let names = Cache::<u64, String>::builder().time_to_live(hour).build();
/// names.get_or_set_with(&7, None, async || "Ada".to_owned()).await;
/// assert_eq!(names.ttl(&7).await.as_secs(), 3_600);
/// # }
/// ```
///
/// To give the value tags, too, wrap it in [`Tagged`](crate::Tagged).
///
/// `None` means the default TTL of the cache ([`Builder::time_to_live`](crate::Builder::time_to_live)), as for
/// [`set`](crate::Cache::set); without one, the value is persistent. A closure returns a [`Duration`], and is called
/// once, when the value has been loaded. Use one if your values contain their own expiry time, such as access tokens.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a TTL",
    label = "expected a `Duration`, an `Option<Duration>`, or a closure from the value to a `Duration`",
    note = "the TTL is the argument between the key and the loader; `None` is the default TTL of the cache"
)]
pub trait TimeToLive<V> {
    /// Returns the TTL of `value`; `None` means the default TTL of the cache.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeToLive;
    /// # struct Token { expires_in: Duration }
    /// let ttl = |token: &Token| token.expires_in;
    /// let token = Token { expires_in: Duration::from_secs(60) };
    /// assert_eq!(ttl.of(&token), Some(Duration::from_secs(60)));
    /// ```
    fn of(&self, value: &V) -> Option<Duration>;

    /// Returns the TTL of `value` and its tags; without tags (`None`), it keeps those of the value that it replaces.
    fn with_tags(&self, value: &V) -> (Option<Duration>, Option<Vec<String>>) {
        (self.of(value), None)
    }

    /// Returns whether [`with_tags`](Self::with_tags) returns tags.
    fn has_tags(&self) -> bool {
        false
    }
}

impl<V> TimeToLive<V> for Duration {
    fn of(&self, _value: &V) -> Option<Duration> {
        Some(*self)
    }
}

impl<V> TimeToLive<V> for Option<Duration> {
    fn of(&self, _value: &V) -> Option<Duration> {
        *self
    }
}

impl<V, F: Fn(&V) -> Duration> TimeToLive<V> for F {
    fn of(&self, value: &V) -> Option<Duration> {
        Some(self(value))
    }
}
