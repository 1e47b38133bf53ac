//! Constructors and builder of an [`ExpiringSet`], including `compat` for sets shared with other programs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use super::{ExpiringSet, SetState, scores::ScoreUnit};
use crate::redis::{Client, Error, Format, keyspace::Kind};

/// Builder of an [`ExpiringSet`]. Returned by [`ExpiringSet::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::redis::{Client, ExpiringSet, Format};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let here: ExpiringSet<u64> = ExpiringSet::builder(&client, "here", Duration::from_secs(60))
///     .format(Format::MessagePack)
///     .build()?;
/// # Ok(())
/// # }
/// ```
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
    /// Returns the set named `name`, whose members expire when their scores are `ttl` old. Sends nothing to the server.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, ExpiringSet};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let minute = Duration::from_secs(60);
    /// let here: ExpiringSet<String> = ExpiringSet::new(&client, "here", minute)?;
    /// here.push("ada".into()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With a `ttl` of zero, only members with a score in the future are live. With 285 years or more, no member
    /// expires.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn new(client: &Client, name: impl Into<String>, ttl: Duration) -> Result<Self, Error> {
        Self::builder(client, name, ttl).build()
    }

    /// Returns a builder for the set named `name`.
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

    /// Returns a set shared with programs that use the article's functions or `ExpiringPriorityQueue` with JSON: the
    /// sorted set at exactly `key`, without a prefix, whose scores are Unix seconds.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, ExpiringSet};
    /// # fn f(client: Client) {
    /// // The Python program calls its sorted set `online`.
    /// let minute = Duration::from_secs(60);
    /// let online: ExpiringSet<String> = ExpiringSet::compat(&client, "online", minute);
    /// # }
    /// ```
    ///
    /// * Scores are not rounded to milliseconds. A score is a double, with a resolution of a quarter of a microsecond
    ///   at present. Members with equal scores are ordered by their bytes, as in those programs.
    /// * [`extend`](Self::extend) gives each member a score one microsecond after the previous member's.
    /// * The key gets no expiry, because it would also delete the members of the other programs.
    /// * Members are compared by their bytes. Other JSON encoders may write blanks after `:` and `,` and escape
    ///   non-ASCII characters, so that a value may be in the set twice. ASCII strings and numbers are not affected.
    pub fn compat(client: &Client, key: impl Into<String>, ttl: Duration) -> Self {
        let key = key.into().into_bytes();
        Self::with(client.clone(), key, ttl, Format::Json, ScoreUnit::Seconds)
    }

    fn with(client: Client, key: Vec<u8>, ttl: Duration, format: Format, unit: ScoreUnit) -> Self {
        // Rounded up, so that no member expires early. Microseconds up to 2^53 are exact as a Lua number.
        let ttl = u64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(1 << 53);
        let state = SetState { client, key, ttl, format, unit };
        Self { state: Arc::new(state), types: PhantomData }
    }
}

impl<T> ExpiringSetBuilder<T> {
    /// Sets the format of the members. All your programs that use the name must use the same. Defaults to
    /// [`Format::Json`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, ExpiringSet, Format};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let here: ExpiringSet<(u64, String)> = ExpiringSet::builder(&client, "here", Duration::from_secs(60))
    ///     .format(Format::MessagePack)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Builds the set. Sends nothing to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn build(self) -> Result<ExpiringSet<T>, Error> {
        let key = self.client.keyspace(Kind::ExpiringSet, &self.name)?.single();
        Ok(ExpiringSet::with(self.client, key, self.ttl, self.format, ScoreUnit::Millis))
    }
}
