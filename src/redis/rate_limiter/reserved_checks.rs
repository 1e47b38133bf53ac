//! Checks that draw units ahead, checks that are admitted from those, and the task that gives unused ones back.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    super::{Client, Error},
    limit_set::LimitSet,
    limiter_state::{LimiterState, unexpected_reply},
    protocol::{self, Charges, Outcome, Remaining, Reply},
    reservations::{Draw, Unused, with_reserved},
};
use crate::rate_limit::{PerLimit, Window};

/// Bounds of the time between two searches for lapsed reservations. The maximum, the time for which a denial is cached,
/// and a round trip are within the second after which lapsed units are promised to be admitted elsewhere.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Number of subjects whose units are given back at a time.
const BATCH: usize = 64;

impl LimiterState {
    /// Checks a call and draws units ahead. Returns their number and the reply to the check of all units.
    pub(super) async fn check_and_draw(
        &self,
        subject: &[u8],
        cost: u32,
        current: &LimitSet,
        draw: &Draw,
    ) -> Result<(u32, Reply), Error> {
        let Draw { ahead, lead, .. } = *draw;
        let call = protocol::reserve(self.window, subject, cost, &current.args, ahead, lead);
        // Sent once, as a check is. If the reply is lost, the units count as used.
        let call = call.within(self.timeout).send_once::<Vec<u8>>(&self.client);
        let answer = self.call_server(subject, call).await?;
        let now = Instant::now();
        let reply = decode_reserved(&answer, self.window, cost, &current.args, now);
        reply.filter(|(drawn, _)| *drawn <= ahead).ok_or_else(unexpected_reply)
    }

    /// Keeps the units that an admitted call has drawn ahead. Returns its own charges, and the remaining quota.
    pub(super) fn keep_reserved(
        &self,
        subject: &[u8],
        cost: u32,
        (draw, ahead): (Draw, u32),
        charges: Charges,
        remaining: PerLimit<Remaining>,
    ) -> (Charges, PerLimit<Remaining>) {
        let Some(reservations) = &self.reservations else { return (charges, remaining) };
        self.counters.reserved.add(ahead.into());
        let charges = reservations.keep(subject, draw, cost, ahead, charges, &remaining);
        (charges, with_reserved(remaining, ahead))
    }

    /// Gives the reserved units of a subject back if a call was denied that would pass with them. Returns whether it
    /// did.
    pub(super) async fn give_back_for(
        self: &Arc<Self>,
        subject: &[u8],
        cost: u32,
        reply: &Reply,
        timeout: Duration,
    ) -> bool {
        let Outcome::Denied { .. } = reply.outcome else { return false };
        let left = reply.remaining.iter().map(|quota| quota.remaining).min();
        let least = cost.saturating_sub(left.unwrap_or(0));
        let unused = self.reservations.as_ref().and_then(|all| all.end(subject, least));
        let Some(unused) = unused else { return false };
        let state = Arc::clone(self);
        // To its end, even if the call is dropped.
        let given_back = tokio::spawn(async move {
            let unused = [unused];
            let answers = give_back(&state.client, state.window, timeout, &unused).await;
            for (unused, is_returned) in unused.iter().zip(answers) {
                state.count_unused(unused, is_returned);
            }
        });
        given_back.await.is_ok()
    }

    /// Gives the units of lapsed reservations back, until the last handle is dropped.
    pub(super) async fn return_unused(state: Weak<Self>, wake: Arc<Notify>) {
        loop {
            // Without reservations, it sleeps. The drop of the limiter wakes it, too.
            wake.notified().await;
            let mut has_others = true;
            while has_others {
                let Some(interval) = state.upgrade().and_then(|limiter| limiter.lapse_interval())
                else {
                    return;
                };
                sleep(interval).await;
                let Some(limiter) = state.upgrade() else { return };
                let Some(reservations) = &limiter.reservations else { return };
                let unused;
                (unused, has_others) = reservations.take_lapsed(Instant::now());
                let (client, window) = (limiter.client.clone(), limiter.window);
                let timeout = limiter.timeout;
                // The task must not keep the limiter alive during the calls.
                drop(limiter);
                for batch in unused.chunks(BATCH) {
                    let answers = give_back(&client, window, timeout, batch).await;
                    let Some(limiter) = state.upgrade() else { continue };
                    for (unused, is_returned) in batch.iter().zip(answers) {
                        limiter.count_unused(unused, is_returned);
                    }
                }
            }
        }
    }

    fn lapse_interval(&self) -> Option<Duration> {
        let lead = self.reservations.as_ref()?.lead(&self.current_limits.get());
        Some(lead.clamp(INTERVALS.0, INTERVALS.1))
    }

    fn count_unused(&self, unused: &Unused, is_returned: bool) {
        if is_returned {
            self.counters.returned.add(unused.units.into());
            // As after a refund: calls may pass sooner than they were told.
            self.forget_denials(&unused.batch.subject);
            self.wake_waiters(&unused.batch.subject);
        } else {
            self.counters.lapsed.add(unused.units.into());
        }
    }
}

impl Drop for LimiterState {
    fn drop(&mut self) {
        let Some(reservations) = &mut self.reservations else { return };
        reservations.wake().notify_one();
        let unused = reservations.take_all();
        // Without a runtime, they count as used.
        if !unused.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            let (client, window, timeout) = (self.client.clone(), self.window, self.timeout);
            runtime.spawn(async move {
                for batch in unused.chunks(BATCH) {
                    give_back(&client, window, timeout, batch).await;
                }
            });
        }
    }
}

/// Gives units back to the server, and returns for each whether it took them.
async fn give_back(
    client: &Client,
    window: Window,
    timeout: Duration,
    unused: &[Unused],
) -> Vec<bool> {
    let calls = unused.iter().map(async |unused| {
        let Unused { batch, units } = unused;
        let charges = batch.part(*units, window);
        let call = protocol::refund(window, &batch.subject, &charges).within(timeout);
        // Sent once: a copy would give back the units of other calls. Failures of the server are logged by checks.
        matches!(call.send_once::<u64>(client).await, Ok(1))
    });
    join_all(calls).await
}

/// Decodes the reply to a call that draws: the number of units drawn ahead, and the reply to a check of all units.
fn decode_reserved(
    answer: &[u8],
    window: Window,
    cost: u32,
    limits: &[protocol::LimitArgs],
    now: Instant,
) -> Option<(u32, Reply)> {
    let (ahead, answer) = answer.split_first_chunk()?;
    let ahead = f64::from_le_bytes(*ahead) as u32;
    let reply = protocol::decode(answer, window, cost.saturating_add(ahead), limits, now)?;
    Some((ahead, reply))
}
