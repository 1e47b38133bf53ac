//! Rate limits that all processes share.
//!
//! 1. A check is one script on one key, which has all that a subject has in use: all limits are charged, or
//!    none. `prelude.lua` and the file of a window are one script together.
//! 2. Each way to the server goes through `LimiterState::ask`: its time is short, and the breaker keeps calls
//!    from a server that fails. What may have been charged is never sent again.
//! 3. What the server has denied is certain until its time comes, and so repeated without asking (`DenyCache`).
//!
//! A subject is a key of the user's, as the key on the server.

mod breaker;
mod builder;
mod check;
mod deny_cache;
#[cfg(feature = "axum")]
mod layer;
mod limit_set;
mod limits;
#[cfg(feature = "metrics")]
mod metrics;
mod on_error;
mod permit;
mod protocol;
mod state;
mod stats;
#[cfg(feature = "dashboard")]
mod top_denied;
mod waiting;

use std::{borrow::Borrow, fmt, marker::PhantomData, sync::Arc, time::Duration};

use serde::Serialize;

#[cfg(feature = "axum")]
pub(crate) use self::protocol::Remaining;
use self::state::LimiterState;
pub use self::{
    breaker::Breaker, builder::RateLimiterBuilder, on_error::OnError, permit::Permit,
    stats::LimiterStats,
};
use super::Error;
use crate::rate_limit::{Limit, State, with_denials};

/// Limits how much each key may do in any window of time, over all processes that use its name.
///
/// The verbs and meanings of [`fleeting::RateLimiter`](crate::RateLimiter), with the same
/// [`Limit`]s and [`Window`](crate::Window)s, on a server that many share. A handle: cheap to clone, and all
/// clones are one limiter. Keys are whatever serde can write, in any borrowed form (`&str` for `String`).
///
/// # What a check says
///
/// A check that does not pass is an error, [`Error::Limited`], as a failing server is another: so
/// `limiter.check(&user).await?` lets nobody through by mistake, which a result within a result would. With
/// feature `axum` both are responses: 429, with all that [`Limited`](crate::Limited) says, and 503.
///
/// # Cost
///
/// One round trip a verb; none for what was denied and is asked again at once
/// ([`deny_cache`](RateLimiterBuilder::deny_cache)), for a cost of 0, and for one above a quota. The server
/// keeps one key for each subject (`prefix:limit1:name:{key}`), which leaves by itself once nothing of it is in use any
/// more, or an eighth of that time later:
///
/// | | bytes in the key | work for a check |
/// | --- | --- | --- |
/// | `Log` | 44, 28 for each limit, 12 for each call in the longest window; as many again before they are cut off | O(1), amortised |
/// | `Buckets(n)` | 26, and for each limit 6 and 12 for each bucket with calls, of at most `n + 1` | O(n) bytes copied |
/// | `Gcra` | 26, 16 for each limit | O(1) |
///
/// A `Log` keeps each call once, whatever the number of limits. A key of more than 256 bytes is named by its
/// first 256 and a hash.
///
/// # Time
///
/// The server's, in microseconds, to which windows and steps are rounded up; the clocks of the processes do
/// not matter. It never goes back for a key: where the server's clock does, as after a failover to one whose clock is
/// behind, all times of the key go back with it. So nobody waits for longer than a window because of it, and nothing
/// passes sooner; permits of before can't be refunded any more. [`retry_after`](crate::Limited::retry_after) counts from when the answer came, by
/// this process's own clock, so that who waits it alone passes.
///
/// # Atomicity
///
/// All limits of one key are checked and charged together, or not at all. Those of several keys can't be,
/// since in a cluster they are on several nodes: check one after the other, and
/// [`refund`](Permit::refund) the first where the second denies.
///
/// # A failing server
///
/// A call waits for [`timeout`](RateLimiterBuilder::timeout) at most (50 ms). Three failures in a row open a
/// breaker: then the server is left alone for half a second, and one call tries it for all. What a check says
/// meanwhile is up to [`on_error`](RateLimiterBuilder::on_error); [`peek`](RateLimiter::peek),
/// [`reset`](RateLimiter::reset) and [`refund`](Permit::refund) return the error. A check whose answer is lost
/// is never sent again: it may or may not have been charged, but not twice. Failures are logged once a second
/// at most. Three errors are no failures of the server, and returned whatever the policy:
/// [`Error::WrongType`], [`Error::Encode`] and [`Error::Decode`]. In a cluster, one breaker counts for all
/// nodes.
///
/// # A server whose memory is full
///
/// With `maxmemory-policy noeviction` checks are refused, which [`on_error`](RateLimiterBuilder::on_error) decides about.
/// By any other policy, `volatile-*` too, the server takes keys away: for such a key nothing is in use any more. So it
/// has its whole quota again, a permit of before gives nothing back, and nobody is told. Where that may not be, give
/// limiters a server of their own, or enough memory. At its start, a limiter writes a warning to the log where the
/// server may do that, as far as it may be asked (`INFO`).
///
/// # Plans
///
/// As in the embedded limiter, [`check_with`](RateLimiter::check_with) takes other limits for one call. Those of
/// a `Log` all count the same calls, as far as the plans before kept them.
///
/// # Examples
///
/// ```no_run
/// use fleeting::{Limit, redis::{Client, Error, RateLimiter}};
///
/// # #[tokio::main] async fn main() -> Result<(), Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let limiter: RateLimiter<String> = RateLimiter::builder(&client, "api")
///     .limit(Limit::per_second(10).named("burst"))
///     .limit(Limit::per_hour(1_000).named("hourly"))
///     .build()?;
///
/// match limiter.check("ada").await {
///     Ok(permit) => println!("{} more pass now", permit.remaining()),
///     Err(Error::Limited(limited)) => println!("come again in {:?}", limited.retry_after()),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
pub struct RateLimiter<K> {
    state: Arc<LimiterState>,
    keys: PhantomData<fn(K)>,
}

