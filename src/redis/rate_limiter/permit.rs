//! Leave to go on, and what it takes to take it back.

use std::{fmt, sync::Arc};

use super::{super::Error, protocol::Charge, state::LimiterState};
use crate::rate_limit::{self, PerLimit};

/// Leave to go on, charged to a key. Dropping it changes nothing: it was used.
#[derive(Debug)]
pub struct Permit {
    pub(super) charged: Charged,
    pub(super) remaining: u32,
}

/// Where a permit was charged.
pub(super) enum Charged {
    /// Its cost is 0, or nobody counted it.
    Nowhere,
    /// In this process, while the server was away.
    Here(rate_limit::Permit),
    OnServer {
        limiter: Arc<LimiterState>,
        subject: Vec<u8>,
        born: u64,
        charges: PerLimit<Charge>,
    },
}

impl Permit {
    /// How many units of one call more would pass now: the least that any limit has left. `u32::MAX` where
    /// nobody counts, as by [`OnError::Allow`](super::OnError::Allow) while the server is away.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Takes back exactly what was charged for this permit, of all limits; nothing of what has left the
    /// window meanwhile, or was [`reset`](super::RateLimiter::reset). One round trip; one script.
    ///
    /// What was charged in this process, as by [`OnError::Local`](super::OnError::Local), comes back there.
    ///
    /// # Errors
    ///
    /// Those of the server. After [`Error::Unanswered`] nobody knows whether it was taken back; it is not
    /// tried again, since it is not known whose units it would take then.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before its end may still be carried out.
    pub async fn refund(self) -> Result<(), Error> {
        match self.charged {
            Charged::Nowhere => Ok(()),
            Charged::Here(permit) => {
                permit.refund().await;
                Ok(())
            }
            Charged::OnServer { limiter, subject, born, charges } => {
                limiter.refund(&subject, born, &charges).await
            }
        }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("Nowhere"),
            Self::Here(permit) => permit.fmt(f),
            Self::OnServer { subject, .. } => {
                f.debug_tuple("OnServer").field(&String::from_utf8_lossy(subject)).finish()
            }
        }
    }
}
