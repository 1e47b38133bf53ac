//! Faults of the file system, as tests want them: at any call of this thread, by a plan.

use std::{cell::RefCell, mem};

use rustix::io::{Errno, Result};

/// What becomes of a call.
pub(crate) enum Fate {
    Made,
    /// It is not made.
    Refused(Errno),
    /// It is made, and an error told: as of a request whose answer was lost, and that was sent again.
    MadeAndTold(Errno),
}

type Plan = Box<dyn FnMut(&'static str) -> Fate>;

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Does `work`, and asks `plan` about each call that it makes. The plan's own calls, by which it may do what another
/// process does just then, are made.
pub(crate) fn with<R>(
    plan: impl FnMut(&'static str) -> Fate + 'static,
    work: impl FnOnce() -> R,
) -> R {
    PLAN.set(Some(Box::new(plan)));
    let done = work();
    PLAN.set(None);
    done
}

/// Whether this thread does something by a plan.
pub(crate) fn is_planned() -> bool {
    PLAN.with_borrow(Option::is_some)
}

pub(super) fn meet<T>(what: &'static str, make: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(mut plan) = PLAN.with_borrow_mut(mem::take) else { return make() };
    let fate = plan(what);
    PLAN.set(Some(plan));
    match fate {
        Fate::Made => make(),
        Fate::Refused(error) => Err(error),
        Fate::MadeAndTold(error) => make().and(Err(error)),
    }
}
