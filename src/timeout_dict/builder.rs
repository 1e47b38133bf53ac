//! How a dictionary is made: its settings and their defaults.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use super::{TimeoutDict, retries::Retries, state::SharedState};
use crate::engine::hasher::DefaultHasher;

const DEFAULT_NAME: &str = "timeout dict";

/// Sets up a [`TimeoutDict`]. Made by [`TimeoutDict::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct TimeoutDictBuilder<K, V, S = DefaultHasher> {
    retries: Retries,
    seed: Option<u64>,
    name: String,
    hasher: S,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// Sets up a dictionary.
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
    /// drop(jobs.next_claim(lease).await); // fails, and comes again in about a second
    /// let again = jobs.next_claim(lease).await;
    /// assert_eq!(again.attempts(), 2);
    /// drop(again); // fails once more, and so for good
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
    /// How long an entry stays away when a claim on it was dropped: `first` after its first failure, and twice as long
    /// after each, up to `max`. Defaults to a second, and a minute.
    ///
    /// It is jittered: half to three halves of that, so that what failed together does not come again together. With
    /// zero, an entry comes again at once, behind what is due by then: a job that fails is then tried without a
    /// pause, as long as nothing else is due.
    ///
    /// # Panics
    ///
    /// Where `first` is longer than `max`.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        assert!(first <= max, "the first backoff is {first:?}, longer than the longest, {max:?}");
        (self.retries.first, self.retries.max) = (first, max);
        self
    }

    /// How often an entry may fail before it is dead: then it is still read, but comes no more until it is
    /// [revived](TimeoutDict::revive), set, or taken by [`take_dead`](TimeoutDict::take_dead). Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Where `attempts` is 0.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        assert!(attempts > 0, "max_attempts is at least 1, and not 0");
        self.retries.max_attempts = attempts;
        self
    }

    /// Makes the jitter repeatable. Defaults to none: it differs each time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The name that [metrics](crate::guide::metrics) show. Defaults to `timeout dict`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How keys are hashed. Where an attacker chooses them, std's `RandomState` resists it better. Defaults to that of
    /// [`TimeoutDict::new`].
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
    /// An empty dictionary.
    pub fn build(self) -> TimeoutDict<K, V, S> {
        let shared = Arc::new(SharedState::new(self.retries, self.seed));
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
