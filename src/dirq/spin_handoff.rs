//! A fast path to a thread that may block, for calls in quick succession. The thread that ran the previous call's work
//! spins for the next, and the caller spins for the result. Neither has to be woken, which may cost more than the work.
//!
//! 1. No work waits behind other work: it is handed to an idle thread, or runs on a new one. If as many threads work as
//!    the queue may use, it waits for one of them, and is withdrawn if its caller is dropped.
//! 2. Per queue, at most one thread spins for work and one caller spins for a result, for [`WORKER_SPIN`] and
//!    [`CALLER_SPIN`].
//! 3. If spinning fails, for instance because other programs need the processors, the next calls do not spin: more of
//!    them after each failure.

mod backoff;
#[cfg(test)]
mod tests;

use std::{
    any::Any,
    cell::Cell,
    fmt,
    hint::spin_loop,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::oneshot::{self, Receiver, Sender, error::TryRecvError},
    task::spawn_blocking,
};

use self::backoff::SpinBackoff;
use super::{
    mutex::lock,
    threads::{ThreadPermit, Threads},
};

/// Time for which a caller spins for its result: about the duration of most calls, and about the cost of waking a
/// thread. Also the maximum gap between calls in quick succession.
const CALLER_SPIN: Duration = Duration::from_micros(100);

/// Time for which a thread spins for work. Longer than [`CALLER_SPIN`], because the caller of the previous work may
/// have to be woken first.
const WORKER_SPIN: Duration = Duration::from_micros(250);

/// Time for which a thread accepts work before it returns to its runtime, which may need it for other work or wait for
/// it to shut down.
const MAX_WORKER_TIME: Duration = Duration::from_millis(5);

