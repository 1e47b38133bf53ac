//! Wakes the streams of this process that wait for elements of one queue: one stream per new element.
//!
//! 1. A stream that is woken has a [`ScanTurn`]: it scans the queue. If it finds an element, another stream that waits
//!    continues after that element, because there may be more. So the number of scans is proportional to the number of
//!    elements, and does not grow with the number of idle streams. An element that fails is not found again by the same
//!    turn.
//! 2. A turn is never lost: if no stream waits, the next one that would wait gets it, and a turn that is dropped is
//!    given to another stream. A stream that has a turn and is not polled keeps it only for [`MAX_TURN`].
//!    If no stream waits when a turn is passed on, or when its time has ended, the next one that would wait gets it,
//!    unless it has begun a scan since the turn was first given.
//! 3. The streams share their timers: the queue is scanned by one of them after each interval, and when a backoff ends.

use std::{
    collections::VecDeque,
    fmt, mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, futures::Notified, oneshot},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Error, Name, mutex::lock, system_watch::SystemWatch};

/// Time after which a turn that was not used is given to another stream too. Longer than most scans.
const MAX_TURN: Duration = Duration::from_millis(250);

/// The streams of this process that wait for elements of one queue.
pub(super) struct Wakeups {
    state: Mutex<State>,
    /// Notifies all waiting streams that their timers may have to be shortened.
    rearm: Notify,
    /// The directories that the operating system watches.
    system: Mutex<SystemWatch>,
}

struct State {
    /// Waiting streams, in order of arrival.
    waiters: VecDeque<oneshot::Sender<ScanTurn>>,
    /// A turn is left for the next stream that would wait if the turn with this number is newer than the stream's
    /// latest scan; 0 if none is left.
    left: u64,
    /// Numbers of turns that were given, and that were used.
    given: u64,
    used: u64,
    /// Turns up to this number were counted as used before they ended, because they took too long.
    written_off: u64,
    /// The task that gives unused turns to other streams, and the runtime of the latest waiter, where it runs.
    turn_task: Option<JoinHandle<()>>,
    runtime: Option<Handle>,
    last_scan: Instant,
    /// When a stream last watched the directories again after a failure.
    watch_retried_at: Option<Instant>,
    /// When the next backoff ends.
    due: Option<Instant>,
    /// Time of the last check for backoffs, in microseconds since 1970.
    last_check: u64,
}

impl Wakeups {
    pub(super) fn new() -> Arc<Self> {
        let state = State {
            waiters: VecDeque::new(),
            left: 0,
            given: 0,
            used: 0,
            written_off: 0,
            turn_task: None,
            runtime: None,
            last_scan: Instant::now(),
            watch_retried_at: None,
            due: None,
            last_check: 0,
        };
        let (rearm, system) = (Notify::new(), Mutex::default());
        Arc::new(Self { state: Mutex::new(state), rearm, system })
    }

    /// Wakes one stream, because there may be an element for it. If none waits, the next one that would wait has the
    /// turn.
    pub(super) fn wake_one(self: &Arc<Self>) {
        self.give_turn(None);
    }

    /// Gives a turn to a stream that waits: a new one, or the rest of an earlier one.
    fn give_turn(self: &Arc<Self>, rest: Option<Rest>) {
        loop {
            let (waiter, turn) = {
                let mut state = lock(&self.state);
                let Some(waiter) = state.waiters.pop_front() else {
                    let number = rest.map_or(u64::MAX, |rest| rest.number);
                    state.left = state.left.max(number);
                    return;
                };
                (waiter, self.turn(&mut state, rest))
            };
            match waiter.send(turn) {
                Ok(()) => return self.supervise_turns(),
                // The waiter is gone. Its turn goes to the next one.
                Err(turn) => turn.finish(),
            }
        }
    }

    fn turn(self: &Arc<Self>, state: &mut State, rest: Option<Rest>) -> ScanTurn {
        state.given += 1;
        let number = rest.map_or(state.given, |rest| rest.number);
        let (serial, after) = (state.given, rest.map(|rest| rest.after));
        ScanTurn { wakeups: Arc::downgrade(self), number, serial, after }
    }

    /// Announces that the backoff of an element ends after `delay`.
    pub(super) fn set_due_in(&self, delay: Duration) {
        let Some(due) = Instant::now().checked_add(delay) else { return };
        {
            let mut state = lock(&self.state);
            if state.due.is_some_and(|earlier| earlier <= due) {
                return;
            }
            state.due = Some(due);
        }
        self.rearm.notify_waiters();
    }

