//! Rate limits shared by all processes that use the same server.
//!
//! 1. A check is one script on one key, which holds the charges of one subject for all limits: either all limits are
//!    charged, or none. A script consists of `prelude.lua` and the file of its window.
//! 2. Every call to the server goes through `LimiterState::call_server`, with a short timeout and the circuit breaker.
//!    A call that may have been charged is never sent again.
//! 3. A denial by the server holds until its time has passed, so it is repeated from `DenyCache` without a round trip.
//! 4. Units of busy keys are drawn ahead and admitted from `Reservations`. They are charged as calls at the end of the
//!    time for which they may be admitted, so that they never leave a window before their calls do.
//!
//! A subject is the key on the server of one rate-limit key.

mod breaker;
mod builder;
mod check;
mod deny_cache;
#[cfg(feature = "axum")]
mod layer;
mod limit_set;
mod limiter_state;
mod limits;
#[cfg(feature = "metrics")]
mod metrics;
mod on_error;
mod permit;
mod probe;
mod protocol;
mod reservations;
mod reserved_checks;
mod stats;
#[cfg(feature = "dashboard")]
mod top_denied;
mod waiting;

use std::{borrow::Borrow, fmt, marker::PhantomData, sync::Arc, time::Duration};

use serde::Serialize;

use self::limiter_state::LimiterState;
#[cfg(feature = "axum")]
pub(crate) use self::protocol::Remaining;
pub use self::{
    breaker::Breaker, builder::RateLimiterBuilder, on_error::OnError, permit::Permit,
    stats::LimiterStats,
};
use super::Error;
use crate::rate_limit::{Limit, State, with_denials};

