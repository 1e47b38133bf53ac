//! Background task that removes expired members if no call does. It sleeps until the next expiry. It holds no strong
//! reference to the sets while it sleeps or yields, so that it ends with the last handle.

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
    builder::SetOptions,
    expiring_state::{ExpiringState, StateOf},
    shard::{SetShard, SweepProgress},
};
use crate::engine::{
    event::{Cause, Publisher},
    tasks::spawn,
};

enum SweepStep {
    /// Yield to the runtime, then continue.
    Yield,
    /// A lossless subscriber is full.
    Blocked,
    Done,
}

/// Creates the state of some shards, and starts its sweeper on the current Tokio runtime.
///
/// # Panics
///
/// Panics outside of a Tokio runtime, and on a runtime without a time driver.
pub(super) fn start<S: SetShard>(
    options: SetOptions,
    shards: impl Iterator<Item = S>,
) -> Arc<StateOf<S>> {
    let runtime = Handle::try_current().unwrap_or_else(|_| {
        panic!(
            "{:?} must be built inside of a Tokio runtime, on which its sweeper runs: \
             in `#[tokio::main]`, `#[tokio::test]`, a task, or under `Handle::enter`",
            options.name
        )
    });
    // Created here, so that a runtime without a time driver panics in the caller and not in the task.
    drop(sleep(Duration::ZERO));
    let every = options.sweep_every;
    let state = Arc::new(ExpiringState::new(options, shards));
    let sweeper =
        run(Arc::downgrade(&state), state.publisher.clone(), state.sweeper_wake().clone(), every);
    state.keep_task(spawn(&runtime, "sweeper", state.name(), Box::pin(sweeper)));
    #[cfg(feature = "metrics")]
    super::metrics::follow(&state);
    state
}

/// The sweeper task: sleeps until the next expiry, but sweeps no more often than `every`.
async fn run<S: SetShard>(
    state: Weak<StateOf<S>>,
    publisher: Arc<Publisher<S::Key, S::Value>>,
    sweeper_wake: Arc<Notify>,
    every: Duration,
) {
    let mut not_before = Instant::now();
    loop {
        let Some(next) = state.upgrade().map(|state| state.next_expiry()) else { return };
        let Some(expiry) = next else {
            sweeper_wake.notified().await;
            continue;
        };
        // A notification sent since `next_expiry` is stored as a permit and ends the wait immediately. It reports an
        // earlier expiry, so the sleep is computed again.
        if timeout_at(expiry.max(not_before), sweeper_wake.notified()).await.is_ok() {
            continue;
        }
        let mut shard = 0;
        loop {
            let Some(step) = state.upgrade().map(|state| sweep(&state, &mut shard)) else { return };
            match step {
                SweepStep::Yield => tokio::task::yield_now().await,
                // By the publisher alone, because a wait with the state would keep the sets alive.
                SweepStep::Blocked => publisher.wait_for_room(Cause::Expired).await,
                SweepStep::Done => break,
            }
        }
        let Some(state) = state.upgrade() else { return };
        // After the whole sweep; until then `lowest_of_all` is too low, which costs at most an unnecessary check.
        state.recompute_schedule();
        // An interval that overflows does not limit the sweeps.
        not_before = Instant::now().checked_add(every).unwrap_or(not_before);
    }
}

