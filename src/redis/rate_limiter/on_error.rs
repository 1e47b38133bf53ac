//! What a check says while the server fails: the policy, and where it decides.

use super::{super::Error, protocol::Remaining};
use crate::rate_limit::{self, Limit, Limited, PerLimit, Window};

/// What a [`RateLimiter`](super::RateLimiter) decides while its server fails: it is away, does not answer in
/// time, or refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// All calls pass, and nobody counts them.
    Allow,
    /// None does: the error is returned.
    Deny,
    /// An embedded [`RateLimiter`](crate::RateLimiter) with the same limits decides, which begins empty. Each
    /// process has its own, so that several let as many quotas pass.
    #[default]
    Local,
}

/// An [`OnError`] with what it needs to decide.
pub(super) enum Fallback {
    Allow,
    Deny,
    /// By subject. It counts nothing while the server answers: what that counts can't be had without it.
    Local(rate_limit::RateLimiter<Vec<u8>>),
}

/// What was decided without the server.
pub(super) enum FallbackDecision {
    /// It passes, and nobody counts it.
    Uncounted,
    Local(Result<rate_limit::Permit, Limited>, PerLimit<Remaining>),
}

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

    /// Whether `error` is a failure of the server, which the policy decides about. Else it is one of the key
    /// that is asked for, and returned: to let it pass would let it pass for ever.
    pub(super) fn is_for(error: &Error) -> bool {
        !matches!(error, Error::WrongType { .. } | Error::Encode(_) | Error::Decode { .. })
    }

    /// Decides about a call for which the server gave `error`.
    pub(super) async fn decide(
        &self,
        error: Error,
        subject: &[u8],
        cost: u32,
        limits: &[Limit],
    ) -> Result<FallbackDecision, Error> {
        match self {
            Self::Deny => Err(error),
            Self::Allow => Ok(FallbackDecision::Uncounted),
            Self::Local(limiter) => {
                let outcome = limiter.check_n_with(subject, cost, limits).await;
                let remaining = Self::left(limiter, subject, limits).await;
                Ok(FallbackDecision::Local(outcome, remaining))
            }
        }
    }

    /// When a call passes at the soonest by what was decided without the server, which gave `error`, and what is left
    /// of each limit; `None` where nobody counts.
    pub(super) async fn soonest(
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
                let limited = limiter.soonest(subject, cost, limits);
                Ok(Some((limited, Self::left(limiter, subject, limits).await)))
            }
        }
    }

    /// Forgets what was counted here.
    pub(super) async fn reset(&self, subject: &[u8]) {
        if let Self::Local(limiter) = self {
            limiter.reset(subject).await;
        }
    }

    async fn left(
        limiter: &rate_limit::RateLimiter<Vec<u8>>,
        subject: &[u8],
        limits: &[Limit],
    ) -> PerLimit<Remaining> {
        let state = limiter.peek_with(subject, limits).await;
        state.standings().iter().map(Remaining::of).collect()
    }
}
