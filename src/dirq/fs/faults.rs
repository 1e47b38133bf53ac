//! Faults of the file system, as tests want them: at any call of this thread, by a plan.

use std::{cell::RefCell, mem};

use rustix::io::{Errno, Result};

/// What becomes of a call.
pub(crate) enum Fault {
    None,
    /// It is not made.
    Fail(Errno),
    /// It is made, and an error told: as of a request whose answer was lost, and that was sent again.
    FailAfter(Errno),
}

type Plan = Box<dyn FnMut(&'static str) -> Fault>;

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Does `work`, and asks `plan` about each call that it makes. The plan's own calls, by which it may do call_name another
/// process does just then, are made.
pub(crate) fn with_plan<R>(
    plan: impl FnMut(&'static str) -> Fault + 'static,
    work: impl FnOnce() -> R,
) -> R {
    PLAN.set(Some(Box::new(plan)));
    let done = work();
    PLAN.set(None);
    done
}

/// Whether this thread does something by a plan.
pub(crate) fn has_plan() -> bool {
    PLAN.with_borrow(Option::is_some)
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