/// Removes one batch of expired members, beginning with shard `next_shard`. A panic in user code is logged, and its
/// shard is skipped until the next sweep.
fn sweep<S: SetShard>(state: &StateOf<S>, next_shard: &mut usize) -> SweepStep {
    let now = state.clock.now();
    while *next_shard < state.shard_count() {
        if !state.is_due(*next_shard, now) {
            *next_shard += 1;
            continue;
        }
        let room = state.publisher.room(Cause::Expired);
        let sweep = || state.sweep(*next_shard, room);
        let Ok((progress, panicked)) = catch_unwind(AssertUnwindSafe(sweep)) else {
            tracing::error!(set = state.name(), "sweep panicked, the next sweep continues");
            *next_shard += 1;
            return SweepStep::Yield;
        };
        if panicked > 0 {
            tracing::error!(set = state.name(), panicked, "drop of expired members panicked");
        }
        match progress {
            SweepProgress::Done => *next_shard += 1,
            SweepProgress::More => return SweepStep::Yield,
            SweepProgress::Blocked => return SweepStep::Blocked,
        }
    }
    SweepStep::Done
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{iter::repeat_with, sync::atomic::Ordering::Relaxed};

    use tokio::{
        task::yield_now,
        time::{advance, sleep},
    };

    use super::*;
    use crate::{
        engine::event::Cause,
        sets::expiring::{members::Prehashed, sets_by_key::KeyedMembers},
    };

    const SHARDS: usize = 64;
    const SECOND: Duration = Duration::from_secs(1);

    type State = StateOf<KeyedMembers<u64, u64>>;

    /// Sets whose members expire 100 s after their scores.
    fn sets() -> Arc<State> {
        let options = SetOptions {
            ttl: 100 * SECOND,
            sweep_every: SECOND,
            event_capacity: 1,
            causes: Cause::Expired.bit(),
            name: "test".to_owned(),
        };
        start(options, repeat_with(KeyedMembers::new).take(SHARDS))
    }

    fn push(state: &State, key: u64, score: Instant) {
        let score = state.clock.tick_of(score);
        let mut new_members = [Prehashed::new(&state.hasher, key)];
        state.change(key as usize % SHARDS, |sets, change| {
            let pushed = sets.push(key, &mut Some(key), score, &mut new_members, false, change);
            assert!(pushed.is_ok());
        });
    }

    fn len(state: &State) -> usize {
        (0..SHARDS).map(|shard| state.change(shard, |sets, _| sets.len())).sum()
    }

    /// Each push expires sooner than the one before, so that each wakes the sweeper.
    #[tokio::test(start_paused = true)]
    async fn waking_the_sweeper_locks_no_shard() {
        const PUSHES: u64 = 100_000;
        let state = sets();
        let now = Instant::now();
        for key in 0..PUSHES {
            push(&state, key, now + Duration::from_micros(PUSHES - key));
            yield_now().await;
        }
        assert_eq!(state.lock_count.load(Relaxed), PUSHES);
    }

    #[tokio::test(start_paused = true)]
    async fn sweep_locks_only_the_shards_with_expired_members() {
        let state = sets();
        let now = Instant::now();
        for key in 0..SHARDS as u64 {
            // The members of two shards (7 and 37) expire sooner.
            push(&state, key, now + if key % 30 == 7 { Duration::ZERO } else { 1_000 * SECOND });
        }
        let pushes = state.lock_count.load(Relaxed);
        sleep(99 * SECOND).await;
        assert_eq!(state.lock_count.load(Relaxed), pushes, "nothing has expired");
        sleep(2 * SECOND).await;
        assert_eq!(state.lock_count.load(Relaxed), pushes + 2);
        assert_eq!(len(&state), SHARDS - 2);
        sleep(2_000 * SECOND).await;
        assert_eq!(len(&state), 0);
    }

    /// A schedule that is too early after a removal costs one check, and later members still expire in time.
    #[tokio::test(start_paused = true)]
    async fn schedule_that_is_too_early_is_corrected() {
        let state = sets();
        let now = Instant::now();
        push(&state, 1, now);
        push(&state, 1 + SHARDS as u64, now + 50 * SECOND);
        sleep(SECOND).await;
        let removed = state.change(1, |sets, change| {
            sets.change(1, &1, change, |members, key, change| {
                members.remove_ranks(0..1, Cause::Removed, key, change);
            })
        });
        assert!(removed.is_ok());
        let locks = state.lock_count.load(Relaxed);
        sleep(100 * SECOND).await;
        assert!(state.lock_count.load(Relaxed) <= locks + 1);
        sleep(50 * SECOND).await;
        assert_eq!(len(&state), 0);
    }

    /// A push during a sweep wakes the sweeper.
    #[tokio::test(start_paused = true)]
    async fn member_pushed_during_a_sweep_expires_in_time() {
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
            let locks = state.lock_count.load(Relaxed);
            assert_eq!(state.next_expiry(), None, "all members are removed, in round {round}");
            assert_eq!(state.lock_count.load(Relaxed), locks);
        }
    }
}
