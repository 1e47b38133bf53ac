//! The wait until a call passes. Only who is at the head of a key's line asks and sleeps; the others wait for its
//! place.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    mem,
    pin::pin,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use super::{
    Limit, Limited, Permit, algorithm::Algorithm, check::Check, key_state::KeyState,
    limiter::Limiter, plan::least_quota, waiting::before,
};
use crate::engine::{clock::Deadline, coop};

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Calls `inspect` as a check does, each time that it asks.
    pub(super) async fn until_ready<Q>(
        &self,
        key: &Q,
        cost: u32,
        limits: Option<&[Limit]>,
        max_wait: Option<Duration>,
        inspect: &mut impl FnMut(&KeyState<A>, &Check<'_>),
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        coop::proceed().await;
        let clock = &self.shared.clock;
        let end = max_wait.map_or(Deadline::PERSISTENT, |wait| clock.now().after(wait));
        if self.needs_no_wait(limits, cost) {
            return self.decide_by(key, limits, cost, inspect);
        }
        let mut has_waited = false;
        let mut note_wait = || {
            if !mem::replace(&mut has_waited, true) {
                self.waited.fetch_add(1, Relaxed);
            }
        };
        let (mut waiter, head) = self.waiting.join(key.to_owned(), cost);
        if !waiter.is_first()
            && !end.is_persistent()
            && let limited = self.soonest(key, limits, cost, || waiter.ahead())
            && limited.ready_at().is_none_or(|at| clock.deadline_of(at).is_later_than(end))
        {
            self.turned_away.fetch_add(1, Relaxed);
            return Err(limited);
        }
        // Declared after the waiter and so dropped before it, as the line goes with the last who waits.
        let mut turn = pin!(head.turn.lock());
        let _turn = loop {
            let version = self.plan.version();
            // Again after each change: what may pass now, or never will, waits for nobody.
            if self.needs_no_wait(limits, cost) {
                return self.decide_by(key, limits, cost, inspect);
            }
            if let Ok(turn) = head.turn.try_lock() {
                break turn;
            }
            let mut change = pin!(self.plan.change());
            change.as_mut().enable();
            if self.plan.version() != version {
                continue;
            }
            note_wait();
            match clock.timeout_at(end, before(turn.as_mut(), change)).await {
                Some(Some(turn)) => break turn,
                Some(None) => {}
                // Never at the head, so nothing was asked yet.
                None => {
                    self.turned_away.fetch_add(1, Relaxed);
                    return Err(self.soonest(key, limits, cost, || 0));
                }
            }
        };
        waiter.lead();
        loop {
            let version = self.plan.version();
            // Again after each sleep, as a check that did not wait may have come first.
            let limited = match self.decide_by(key, limits, cost, inspect) {
                Ok(permit) => return Ok(permit),
                Err(limited) => limited,
            };
            let mut change = pin!(self.plan.change());
            change.as_mut().enable();
            if self.plan.version() != version {
                continue;
            }
            match limited.ready_at().map(|ready| clock.deadline_of(ready)) {
                Some(ready) if !ready.is_later_than(end) => {
                    note_wait();
                    clock.timeout_at(ready, change).await;
                }
                _ => return Err(limited),
            }
        }
    }

    /// Whether a call passes at once whatever is in use, or never.
    fn needs_no_wait(&self, limits: Option<&[Limit]>, cost: u32) -> bool {
        cost == 0 || cost > self.with_plan(limits, |limits, _| least_quota(limits))
    }
}
