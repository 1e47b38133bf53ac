//! The task that lets members die where nobody calls. It sleeps until the next death, and holds nothing of
//! the sets while it sleeps or yields, so that it ends with the last handle.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{
    builder::Options,
    shard::{Shard, SweepProgress},
    state::{SharedState, StateOf},
};
use crate::engine::{event::Publisher, tasks::spawn};

enum Step {
    /// Yield to the runtime, then go on.
    Yield,
    /// A lossless subscriber has no room.
    HeldBack,
    Done,
}

/// Makes the state of some shards, and starts its sweeper on the current Tokio runtime.
///
/// # Panics
///
/// Outside of a Tokio runtime, and on one without a time driver.
pub(super) fn start<S: Shard>(
    options: Options,
    shards: impl Iterator<Item = S>,
) -> Arc<StateOf<S>> {
    let runtime = Handle::try_current().unwrap_or_else(|_| {
        panic!(
            "{:?} must be built inside of a Tokio runtime, on which its sweeper runs: \
             in `#[tokio::main]`, `#[tokio::test]`, a task, or under `Handle::enter`",
            options.name
        )
    });
    // Made here, so that a runtime without time panics here and not in the task.
    drop(sleep(Duration::ZERO));
    let every = options.sweep_every;
    let state = Arc::new(SharedState::new(options, shards));
    let sweeper =
        run(Arc::downgrade(&state), state.publisher.clone(), state.alarm().clone(), every);
    state.keep_task(spawn(&runtime, "sweeper", state.name(), sweeper));
    #[cfg(feature = "metrics")]
    super::metrics::follow(&state);
    state
}

/// The task: sleeps until the next death, but sweeps no more often than `every`.
async fn run<S: Shard>(
    state: Weak<StateOf<S>>,
    publisher: Arc<Publisher<S::Key, S::Value>>,
    alarm: Arc<Notify>,
    every: Duration,
) {
    let mut earliest = Instant::now();
    loop {
        let Some(next) = state.upgrade().map(|state| state.next_death()) else { return };
        let Some(death) = next else {
            alarm.notified().await;
            continue;
        };
        // An alarm that rang since `next_death` has left a permit, and ends the wait at once.
        if timeout_at(death.max(earliest), alarm.notified()).await.is_ok() {
            continue;
        }
        let mut shard = 0;
        loop {
            let Some(step) = state.upgrade().map(|state| sweep(&state, &mut shard)) else { return };
            match step {
                Step::Yield => tokio::task::yield_now().await,
                Step::HeldBack => publisher.wait_for_room().await,
                Step::Done => break,
            }
        }
        let Some(state) = state.upgrade() else { return };
        state.renew_schedule();
        earliest = Instant::now().checked_add(every).unwrap_or(earliest);
    }
}

/// Lets a batch of what is dead leave, from a shard on. What panics in user code is logged, and that shard
/// waits for the next sweep.
fn sweep<S: Shard>(state: &StateOf<S>, from: &mut usize) -> Step {
    let now = state.clock.now();
    while *from < state.shard_count() {
        if !state.is_due(*from, now) {
            *from += 1;
            continue;
        }
        let room = state.publisher.room();
        let sweep = || state.sweep(*from, room);
        let Ok((progress, panicked)) = catch_unwind(AssertUnwindSafe(sweep)) else {
            tracing::error!(set = state.name(), "a sweep panicked; the next one goes on");
            *from += 1;
            return Step::Yield;
        };
        if panicked > 0 {
            tracing::error!(set = state.name(), panicked, "the Drop of expired members panicked");
        }
        match progress {
            SweepProgress::Done => *from += 1,
            SweepProgress::More => return Step::Yield,
            SweepProgress::HeldBack => return Step::HeldBack,
        }
    }
    Step::Done
}

#[cfg(test)]
mod tests {
    use std::{iter::repeat_with, sync::atomic::Ordering::Relaxed};

