//! Constructors and builder of a [`TimeoutDict`], including `compat` for dictionaries shared with other programs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use super::{TimeoutDict, dict_state::DictState, layout::Layout};
use crate::{
    engine::retries::Retries,
    redis::{Client, Error, Format, keyspace::Kind},
};

/// Default pause of a waiter between two requests. See [`TimeoutDictBuilder::ask_every`].
/// A request is one command per shard, so an idle waiter sends eight commands per second.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Builder of a [`TimeoutDict`]: format, backoff, attempts. Returned by [`TimeoutDict::builder`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use fleeting::redis::{Client, TimeoutDict};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let mails: TimeoutDict<String, String> = TimeoutDict::builder(&client, "mails")
///     .backoff(Duration::from_secs(10), Duration::from_secs(3_600))
///     .max_attempts(8)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TimeoutDictBuilder<K, V> {
    client: Client,
    name: String,
    format: Format,
    ask_every: Duration,
    retries: Retries,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> TimeoutDict<K, V> {
    /// Returns the dictionary named `name`. Sends nothing to the server.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let reminders: TimeoutDict<String, String> = TimeoutDict::new(&client, "reminders")?;
    /// let hour = Duration::from_secs(3_600);
    /// reminders.set("meeting 7".into(), "room 12".into(), hour).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn new(client: &Client, name: impl Into<String>) -> Result<Self, Error> {
        Self::builder(client, name).build()
    }

    /// Returns a builder for the dictionary named `name`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let mails: TimeoutDict<String, String> = TimeoutDict::builder(&client, "mails")
    ///     .backoff(Duration::from_secs(10), Duration::from_secs(3_600))
    ///     .max_attempts(8)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: &Client, name: impl Into<String>) -> TimeoutDictBuilder<K, V> {
        TimeoutDictBuilder {
            client: client.clone(),
            name: name.into(),
            format: Format::default(),
            ask_every: ASK_EVERY,
            retries: Retries::DEFAULT,
            types: PhantomData,
        }
    }

    /// Returns a dictionary shared with programs that use the original Python class: the sorted set `set` (there,
    /// `timeout_dict_set`) with deadlines in Unix seconds, and a hash for each key at exactly that key, without a
    /// prefix.
    ///
    /// ```no_run
    /// # use std::collections::HashMap;
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # fn f(client: Client) {
    /// // Take over from a Python program while it still runs.
    /// let sessions: TimeoutDict<String, HashMap<String, String>> =
    ///     TimeoutDict::compat(&client, "timeout_dict_set");
    /// # }
    /// ```
    ///
    /// * A value is a map or a struct of strings; fields that are `None` are left out. Any other value is
    ///   [`Error::Encode`].
    /// * An entry whose deadline was removed by the original's `remove_timeout` is not in the sorted set: it can be
    ///   read, but is neither counted nor cleared. An entry without a deadline of this crate stays there, with `+inf`.
    /// * The original class does not see a leased entry until the lease expires, because the end of the lease replaces
    ///   its score; [`ttl`](Self::ttl) returns it, too. A claim becomes void if the original sets the entry.
    /// * Failures are not counted, because the original would not reset the counts. A dropped claim is due again after
    ///   about a second each time, [`attempts`](super::Claim::attempts) is 1, and there are no dead letters.
    /// * String keys are stored as they are, all other keys as JSON. So two keys of a type that allows both, such as
    ///   `Option<String>`, may collide. No key may be the name of the sorted set.
    /// * A deadline of the original without data is not an entry. It stays, and is skipped for a minute.
    /// * All deadlines are in one sorted set, which a cluster keeps in another slot than most of the keys. Scripts fail
    ///   there, unless `set` and all keys share a hash tag.
    pub fn compat(client: &Client, set: impl Into<String>) -> Self {
        let set = set.into();
        let layout = Layout::compat(set.clone());
        Self::with(client.clone(), set, layout, ASK_EVERY, Retries::DEFAULT)
    }

    fn with(
        client: Client,
        name: String,
        layout: Layout,
        ask_every: Duration,
        retries: Retries,
    ) -> Self {
        let state = DictState::new(client, name, layout, ask_every, retries);
        Self { state: Arc::new(state), types: PhantomData }
    }
}

impl<K, V> TimeoutDictBuilder<K, V> {
    /// Sets the format of the values. All your programs that use the name must use the same. Defaults to
    /// [`Format::Json`].
    ///
    /// ```no_run
    /// # use fleeting::redis::{Client, Format, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let jobs: TimeoutDict<u64, Vec<f64>> =
    ///     TimeoutDict::builder(&client, "jobs").format(Format::MessagePack).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Sets the maximum age of the deadlines that [`next_expired`](TimeoutDict::next_expired) and
    /// [`next_claim`](TimeoutDict::next_claim) have read; older ones are read again from the server. This bounds the
    /// delay of an entry that another process sets with an earlier deadline than all others. Your changes through
    /// this handle and its clones are noticed immediately.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // Another process may add an urgent job, which must not wait for two seconds.
    /// let jobs: TimeoutDict<String, u32> =
    ///     TimeoutDict::builder(&client, "jobs").ask_every(Duration::from_millis(200)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A waiter without due entries sends 16 short commands per `period`. Defaults to two seconds.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero.
    pub fn ask_every(mut self, period: Duration) -> Self {
        assert!(!period.is_zero(), "ask_every must be longer than zero, got {period:?}");
        self.ask_every = period;
        self
    }

    /// Sets the delay after which an entry is due again when a claim on it was dropped: `first` after the first
    /// failure, twice as long after each further failure, up to `max`. Defaults to one second and one minute.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // After a failure: again after about 10 seconds, then 20, 40, and so on, up to an hour.
    /// let mails: TimeoutDict<String, String> = TimeoutDict::builder(&client, "mails")
    ///     .backoff(Duration::from_secs(10), Duration::from_secs(3_600))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The actual delay is chosen at random between 0.5 and 1.5 times this value, so that entries that failed together
    /// are not delivered again together.
    ///
    /// # Panics
    ///
    /// Panics if `first` is longer than `max`.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.retries.set_backoff(first, max);
        self
    }

    /// Sets the number of failed attempts after which an entry becomes a dead letter. A dead letter stays readable, but
    /// is not delivered until you [revive](TimeoutDict::revive) or set it; [`take_dead`](TimeoutDict::take_dead)
    /// removes it. The setting of the claiming handle applies, so all users of the name should use the same. Defaults
    /// to no bound.
    ///
    /// ```no_run
    /// # use fleeting::redis::{Client, TimeoutDict};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// // A mail that has failed eight times waits for a person.
    /// let mails: TimeoutDict<String, String> =
    ///     TimeoutDict::builder(&client, "mails").max_attempts(8).build()?;
    /// for letter in mails.dead_letters(100).await? {
    ///     println!("{}: {:?}", letter.key, letter.reason);
    /// }
    /// # Ok(())
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

    /// Builds the dictionary. Sends nothing to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if the name cannot be part of a key.
    pub fn build(self) -> Result<TimeoutDict<K, V>, Error> {
        let layout =
            Layout::sharded(&self.client.keyspace(Kind::TimeoutDict, &self.name)?, self.format);
        Ok(TimeoutDict::with(self.client, self.name, layout, self.ask_every, self.retries))
    }
}
