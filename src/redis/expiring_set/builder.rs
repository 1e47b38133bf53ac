//! How an [`ExpiringSet`] is made: the settings and their defaults, and the set of other programs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use super::{ExpiringSet, SetState, scores::ScoreUnit};
use crate::redis::{Client, Error, Format, keyspace::Kind};

/// Sets up an [`ExpiringSet`]. Made by [`ExpiringSet::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ExpiringSetBuilder<T> {
    client: Client,
    name: String,
    ttl: Duration,
    format: Format,
    types: PhantomData<fn(T)>,
}

impl<T> ExpiringSet<T> {
    /// The set of this name, whose members die when their scores are `ttl` old. Nothing is sent for it.
    ///
    /// With a `ttl` of zero only the future is not dead at once; with one of 285 years or more nothing dies.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn new(client: &Client, name: impl Into<String>, ttl: Duration) -> Result<Self, Error> {
        Self::builder(client, name, ttl).build()
    }

    /// Sets up a set.
    pub fn builder(
        client: &Client,
        name: impl Into<String>,
        ttl: Duration,
    ) -> ExpiringSetBuilder<T> {
        ExpiringSetBuilder {
            client: client.clone(),
            name: name.into(),
            ttl,
            format: Format::default(),
            types: PhantomData,
        }
    }

    /// The set of programs that use the article's functions or `ExpiringPriorityQueue`, with JSON, on the same
    /// server: the sorted set at the very key `key`, whose scores are Unix seconds. There is no prefix.
    ///
    /// * Scores are what those programs wrote, not whole milliseconds. Ours are as fine as the doubles of
    ///   these years, a quarter of a microsecond. Equal scores come in the order of their bytes, as there.
    /// * [`extend`](Self::extend) gives each member a microsecond more than the one before.
    /// * The key gets no expiry: the others' members would go with it.
    /// * A member is one by its bytes. Other writers of JSON may put blanks after `:` and `,` and escape what
    ///   is not ASCII, so the same value may be in the set twice; strings and numbers of plain ASCII are not.
    pub fn compat(client: &Client, key: impl Into<String>, ttl: Duration) -> Self {
        let key = key.into().into_bytes();
        Self::with(client.clone(), key, ttl, Format::Json, ScoreUnit::Seconds)
    }

    fn with(client: Client, key: Vec<u8>, ttl: Duration, format: Format, unit: ScoreUnit) -> Self {
        // Rounded up, so that nothing dies too soon.
        let ttl = u64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(1 << 53);
        let state = SetState { client, key, ttl, format, unit };
        Self { state: Arc::new(state), types: PhantomData }
    }
}

impl<T> ExpiringSetBuilder<T> {
    /// How members are written. All who use the name must agree. Defaults to [`Format::Json`].
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The set. Nothing is sent for it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn build(self) -> Result<ExpiringSet<T>, Error> {
        let key = self.client.keyspace(Kind::ExpiringSet, &self.name)?.single();
        Ok(ExpiringSet::with(self.client, key, self.ttl, self.format, ScoreUnit::Millis))
    }
}
