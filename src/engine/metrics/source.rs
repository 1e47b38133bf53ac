//! Interface of objects with metrics, and of the searches that the dashboard makes.

use super::values::MetricValues;
#[cfg(feature = "dashboard")]
use crate::engine::ttl::Ttl;

/// An object with metrics.
pub(crate) trait Source: Send + Sync + 'static {
    /// Publishes the events that are not published yet, so that the values include them. Runs user code, so it is
    /// called under no lock.
    fn publish_events(&self) {}

    /// Appends the current values, in the order of the series of its kind.
    fn read(&self, values: &mut MetricValues);

    /// Returns the keys denied most often in the last minutes, in descending order. There are few.
    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        Vec::new()
    }

    /// Returns whether [`ttl_of`](Source::ttl_of) may be called.
    #[cfg(feature = "dashboard")]
    fn may_be_searched(&self) -> bool {
        false
    }

    /// Returns the TTL of the key that `text` represents; `None` if it represents no key. May panic, because the
    /// conversion to a key is user code.
    #[cfg(feature = "dashboard")]
    fn ttl_of(&self, _text: &str) -> Option<Ttl> {
        None
    }
}

#[cfg(feature = "dashboard")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKey {
    pub(crate) name: KeyName,
    /// Number of denials, a lower bound.
    pub(crate) denials: u64,
}

#[cfg(feature = "dashboard")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyName {
    Plain(String),
    /// Hash of the key by a secret of this process: stable within the process, and not reversible.
    Hash(u64),
}
