//! How a [`TimeoutDict`] is made: the settings and their defaults, and the dictionary of other programs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{TimeoutDict, layout::Layout, state::DictState};
use crate::{
    redis::{Client, Error, Format, keyspace::Kind},
    timeout_dict::Retries,
};

/// How long who waits sleeps at most, unless set.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Sets up a [`TimeoutDict`]. Made by [`TimeoutDict::builder`].
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
    /// The dictionary of this name. Nothing is sent for it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn new(client: &Client, name: impl Into<String>) -> Result<Self, Error> {
        Self::builder(client, name).build()
    }

    /// Sets up a dictionary.
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

    /// The dictionary of programs that use the original class on the same server: the sorted set `set` (there,
    /// `timeout_dict_set`) with deadlines in Unix seconds, and a hash for each key, at that very key. There is
    /// no prefix.
    ///
    /// * A value is a map or a struct of strings; fields that are `None` are left out. Another is
    ///   [`Error::Encode`].
    /// * An entry whose deadline the original's `remove_timeout` took away is not in the sorted set: it is
    ///   read, but neither counted nor cleared. Ours stays there, with `+inf`.
    /// * What is lent here the original does not see until the lease is over, since the lease's end is the
    ///   score meanwhile, and what [`ttl`](Self::ttl) tells. What it sets anew makes a claim void.
    /// * Nobody counts how often an entry failed, as the original would not know what to reset: a claim that is dropped
    ///   comes again after a second or so each time, [`attempts`](super::Claim::attempts) is 1, and nothing is ever
    ///   dead.
    /// * Keys are strings as they are, and JSON for other types. So two keys of a type that has both, as an
    ///   `Option<String>`, may be one. No key may be the name of the sorted set.
    /// * A timer of theirs for which there is no data is no entry. It stays, and is passed over for a minute.
    /// * All is in one sorted set, which a cluster keeps in another slot than most of its keys: scripts fail
    ///   there, unless `set` and all keys share a hash tag.
    pub fn compat(client: &Client, set: impl Into<String>) -> Self {
        Self::with(client.clone(), Layout::compat(set.into()), ASK_EVERY, Retries::DEFAULT)
    }

    fn with(client: Client, layout: Layout, ask_every: Duration, retries: Retries) -> Self {
        let state = DictState { client, layout, ask_every, retries, turn: Mutex::new(()) };
        Self { state: Arc::new(state), types: PhantomData }
    }
}

impl<K, V> TimeoutDictBuilder<K, V> {
    /// How values are written. All who use the name must agree. Defaults to [`Format::Json`].
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How long [`next_expired`](TimeoutDict::next_expired) and [`next_claim`](TimeoutDict::next_claim) sleep
    /// at most before they ask the server anew: so late they may see an entry that others set meanwhile, with
    /// a deadline sooner than all they know of. Defaults to one second.
    ///
    /// # Panics
    ///
    /// Where it is zero.
    pub fn ask_every(mut self, period: Duration) -> Self {
        assert!(!period.is_zero(), "`ask_every` must be longer than {period:?}");
        self.ask_every = period;
        self
    }

    /// How long an entry stays away when a claim on it was dropped: `first` after its first failure, and twice as long
    /// after each, up to `max`. Defaults to a second, and a minute.
    ///
    /// It is jittered: half to three halves of that, so that what failed together does not come again together.
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
    /// [revived](TimeoutDict::revive), set, or taken by [`take_dead`](TimeoutDict::take_dead). Who claims it decides,
    /// so all who use the name should agree. Defaults to no bound.
    ///
    /// # Panics
    ///
    /// Where `attempts` is 0.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        assert!(attempts > 0, "max_attempts is at least 1, and not 0");
        self.retries.max_attempts = attempts;
        self
    }

    /// The dictionary. Nothing is sent for it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn build(self) -> Result<TimeoutDict<K, V>, Error> {
        let layout =
            Layout::sharded(&self.client.keyspace(Kind::TimeoutDict, &self.name)?, self.format);
        Ok(TimeoutDict::with(self.client, layout, self.ask_every, self.retries))
    }
}