/// Rate limiter whose quota per user or client holds across all your processes, kept on a Redis server.
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
///     Ok(permit) => println!("{} more calls would pass now", permit.remaining()),
///     Err(Error::Limited(limited)) => println!("retry in {:?}", limited.retry_after()),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
///
/// You use it like [`fleeting::RateLimiter`](crate::RateLimiter): its methods are the same, with the same [`Limit`]s
/// and [`Window`](crate::Window)s. All processes that use its name on the same server share one limiter. A
/// `RateLimiter` is a handle: it is cheap to clone, and all clones share one limiter. Keys are any values that serde
/// can serialize, in any borrowed form (`&str` for `String`).
///
/// # Results
///
/// If a check is denied, you get the error [`Error::Limited`]. A denial is an `Err` of the same `Result` as other
/// errors, so that your `limiter.check(&user).await?` also stops denied calls.
///
/// If the server fails, [`on_error`](RateLimiterBuilder::on_error) decides whether the call passes (`Allow`), is
/// decided by an embedded limiter (`Local`), or returns the error (`Deny`).
///
/// With feature `axum` you can return the errors as responses: 429 with all fields of [`Limited`](crate::Limited) for a
/// denial, 503 for a temporary error, otherwise 500.
///
/// # Cost
///
/// Your check takes one round trip. It takes none if the key was denied and you check it again too early
/// ([`deny_cache`](RateLimiterBuilder::deny_cache)), if its units are [reserved](#reservations), if the cost is above a
/// quota, and while the circuit breaker is open. A call that waits takes one round trip for each of its checks.
///
/// The server keeps one key per rate-limit key, `prefix:limit1:name:{key}`. It expires when all its charges have left
/// their windows, at most an eighth of that time late. Memory and work per rate-limit key:
///
/// | | bytes per key | work per check |
/// | --- | --- | --- |
/// | `Log` | 44, plus 28 per limit, plus 12 per call in the longest window; up to twice as many calls are stored until old ones are removed | O(1), amortized |
/// | `Buckets(n)` | 32, plus 18 per limit, plus 12 per bucket with calls, of which each limit has at most `n + 1` | O(n) bytes copied |
/// | `Gcra` | 26, plus 24 per limit, plus 24 per three limits | O(1) |
///
/// A `Log` stores each call once, regardless of the number of limits. With several limits for one key, it takes 38
/// bytes per limit and 14 per call; with reserved units, 22 per call. A key that you check by
/// [several limits](#several-limits-for-one-key) needs memory and work for each of them, of which at most nine (`Log`)
/// or eight per position count. A key longer than 256 bytes is shortened to its first 256 bytes and a hash.
///
/// # Reservations
///
/// If all your processes check one key all the time, each check is a round trip, and one server executes all of them.
/// With [`reserve`](RateLimiterBuilder::reserve), a process draws units of such a key ahead, together with a check, and
/// admits further checks from them without asking the server.
///
/// ```no_run
/// # use fleeting::{Limit, redis::{Client, RateLimiter}};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let calls: RateLimiter<String> = RateLimiter::builder(&client, "partner")
///     .limit(Limit::per_minute(600_000))
///     .reserve(1_000) // at most, per call
///     .build()?;
/// calls.check("search").await?;
/// # Ok(())
/// # }
/// ```
///
/// All processes together never admit more than the quota, in any window, also if one of them crashes or a reply is
/// lost. The price is paid in calls that are denied although they would fit: drawn units count as calls at the end of
/// the time for which they may be admitted ([`reserve_for`](RateLimiterBuilder::reserve_for)). So a busy key is
/// admitted fewer calls than its quota, by at most the ratio of that time to the length of the limit and by the units
/// that lie reserved elsewhere. With `Gcra`, that ratio of the quota is in use from the first draw on. With `Log` and
/// `Buckets`, calls that ask the server while units are reserved count as long as these: for each limit, at most a
/// tenth of its length longer than otherwise.
///
/// For a limit that has not drawn them, of [`check_with`](RateLimiter::check_with), of a later
/// [`set_limits`](RateLimiter::set_limits) or of a process with other limits, drawn units count as used when they are
/// drawn, or a little later: at most by a tenth of that limit. So, with `Log`, `per_second(5)` counts a thousand units
/// that `per_hour(100_000)` has drawn at once, for 1.1 seconds. With `Buckets`, those that are reserved when such a
/// limit is first checked count from then on. With `Gcra`, as without reservations, units count until they have leaked.
///
/// - A process draws from the fourth check on, if none of them came later than `reserve_for` after the one before. It
///   begins with one unit, draws twice as many each time the units were used up, and half as many if some lapsed. It
///   never draws more than an eighth of what is left. So a key that is checked rarely costs one round trip per check,
///   as without reservations, and a small quota is not hoarded. If a quota is exhausted all the time, each admitted
///   call asks the server.
/// - While one check draws, other checks of the key in this process wait for it, once, and for at most half of the
///   [`timeout`](RateLimiterBuilder::timeout).
/// - Unused units are given back within half a second after they lapse, after a change of the limits, and when you drop
///   the last handle, if a runtime still runs then. Units of a process that was killed, of a cancelled check and of a
///   lost reply count until they leave the window, because no one can tell which of them were used.
/// - With `Gcra`, a refund, or a settlement of less, gives back less by the units of the key that were drawn and given
///   back since the call, as after [other calls](crate::Window::Gcra).
/// - Other processes see reserved units as used. A denial is cached for at most 0.4 seconds, and a call that waits asks
///   the server again after that time, because units may be given back.
/// - Calls with limits of their own ([`check_with`](RateLimiter::check_with)), and calls that cost more than is
///   reserved, ask the server. If that denies a call of the latter kind, which would pass with the units that this
///   process has reserved, these are given back, and the server is asked again. A [`refund`](Permit::refund) and a
///   [`settle`](Permit::settle) take one round trip each.
/// - A [`reset`](RateLimiter::reset) ends the reservation of this process. It does not reach others: the units that
///   they have reserved may be admitted until they lapse, in addition to the new quota.
/// - While the server fails, reserved units are still admitted, and then [`OnError`] decides.
/// - Up to about 10,000 keys are observed at a time; checks of further keys ask the server.
///
/// Update all processes of a name before you use it: an earlier release returns [`Error::WrongType`] for a key with
/// reserved units.
///
/// # Time
///
/// All times are those of the server; the clocks of your processes do not matter.
/// [`retry_after`](crate::Limited::retry_after) counts from the arrival of the reply, by the clock of this process. If
/// no other call uses the key, a call that you make after that time is admitted.
///
/// Times are in microseconds, to which windows, buckets and the intervals of `Gcra` are rounded up. An interval of
/// `Gcra` below a millisecond is not rounded, so that a quota of many bytes per second is exact. For longer ones the
/// error is below 0.1 %.
///
/// If the server's clock goes back, for example after a failover to a server whose clock is behind, the stored times of
/// a key are moved back accordingly. The change therefore delays a call by at most one window and admits no call too
/// early. You can no longer refund permits that were issued before the change.
///
/// # Atomicity
///
/// All limits of one key are checked and charged together, or not at all. You cannot check several keys atomically,
/// since in a cluster they are on different nodes. Check one after the other, and [`refund`](Permit::refund) your first
/// permit if the second check is denied.
///
/// # Server failures
///
/// Your call waits at most [`timeout`](RateLimiterBuilder::timeout) (50 ms). After three consecutive failures, a
/// circuit breaker opens: no call is sent for half a second, then one call tests the server. While calls fail or are
/// not sent, [`on_error`](RateLimiterBuilder::on_error) decides checks; [`peek`](RateLimiter::peek),
/// [`reset`](RateLimiter::reset) and [`refund`](Permit::refund) return the error. A check whose reply is lost is never
/// sent again: it is charged once or not at all. Failures are logged at most once per second. Three errors are not
/// failures of the server and are returned regardless of the policy: [`Error::WrongType`], [`Error::Encode`] and
/// [`Error::Decode`]. In a cluster, all nodes share one breaker.
///
/// # Eviction
///
/// With `maxmemory-policy noeviction`, a server whose memory is full refuses checks, which
/// [`on_error`](RateLimiterBuilder::on_error) then decides. With any other policy, including `volatile-*`, the server
/// evicts keys. An evicted key has its whole quota again, its earlier permits refund nothing, and no error is reported.
/// To prevent evictions, run your limiters on a separate server or one with enough memory. At its start, a limiter logs
/// a warning if the settings of the server permit evictions, unless the Redis user is not permitted to run `INFO`.
///
/// # Several limits for one key
///
/// You may check a key by different limits: by [`check_with`](RateLimiter::check_with), by the limits of a layer, after
/// [`set_limits`](RateLimiter::set_limits), or by processes with other limits during a rollout. Limits at the same
/// position among the limits of a call share the usage of the key, as in the embedded limiter. Each of them counts its
/// own calls exactly and never admits more than its quota, regardless of the other limits. If your limits by route have
/// to be independent, use a key that contains the route.
///
/// A `Log` keeps the calls of the longest window. Beyond 4,096 calls, it forgets the oldest ones of a limit if later
/// ones cost twice its quota: they would only count after as many refunds or by a larger quota.
///
/// While two releases use different limits, both are kept: at each position, up to eight limits are known at the same
/// time. A limit that no check has used for the longest window of the key is dropped, and so is one of more than eight.
/// If you use a limit that is not known, it begins with the calls of the others: with `Buckets` as if they were made at
/// the end of their buckets, with `Gcra` with as many units.
///
/// A process of a release without this rule cannot read a key with several limits at one position, with calls of
/// different numbers of limits (`Log`), or with an interval below a millisecond (`Gcra`). Its checks of that key return
/// [`Error::WrongType`].
pub struct RateLimiter<K> {
    state: Arc<LimiterState>,
    keys: PhantomData<fn(K)>,
}

