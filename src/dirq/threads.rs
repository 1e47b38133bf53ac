//! The threads that may wait for the disk of one path, and the line of jobs for which none is free.
//!
//! The line holds jobs and not the futures of their callers. A thread that is assigned to a future works for no caller
//! until that future is polled, which may be never: a stream keeps the future of its step if that of `next` is dropped.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard},
};

use tokio::runtime::Handle;

use super::ticket_queue::{LockedTickets, TicketGuard, TicketQueue};

/// Maximum number of blocking threads that wait for the disk of one path. A disk that hangs would otherwise take all
/// blocking threads of the runtime, of which Tokio starts up to 512.
pub(super) const MAX_THREADS: usize = 16;

/// The threads that may wait for the disk of one path, and the jobs that wait for one of them.
pub(super) type Threads = TicketQueue<WaitingJob, ThreadState>;

#[derive(Default)]
pub(super) struct ThreadState {
    /// Number of threads that may begin to work.
    free: usize,
    /// True while a call of [`Threads::release`] starts jobs.
    is_starting: bool,
}

pub(super) struct WaitingJob {
    runtime: Handle,
    start: Box<dyn FnOnce(ThreadPermit) + Send>,
}

impl Threads {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let threads = Self::default();
        threads.lock().state.free = count;
        Arc::new(threads)
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
    ) -> Result<(J, ThreadPermit), TicketGuard<'_, WaitingJob, ThreadState>> {
        let mut locked = self.lock();
        if locked.state.free > 0 {
            locked.state.free -= 1;
            return Ok((job, ThreadPermit(self.clone())));
        }
        let start = Box::new(move |permit| start(job, permit));
        let ticket = locked.push(WaitingJob { runtime: Handle::current(), start });
        Err(self.guard(ticket))
    }

    /// Runs `start` on a blocking thread of `runtime` when a thread is free. The job cannot be withdrawn.
    pub(super) fn spawn(
        self: &Arc<Self>,
        runtime: Handle,
        start: impl FnOnce(ThreadPermit) + Send + 'static,
    ) {
        let mut locked = self.lock();
        locked.push(WaitingJob { runtime, start: Box::new(start) });
        self.start_jobs(locked);
    }

    /// Frees a thread, and starts the next job.
    fn release(self: &Arc<Self>) {
        let mut locked = self.lock();
        locked.state.free += 1;
        self.start_jobs(locked);
    }

    /// Starts the next jobs of the line, as far as threads are free.
    fn start_jobs<'a>(
        self: &'a Arc<Self>,
        mut locked: MutexGuard<'a, LockedTickets<WaitingJob, ThreadState>>,
    ) {
        // The other call may be below this one on the stack: a runtime that has shut down drops the job that it should
        // run, and with it the permit. One loop starts all jobs, however many runtimes have shut down.
        if mem::replace(&mut locked.state.is_starting, true) {
            return;
        }
        while locked.state.free > 0
            && let Some(next) = locked.pop()
        {
            locked.state.free -= 1;
            drop(locked);
            let permit = ThreadPermit(self.clone());
            let start = AssertUnwindSafe(|| {
                next.runtime.spawn_blocking(move || (next.start)(permit));
            });
            // Panics if the system can create no thread: the job then waits in its runtime.
            let _ = catch_unwind(start);
            locked = self.lock();
        }
        locked.state.is_starting = false;
    }
}

/// The permission to use a thread. Dropping it starts the next job of the line.
pub(super) struct ThreadPermit(Arc<Threads>);

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        self.0.release();
    }
}
