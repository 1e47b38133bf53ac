//! How a [`TimeoutDict`] is made: the settings and their defaults, and the dictionary of other programs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{TimeoutDict, layout::Layout, state::DictState};
use crate::redis::{Client, Error, Format};

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
    /// * All is in one sorted set, which a cluster keeps in another slot than most of its keys: scripts fail
    ///   there, unless `set` and all keys share a hash tag.
    pub fn compat(client: &Client, set: impl Into<String>) -> Self {
        Self::with(client.clone(), Layout::compat(set.into()), ASK_EVERY)
    }

    fn with(client: Client, layout: Layout, ask_every: Duration) -> Self {
        let state = DictState { client, layout, ask_every, waiting: Mutex::new(()) };
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

    /// The dictionary. Nothing is sent for it.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn build(self) -> Result<TimeoutDict<K, V>, Error> {
        let layout = Layout::sharded(&self.client.keyspace(&self.name)?, self.format);
        Ok(TimeoutDict::with(self.client, layout, self.ask_every))
    }
}
