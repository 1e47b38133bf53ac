//! Taking part in Tokio's cooperative budget, so that a task whose calls never wait still lets others run.
//!
//! Tokio gives a task 128 units each time it is polled. 61 calls cost one, and a call during which the coarse clock
//! ticks costs all that are left: so a task that does nothing but call keeps its worker for about a tick (4 ms on most
//! machines) and no longer, be its calls short or long.

use std::{
    cell::Cell,
    future::poll_fn,
    task::{Context, Poll, Waker, ready},
};

use tokio::task::coop;

use crate::engine::clock::{self, CallTime, Now};

/// Calls between two that take part in Tokio's budget, so that each costs 1 ns for it, not 4.
const PROCEED_EVERY: u32 = 61;

/// Of those calls, so many between two that check the coarse clock: a reading of the precise one costs 50 ns.
const CHECK_EVERY: u32 = 16;

/// How much budget a task has at most. Where there is more, nobody bounds it.
const BUDGET: u32 = 256;

thread_local! {
    /// Calls until this thread takes part again.
    static CALLS_LEFT: Cell<u32> = const { Cell::new(0) };
    /// Turns until this thread checks the coarse clock.
    static TURNS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Takes part in Tokio's cooperative budget, once in [`PROCEED_EVERY`] calls of a thread.
#[inline]
pub(crate) async fn proceed() {
    poll_fn(poll_proceed).await
}

/// As [`proceed`], for what does the work of so many calls.
pub(crate) async fn proceed_as(calls: usize) {
    poll_fn(|cx| poll_proceed_as(cx, calls as u32)).await
}

/// As [`proceed`].
#[inline]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    poll_proceed_as(cx, 1)
}

#[inline(always)]
fn poll_proceed_as(cx: &mut Context<'_>, calls: u32) -> Poll<()> {
    match CALLS_LEFT.get().checked_sub(calls) {
        Some(left) => CALLS_LEFT.set(left),
        None => ready!(poll_turns(cx, calls)),
    }
    Poll::Ready(())
}

#[cold]
fn poll_turns(cx: &mut Context<'_>, calls: u32) -> Poll<()> {
    while CALLS_LEFT.get() < calls {
        // Pending leaves the count as it is: the next poll asks again.
        ready!(poll_budget(cx));
        CALLS_LEFT.set(CALLS_LEFT.get() + PROCEED_EVERY);
        check_clock();
    }
    CALLS_LEFT.set(CALLS_LEFT.get() - calls);
    Poll::Ready(())
}

/// A call is done: what took long costs the whole budget, and the next call lets others run.
#[inline]
pub(crate) fn charge(call: &CallTime<'_>) {
    if call.has_ticked() {
        spend_all();
    }
}

#[cold]
fn spend_all() {
    // Nobody is woken: only who finds no budget left registers its waker, and that is not we.
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..BUDGET {
        if !coop::has_budget_remaining() || poll_budget(&mut cx).is_pending() {
            break;
        }
    }
    CALLS_LEFT.set(0);
}

#[cold]
fn poll_budget(cx: &mut Context<'_>) -> Poll<()> {
    coop::poll_proceed(cx).map(|budget| budget.made_progress())
}

/// Here, as each verb comes here now and then, and a counter of look-ups would cost each of them a nanosecond.
#[cold]
fn check_clock() {
    let turns = TURNS_LEFT.get();
    TURNS_LEFT.set(turns.checked_sub(1).unwrap_or_else(|| {
        clock::check();
        CHECK_EVERY - 1
    }));
}
