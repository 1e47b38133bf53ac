//! Participation in Tokio's cooperative budget, so that a task whose calls never wait still yields to other tasks.
//!
//! Tokio gives a task 128 units each time that it is polled. 61 calls cost one unit, and a call during which the coarse
//! clock ticks costs all remaining units. A task that only makes calls therefore keeps its worker for about one tick (4
//! ms on most machines), whether its calls are short or long.

use std::{
    cell::Cell,
    future::poll_fn,
    task::{Context, Poll, Waker, ready},
};

use tokio::task::coop;

use crate::engine::clock::{self, CallTime, Now};

/// Number of calls per unit of Tokio's budget. A call then costs 1.3 ns for it, compared with 4.4 ns if each call took
/// a unit (docs/architecture.md).
const PROCEED_EVERY: u32 = 61;

/// Number of those units between two checks of the coarse clock. A check reads the precise clock, which costs 50 ns.
const CHECK_EVERY: u32 = 16;

/// Maximum number of units to spend at once, above the 128 that Tokio gives to a task. A task with budget left after
/// that is unconstrained.
const BUDGET: u32 = 256;

thread_local! {
    /// Calls until this thread takes a unit again.
    static CALLS_LEFT: Cell<u32> = const { Cell::new(0) };
    /// Units until this thread checks the coarse clock.
    static UNITS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Takes part in Tokio's cooperative budget: one unit per [`PROCEED_EVERY`] calls of a thread.
#[inline]
pub(crate) async fn proceed() {
    poll_fn(poll_proceed).await
}

/// Does the same as [`proceed`] for an operation that does the work of `calls` calls.
pub(crate) async fn proceed_as(calls: usize) {
    poll_fn(|cx| poll_proceed_as(cx, calls as u32)).await
}

/// Does the same as [`proceed`], as a poll function.
#[inline]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    poll_proceed_as(cx, 1)
}

#[inline(always)]
fn poll_proceed_as(cx: &mut Context<'_>, calls: u32) -> Poll<()> {
    match CALLS_LEFT.get().checked_sub(calls) {
        Some(left) => CALLS_LEFT.set(left),
        None => ready!(poll_units(cx, calls)),
    }
    Poll::Ready(())
}

#[cold]
fn poll_units(cx: &mut Context<'_>, calls: u32) -> Poll<()> {
    // A loop, because one call may do the work of more than `PROCEED_EVERY`.
    while CALLS_LEFT.get() < calls {
        // If it is pending, the count is unchanged, so the next poll tries again.
        ready!(poll_budget(cx));
        CALLS_LEFT.set(CALLS_LEFT.get() + PROCEED_EVERY);
        check_clock();
    }
    CALLS_LEFT.set(CALLS_LEFT.get() - calls);
    Poll::Ready(())
}

/// Ends a call: if it was long, it spends the whole budget, so the next call yields.
#[inline]
pub(crate) fn charge(call: &CallTime<'_>) {
    if call.has_ticked() {
        spend_all();
    }
}

#[cold]
fn spend_all() {
    // The waker may do nothing: it is registered only if no budget is left, and the loop checks that first.
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..BUDGET {
        if !coop::has_budget_remaining() || poll_budget(&mut cx).is_pending() {
            break;
        }
    }
    // So that the next call takes a unit at once, finds none left, and yields.
    CALLS_LEFT.set(0);
}

#[cold]
fn poll_budget(cx: &mut Context<'_>) -> Poll<()> {
    coop::poll_proceed(cx).map(|budget| budget.made_progress())
}

/// Checks the coarse clock. It is called here because every method takes a unit now and then; a counter of its own
/// would cost each lookup a nanosecond.
#[cold]
fn check_clock() {
    let units = UNITS_LEFT.get();
    UNITS_LEFT.set(units.checked_sub(1).unwrap_or_else(|| {
        clock::check();
        CHECK_EVERY - 1
    }));
}
