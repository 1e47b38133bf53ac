//! Permits of admitted calls, and their refunds.

use std::{fmt, sync::Arc};

use super::{
    super::{Error, error::hide},
    limiter_state::LimiterState,
    protocol::{Charges, LimitArgs},
    reservations::DrawnBatch,
};
use crate::rate_limit::{self, PerLimit};

/// An admitted call, charged to a key. You may drop it, which has no effect: the charge stays.
///
/// ```no_run
/// # use fleeting::redis::RateLimiter;
/// # async fn f(mails: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
/// # let is_sent = false;
/// let permit = mails.check("ada").await?;
/// if !is_sent {
///     permit.refund().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Permit {
    pub(super) charged: Charged,
    pub(super) remaining: u32,
    pub(super) cost: u32,
}

/// Place where a permit was charged.
pub(super) enum Charged {
    /// Not counted at all.
    Uncounted,
    /// In this process, while the server failed.
    Local(rate_limit::Permit),
    OnServer {
        limiter: Arc<LimiterState>,
        subject: Vec<u8>,
        /// Empty if the call cost nothing.
        charges: Charges,
        /// Limits of the call; `None` for the limiter's own, as they are when the permit is settled.
        limit_args: Option<PerLimit<LimitArgs>>,
    },
    /// On the server, together with other units of the batch, under the limiter's own limits.
    Ahead { limiter: Arc<LimiterState>, batch: Arc<DrawnBatch> },
}

impl Permit {
    /// Returns how many more units would have passed at the time of the check: the smallest number that any of the
    /// limits had left.
    ///
    /// Units that this process has [reserved](super::RateLimiter#reservations) are included. If the call was admitted
    /// from these, it is the number at the time at which they were drawn, without those used since by this process.
    ///
    /// After a call of cost 0, this is the remaining quota, as of [`peek`](super::RateLimiter::peek). `u32::MAX` if
    /// there were no limits, or if [`OnError::Allow`](super::OnError::Allow) admitted the call while the server failed.
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(mails: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// let permit = mails.check("ada").await?;
    /// println!("sent; you may send {} more", permit.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Refunds the charges of this permit to all limits.
    ///
    /// Charges that have left their window in the meantime, or were [`reset`](super::RateLimiter::reset), are not
    /// refunded. One round trip with one script. A permit that was charged in this process, as by
    /// [`OnError::Local`](super::OnError::Local), is refunded there.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the server. After [`Error::Unanswered`] you do not know whether the refund
    /// happened. It is not retried, since a second refund could take back the units of another call.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it returns may still be executed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(mails: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// # let send = async |_: &str| Err::<(), _>("no connection");
    /// let permit = mails.check("ada").await?;
    /// if send("ada").await.is_err() {
    ///     permit.refund().await?; // a mail that was not sent does not count
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(self) -> Result<(), Error> {
        match self.charged.with_own_charges(self.cost) {
            Charged::Uncounted | Charged::Ahead { .. } => Ok(()),
            Charged::Local(permit) => {
                permit.refund().await;
                Ok(())
            }
            // A cost of 0 charged nothing.
            Charged::OnServer { charges, .. } if charges.is_empty() => Ok(()),
            Charged::OnServer { limiter, subject, charges, .. } => {
                let refunded = limiter.refund(&subject, &charges).await?;
                limiter.counters.refunded.add(refunded);
                Ok(())
            }
        }
    }

    /// Sets the actual cost of the call, as [`Permit::settle`](crate::Permit::settle) does.
    ///
    /// The difference is charged, even beyond the quota, or refunded. One round trip, or none if there is no
    /// difference.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the server. After [`Error::Unanswered`] you do not know whether the permit was
    /// settled. It is not retried, since the difference could be charged twice.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it returns may still be executed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(tokens: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// # let ask_model = async || 412;
    /// // The answer of a model costs up to 1,000 tokens; the actual number is known afterwards.
    /// let permit = tokens.check_n("ada", 1_000).await?;
    /// let used = ask_model().await;
    /// permit.settle(used).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle(self, actual: u32) -> Result<(), Error> {
        let cost = self.cost;
        match self.charged.with_own_charges(cost) {
            Charged::Local(permit) => permit.settle(actual).await,
            Charged::OnServer { limiter, subject, limit_args, .. } if actual > cost => {
                limiter.add_debt(&subject, actual - cost, limit_args.as_deref()).await?;
            }
            Charged::OnServer { limiter, subject, charges, .. } if actual < cost => {
                let beyond = charges.beyond(actual, limiter.window);
                limiter.refund(&subject, &beyond).await?;
            }
            Charged::Uncounted | Charged::OnServer { .. } | Charged::Ahead { .. } => {}
        }
        Ok(())
    }

    /// Charges a failure to the permit of its request, which has cost nothing, and counts it in the place of a check.
    #[cfg(feature = "axum")]
    pub(crate) async fn charge_failure(self, cost: u32) -> Result<(), Error> {
        let limiter = match &self.charged {
            Charged::OnServer { limiter, .. } if cost > 0 => Some(Arc::clone(limiter)),
            _ => None,
        };
        self.settle(cost).await?;
        if let Some(limiter) = limiter {
            limiter.counters.admitted.add(1);
        }
        Ok(())
    }
}

impl Charged {
    /// Separates the charges of a call of `cost` units from those of its batch.
    fn with_own_charges(self, cost: u32) -> Self {
        let Self::Ahead { limiter, batch } = self else { return self };
        let charges = batch.part(cost, limiter.window);
        Self::OnServer { limiter, subject: batch.subject.to_vec(), charges, limit_args: None }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self {
            Self::Uncounted => return f.write_str("Uncounted"),
            Self::Local(permit) => return permit.fmt(f),
            Self::OnServer { subject, .. } => subject,
            Self::Ahead { batch, .. } => &*batch.subject,
        };
        f.debug_tuple("OnServer").field(&hide(&String::from_utf8_lossy(subject))).finish()
    }
}
