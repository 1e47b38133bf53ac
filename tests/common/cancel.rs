//! Cancellation of a call at each place where it may wait.

// Each test binary compiles its own copy of this module and uses only a part of it.
#![allow(dead_code, unused_imports, unused_macros)]

use std::{
    collections::BTreeMap,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use fleeting::SortedSet;
use tokio::{
    task::{coop, yield_now},
    time::{Instant, sleep, timeout},
};

use crate::patience::patience;

/// Longer than a server or a thread needs to complete a cancelled call that it has begun.
const SETTLED: Duration = Duration::from_secs(60);

/// Maximum of polls with little budget. A call that needs more is then polled as usual.
const LIMITED_POLLS: usize = 40;

/// Polls of a call before it is dropped: first with little budget, then as a runtime polls it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    limited_polls: usize,
    polls: usize,
    /// Drops the call when it is woken after the last poll, and not immediately: the event that it waits for has then
    /// happened, and another task may have handed something to it.
    is_woken: bool,
}

/// Budget of a limited poll, with which a call passes at most one of its waits for budget.
#[derive(Clone, Copy, Debug)]
enum Little {
    /// Passes only waits that are not for budget.
    Nothing,
    /// One call of the crate, and no unit of Tokio's budget.
    Call,
    /// No call of the crate before it takes a unit, and one unit.
    Unit,
}

/// Runs `call` on new states until it completes, and drops it after each possible number of polls before that: without
/// a poll, at each wait for budget, at each other wait, and when that ends. `check` gets the state and the reply, or
/// `None` if the call was dropped.
pub(crate) async fn at_each_await<S, T>(
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    check: impl AsyncFn(S, Option<T>, Schedule),
) {
    drop_after_polls(LIMITED_POLLS, new, call, check).await;
}

/// Does the same as [`at_each_await`] for calls that wait for a server or a disk, without limits of their budget.
pub(crate) async fn at_each_poll<S, T>(
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    check: impl AsyncFn(S, Option<T>, Schedule),
) {
    drop_after_polls(0, new, call, check).await;
}

async fn drop_after_polls<S, T>(
    max_limited_polls: usize,
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    check: impl AsyncFn(S, Option<T>, Schedule),
) {
    let throttle = Throttle::new().await;
    for limited_polls in 0..=max_limited_polls {
        let mut schedule = Schedule { limited_polls, polls: 0, is_woken: false };
        loop {
            let state = new().await;
            let reply = {
                let call = pin!(call(&state));
                let run = timeout(patience(), throttle.run(call, schedule));
                run.await.unwrap_or_else(|_| panic!("stuck: {schedule:?}"))
            };
            let is_completed = reply.is_some();
            check(state, reply, schedule).await;
            if is_completed {
                break;
            }
            // With little budget, most waits are for budget, which hands over nothing.
            schedule.is_woken = schedule.polls > 0 && limited_polls == 0 && !schedule.is_woken;
            schedule.polls += usize::from(!schedule.is_woken);
        }
        if schedule.polls == 0 {
            break;
        }
    }
}

/// Lists calls on `$on`, each with its text. The text of the reply is the result.
macro_rules! calls {
    ($on:ident: $type:ty; $($call:expr),+ $(,)?) => {{
        type Call = fn(&$type) -> futures::future::LocalBoxFuture<'_, String>;
        let calls: Vec<(&str, Call)> = vec![$((stringify!($call), |$on| {
            let text = futures::FutureExt::map($call, |reply| format!("{reply:?}"));
            futures::FutureExt::boxed_local(text)
        })),+];
        calls
    }};
}
pub(crate) use calls;

/// Observed parts of a state, by name.
pub(crate) type Parts = BTreeMap<String, String>;

/// Effect that a cancelled call may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// All or nothing.
    Whole,
    Nothing,
    /// All or nothing of each part.
    SomeParts,
}

/// Gives calls that change something [`Effect::Whole`], and the others [`Effect::Nothing`].
pub(crate) fn with_effects<N, C>(
    changes: Vec<(N, C)>,
    reads: Vec<(N, C)>,
) -> impl Iterator<Item = (Effect, N, C)> {
    let changes = changes.into_iter().map(|(name, call)| (Effect::Whole, name, call));
    changes.chain(reads.into_iter().map(|(name, call)| (Effect::Nothing, name, call)))
}

/// Cancels `call` at each wait, and checks its effect on `observe`d parts. Then it is called again, and must complete.
///
/// Unless the effect is [`Effect::Nothing`], a completed call must change the parts: otherwise, the test could not
/// fail.
pub(crate) async fn has_effect<S, T>(
    effect: Effect,
    name: &str,
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    observe: impl AsyncFn(&S) -> Parts,
) {
    check_effect(LIMITED_POLLS, effect, name, new, call, observe).await;
}

/// Does the same as [`has_effect`] for calls that wait for a server or a disk, without limits of their budget.
pub(crate) async fn has_effect_at_polls<S, T>(
    effect: Effect,
    name: &str,
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    observe: impl AsyncFn(&S) -> Parts,
) {
    check_effect(0, effect, name, new, call, observe).await;
}