impl<K> RateLimiter<K> {
    /// Charges one unit to `key`. If a limit is exhausted, returns an error that contains the time to wait.
    ///
    /// ```no_run
    /// # use fleeting::redis::{Error, RateLimiter};
    /// # async fn f(logins: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// match logins.check("ada").await {
    ///     Ok(_) => println!("check the password"),
    ///     Err(Error::Limited(limited)) => println!("try again in {:?}", limited.retry_after()),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip. Your key may have any length: each check copies all of it, sends up to 256 bytes, and of a
    /// longer one also a hash. If clients choose your keys, pass an id instead ([long
    /// keys](crate::guide::rate_limits#long-keys)).
    ///
    /// # Errors
    ///
    /// [`Error::Limited`] if a limit is exhausted; nothing is charged then. If the server fails, [`OnError`] decides:
    /// only [`OnError::Deny`] returns the error. Regardless of that, [`Error::WrongType`] if another program has
    /// written the key, and [`Error::Encode`] if the key cannot be serialized.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped after it was polled may still be charged. This applies to all methods that send a
    /// command: the server may still execute it.
    #[doc(alias = "EVALSHA")]
    pub async fn check<Q>(&self, key: &Q) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.check_n(key, 1).await
    }

    /// Charges `cost` units to `key`, or returns the time to wait. Otherwise the same as [`check`](RateLimiter::check).
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(rows: RateLimiter<u32>) -> Result<(), fleeting::redis::Error> {
    /// // Each account may export a number of rows per minute; this export has 800.
    /// rows.check_n(&7, 800).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A cost of 0 always passes, even if the server fails; you then do not know the remaining quota (`u32::MAX`).
    ///
    /// # Errors
    ///
    /// The same as those of [`check`](RateLimiter::check). If the cost is above a quota, the call can never pass, and
    /// [`retry_after`](crate::Limited::retry_after) is [`Duration::MAX`].
    pub async fn check_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        if let Some(permit) = self.state.admit_reserved(key, cost).await? {
            return Ok(permit);
        }
        let subject = self.state.subject(key)?;
        Ok(self.state.decide(subject, cost, None).await?.outcome?)
    }

    /// Charges one unit to `key` under `limits` in place of the limiter's own, for example those of a plan or tier.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::RateLimiter};
    /// # async fn f(limiter: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// # let has_paid = true;
    /// let (free, paid) = ([Limit::per_minute(10)], [Limit::per_minute(500)]);
    /// limiter.check_with("ada", if has_paid { &paid } else { &free }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// They share the usage of the key: see [Several limits for one key](RateLimiter#several-limits-for-one-key).
    ///
    /// # Errors
    ///
    /// The same as those of [`check`](RateLimiter::check).
    pub async fn check_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.check_n_with(key, 1, limits).await
    }

    /// Charges `cost` units to `key` under `limits`: combines [`check_n`](RateLimiter::check_n) and
    /// [`check_with`](RateLimiter::check_with).
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::RateLimiter};
    /// # async fn f(rows: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// // A paid plan exports more rows.
    /// rows.check_n_with("ada", 800, &[Limit::per_minute(5_000)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as those of [`check_n`](RateLimiter::check_n).
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

    /// Returns the remaining quota of `key` without charging it.
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(mails: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// let quota = mails.peek("ada").await?;
    /// println!("you may send {} more mails", quota.remaining());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the server, regardless of [`OnError`].
    pub async fn peek<Q>(&self, key: &Q) -> Result<State, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.peek(&self.state.subject(key)?, None).await
    }

    /// Returns the remaining quota of `key` under `limits`, without charging it: see
    /// [`check_with`](RateLimiter::check_with).
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::RateLimiter};
    /// # async fn f(mails: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// // Ada asks for the quota that a paid plan would leave.
    /// let quota = mails.peek_with("ada", &[Limit::per_minute(500)]).await?;
    /// println!("with a paid plan, you may send {} more mails", quota.remaining());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// The same as those of [`peek`](RateLimiter::peek).
    pub async fn peek_with<Q>(&self, key: &Q, limits: &[Limit]) -> Result<State, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.peek(&self.state.subject(key)?, Some(limits)).await
    }

    /// Removes all charges of `key`; returns whether the server had any state of it (Redis: `DEL`).
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(logins: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// // The right password: earlier mistakes do not count any more.
    /// logins.reset("ada").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// One round trip. Units that other processes have reserved stay valid: see
    /// [Reservations](RateLimiter#reservations).
    ///
    /// # Errors
    ///
    /// The same as those of [`peek`](RateLimiter::peek).
    #[doc(alias = "DEL")]
    pub async fn reset<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.state.reset(&self.state.subject(key)?).await
    }

    /// Waits until one unit can be charged to `key`, and charges it.
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(calls: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// // All workers together call the partner's API as often as it permits.
    /// for order in 1..=100 {
    ///     calls.until_ready("partner").await?;
    ///     println!("sending order {order}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Waiters for the same key in this process are admitted one after the other, in FIFO order. A concurrent
    /// [`check`](RateLimiter::check), or another process, may be admitted first. The call sends one check each time its
    /// waiting time has passed, or after a refund or a reset in this process, and with
    /// [reservations](RateLimiter#reservations) at least every 0.4 seconds.
    ///
    /// # Errors
    ///
    /// The same as those of [`check`](RateLimiter::check), except [`Error::Limited`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call gives up its place in the queue; during a round trip, it may still be charged. A future that has
    /// begun to wait and is kept but not polled (a branch of `select!` that lost and is awaited again later) delays the
    /// waiters behind it: for up to one second from the time at which it could have passed, or up to about six seconds
    /// if it became the first because the calls ahead of it were dropped. After that, the waiters behind it are
    /// admitted first, until it is polled again.
    pub async fn until_ready<Q>(&self, key: &Q) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, 1, None, None).await?.0.outcome?)
    }

    /// Waits until `cost` units can be charged to `key`, and charges them: see
    /// [`until_ready`](RateLimiter::until_ready).
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # async fn f(bytes: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// # let part = [0; 4_096];
    /// // An upload waits until its next part is within the bandwidth.
    /// bytes.until_ready_n("ada", part.len() as u32).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A call with a high cost is not overtaken by cheaper ones behind it in this process.
    ///
    /// # Errors
    ///
    /// The same as those of [`check`](RateLimiter::check); [`Error::Limited`] only if the cost is above a quota, so
    /// that the call can never pass.
    ///
    /// # Cancel safety
    ///
    /// The same as that of [`until_ready`](RateLimiter::until_ready).
    pub async fn until_ready_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, cost, None, None).await?.0.outcome?)
    }

    /// Waits until one unit can be charged to `key`, for at most `max_wait` and one round trip: see
    /// [`until_ready`](RateLimiter::until_ready).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Error, RateLimiter};
    /// # async fn f(searches: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// match searches.until_ready_within("ada", Duration::from_secs(2)).await {
    ///     Ok(_) => println!("searching"),
    ///     Err(Error::Limited(_)) => println!("too busy"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as those of [`check`](RateLimiter::check); [`Error::Limited`] if the call cannot pass within
    /// `max_wait`. It is returned after one round trip if the reply of the server, the waiters ahead in this process,
    /// or [`max_waiting`](RateLimiterBuilder::max_waiting) show that the call cannot pass in time; otherwise after
    /// `max_wait`. With [reservations](RateLimiter#reservations), in which units may be given back, the reply shows it
    /// for the next 0.4 seconds only.
    pub async fn until_ready_within<Q>(&self, key: &Q, max_wait: Duration) -> Result<Permit, Error>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let subject = self.state.subject(key)?;
        Ok(self.state.until_ready(subject, 1, None, Some(max_wait)).await?.0.outcome?)
    }

    /// Changes the limits of this name for all processes.
    ///
    /// ```no_run
    /// # use fleeting::{Limit, redis::RateLimiter};
    /// # async fn f(limiter: RateLimiter<String>) -> Result<(), fleeting::redis::Error> {
    /// // An incident: for all servers, without a restart.
    /// limiter.set_limits([Limit::per_second(5)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// They take effect in this process immediately and in other running processes within a second. Processes that you
    /// start later use them too, until [`clear_limits`](RateLimiter::clear_limits). They are stored under one key on
    /// the server. If that key is removed in any other way, the limits of the builder apply again.
    ///
    /// Existing charges stay, also those of limits that are removed. They count for the new limits as described in
    /// [Several limits for one key](RateLimiter#several-limits-for-one-key). With
    /// [`Window::Gcra`](crate::Window::Gcra), a lower quota does not reduce them: a key may have more in use than the
    /// new quota, and is denied until the difference has leaked. The embedded limiter reduces them to the new quota.
    /// Your callers that are already waiting in this process are checked against the new limits. One round trip.
    ///
    /// # Panics
    ///
    /// Panics if `limits` is empty.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the server. After [`Error::Unanswered`], the server may still have changed the
    /// limits; after any other error they are unchanged.
    #[doc(alias = "SET")]
    pub async fn set_limits(&self, limits: impl IntoIterator<Item = Limit>) -> Result<(), Error> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        assert!(!limits.is_empty(), "a rate limiter needs at least one limit, got none");
        self.state.set_limits(limits).await
    }

    /// Removes the limits that [`set_limits`](RateLimiter::set_limits) has set, so that those of the builder apply
    /// again in all processes.
    ///
    /// ```no_run
    /// use fleeting::{Limit, redis::{Error, RateLimiter}};
    ///
    /// # async fn f(limiter: RateLimiter<String>) -> Result<(), Error> {
    /// limiter.set_limits([Limit::per_second(5)]).await?; // during an incident
    /// limiter.clear_limits().await?; // the limits of the release apply again
    /// # Ok(()) }
    /// ```
    ///
    /// Each process applies the limits of its own builder: this one immediately, others within two seconds. Existing
    /// charges stay, as with `set_limits`. Has no effect if no limits are set. One round trip.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the server. The limits are then unchanged, or change shortly afterwards if the
    /// server has executed the command nevertheless.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped after it was polled may still remove the limits; this process then applies those of the
    /// builder within two seconds.
    #[doc(alias = "DEL")]
    pub async fn clear_limits(&self) -> Result<(), Error> {
        self.state.clear_limits().await
    }

    /// Returns the limits that apply to calls without limits of their own.
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # fn f(limiter: RateLimiter<String>) {
    /// for limit in limiter.limits().iter() {
    ///     println!("at most {limit}");
    /// }
    /// # }
    /// ```
    pub fn limits(&self) -> Arc<[Limit]> {
        self.state.current_limits.get().limits.clone()
    }

    /// Returns the statistics of this process. Sends nothing to the server.
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # fn f(limiter: RateLimiter<String>) {
    /// println!("{:?}", limiter.stats());
    /// # }
    /// ```
    pub fn stats(&self) -> LimiterStats {
        self.state.stats()
    }

    /// Returns the number of denials of each limit, which add up to the denials of [`stats`](RateLimiter::stats).
    ///
    /// ```no_run
    /// # use fleeting::redis::RateLimiter;
    /// # fn f(limiter: RateLimiter<String>) {
    /// for (limit, denials) in limiter.denials() {
    ///     println!("{limit} has denied {denials} calls");
    /// }
    /// # }
    /// ```
    ///
    /// If several limits were exhausted, the denial counts for the one with the longest wait. Denials by limits that
    /// were passed to a single call are counted by the position of the limit; positions from the seventh on share one
    /// counter.
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