    /// Announces the times at which backoffs end, in microseconds since 1970 as `now`.
    pub(super) fn set_next_due(&self, dues: impl Iterator<Item = u64>, now: u64) {
        let last_check = mem::replace(&mut lock(&self.state).last_check, now);
        // Elements that were due at the last check are locked: an immediate scan would find them locked again.
        if let Some(earliest) = dues.filter(|due| *due > last_check).min() {
            self.set_due_in(Duration::from_micros(earliest.saturating_sub(now)));
        }
    }

    /// Makes the system report new elements in `directories` of the queue at `root`. Returns whether it reports all
    /// that this process may read, and an error for the first failure of a series.
    pub(super) fn watch_directories(
        self: &Arc<Self>,
        root: &Path,
        directories: impl Iterator<Item = PathBuf>,
    ) -> (bool, Option<Error>) {
        let wakeups = Arc::downgrade(self);
        let notify = move || {
            if let Some(wakeups) = wakeups.upgrade() {
                wakeups.wake_one();
            }
        };
        let mut system = lock(&self.system);
        let updated = system.update(root, directories, notify);
        drop(system);
        if updated.has_new {
            // Elements that were added before the watch was active are found by another scan.
            self.wake_one();
        }
        (updated.is_complete, updated.failure)
    }

    /// Returns whether this stream should watch the directories again, after a failure. One of all streams does so
    /// after each pause.
    pub(super) fn begin_watch_retry(&self) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let is_due = state.watch_retried_at.is_none_or(|at| now >= at + SystemWatch::RETRY_AFTER);
        if is_due {
            state.watch_retried_at = Some(now);
        }
        is_due
    }

    /// Returns the turn that is left for a stream whose latest scan began after the turn `scanned`, or the receiver of
    /// a turn.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    pub(super) fn enter(
        self: &Arc<Self>,
        scanned: u64,
    ) -> Result<ScanTurn, oneshot::Receiver<ScanTurn>> {
        let runtime = Handle::current();
        let mut state = lock(&self.state);
        state.runtime = Some(runtime);
        if scanned < state.left {
            // The scan that follows finds all elements.
            state.left = 0;
            let turn = self.turn(&mut state, None);
            drop(state);
            self.supervise_turns();
            return Ok(turn);
        }
        let (sender, receiver) = oneshot::channel();
        // Waiters that were dropped, or ended by a timer.
        state.waiters.retain(|waiter| !waiter.is_closed());
        state.waiters.push_back(sender);
        Err(receiver)
    }

    /// Returns a future that completes when the next deadline may have become earlier.
    pub(super) fn rearmed(&self) -> Notified<'_> {
        self.rearm.notified()
    }

    /// Returns the time at which a stream that waits since `entered` should scan the queue; `None` if it is never.
    pub(super) fn next_scan(&self, entered: Instant, every: Duration) -> Option<Instant> {
        lock(&self.state).next_scan(entered, every)
    }

    /// Returns the turn of the stream whose timer has ended, or `None` if another stream has taken it.
    pub(super) fn take_timer(
        self: &Arc<Self>,
        entered: Instant,
        every: Duration,
    ) -> Option<ScanTurn> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.next_scan(entered, every).is_none_or(|next| now < next) {
            return None;
        }
        state.due = state.due.filter(|due| *due > now);
        state.last_scan = now;
        let turn = self.turn(&mut state, None);
        drop(state);
        self.supervise_turns();
        Some(turn)
    }

    /// Notes that a stream scans the whole queue. Returns the number of the latest turn.
    pub(super) fn begin_scan(&self) -> u64 {
        let mut state = lock(&self.state);
        state.last_scan = Instant::now();
        state.given
    }

    /// Returns the number of the latest turn.
    pub(super) fn latest_turn(&self) -> u64 {
        lock(&self.state).given
    }

    /// Makes a task give the turns that are not used in time to other streams.
    fn supervise_turns(self: &Arc<Self>) {
        let runtime = {
            let state = lock(&self.state);
            // The task ends with its runtime.
            let is_supervised = state.turn_task.as_ref().is_some_and(|task| !task.is_finished());
            if is_supervised { None } else { state.runtime.clone() }
        };
        if let Some(runtime) = runtime {
            let task = runtime.spawn(pass_on_unused_turns(Arc::downgrade(self)));
            lock(&self.state).turn_task = Some(task);
        }
    }
}

impl State {
    fn next_scan(&self, entered: Instant, every: Duration) -> Option<Instant> {
        let by_interval = entered.max(self.last_scan).checked_add(every);
        self.due.into_iter().chain(by_interval).min()
    }

    /// Counts a turn as used, once.
    fn end_turn(&mut self, serial: u64) {
        if serial > self.written_off {
            self.used += 1;
        }
    }
}

