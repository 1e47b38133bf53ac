//! A TTL as the server takes it: in milliseconds.

use std::time::Duration;

/// Beyond it a TTL is for ever: the server's scripts count exactly up to twice as much.
pub(super) const LONGEST: u128 = 1 << 52;

/// In milliseconds. Who loads for longer may miss that something was written meanwhile that lived for at least so long, and
/// has died since. For this alone a plain `SET` needs no script.
const LONG_LIFE: u64 = 60_000;

/// A TTL as the server takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The value is dead at once, for which Redis has no option: it is not written, or removed.
    Immediate,
    /// In milliseconds, at least one.
    After(u64),
    /// The value has no deadline.
    Never,
}

impl Expiry {
    pub(super) fn of(ttl: Duration) -> Self {
        // Rounded up, so that it is never shorter.
        match ttl.as_nanos().div_ceil(1_000_000) {
            0 => Self::Immediate,
            ttl if ttl < LONGEST => Self::After(ttl as u64),
            _ => Self::Never,
        }
    }

    /// `None` for an expiry that is for ever.
    pub(super) fn milliseconds(self) -> Option<u64> {
        match self {
            Self::Immediate => Some(0),
            Self::After(ttl) => Some(ttl),
            Self::Never => None,
        }
    }

    /// Whether what lives for as long is still there for whoever began to load its key before.
    pub(super) fn is_long(self) -> bool {
        self.milliseconds().is_none_or(|ttl| ttl >= LONG_LIFE)
    }

    /// As scripts read it.
    pub(super) fn arg(self) -> String {
        self.milliseconds().map_or_else(String::new, |ttl| ttl.to_string())
    }
}
