use std::{marker::PhantomData, time::Duration};

use super::{TimeoutDict, layout::Layout};
use crate::redis::{Client, Error, Format};

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

impl<K, V> TimeoutDictBuilder<K, V> {
    pub(super) fn new(client: &Client, name: String) -> Self {
        Self {
            client: client.clone(),
            name,
            format: Format::default(),
            ask_every: super::ASK_EVERY,
            types: PhantomData,
        }
    }

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
        let layout = Layout::sharded(&self.client.names(&self.name)?, self.format);
        Ok(TimeoutDict::with(self.client, layout, self.ask_every))
    }
}
