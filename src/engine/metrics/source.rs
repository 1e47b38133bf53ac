//! What tells of itself: figures, and where somebody may look closer, what is asked for.

use super::values::MetricValues;
#[cfg(feature = "dashboard")]
use crate::engine::ttl::Ttl;

/// What tells of itself.
pub(crate) trait Source: Send + Sync + 'static {
    /// In the order of the series of its kind.
    fn read(&self, values: &mut MetricValues);

    /// The keys that were denied most often of late, the first one most often. Of these there are few.
    #[cfg(feature = "dashboard")]
    fn denied_keys(&self) -> Vec<DeniedKey> {
        Vec::new()
    }

    /// Whether [`ttl_of`](Source::ttl_of) may be asked.
    #[cfg(feature = "dashboard")]
    fn may_be_searched(&self) -> bool {
        false
    }

    /// How long the value of the key has still to live that `text` stands for; none where it stands for no key. May
    /// panic, as the code that finds the key is somebody's.
    #[cfg(feature = "dashboard")]
    fn ttl_of(&self, _text: &str) -> Option<Ttl> {
        None
    }
}

#[cfg(feature = "dashboard")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKey {
    pub(crate) name: KeyName,
    /// How often, at least.
    pub(crate) denials: u64,
}

#[cfg(feature = "dashboard")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyName {
    Plain(String),
    /// By a key of this process: the same for the same key, and good for nothing else.
    Hash(u64),
}
