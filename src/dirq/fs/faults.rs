//! Fault injection for tests: a plan decides the outcome of each system call of the current thread.

use std::{
    cell::{Cell, RefCell},
    mem,
};

use rustix::io::{Errno, Result};

/// The fault to inject into a call.
pub(crate) enum Fault {
    None,
    /// The call is not made.
    Fail(Errno),
    /// The call is made, and an error is returned nevertheless, like a request that was repeated after its answer was
    /// lost.
    FailAfter(Errno),
}

type Plan = Box<dyn FnMut(&'static str) -> Fault>;

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
    static LISTED: Cell<usize> = const { Cell::new(0) };
}

/// Runs `work`, and consults `plan` for each system call. System calls of the plan itself are made normally, so that it
/// can act as another process at that moment.
pub(crate) fn with_plan<R>(
    plan: impl FnMut(&'static str) -> Fault + 'static,
    work: impl FnOnce() -> R,
) -> R {
    PLAN.set(Some(Box::new(plan)));
    let done = work();
    PLAN.set(None);
    done
}

/// Returns the number of names that this thread has found in directories.
pub(crate) fn listed() -> usize {
    LISTED.get()
}

pub(super) fn count_listed() {
    LISTED.set(LISTED.get() + 1);
}

pub(super) fn inject<T>(call_name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(mut plan) = PLAN.with_borrow_mut(mem::take) else { return call() };
    let fault = plan(call_name);
    PLAN.set(Some(plan));
    match fault {
        Fault::None => call(),
        Fault::Fail(error) => Err(error),
        Fault::FailAfter(error) => call().and(Err(error)),
    }
}