/// The turn of a stream that was woken: it should scan the queue. Dropping it gives the turn to another stream.
pub(super) struct ScanTurn {
    wakeups: Weak<Wakeups>,
    /// Number of the turn, or of the one of which this is the rest.
    number: u64,
    /// Number of this turn.
    serial: u64,
    after: Option<Name>,
}

/// The rest of a turn whose stream has found an element.
#[derive(Clone, Copy)]
struct Rest {
    /// Number of the turn. The elements for which it was given are found by all scans that begin later.
    number: u64,
    after: Name,
}

impl ScanTurn {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the element after which the scan begins; `None` if it begins at the first.
    pub(super) fn after(&self) -> Option<Name> {
        self.after
    }

    /// Ends the turn: nothing was found.
    pub(super) fn finish(mut self) {
        if let Some(wakeups) = mem::take(&mut self.wakeups).upgrade() {
            lock(&wakeups.state).end_turn(self.serial);
        }
    }

    /// Ends the turn: `found` is the stream's. Another stream that waits continues after it.
    pub(super) fn pass_on(self, found: Name) {
        let (wakeups, rest) = (self.wakeups.upgrade(), Rest { number: self.number, after: found });
        self.finish();
        if let Some(wakeups) = wakeups {
            wakeups.give_turn(Some(rest));
        }
    }
}

impl Drop for ScanTurn {
    fn drop(&mut self) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            lock(&wakeups.state).end_turn(self.serial);
            wakeups.wake_one();
        }
    }
}

/// Gives turns that are not used in time to other streams: a stream that was woken may not be polled.
async fn pass_on_unused_turns(wakeups: Weak<Wakeups>) {
    loop {
        sleep(MAX_TURN).await;
        let Some(wakeups) = wakeups.upgrade() else { return };
        {
            let mut state = lock(&wakeups.state);
            let is_used = state.used >= state.given;
            // Counted as used, so that each is passed on once.
            (state.used, state.written_off) = (state.given, state.given);
            if is_used || state.waiters.is_empty() {
                if !is_used {
                    // Not for the stream that has the turn: its scan may only take long.
                    state.left = state.left.max(state.given);
                }
                state.turn_task = None;
                return;
            }
        }
        wakeups.wake_one();
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stream_that_begins_to_wait_has_the_turn_of_one_that_is_not_polled() {
        let wakeups = Wakeups::new();
        let scanned = wakeups.latest_turn();
        let _not_polled = wakeups.enter(scanned).err().expect("no turn is left");
        wakeups.wake_one();
        // No other stream waits when the time of the turn is over.
        sleep(2 * MAX_TURN).await;
        let turn = wakeups.enter(scanned).ok().expect("the turn is left");
        turn.finish();
        assert!(wakeups.enter(wakeups.begin_scan()).is_err(), "it is left once");
    }

    #[tokio::test(start_paused = true)]
    async fn turn_of_a_stream_that_did_not_wait_and_is_not_polled_goes_to_another() {
        let wakeups = Wakeups::new();
        let scanned = wakeups.latest_turn();
        wakeups.wake_one();
        let _not_polled = wakeups.enter(scanned).ok().expect("a turn is left");
        let waits = wakeups.enter(scanned).err().expect("it is left once");
        timeout(2 * MAX_TURN, waits).await.expect("it is woken").expect("the sender exists");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_scan_is_not_followed_by_another() {
        let wakeups = Wakeups::new();
        let waits = wakeups.enter(wakeups.latest_turn()).err().expect("no turn is left");
        wakeups.wake_one();
        let turn = waits.await.expect("it is woken");
        let scanned = wakeups.begin_scan();
        sleep(2 * MAX_TURN).await;
        turn.finish();
        assert!(wakeups.enter(scanned).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_passed_on_after_another_ended_late() {
        let wakeups = Wakeups::new();
        let slow = wakeups.enter(wakeups.latest_turn()).err().expect("no turn is left");
        wakeups.wake_one();
        let turn = slow.await.expect("it is woken");
        sleep(2 * MAX_TURN).await;
        turn.finish();
        let scanned = wakeups.begin_scan();
        let _not_polled = wakeups.enter(scanned).err().expect("no turn is left");
        let waits = wakeups.enter(scanned).err().expect("no turn is left");
        wakeups.wake_one();
        timeout(2 * MAX_TURN, waits).await.expect("it is woken").expect("the sender exists");
    }

    #[tokio::test(start_paused = true)]
    async fn one_stream_watches_again_after_each_pause() {
        let wakeups = Wakeups::new();
        for _ in 0..3 {
            let retries = (0..64).filter(|_| wakeups.begin_watch_retry()).count();
            assert_eq!(retries, 1);
            sleep(SystemWatch::RETRY_AFTER).await;
        }
    }
}
