//! Error policy: the decision of checks while the server fails.

use super::{super::Error, protocol::Remaining};
use crate::rate_limit::{self, Limit, Limited, PerLimit, Window};

/// Decision of a [`RateLimiter`](super::RateLimiter) while its server fails: it cannot be reached, does not answer in
/// time, or refuses the call.
///
/// ```no_run
/// # use fleeting::{Limit, redis::{Client, OnError, RateLimiter}};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// // A shop that sells without limits is better than one that is closed.
/// let orders: RateLimiter<String> = RateLimiter::builder(&client, "orders")
///     .limit(Limit::per_minute(10))
///     .on_error(OnError::Allow)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// All calls pass without being counted.
    Allow,
    /// No call passes: the error is returned.
    Deny,
    /// An embedded [`RateLimiter`](crate::RateLimiter) with the same limits decides, which begins empty. Each process
    /// has its own, so `n` processes together admit up to `n` quotas.
    #[default]
    Local,
}

/// An [`OnError`] with the state that it needs.
pub(super) enum Fallback {
    Allow,
    Deny,
    /// Limiter by subject. It counts nothing while the server answers, so it knows nothing of earlier charges.
    Local(rate_limit::RateLimiter<Vec<u8>>),
}

/// Decision of the local limiter, and the remaining quota of each limit.
type LocalDecision = (Result<rate_limit::Permit, Limited>, PerLimit<Remaining>);

impl Fallback {
    pub(super) fn new(on_error: OnError, limits: &[Limit], window: Window, name: &str) -> Self {
        match on_error {
            OnError::Allow => Self::Allow,
            OnError::Deny => Self::Deny,
            OnError::Local => {
                let builder = rate_limit::RateLimiter::builder().window(window).name(name);
                let limits = limits.iter().cloned();
                Self::Local(limits.fold(builder, |builder, limit| builder.limit(limit)).build())
            }
        }
    }

    /// Returns whether `error` is a failure of the server, which the policy handles. Other errors concern the key and
    /// are returned: they are permanent, so admitting the call would disable the limit for that key.
    pub(super) fn is_for(error: &Error) -> bool {
        // Errors of the program, which a fallback would hide.
        !matches!(
            error,
            Error::WrongType { .. }
                | Error::Encode(_)
                | Error::TooLarge { .. }
                | Error::Decode { .. }
        )
    }

    /// Decides about a call for which the server returned `error`; `None` if calls are not counted. If not `charges`,
    /// the local limiter charges nothing.
    pub(super) async fn decide(
        &self,
        error: Error,
        subject: &[u8],
        cost: u32,
        limits: &[Limit],
        charges: bool,
    ) -> Result<Option<LocalDecision>, Error> {
        match self {
            Self::Deny => Err(error),
            Self::Allow => Ok(None),
            Self::Local(limiter) => {
                let outcome = match charges {
                    true => limiter.check_n_with(subject, cost, limits).await,
                    false => limiter.probe(&subject.to_vec(), cost, Some(limits)).0,
                };
                Ok(Some((outcome, Self::remaining(limiter, subject, limits).await)))
            }
        }
    }

    /// Returns when a call would pass at the earliest according to the local limiter, and the remaining quota of each
    /// limit; `None` if calls are not counted. `error` is the failure of the server.
    pub(super) async fn earliest_denial(
        &self,
        error: Error,
        subject: &[u8],
        cost: u32,
        limits: &[Limit],
    ) -> Result<Option<(Limited, PerLimit<Remaining>)>, Error> {
        match self {
            _ if !Self::is_for(&error) => Err(error),
            Self::Deny => Err(error),
            Self::Allow => Ok(None),
            Self::Local(limiter) => {
                let limited = limiter.earliest_denial(subject, cost, limits);
                Ok(Some((limited, Self::remaining(limiter, subject, limits).await)))
            }
        }
    }

    /// Removes the charges of the local limiter.
    pub(super) async fn reset(&self, subject: &[u8]) {
        if let Self::Local(limiter) = self {
            limiter.reset(subject).await;
        }
    }

    async fn remaining(
        limiter: &rate_limit::RateLimiter<Vec<u8>>,
        subject: &[u8],
        limits: &[Limit],
    ) -> PerLimit<Remaining> {
        let state = limiter.peek_with(subject, limits).await;
        state.standings().iter().map(Remaining::of).collect()
    }
}