    use tokio::{
        task::yield_now,
        time::{advance, sleep},
    };

    use super::*;
    use crate::{
        engine::event::Cause,
        sets::expiring::{keyed_members::KeyedMembers, members::Prehashed},
    };

    const SHARDS: usize = 64;
    const SECOND: Duration = Duration::from_secs(1);

    type State = StateOf<KeyedMembers<u64, u64>>;

    /// Sets whose members die 100 s after their scores.
    fn sets() -> Arc<State> {
        let options = Options {
            ttl: 100 * SECOND,
            sweep_every: SECOND,
            event_capacity: 1,
            causes: Cause::Expired.bit(),
            name: "of a test".to_owned(),
        };
        start(options, repeat_with(KeyedMembers::new).take(SHARDS))
    }

    fn push(state: &State, key: u64, score: Instant) {
        let score = state.clock.tick_of(score);
        let mut coming = [Prehashed::new(&state.hasher, key)];
        state.change(key as usize % SHARDS, |sets, change| {
            sets.push(key, &mut Some(key), score, &mut coming, false, change);
        });
    }

    fn len(state: &State) -> usize {
        (0..SHARDS).map(|shard| state.change(shard, |sets, _| sets.len())).sum()
    }

    /// Each of these rings the alarm, and the sweeper hears each.
    #[tokio::test(start_paused = true)]
    async fn an_alarm_locks_no_shard() {
        const PUSHES: u64 = 100_000;
        let state = sets();
        let now = Instant::now();
        for key in 0..PUSHES {
            push(&state, key, now + Duration::from_micros(PUSHES - key));
            yield_now().await;
        }
        assert_eq!(state.locks.load(Relaxed), PUSHES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_locks_the_shards_in_which_something_is_due() {
        let state = sets();
        let now = Instant::now();
        for key in 0..SHARDS as u64 {
            // Of two of the shards sooner.
            push(&state, key, now + if key % 30 == 7 { Duration::ZERO } else { 1_000 * SECOND });
        }
        let pushes = state.locks.load(Relaxed);
        sleep(99 * SECOND).await;
        assert_eq!(state.locks.load(Relaxed), pushes, "nothing is due");
        sleep(2 * SECOND).await;
        assert_eq!(state.locks.load(Relaxed), pushes + 2);
        assert_eq!(len(&state), SHARDS - 2);
        sleep(2_000 * SECOND).await;
        assert_eq!(len(&state), 0);
    }

    /// What was due and is gone costs one look, and what is due after it is not forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_schedule_that_is_too_early_is_put_right() {
        let state = sets();
        let now = Instant::now();
        push(&state, 1, now);
        push(&state, 1 + SHARDS as u64, now + 50 * SECOND);
        sleep(SECOND).await;
        state.change(1, |sets, change| {
            sets.change(1, &1, change, |members, key, change| {
                members.remove_ranks(0..1, Cause::Removed, key, change);
            })
        });
        let locks = state.locks.load(Relaxed);
        sleep(100 * SECOND).await;
        assert!(state.locks.load(Relaxed) <= locks + 1);
        sleep(50 * SECOND).await;
        assert_eq!(len(&state), 0);
    }

    /// The sweeper hears what comes while it sweeps.
    #[tokio::test(start_paused = true)]
    async fn what_comes_at_the_time_of_a_sweep_is_swept() {
        let state = sets();
        for round in 0..100 {
            let score = Instant::now();
            for key in 0..SHARDS as u64 {
                push(&state, key, score + Duration::from_millis((key * 7 + round) % 13));
            }
            advance(100 * SECOND + Duration::from_millis(6)).await;
            yield_now().await;
            push(&state, 1_000 + round, score + Duration::from_millis(8));
            sleep(2 * SECOND).await;
            let locks = state.locks.load(Relaxed);
            assert_eq!(state.next_death(), None, "all is gone, in round {round}");
            assert_eq!(state.locks.load(Relaxed), locks);
        }
    }
}
