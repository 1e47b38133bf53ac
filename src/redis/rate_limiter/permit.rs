//! Leave to go on, and what it takes to take it back.

use std::{fmt, sync::Arc};

use super::{
    super::Error,
    protocol::{Charge, LimitArgs},
    state::LimiterState,
};
use crate::rate_limit::{self, PerLimit};

/// Leave to go on, charged to a key. Dropping it changes nothing: it was used.
#[derive(Debug)]
pub struct Permit {
    pub(super) charged: Charged,
    pub(super) remaining: u32,
    pub(super) cost: u32,
}

/// Where a permit was charged.
pub(super) enum Charged {
    /// Nobody counts it.
    Nowhere,
    /// In this process, while the server was away.
    Here(rate_limit::Permit),
    OnServer {
        limiter: Arc<LimiterState>,
        subject: Vec<u8>,
        /// Of the state that was charged.
        born: u64,
        /// None where the call cost nothing.
        charges: PerLimit<Charge>,
        /// `None` for the limiter's own, whichever they are by the time that it is settled.
        plan: Option<PerLimit<LimitArgs>>,
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
            Charged::OnServer { charges, .. } if charges.is_empty() => Ok(()),
            Charged::OnServer { limiter, subject, born, charges, .. } => {
                let refunded = limiter.refund(&subject, born, &charges).await?;
                limiter.counters.refunded.add(refunded);
                Ok(())
            }
        }
    }

    /// Says what the call has cost, now that it is known, as [`Permit::settle`](crate::Permit::settle) does: the
    /// difference is charged, whether there is room or not, or given back. One round trip, where there is one.
    ///
    /// # Errors
    ///
    /// Those of the server. After [`Error::Unanswered`] nobody knows whether it was settled; it is not tried again,
    /// since it would be charged twice then.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before its end may still be carried out.
    pub async fn settle(self, actual: u32) -> Result<(), Error> {
        let cost = self.cost;
        match self.charged {
            Charged::Here(permit) => permit.settle(actual).await,
            Charged::OnServer { limiter, subject, plan, .. } if actual > cost => {
                limiter.owe(&subject, actual - cost, plan.as_deref()).await?;
            }
            Charged::OnServer { limiter, subject, born, charges, .. } if actual < cost => {
                let part = |charge: &Charge| charge.part(cost - actual, cost);
                let charges: PerLimit<Charge> = charges.iter().map(part).collect();
                limiter.refund(&subject, born, &charges).await?;
            }
            Charged::Nowhere | Charged::OnServer { .. } => {}
        }
        Ok(())
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