thread_local! {
    /// True on a thread that runs jobs.
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread runs jobs, and so may wait for a disk.
pub(super) fn may_block() -> bool {
    MAY_BLOCK.get()
}

/// Hands work to the spinning thread, or to a new blocking thread of the runtime if none spins.
pub(super) struct SpinHandoff {
    threads: Arc<Threads>,
    state: Mutex<State>,
    /// True if the slot may hold a job. The spinning thread polls this flag, and takes the lock only if it is set.
    has_job: AtomicBool,
}

#[derive(Default)]
struct State {
    slot: WorkerSlot,
    /// Number of jobs handed over, which identifies each.
    tickets: u64,
    /// When the last work ended.
    last_finished: Option<Instant>,
    backoff: SpinBackoff,
}

/// The slot through which work is handed to the spinning thread.
#[derive(Default)]
enum WorkerSlot {
    #[default]
    Empty,
    Spinning,
    /// A thread spins, and has not yet taken this job.
    Handed(u64, Job),
}

/// The runtime shut down before the work began.
#[derive(Debug)]
pub(super) struct NotStarted;

impl SpinHandoff {
    pub(super) fn new(threads: Arc<Threads>) -> Self {
        Self { threads, state: Mutex::default(), has_job: AtomicBool::new(false) }
    }

    /// Runs `work` on a thread that may block. If the work is probably `short`, the caller spins for its result.
    ///
    /// Dropping the future does not stop work that has begun: its result is dropped on that thread.
    ///
    /// # Panics
    ///
    /// Panics if `work` panics, and outside of a Tokio runtime.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        short: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotStarted> {
        let (sender, mut receiver) = oneshot::channel();
        let begin = move |permit| new_job(permit, work, sender);
        let handoff = self.clone();
        let entered = self.threads.enter(begin, move |begin, permit| {
            handoff.run_jobs(begin(permit), false);
        });
        // The place is kept until there is a result: dropping it withdraws the work.
        let (_place, seen) = match entered {
            Ok((begin, permit)) => (None, self.start(begin(permit), short, &mut receiver)),
            Err(place) => (Some(place), None),
        };
        let done = match seen {
            Some(done) => done,
            // A job always sends a result, even after a panic. So the runtime dropped it before it ran.
            None => receiver.await.map_err(|_| NotStarted)?,
        };
        // The panic continues in the caller, as if the work had run in place.
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Runs `work` on a blocking thread of `runtime`. If none is free, the work waits for one.
    pub(super) fn run_detached(
        self: &Arc<Self>,
        runtime: Handle,
        work: impl FnOnce() + Send + 'static,
    ) {
        let handoff = self.clone();
        self.threads.spawn(runtime, move |permit| {
            let (sender, _) = oneshot::channel();
            handoff.run_jobs(new_job(permit, work, sender), false);
        });
    }

    /// Runs a job on the spinning thread, or on a new one. Returns the result if it was seen by spinning.
    fn start<T>(self: &Arc<Self>, job: Job, short: bool, receiver: &mut Receiver<T>) -> Option<T> {
        match self.hand_over(job) {
            // Saves wakeups: a `dequeue` took 18 µs instead of 34 on an idle machine (docs/architecture.md).
            Ok(ticket) if short => self.spin_for_result(ticket, receiver),
            Ok(_) => None,
            Err((job, is_back_to_back)) => {
                self.spawn(job, is_back_to_back);
                None
            }
        }
    }

    /// Hands work to the spinning thread. If none spins, returns the work, and whether a thread should spin after it.
    fn hand_over(&self, job: Job) -> Result<u64, (Job, bool)> {
        let now = Instant::now();
        let mut state = self.state();
        if state.backoff.skips_call() {
            // Even if a thread spins: it may be the one that was not scheduled when spinning failed.
            return Err((job, false));
        }
        if !matches!(state.slot, WorkerSlot::Spinning) {
            // A thread spins after this job only if another call is likely to follow soon.
            let is_back_to_back =
                state.last_finished.is_some_and(|finished| now < finished + CALLER_SPIN);
            return Err((job, is_back_to_back));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.slot = WorkerSlot::Handed(ticket, job);
        // `Release` pairs with `Acquire` in `next_job`. The job itself is protected by the lock.
        self.has_job.store(true, Release);
        Ok(ticket)
    }

    /// Spins for the result of a job. If the job has not begun in time, it is moved to a new thread.
    fn spin_for_result<T>(self: &Arc<Self>, ticket: u64, receiver: &mut Receiver<T>) -> Option<T> {
        let until = Instant::now() + CALLER_SPIN;
        loop {
            match receiver.try_recv() {
                Ok(done) => {
                    self.state().backoff.spin_succeeded();
                    return Some(done);
                }
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if Instant::now() >= until {
                break;
            }
            spin_briefly();
        }
        let mut state = self.state();
        state.backoff.spin_failed();
        if !matches!(state.slot, WorkerSlot::Handed(handed, _) if handed == ticket) {
            return None;
        }
        // The spinning thread still exists, but was not scheduled.
        if let WorkerSlot::Handed(_, job) = mem::replace(&mut state.slot, WorkerSlot::Spinning) {
            // Under the lock, like each change of the flag, so that it cannot hide a job that is handed over later.
            self.has_job.store(false, Release);
            // The lock is released first: the spinning thread must not wait for the creation of another thread.
            drop(state);
            self.spawn(job, false);
        }
        None
    }

    /// Runs a job on a blocking thread of the runtime, which then spins for more if `keep_spinning`.
    fn spawn(self: &Arc<Self>, job: Job, keep_spinning: bool) {
        let handoff = self.clone();
        spawn_blocking(move || handoff.run_jobs(job, keep_spinning));
    }

    fn run_jobs(&self, job: Job, keep_spinning: bool) {
        MAY_BLOCK.set(true);
        self.run_each(job, keep_spinning);
        // The thread belongs to the runtime, which also runs work of others on it.
        MAY_BLOCK.set(false);
    }

    fn run_each(&self, mut job: Job, keep_spinning: bool) {
        let retires_at = Instant::now() + MAX_WORKER_TIME;
        loop {
            let send_result = job();
            let now = Instant::now();
            // The slot is marked before the result is sent: the caller may hand over more work immediately.
            let is_spinning = self.finish_work(now, keep_spinning && now < retires_at);
            // The caller's waker may panic. A panic here would leave the slot marked, and the next job would never run.
            let _ = catch_unwind(AssertUnwindSafe(send_result));
            match is_spinning.then(|| self.next_job(now + WORKER_SPIN)).flatten() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    /// Records the end of work. Returns whether this thread now spins.
    fn finish_work(&self, now: Instant, keep_spinning: bool) -> bool {
        let mut state = self.state();
        state.last_finished = Some(now);
        // Another thread may already spin: the slot has room for one job.
        let spins = keep_spinning && matches!(state.slot, WorkerSlot::Empty);
        if spins {
            state.slot = WorkerSlot::Spinning;
        }
        spins
    }

    /// Waits for the next job until `until`. Returns `None` if this thread no longer spins.
    fn next_job(&self, until: Instant) -> Option<Job> {
        loop {
            let has_timed_out = Instant::now() >= until;
            // `Acquire` pairs with `Release` in `hand_over`. At the timeout the slot is emptied, and a job that was
            // handed over at the last moment is still run.
            if has_timed_out || self.has_job.load(Acquire) {
                let mut state = self.state();
                match mem::take(&mut state.slot) {
                    WorkerSlot::Handed(_, job) => {
                        // `Release` like the other stores; the lock, which is held here, already orders the slot.
                        self.has_job.store(false, Release);
                        return Some(job);
                    }
                    // The job was taken back by its caller.
                    WorkerSlot::Spinning if !has_timed_out => state.slot = WorkerSlot::Spinning,
                    _ => {
                        state.backoff.worker_idled();
                        return None;
                    }
                }
            }
            spin_briefly();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl fmt::Debug for SpinHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinHandoff").finish_non_exhaustive()
    }
}

/// Runs work, and returns the step that sends its result.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

type Panic = Box<dyn Any + Send>;

fn new_job<T: Send + 'static>(
    permit: ThreadPermit,
    work: impl FnOnce() -> T + Send + 'static,
    sender: Sender<Result<T, Panic>>,
) -> Job {
    Box::new(move || {
        // The panic is returned to the caller, and the thread continues.
        let done = catch_unwind(AssertUnwindSafe(work));
        // Released before the result is sent: the caller may need it for its next call.
        drop(permit);
        // The caller may be gone. Then the result is dropped here, where that may block.
        Box::new(move || drop(sender.send(done)))
    })
}

/// Spins briefly. The hint leaves execution resources to the other hardware thread of the core.
fn spin_briefly() {
    for _ in 0..4 {
        spin_loop();
    }
}
