//! The wait for a turn, and the task that passes a turn on if its waiter does not use it.

use std::{
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    dict_state::DictState,
    turns::{Queued, Turn, WatchTask},
};

/// Time for which a due entry may stay unexamined before the next waiter has the turn.
const PASS_ON_AFTER: Duration = Duration::from_millis(50);

impl<K: Send + 'static, V: Send + 'static> DictState<K, V> {
    /// Waits for a turn.
    pub(super) async fn turn(self: &Arc<Self>) -> Turn<'_> {
        let turns = &*self.turns;
        if let Ok(permit) = turns.permits.try_acquire() {
            return turns.begin(permit);
        }
        let _queued = self.enqueue();
        let permit = turns.permits.acquire().await.expect("the semaphore is never closed");
        turns.begin(permit)
    }

    fn enqueue(self: &Arc<Self>) -> Queued<'_> {
        let mut state = self.turns.state();
        state.queued += 1;
        // Without a runtime, no waiter can wait for a deadline, either.
        if !state.is_watched
            && let Ok(runtime) = Handle::try_current()
        {
            state.is_watched = true;
            drop(state);
            let watch = WatchTask { turns: self.turns.clone(), has_ended: false };
            runtime.spawn(watch_turns(Arc::downgrade(self), watch));
        }
        Queued(&self.turns)
    }
}

/// Passes the turn on if a due entry is not examined, until no waiter is queued.
async fn watch_turns<K, V>(shared: Weak<DictState<K, V>>, mut watch: WatchTask) {
    let turns = watch.turns.clone();
    let mut looks_when_due = None;
    loop {
        let Some(dict) = shared.upgrade() else { return };
        if watch.ends() {
            return;
        }
        let clock = dict.clock.clone();
        let now = clock.now();
        let due_at = dict.with(|entries| entries.arm_watch_deadline());
        drop(dict);
        if !due_at.is_expired(now) {
            looks_when_due = None;
            clock.timeout_at(due_at, turns.wake_watch.notified()).await;
            continue;
        }
        let looks = turns.looks.load(Relaxed);
        if looks_when_due == Some(looks) {
            turns.pass_on();
        }
        looks_when_due = Some(looks);
        clock.timeout_at(now.after(PASS_ON_AFTER), std::future::pending::<()>()).await;
    }
}
