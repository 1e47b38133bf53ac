//! Taking part in Tokio's cooperative budget, so that a task whose calls never wait still lets others run.

use std::{
    cell::Cell,
    future::poll_fn,
    task::{Context, Poll, ready},
};

use tokio::task::coop;

use crate::engine::clock;

/// Calls between two that take part in Tokio's budget, so that each costs 1 ns for it, not 4. A prime:
/// threads that count in turns must not miss it for ever.
pub(crate) const PROCEED_EVERY: u64 = 61;

/// Of those calls, so many between two that check the coarse clock: a reading of the precise one costs 50 ns.
const CHECK_EVERY: u32 = 16;

/// Takes part in Tokio's cooperative budget, once in [`PROCEED_EVERY`] calls of a thread.
#[inline]
pub(crate) async fn proceed() {
    poll_fn(poll_sometimes).await
}

/// Takes part in Tokio's cooperative budget.
#[cold]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    thread_local! {
        static TURNS: Cell<u32> = const { Cell::new(0) };
    }
    let turns = TURNS.get();
    TURNS.set(turns.wrapping_add(1));
    if turns.is_multiple_of(CHECK_EVERY) {
        // Here, as each verb comes here now and then, and a counter of look-ups would cost each of them a nanosecond.
        clock::check();
    }
    coop::poll_proceed(cx).map(|budget| budget.made_progress())
}

#[inline]
fn poll_sometimes(cx: &mut Context<'_>) -> Poll<()> {
    thread_local! {
        static CALLS: Cell<u64> = const { Cell::new(0) };
    }
    let calls = CALLS.get();
    if calls.is_multiple_of(PROCEED_EVERY) {
        // Pending leaves the count as it is: the next poll asks again.
        ready!(poll_proceed(cx));
    }
    CALLS.set(calls.wrapping_add(1));
    Poll::Ready(())
}