impl<K> RateLimiter<K> {
    /// Charges one unit to `key`, or tells when to come again. One round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Limited`] where a limit has no room; then nothing is charged. Where the server fails, what
    /// [`OnError`] says: an error only by [`OnError::Deny`]. Always [`Error::WrongType`] for what others have
    /// put under the key, and [`Error::Encode`] for a key that can't be written.
    ///
    /// # Cancel safety
    ///
    /// Once it has been polled, a call that is dropped before its end may still be charged. So for all others.
    #[doc(alias = "EVALSHA")]
    pub async fn check<Q>(&self, key: &Q) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.check_n(key, 1).await
    }

    /// As [`check`](RateLimiter::check), for a call that costs `cost` units. A cost of 0 always passes,
    /// without asking the server.
    ///
    /// # Errors
    ///
    /// As those of [`check`](RateLimiter::check); with [`Duration::MAX`] to wait where the cost is above a
    /// quota, so that it never passes.
    pub async fn check_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.decide(subject, cost, None).await?.outcome?)
    }

    /// As [`check`](RateLimiter::check), by `limits` in place of the limiter's own: plans, tiers.
    ///
    /// # Errors
    ///
    /// As those of [`check`](RateLimiter::check).
    pub async fn check_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.check_n_with(key, 1, limits).await
    }

    /// [`check_n`](RateLimiter::check_n) and [`check_with`](RateLimiter::check_with) in one.
    ///
    /// # Errors
    ///
    /// As those of [`check_n`](RateLimiter::check_n).
    pub async fn check_n_with<Q>(
        &self,
        key: &Q,
        cost: u32,
        limits: &[Limit],
    ) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.decide(subject, cost, Some(limits)).await?.outcome?)
    }

    /// What is left for `key`. Charges nothing. One round trip.
    ///
    /// # Errors
    ///
    /// Those of the server, whatever [`OnError`] says.
    pub async fn peek<Q>(&self, key: &Q) -> Result<State, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.peek(&self.state.subject(key)?, None).await
    }

    /// What is left for `key` by `limits`, as of [`check_with`](RateLimiter::check_with). One round trip.
    ///
    /// # Errors
    ///
    /// As those of [`peek`](RateLimiter::peek).
    pub async fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<State, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.peek(&self.state.subject(key)?, Some(limits)).await
    }

    /// Forgets what `key` has in use; tells whether the server knew anything of it (Redis: `DEL`). One round
    /// trip.
    ///
    /// # Errors
    ///
    /// As those of [`peek`](RateLimiter::peek).
    #[doc(alias = "DEL")]
    pub async fn reset<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.reset(&self.state.subject(key)?).await
    }

    /// Waits until a call of one unit passes, and charges it. Who waits for the same key in this process is
    /// let in, one after the other, in the order of asking; a [`check`](RateLimiter::check) meanwhile, or
    /// another process, may come first. One round trip for each time that there may be room. A refund or a
    /// reset meanwhile does not wake who waits for what was in use before.
    ///
    /// # Errors
    ///
    /// As those of [`check`](RateLimiter::check), but for [`Error::Limited`].
    ///
    /// # Cancel safety
    ///
    /// Who gives up makes place for those behind; if that is in the middle of a round trip, it may have been
    /// charged. One that is kept and no longer polled (a branch of `select!` that lost, and is waited for again
    /// later) holds them up for a second after it could pass, or for some seconds where it comes to the head of the line
    /// by others giving up. Then they go first, until it is polled again.
    pub async fn until_ready<Q>(&self, key: &Q) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, 1, None, None).await?.0.outcome?)
    }

    /// As [`until_ready`](RateLimiter::until_ready), for a call that costs `cost` units. One that waits for many
    /// is not overtaken by those behind it in this process that wait for few.
    ///
    /// # Errors
    ///
    /// As those of [`check`](RateLimiter::check); [`Error::Limited`] only where the cost is above a quota, so that it
    /// can never pass.
    ///
    /// # Cancel safety
    ///
    /// As that of [`until_ready`](RateLimiter::until_ready).
    pub async fn until_ready_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, cost, None, None).await?.0.outcome?)
    }

    /// As [`until_ready`](RateLimiter::until_ready), for at most `max_wait` and one round trip.
    ///
    /// # Errors
    ///
    /// As those of [`check`](RateLimiter::check); [`Error::Limited`] where it can't pass within `max_wait`:
    /// at once where that is clear from what the server says, or from what those before it in this process wait for, or
    /// where [as many](RateLimiterBuilder::max_waiting) wait as may; else when it is over.
    pub async fn until_ready_within<Q>(&self, key: &Q, max_wait: Duration) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, 1, None, Some(max_wait)).await?.0.outcome?)
    }

    /// Changes the limits of this name, for all processes and from now on: this one has them at once, the others
    /// within a second, and those that start later. What was charged stays charged, as far as the limits before kept
    /// it: what has left a shorter window is not known to a longer one, and what is in use by
    /// [`Window::Gcra`](crate::Window::Gcra) is a time. Who waits in this process waits by the new limits. One round
    /// trip.
    ///
    /// # Panics
    ///
    /// Without a limit.
    ///
    /// # Errors
    ///
    /// Those of the server; then nothing has changed, or it is seen in a moment.
    #[doc(alias = "SET")]
    pub async fn set_limits(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), Error> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        assert!(!limits.is_empty(), "a rate limiter needs at least one limit, got none");
        self.state.set_limits(limits).await
    }

    /// The limits that hold where no others are given.
    pub fn limits(&self) -> Arc<[Limit]> {
        self.state.plan.present().limits.clone()
    }

    /// What this process has decided; the server is not asked.
    pub fn stats(&self) -> LimiterStats {
        self.state.stats()
    }

    /// How many of the denials of [`stats`](RateLimiter::stats) each limit has: where several had no room, the one
    /// that it takes longest to wait for. Limits of other plans count by their place, from the seventh on together.
    pub fn denials(&self) -> Vec<(Limit, u64)> {
        with_denials(&self.limits(), self.state.counters.denials())
    }
}

impl<K> Clone for RateLimiter<K> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), keys: PhantomData }
    }
}

impl<K> fmt::Debug for RateLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}
