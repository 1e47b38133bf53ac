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
    /// Calls of methods that are not async until this thread checks the coarse clock.
    static COUNTED_LEFT: Cell<u32> = const { Cell::new(0) };
    /// True while this thread polls a future that must not yield.
    static YIELDS_NOT: Cell<bool> = const { Cell::new(false) };
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

/// Counts a call that is not async. It takes no unit, and checks the coarse clock as often as other calls do.
#[inline]
pub(crate) fn count() {
    match COUNTED_LEFT.get().checked_sub(1) {
        Some(left) => COUNTED_LEFT.set(left),
        None => check_counted(),
    }
}

#[cold]
fn check_counted() {
    COUNTED_LEFT.set(PROCEED_EVERY * CHECK_EVERY);
    clock::check();
}

/// Yields to other tasks, unless the future is polled [without yields](without_yields).
pub(crate) async fn yield_now() {
    if !YIELDS_NOT.get() {
        tokio::task::yield_now().await;
    }
}

/// Runs `poll`, and its calls of [`yield_now`] return at once: the waker of a task that yields is called by its
/// runtime, which cannot do so while `poll` blocks its thread.
pub(crate) fn without_yields<R>(poll: impl FnOnce() -> R) -> R {
    with_yields_not(true, poll)
}

/// Runs user code within [`without_yields`], which may poll futures that are its own.
pub(crate) fn with_yields<R>(user_code: impl FnOnce() -> R) -> R {
    with_yields_not(false, user_code)
}

fn with_yields_not<R>(yields_not: bool, run: impl FnOnce() -> R) -> R {
    /// Restores the former value, also after a panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            YIELDS_NOT.set(self.0);
        }
    }
    let _restore = Restore(YIELDS_NOT.replace(yields_not));
    run()
}

/// Returns whether this thread drives a Tokio runtime, which it would block by waiting. Takes some microseconds.
///
/// Tokio does not tell, but it limits only what runs on such threads: threads for blocking calls have no budget.
pub(crate) fn drives_runtime() -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    // The units are given back when the first one is dropped without progress.
    let Poll::Ready(_gives_back) = coop::poll_proceed(&mut cx) else { return true };
    (0..BUDGET).any(|_| poll_budget(&mut cx).is_pending())
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