async fn check_effect<S, T>(
    max_limited_polls: usize,
    effect: Effect,
    name: &str,
    new: impl AsyncFn() -> S,
    call: impl AsyncFn(&S) -> T,
    observe: impl AsyncFn(&S) -> Parts,
) {
    let before = observe(&new().await).await;
    let after = {
        let state = new().await;
        call(&state).await;
        observe(&state).await
    };
    assert!(effect == Effect::Nothing || before != after, "{name} changes none of {before:#?}");
    drop_after_polls(max_limited_polls, new, &call, async |state, reply, schedule| {
        let is_allowed = |parts: &Parts| match (&reply, effect) {
            (Some(_), _) => *parts == after,
            (None, Effect::Nothing) => *parts == before,
            (None, Effect::Whole) => *parts == before || *parts == after,
            (None, Effect::SomeParts) => {
                let names = before.keys().chain(after.keys()).chain(parts.keys());
                names.into_iter().all(|name| {
                    let part = parts.get(name);
                    part == before.get(name) || part == after.get(name)
                })
            }
        };
        let mut parts = observe(&state).await;
        // A server or a thread may execute the cancelled call during the observation, which has several calls and then
        // finds a mixture. A completed call may have dropped a reply that is given back.
        let begin = Instant::now();
        while max_limited_polls == 0 && !is_allowed(&parts) && begin.elapsed() < SETTLED {
            sleep(Duration::from_millis(2)).await;
            parts = observe(&state).await;
        }
        assert!(
            is_allowed(&parts),
            "{name}, {schedule:?}: found {parts:#?}, before {before:#?}, after {after:#?}"
        );
        let again = timeout(patience(), call(&state)).await;
        assert!(again.is_ok(), "{name}, {schedule:?}: later calls are blocked");
    })
    .await;
}

/// Limits the budget of a poll.
struct Throttle {
    /// Any type of the crate, called to use up budget.
    probe: SortedSet<u32, u32>,
    /// Number of calls of the crate per unit of Tokio's budget.
    calls_per_unit: usize,
    /// Units that Tokio gives to a task each time that it is polled.
    units: usize,
}

impl Throttle {
    async fn new() -> Self {
        let mut throttle = Self { probe: SortedSet::new(), calls_per_unit: 0, units: 0 };
        yield_now().await;
        throttle.units = in_one_poll(|cx| take_units(cx, usize::MAX)).await;
        in_one_poll(|cx| throttle.use_up(cx)).await;
        yield_now().await;
        throttle.calls_per_unit = in_one_poll(|cx| {
            // Takes a unit, with which this and the other calls are paid.
            assert!(throttle.call(cx));
            take_units(cx, usize::MAX);
            1 + std::iter::from_fn(|| throttle.call(cx).then_some(())).count()
        })
        .await;
        throttle
    }

    async fn run<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        schedule: Schedule,
    ) -> Option<F::Output> {
        let mut little = Little::Nothing;
        for _ in 0..schedule.limited_polls {
            let (reply, is_unused) = self.limited_poll(future.as_mut(), little).await;
            if let Poll::Ready(reply) = reply {
                return Some(reply);
            }
            little = match little {
                Little::Nothing => Little::Call,
                // It waits for something else.
                Little::Call if is_unused => Little::Unit,
                Little::Call | Little::Unit => Little::Nothing,
            };
        }
        if schedule.polls == 0 {
            return None;
        }
        yield_now().await;
        let mut polls = 0;
        poll_fn(|cx| {
            if polls == schedule.polls {
                return Poll::Ready(None);
            }
            match future.as_mut().poll(cx) {
                Poll::Ready(reply) => Poll::Ready(Some(reply)),
                Poll::Pending => {
                    polls += 1;
                    let is_last = polls == schedule.polls && !schedule.is_woken;
                    if is_last { Poll::Ready(None) } else { Poll::Pending }
                }
            }
        })
        .await
    }

    /// Polls once. Also returns whether the budget is left.
    async fn limited_poll<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        little: Little,
    ) -> (Poll<F::Output>, bool) {
        in_one_poll(|cx| self.use_up(cx)).await;
        yield_now().await;
        in_one_poll(|cx| {
            match little {
                Little::Nothing => self.use_up(cx),
                Little::Call => {
                    assert!(self.call(cx));
                    take_units(cx, usize::MAX);
                    (2..self.calls_per_unit).for_each(|_| assert!(self.call(cx)));
                }
                Little::Unit => assert_eq!(take_units(cx, self.units - 1), self.units - 1),
            }
            let reply = future.as_mut().poll(cx);
            (reply, self.call(cx))
        })
        .await
    }

    /// Uses up the budget of this poll, and the calls of the crate that are paid.
    fn use_up(&self, cx: &mut Context<'_>) {
        take_units(cx, usize::MAX);
        while self.call(cx) {}
    }

    /// Makes a call, and returns whether it completed.
    fn call(&self, cx: &mut Context<'_>) -> bool {
        pin!(self.probe.len()).poll(cx).is_ready()
    }
}

async fn in_one_poll<T>(mut work: impl FnMut(&mut Context<'_>) -> T) -> T {
    poll_fn(|cx| Poll::Ready(work(cx))).await
}

/// Takes up to `max` units of this poll's budget, and returns their number.
fn take_units(cx: &mut Context<'_>, max: usize) -> usize {
    let mut taken = 0;
    while taken < max && coop::has_budget_remaining() {
        let Poll::Ready(unit) = coop::poll_proceed(cx) else { break };
        unit.made_progress();
        taken += 1;
    }
    taken
}
