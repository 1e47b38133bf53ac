//! Builder of a timeout dictionary.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use super::{TimeoutDict, dict_state::DictState};
use crate::engine::{hasher::DefaultHasher, retries::Retries};

const DEFAULT_NAME: &str = "timeout dict";

/// Builder for a [`TimeoutDict`], for retries of your own. Created by [`TimeoutDict::builder`].
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::TimeoutDict;
/// let jobs: TimeoutDict<String, String> = TimeoutDict::builder()
///     .name("mails")
///     .backoff(Duration::from_secs(5), Duration::from_secs(600))
///     .max_attempts(8)
///     .build();
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct TimeoutDictBuilder<K, V, S = DefaultHasher> {
    retries: Retries,
    seed: Option<u64>,
    name: String,
    hasher: S,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// Returns a builder for a dictionary.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::TimeoutDict;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let lease = Duration::from_secs(30);
    /// let jobs = TimeoutDict::builder().max_attempts(2).build();
    /// jobs.set("mail", "to ada", Duration::ZERO).await;
    ///
    /// drop(jobs.next_claim(lease).await); // fails, and is delivered again in about a second
    /// let again = jobs.next_claim(lease).await;
    /// assert_eq!(again.attempts(), 2);
    /// drop(again); // fails for the second time, and is dead
    ///
    /// assert_eq!(jobs.get("mail").await, Some("to ada"));
    /// assert_eq!(jobs.take_dead(9).await, [("mail", "to ada")]);
    /// # }
    /// ```
    pub fn builder() -> TimeoutDictBuilder<K, V> {
        TimeoutDictBuilder {
            retries: Retries::DEFAULT,
            seed: None,
            name: DEFAULT_NAME.to_owned(),
            hasher: DefaultHasher::default(),
            types: PhantomData,
        }
    }
}

impl<K, V, S> TimeoutDictBuilder<K, V, S> {
    /// Sets the delay until an entry is delivered again after a claim on it was dropped: `first` after the first
    /// failure, doubled after each further one, up to `max`. Defaults to 1 s and 1 min.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{TimeoutDict, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let jobs = TimeoutDict::builder()
    ///     .backoff(Duration::from_secs(10), Duration::from_secs(300))
    ///     .build();
    /// jobs.set("webhook", "https://example.org", Duration::ZERO).await;
    /// drop(jobs.next_claim(Duration::from_secs(60)).await); // the server is down
    ///
    /// let Ttl::Remaining(delay) = jobs.ttl("webhook").await else { panic!() };
    /// assert!(delay >= Duration::from_secs(5) && delay <= Duration::from_secs(15));
    /// # }
    /// ```
    ///
    /// The actual delay is chosen at random between 0.5 and 1.5 times this value, so that entries that failed together
    /// are not delivered again together.
    ///
    /// If `first` is zero, an entry is due again immediately, behind all other due entries. A failing job is then
    /// retried without a pause as long as no other entry is due.
    ///
    /// # Panics
    ///
    /// Panics if `first` is longer than `max`.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.retries.set_backoff(first, max);
        self
    }

    /// Sets the number of failed attempts after which an entry is dead. A dead entry stays readable, but is not
    /// delivered until it is [revived](TimeoutDict::revive) or set; [`take_dead`](TimeoutDict::take_dead) removes it.
    /// Defaults to no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::TimeoutDict;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let lease = Duration::from_secs(60);
    /// let jobs = TimeoutDict::builder().max_attempts(2).build();
    /// jobs.set("webhook", "https://example.org", Duration::ZERO).await;
    /// for _attempt in 1..=2 {
    ///     drop(jobs.next_claim(lease).await); // the server is down
    /// }
    /// assert_eq!(jobs.dead_len().await, 1);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `attempts` is 0.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retries.set_max_attempts(attempts);
        self
    }

    /// Sets the seed of the jitter, to make it repeatable. Defaults to a random seed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{TimeoutDict, Ttl};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A test that fails can be repeated with the same delays.
    /// let delay = async || {
    ///     let jobs = TimeoutDict::builder().seed(7).build();
    ///     jobs.set("job", 1, Duration::ZERO).await;
    ///     drop(jobs.next_claim(Duration::from_secs(60)).await);
    ///     jobs.ttl("job").await
    /// };
    /// assert_eq!(delay().await, delay().await);
    /// # }
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the name in [metrics](crate::guide::metrics). Defaults to `timeout dict`.
    ///
    /// ```
    /// # use fleeting::TimeoutDict;
    /// let mails: TimeoutDict<u64, String> = TimeoutDict::builder().name("mails").build();
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the hasher of keys. If an attacker can choose keys, std's `RandomState` resists collisions better. Defaults
    /// to the hasher of [`TimeoutDict::new`].
    ///
    /// ```
    /// # use std::collections::hash_map::RandomState;
    /// # use fleeting::TimeoutDict;
    /// // Users choose the keys.
    /// let logins: TimeoutDict<String, u64, _> =
    ///     TimeoutDict::builder().hasher(RandomState::new()).max_attempts(3).build();
    /// ```
    pub fn hasher<H>(self, hasher: H) -> TimeoutDictBuilder<K, V, H> {
        let Self { retries, seed, name, .. } = self;
        TimeoutDictBuilder { retries, seed, name, hasher, types: PhantomData }
    }
}

impl<K, V, S> TimeoutDictBuilder<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Builds an empty dictionary.
    pub fn build(self) -> TimeoutDict<K, V, S> {
        let shared = Arc::new(DictState::new(self.retries, self.seed));
        #[cfg(feature = "metrics")]
        super::metrics::follow(&shared, &self.name);
        TimeoutDict { shared, hasher: self.hasher }
    }
}

impl<K, V, S> fmt::Debug for TimeoutDictBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutDictBuilder")
            .field("name", &self.name)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
