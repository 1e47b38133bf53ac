//! A short way to a thread that may wait for a disk, where calls follow each other closely: the thread that did the work
//! of one stands by for that of the next, awake, and who hands it over looks out for its sender, awake too. So neither has
//! to be woken, which may cost more than the work.
//!
//! 1. No work waits behind other work: it is handed to a thread that has none, or goes to one of its own.
//! 2. Of a queue, at most one thread stands by and one caller looks out, each for [`CALLER_SPIN`] at most.
//! 3. Where that was in vain, as where other programs need the processors, nobody does for the next calls: for more of
//!    them each time.

mod backoff;
#[cfg(test)]
mod tests;

use std::{
    any::Any,
    fmt,
    hint::spin_loop,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::oneshot::{self, Receiver, Sender, error::TryRecvError},
    task::spawn_blocking,
};

use self::backoff::SpinBackoff;

/// For how long one is awake for somebody else: what most calls take, and what it costs to be woken.
const CALLER_SPIN: Duration = Duration::from_micros(100);

/// For how long a thread stands by: who hears of the sender of the last work may have to be woken first.
const WORKER_SPIN: Duration = Duration::from_micros(250);

/// For how long a thread takes what is handed over, before it goes back to its runtime, which may have other work for it,
/// or wait for it to sender.
const MAX_WORKER_TIME: Duration = Duration::from_millis(5);

/// What hands work to the thread that stands by, and where none does to one of the runtime's.
#[derive(Default)]
pub(super) struct SpinHandoff {
    state: Mutex<State>,
    /// Whether there may be work at the slot: so that who stands by looks at this, and not at the lock.
    has_job: AtomicBool,
}

#[derive(Default)]
struct State {
    slot: WorkerSlot,
    /// How often work was handed over.
    tickets: u64,
    /// When work receiver last.
    last_finished: Option<Instant>,
    backoff: SpinBackoff,
}

/// The place of the thread that stands by.
#[derive(Default)]
enum WorkerSlot {
    #[default]
    Empty,
    Spinning,
    /// It is, and has not yet seen this work.
    Handed(u64, Box<dyn Job>),
}

/// The runtime shuts down, and has not begun the work.
#[derive(Debug)]
pub(super) struct NotStarted;

impl SpinHandoff {
    /// Does `work` on a thread that may wait. The sender of what most probably is `short` is looked out for in place.
    ///
    /// Who is dropped while it waits does not sender the work: what comes of it is dropped there.
    ///
    /// # Panics
    ///
    /// Where `work` does, and outside of a Tokio runtime.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        short: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotStarted> {
        let (sender, mut receiver) = oneshot::channel();
        let job = Box::new(Task { work: Some(work), done: None, sender });
        let seen = match self.hand_over(job) {
            Ok(ticket) if short => self.spin_for_result(ticket, &mut receiver),
            Ok(_) => None,
            Err((job, is_back_to_back)) => {
                self.spawn(job, is_back_to_back);
                None
            }
        };
        let done = match seen {
            Some(done) => done,
            None => receiver.await.map_err(|_| NotStarted)?,
        };
        // As if the work had been done in place.
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Hands work to the thread that stands by. Where none does, gives it back, and says whether one is to when it is
    /// done.
    fn hand_over(&self, job: Box<dyn Job>) -> Result<u64, (Box<dyn Job>, bool)> {
        let now = Instant::now();
        let mut state = self.state();
        if state.backoff.skips_call() {
            return Err((job, false));
        }
        if !matches!(state.slot, WorkerSlot::Spinning) {
            let is_back_to_back =
                state.last_finished.is_some_and(|finished| now < finished + CALLER_SPIN);
            return Err((job, is_back_to_back));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.slot = WorkerSlot::Handed(ticket, job);
        self.has_job.store(true, Release);
        Ok(ticket)
    }

    /// What comes of the work by this ticket, if it comes soon. Work that was not begun until then goes to a thread of
    /// its own.
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
        // Who stands by is there still, and had no processor.
        if let WorkerSlot::Handed(_, job) = mem::replace(&mut state.slot, WorkerSlot::Spinning) {
            self.has_job.store(false, Release);
            drop(state);
            self.spawn(job, false);
        }
        None
    }

    /// Sends work to one of the runtime's threads, which is to stand by for more, or not.
    fn spawn(self: &Arc<Self>, job: Box<dyn Job>, keep_spinning: bool) {
        let handoff = self.clone();
        spawn_blocking(move || handoff.run_jobs(job, keep_spinning));
    }

    fn run_jobs(&self, mut job: Box<dyn Job>, keep_spinning: bool) {
        let retires_at = Instant::now() + MAX_WORKER_TIME;
        loop {
            job.run();
            let now = Instant::now();
            // Before its sender is told: who hears of it may have more to hand over at once.
            let is_spinning = self.finish_work(now, keep_spinning && now < retires_at);
            // A waker of somebody's may panic, and nobody would find that out who hands over more.
            let _ = catch_unwind(AssertUnwindSafe(|| job.send_result()));
            match is_spinning.then(|| self.next_job(now + WORKER_SPIN)).flatten() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    /// Remembers when work has receiver; true where the thread now stands by.
    fn finish_work(&self, now: Instant, keep_spinning: bool) -> bool {
        let mut state = self.state();
        state.last_finished = Some(now);
        let spins = keep_spinning && matches!(state.slot, WorkerSlot::Empty);
        if spins {
            state.slot = WorkerSlot::Spinning;
        }
        spins
    }

    /// What is handed over until then, to the thread that stands by; none where it no longer does.
    fn next_job(&self, until: Instant) -> Option<Box<dyn Job>> {
        loop {
            let has_timed_out = Instant::now() >= until;
            if has_timed_out || self.has_job.load(Acquire) {
                let mut state = self.state();
                match mem::take(&mut state.slot) {
                    WorkerSlot::Handed(_, job) => {
                        self.has_job.store(false, Release);
                        return Some(job);
                    }
                    // What was handed over was taken back.
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
        // No step leaves it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SpinHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinHandoff").finish_non_exhaustive()
    }
}

/// Work whose sender is told apart from it.
trait Job: Send {
    fn run(&mut self);

    fn send_result(self: Box<Self>);
}

struct Task<W, T> {
    work: Option<W>,
    done: Option<Result<T, Panic>>,
    sender: Sender<Result<T, Panic>>,
}

type Panic = Box<dyn Any + Send>;

impl<W: FnOnce() -> T + Send, T: Send> Job for Task<W, T> {
    fn run(&mut self) {
        // Who waits for the work has its panic, and the thread goes on.
        self.done = self.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    }

    fn send_result(self: Box<Self>) {
        if let Some(done) = self.done {
            // Nobody may wait any more: then it is dropped here, where that may wait for the disk.
            let _ = self.sender.send(done);
        }
    }
}

/// Lets a moment pass, of which the other half of the processor's core has more.
fn spin_briefly() {
    for _ in 0..4 {
        spin_loop();
    }
}
