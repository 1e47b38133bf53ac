//! Loop of a call that waits until it passes, and when it gives up. Only the head of a key's wait queue checks the
//! limits; the others wait for its place.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    pin::pin,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    ByWindow, Limit, Limited, Permit, RateLimiter,
    algorithm::{Algorithm, Remaining},
    check_args::{Caller, Observed},
    dispatch,
    limiter::Limiter,
    per_limit::PerLimit,
    waiting::Waiter,
};
use crate::engine::{coop, to_key::ToKey};

/// Resolution of timers. Those that fire in the same tick wake their tasks in the order in which they were started.
const TIMER_TICK: Duration = Duration::from_millis(1);

/// Remaining quota of each limit at the last check of a call that waits.
pub(super) type LastRemaining = Option<PerLimit<Remaining>>;

impl<K, S> RateLimiter<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Waits until a call of one unit passes, and charges it. Use it to stay within the limit of a server that you
    /// call.
    ///
    /// ```
    /// use fleeting::{Limit, RateLimiter};
    /// use tokio::time::Instant;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<u32>::builder().limit(Limit::per_second(2)).build();
    /// let start = Instant::now();
    /// for _ in 0..6 {
    ///     limiter.until_ready(&7).await;
    /// }
    /// assert_eq!(start.elapsed().as_secs(), 2);
    /// # }
    /// ```
    ///
    /// Calls that wait for the same key are admitted one after the other, in the order in which they began to wait. A
    /// concurrent [`check`](RateLimiter::check) may be admitted before them. A refund, a reset and
    /// [`set_limits`](RateLimiter::set_limits) wake the first waiter, which checks the limits again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped call has charged nothing, and the waiters behind it move up.
    ///
    /// A future that has begun to wait and is kept but not polled (a branch of `select!` that lost and is awaited again
    /// later) delays the waiters behind it: for up to one second from the time at which it could have passed, or up to
    /// about six seconds if it became the first because the calls ahead of it were dropped. After that, the waiters
    /// behind it are admitted first, until it is polled again.
    #[doc(alias = "until_key_ready")]
    pub async fn until_ready<Q>(&self, key: &Q) -> Permit
    where
        Q: ToKey<K> + ?Sized,
    {
        // Without a maximum wait, only a cost above a quota is denied, and `Limit::new` rejects a quota of 0.
        self.until_ready_n(key, 1).await.expect("every quota is at least one unit")
    }

    /// Waits until a call of `cost` units passes, and charges it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::Instant;
    /// // A mail server takes 100 recipients per second.
    /// let recipients: RateLimiter<String> = RateLimiter::new(Limit::per_second(100));
    /// let start = Instant::now();
    /// for mailing in [60, 60, 60] {
    ///     recipients.until_ready_n("mx.example.org", mailing).await.unwrap();
    /// }
    /// assert_eq!(start.elapsed().as_secs(), 2);
    /// assert!(recipients.until_ready_n("mx.example.org", 101).await.is_err());
    /// # }
    /// ```
    ///
    /// Otherwise the same as [`until_ready`](RateLimiter::until_ready). A call that waits for many units is not
    /// overtaken by later calls that wait for few.
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if the cost is above a quota, so that the call can never pass: immediately, or as soon as
    /// [`set_limits`](RateLimiter::set_limits) lowers the quota.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`until_ready`](RateLimiter::until_ready).
    #[doc(alias = "until_key_n_ready")]
    pub async fn until_ready_n<Q>(&self, key: &Q, cost: u32) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        dispatch!(&self.inner.0, limiter => {
            limiter.until_ready(key, cost, None, None, None).await.0
        })
    }

    /// Waits up to `max_wait` until a call of one unit passes, and charges it. Use it if your own caller has a timeout.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::<String>::builder().limit(Limit::per_second(1)).build();
    /// let max_wait = Duration::from_secs(1);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready_within("ada", max_wait).await.is_ok());
    /// }
    ///
    /// // Denied immediately: the next unit is free after a second.
    /// let limited = limiter.until_ready_within("ada", max_wait / 2).await.unwrap_err();
    /// assert_eq!(limited.retry_after(), max_wait);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Limited`] if the call does not pass within `max_wait`. It is denied immediately if it cannot pass in
    /// time, given the current usage and the calls ahead of it, or if
    /// [`max_waiting`](super::RateLimiterBuilder::max_waiting) calls already wait for the key; otherwise it is denied
    /// when `max_wait` has elapsed. If its turn comes at that time, it passes if the units are free.
    ///
    /// The time at which it would pass is exact for one limit of [`Window::Gcra`](super::Window::Gcra), and for one of
    /// [`Window::Log`](super::Window::Log) if each call ahead of it costs one unit: then no more calls wait for a key
    /// than can pass in time. Otherwise it is the earliest possible time, since units ahead are counted one by one. So
    /// a call that could pass is never denied immediately, but one behind calls of several units may wait until
    /// `max_wait` has elapsed and then be denied.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`until_ready`](RateLimiter::until_ready).
    pub async fn until_ready_within<Q>(
        &self,
        key: &Q,
        max_wait: Duration,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        dispatch!(&self.inner.0, limiter => {
            limiter.until_ready(key, 1, None, Some(max_wait), None).await.0
        })
    }
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Waits until the call passes, up to `max_wait`. Stores the remaining quota at each check. Also returns whether
    /// the call had to wait.
    pub(super) async fn until_ready<Q>(
        &self,
        key: &Q,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
        mut remaining: Option<&mut LastRemaining>,
    ) -> (Result<Permit, Limited>, bool)
    where
        Q: ToKey<K> + ?Sized,
    {
        coop::proceed().await;
        let mut has_waited = false;
        let outcome =
            self.wait_in_queue(key, cost, limits, max_wait, &mut remaining, &mut has_waited).await;
        if outcome.is_ok() && has_waited {
            self.waited.fetch_add(1, Relaxed);
        }
        (outcome, has_waited)
    }

    async fn wait_in_queue<Q>(
        &self,
        key: &Q,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
        remaining: &mut Option<&mut LastRemaining>,
        has_waited: &mut bool,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        let clock = &self.shared.clock;
        // Without an end if the time cannot be represented.
        let end = max_wait.and_then(|wait| clock.instant_of(clock.now().after(wait)));
        let in_time =
            |limited: &Limited| limited.ready_at().filter(|at| end.is_none_or(|end| *at <= end));
        // Before the first decision: the comparison in the loop then finds each change that the decision may have
        // missed.
        let mut version = self.current_limits.version();
        let releases = self.waiting.releases();
        if self.needs_no_wait(limits, cost)
            && let Some(decided) = self.decide_without_wait(key, limits, cost, remaining)
        {
            return decided;
        }
        // If no call waits, it checks immediately, and joins the queue only if it is denied.
        let mut first_denial = None;
        if !self.waiting.has_queue(key) {
            match self.decide_as(Caller::Waiter(None), key, limits, cost, remaining) {
                // Reused by the head's first turn, which would otherwise check twice at once.
                Err(limited) if in_time(&limited).is_some() => first_denial = Some(limited),
                decided => {
                    return decided
                        .map_err(|limited| self.count_denied_waiter(key, limits, limited));
                }
            }
        }
        let waiter = self.waiting.join(key.to_key(), cost, limits);
        // A refund since the denial may have found no waiter to wake.
        if self.waiting.releases() != releases {
            first_denial = None;
        }
        // After joining, so that two concurrent callers cannot both pass the bound: each sees those that joined before
        // it. An early return drops `waiter`, which leaves the queue.
        if max_wait.is_some() && waiter.behind() > 0 {
            let limited = self.earliest_denial(key, limits, cost, || waiter.ahead());
            if waiter.behind() >= self.wait.max_waiting || in_time(&limited).is_none() {
                return Err(self.count_denied_waiter(key, limits, limited));
            }
        }
        let until_end = |at: Instant| end.map_or(at, |end| at.min(end));
        // The last head for whose decision the call waited after the end.
        let mut decided_after = None;
        loop {
            let first_denial = first_denial.take();
            // Checked again after each change of the limits: a call that passes at any usage, or can never pass, does
            // not wait.
            if self.needs_no_wait(limits, cost)
                && let Some(decided) = self.decide_without_wait(key, limits, cost, remaining)
            {
                return decided;
            }
            let now = clock.instant(clock.now());
            let wake_at = match waiter.turn(now) {
                Err(wake_at) if end.is_none_or(|end| now < end) => until_end(wake_at),
                Err(_) => {
                    // If the units became free at the end, the timer of this call may have fired before that of the
                    // head. It is decided in its turn, which comes as soon as those ahead have been polled.
                    let due = waiter.due_head(now).filter(|head| decided_after != Some(*head));
                    if due.is_none() {
                        // It never was the head, so it has no denial of its own yet.
                        let limited = self.earliest_denial(key, limits, cost, || 0);
                        return Err(self.count_denied_waiter(key, limits, limited));
                    }
                    decided_after = due;
                    now + TIMER_TICK
                }
                // Again after each sleep, since a check that did not wait may have taken the quota.
                Ok(()) => {
                    let caller = Caller::Waiter(Some(waiter.units()));
                    let check = || self.decide_as(caller, key, limits, cost, remaining);
                    match first_denial.map_or_else(check, Err) {
                        Ok(permit) => return Ok(permit),
                        Err(limited) => {
                            let Some(at) = in_time(&limited) else {
                                return Err(self.count_denied_waiter(key, limits, limited));
                            };
                            let at = self.wait.jittered(at, &mut self.shared.random());
                            waiter.asks_at(at);
                            until_end(at)
                        }
                    }
                }
            };
            // A call that is dropped here has charged nothing; the drop of `waiter` wakes the next head.
            *has_waited |= self.sleep_as(&waiter, wake_at, &mut version).await;
        }
    }

    /// Decides a call, and stores the remaining quota if the caller reports it.
    fn decide_as<Q>(
        &self,
        caller: Caller<'_>,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        remaining: &mut Option<&mut LastRemaining>,
    ) -> Result<Permit, Limited>
    where
        Q: ToKey<K> + ?Sized,
    {
        // Not kept across an await, since it is not `Sync`.
        let observed = Observed::default();
        let decided =
            self.decide(key, limits, cost, caller, remaining.is_some().then_some(&observed));
        if let (Some(last), Some(observed)) = (remaining, observed.take()) {
            **last = Some(observed);
        }
        decided
    }

    /// Decides a call that needs no wait. Returns `None` if it needs one since the limits have just changed.
    fn decide_without_wait<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        remaining: &mut Option<&mut LastRemaining>,
    ) -> Option<Result<Permit, Limited>>
    where
        Q: ToKey<K> + ?Sized,
    {
        let decided = self.decide_as(Caller::Waiter(None), key, limits, cost, remaining);
        let is_ready_later = decided.as_ref().is_err_and(|limited| limited.ready_at().is_some());
        (!is_ready_later).then_some(decided)
    }

    /// Sleeps until `wake_at`, a release of usage, or a change of the limits. Returns false
    /// without a sleep if they have changed since `version`, which is set to the present one.
    pub(super) async fn sleep_as(
        &self,
        waiter: &Waiter<'_, K, S>,
        wake_at: Instant,
        version: &mut u64,
    ) -> bool {
        let clock = &self.shared.clock;
        // Registered first, then the version is read: a change after the registration wakes this waiter, an earlier one
        // is seen here. Pairs with `notify_change`.
        let mut change = pin!(self.current_limits.change());
        change.as_mut().enable();
        let present = self.current_limits.version();
        if mem::replace(version, present) != present {
            return false;
        }
        clock.timeout_at(clock.deadline_of(wake_at), waiter.notified_or(change)).await;
        *version = self.current_limits.version();
        true
    }

    /// Returns `true` if the call passes whatever is in use, or can never pass.
    fn needs_no_wait(&self, limits: Option<&[Limit]>, cost: u32) -> bool {
        self.with_limits(limits, |by| by.decides(cost))
    }
}
