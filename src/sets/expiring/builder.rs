//! Builder of a set, or of keyed sets. `build` is defined next to the type that it returns.

use std::{fmt, marker::PhantomData, time::Duration};

use crate::engine::{event::Cause, shards::default_shards};

/// Builder for an [`ExpiringSet`](crate::ExpiringSet) or [`ExpiringSets`](crate::ExpiringSets).
///
/// ```
/// # use std::time::Duration;
/// # use fleeting::ExpiringSet;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let online: ExpiringSet<String> = ExpiringSet::builder(Duration::from_secs(60))
///     .name("online")
///     .sweep_every(Duration::from_secs(1))
///     .build();
/// # }
/// ```
///
/// Created by [`ExpiringSet::builder`](crate::ExpiringSet::builder) and
/// [`ExpiringSets::builder`](crate::ExpiringSets::builder).
#[must_use = "a builder does nothing until `build`"]
pub struct ExpiringSetBuilder<B> {
    pub(super) options: SetOptions,
    pub(super) shards: usize,
    builds: PhantomData<fn() -> B>,
}

#[derive(Debug)]
pub(super) struct SetOptions {
    pub(super) ttl: Duration,
    pub(super) sweep_every: Duration,
    pub(super) event_capacity: usize,
    pub(super) causes: u8,
    pub(super) name: String,
}

impl<B> ExpiringSetBuilder<B> {
    pub(super) fn new(ttl: Duration, name: &str) -> Self {
        let options = SetOptions {
            ttl,
            sweep_every: Duration::from_millis(100),
            event_capacity: 1_024,
            causes: Cause::Expired.bit(),
            name: name.to_owned(),
        };
        Self { options, shards: default_shards(), builds: PhantomData }
    }

    /// Sets the minimum time between two sweeps. Unless a [lossless](crate::ExpiringSet::events_lossless) stream is
    /// full, this is also the maximum time for which an expired member stays in memory if no call removes it, not
    /// counting the sweep itself. Defaults to 100 ms.
    ///
    /// # Panics
    ///
    /// Panics if `every` is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Members expire on time all the same; their memory may be released a minute later.
    /// let devices: ExpiringSet<u64> = ExpiringSet::builder(Duration::from_secs(3_600))
    ///     .sweep_every(Duration::from_secs(60))
    ///     .build();
    /// # }
    /// ```
    pub fn sweep_every(mut self, every: Duration) -> Self {
        assert!(!every.is_zero(), "sweep_every must be longer than zero, got {every:?}");
        self.options.sweep_every = every;
        self
    }

    /// Sets the number of events by which a subscriber of `events` may fall behind before it misses some. Defaults to
    /// 1,024.
    ///
    /// # Panics
    ///
    /// Panics if `events` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // A burst of 100,000 expirations loses no event.
    /// let devices: ExpiringSet<u64> =
    ///     ExpiringSet::builder(Duration::from_secs(60)).event_capacity(100_000).build();
    /// let events = devices.events();
    /// # }
    /// ```
    pub fn event_capacity(mut self, events: usize) -> Self {
        assert!(events > 0, "event_capacity must be at least 1, got {events}");
        self.options.event_capacity = events;
        self
    }

    /// Sets the causes of removal that are published as events. Defaults to [`Cause::Expired`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cause, ExpiringSet};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::builder(Duration::from_secs(60))
    ///     .publish([Cause::Expired, Cause::Removed])
    ///     .build();
    /// let mut offline = online.events();
    /// online.push("ada").await;
    /// online.remove("ada").await; // she logged out
    /// assert_eq!(offline.recv().await.unwrap().unwrap().cause, Cause::Removed);
    /// # }
    /// ```
    pub fn publish(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.options.causes = Cause::bits(causes);
        self
    }

    /// Sets the name in logs, traces and [metrics](crate::guide::metrics). Defaults to `expiring set` or `expiring
    /// sets`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let online: ExpiringSet<u64> =
    ///     ExpiringSet::builder(Duration::from_secs(60)).name("online users").build();
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }
}

impl<B> fmt::Debug for ExpiringSetBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringSetBuilder")
            .field("name", &self.options.name)
            .field("ttl", &self.options.ttl)
            .field("sweep_every", &self.options.sweep_every)
            .field("event_capacity", &self.options.event_capacity)
            .finish_non_exhaustive()
    }
}
