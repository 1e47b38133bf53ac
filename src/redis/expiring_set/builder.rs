use std::{marker::PhantomData, time::Duration};

use super::{ExpiringSet, scores::Scores};
use crate::redis::{Client, Error, Format};

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

impl<T> ExpiringSetBuilder<T> {
    pub(super) fn new(client: &Client, name: String, ttl: Duration) -> Self {
        Self { client: client.clone(), name, ttl, format: Format::default(), types: PhantomData }
    }

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
        // Shards have numbers: this is no name of theirs.
        let key = self.client.names(&self.name)?.single(b"set");
        Ok(ExpiringSet::with(self.client, key, self.ttl, self.format, Scores::Millis))
    }
}
