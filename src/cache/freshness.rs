//! What the verbs that load are told of a value, and tell of it: how long it lives, and how fresh it is.

use std::time::Duration;

/// How fresh a value is that a loader verb has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// It was there, and alive.
    Fresh,
    /// This call has loaded it, or one that this call waited for.
    Loaded,
    /// It is dead, and within its stale window.
    Stale,
}

/// How long a value may live that was loaded: a [`Duration`], or a closure that is asked once the value is there, as a
/// token knows its own expiry.
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
/// # }
/// ```
pub trait TimeToLive<V> {
    /// The TTL of this value.
    fn of(&self, value: &V) -> Duration;
}

impl<V> TimeToLive<V> for Duration {
    fn of(&self, _value: &V) -> Duration {
        *self
    }
}

impl<V, F: Fn(&V) -> Duration> TimeToLive<V> for F {
    fn of(&self, value: &V) -> Duration {
        self(value)
    }
}
