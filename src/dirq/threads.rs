//! The threads that may wait for the disk of one path, and the line of jobs for which none is free.
//!
//! The line holds jobs and not the futures of their callers. A thread that is assigned to a future works for no caller
//! until that future is polled, which may be never: a stream keeps the future of its step if that of `next` is dropped.

use std::{
    collections::VecDeque,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::runtime::Handle;

/// The threads that may wait for the disk of one path.
pub(super) struct Threads(Mutex<State>);

struct State {
    /// Number of threads that may begin to work.
    free: usize,
    /// Jobs that wait for a thread, in order of arrival, and so sorted by ticket.
    waiting: VecDeque<WaitingJob>,
    tickets: u64,
    /// True while a call of [`Threads::release`] starts jobs.
    is_starting: bool,
}

struct WaitingJob {
    ticket: u64,
    runtime: Handle,
    start: Box<dyn FnOnce(ThreadPermit) + Send>,
}

impl Threads {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let waiting = VecDeque::new();
        Arc::new(Self(Mutex::new(State { free: count, waiting, tickets: 0, is_starting: false })))
    }

    /// Returns the job with a permit if a thread is free. Otherwise the job waits in the line: when a thread is free,
    /// `start` runs on a blocking thread of the current runtime, whether or not the caller is polled.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, if no thread is free.
    pub(super) fn enter<J: Send + 'static>(
        self: &Arc<Self>,
        job: J,
        start: impl FnOnce(J, ThreadPermit) + Send + 'static,
    ) -> Result<(J, ThreadPermit), PlaceInLine> {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return Ok((job, ThreadPermit(self.clone())));
        }
        let start = Box::new(move |permit| start(job, permit));
        let ticket = state.push(Handle::current(), start);
        Err(PlaceInLine { threads: self.clone(), ticket })
    }

    /// Runs `start` on a blocking thread of `runtime` when a thread is free. The job cannot be withdrawn.
    pub(super) fn spawn(
        self: &Arc<Self>,
        runtime: Handle,
        start: impl FnOnce(ThreadPermit) + Send + 'static,
    ) {
        let mut state = self.state();
        state.push(runtime, Box::new(start));
        self.start_jobs(state);
    }

    /// Frees a thread, and starts the next job.
    fn release(self: &Arc<Self>) {
        let mut state = self.state();
        state.free += 1;
        self.start_jobs(state);
    }

    /// Starts the next jobs of the line, as far as threads are free.
    fn start_jobs<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        // The other call may be below this one on the stack: a runtime that has shut down drops the job that it should
        // run, and with it the permit. One loop starts all jobs, however many runtimes have shut down.
        if mem::replace(&mut state.is_starting, true) {
            return;
        }
        while state.free > 0
            && let Some(next) = state.waiting.pop_front()
        {
            state.free -= 1;
            drop(state);
            let permit = ThreadPermit(self.clone());
            let start = AssertUnwindSafe(|| {
                next.runtime.spawn_blocking(move || (next.start)(permit));
            });
            // Panics if the system can create no thread: the job then waits in its runtime.
            let _ = catch_unwind(start);
            state = self.state();
        }
        state.is_starting = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a thread can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a job to the line, and returns its ticket.
    fn push(&mut self, runtime: Handle, start: Box<dyn FnOnce(ThreadPermit) + Send>) -> u64 {
        self.tickets += 1;
        self.waiting.push_back(WaitingJob { ticket: self.tickets, runtime, start });
        self.tickets
    }
}

/// The permission to use a thread. Dropping it starts the next job of the line.
pub(super) struct ThreadPermit(Arc<Threads>);

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The place of a job in the line. Dropping it withdraws the job, unless that has begun.
pub(super) struct PlaceInLine {
    threads: Arc<Threads>,
    ticket: u64,
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        let mut state = self.threads.state();
        let found = state.waiting.binary_search_by_key(&self.ticket, |job| job.ticket);
        let withdrawn = found.ok().and_then(|index| state.waiting.remove(index));
        drop(state);
        // After the lock is released: this drops the work, which may enter the line again.
        drop(withdrawn);
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}
