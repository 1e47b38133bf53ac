//! A short way to a thread that may wait for a disk, where calls follow each other closely: the thread that did the work
//! of one stands by for that of the next, awake, and who hands it over looks out for its end, awake too. So neither has
//! to be woken, which may cost more than the work.
//!
//! 1. No work waits behind other work: it is handed to a thread that has none, or goes to one of its own.
//! 2. Of a queue, at most one thread stands by and one caller looks out, each for [`AWAKE`] at most.
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

use self::backoff::Doubt;

/// For how long one is awake for somebody else: what most calls take, and what it costs to be woken.
const AWAKE: Duration = Duration::from_micros(100);

/// For how long a thread stands by: who hears of the end of the last work may have to be woken first.
const WAITS: Duration = Duration::from_micros(250);

/// For how long a thread takes what is handed over, before it goes back to its runtime, which may have other work for it,
/// or wait for it to end.
const SHIFT: Duration = Duration::from_millis(5);

/// What hands work to the thread that stands by, and where none does to one of the runtime's.
#[derive(Default)]
pub(super) struct Standby {
    state: Mutex<State>,
    /// Whether there may be work at the post: so that who stands by looks at this, and not at the lock.
    is_handed: AtomicBool,
}

#[derive(Default)]
struct State {
    post: Post,
    /// How often work was handed over.
    tickets: u64,
    /// When work ended last.
    ended: Option<Instant>,
    doubt: Doubt,
}

/// The place of the thread that stands by.
#[derive(Default)]
enum Post {
    #[default]
    Empty,
    Manned,
    /// It is, and has not yet seen this work.
    Handed(u64, Box<dyn Job>),
}

/// The runtime shuts down, and has not begun the work.
#[derive(Debug)]
pub(super) struct NotBegun;

impl Standby {
    /// Does `work` on a thread that may wait. The end of what most probably is `short` is looked out for in place.
    ///
    /// Who is dropped while it waits does not end the work: what comes of it is dropped there.
    ///
    /// # Panics
    ///
    /// Where `work` does, and outside of a Tokio runtime.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        short: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotBegun> {
        let (end, mut ended) = oneshot::channel();
        let job = Box::new(Task { work: Some(work), done: None, end });
        let seen = match self.hand_over(job) {
            Ok(ticket) if short => self.look_out(ticket, &mut ended),
            Ok(_) => None,
            Err((job, follows)) => {
                self.send(job, follows);
                None
            }
        };
        let done = match seen {
            Some(done) => done,
            None => ended.await.map_err(|_| NotBegun)?,
        };
        // As if the work had been done in place.
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Hands work to the thread that stands by. Where none does, gives it back, and says whether one is to when it is
    /// done.
    fn hand_over(&self, job: Box<dyn Job>) -> Result<u64, (Box<dyn Job>, bool)> {
        let now = Instant::now();
        let mut state = self.state();
        if state.doubt.covers_call() {
            return Err((job, false));
        }
        if !matches!(state.post, Post::Manned) {
            let follows = state.ended.is_some_and(|ended| now < ended + AWAKE);
            return Err((job, follows));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.post = Post::Handed(ticket, job);
        self.is_handed.store(true, Release);
        Ok(ticket)
    }

    /// What comes of the work by this ticket, if it comes soon. Work that was not begun until then goes to a thread of
    /// its own.
    fn look_out<T>(self: &Arc<Self>, ticket: u64, ended: &mut Receiver<T>) -> Option<T> {
        let until = Instant::now() + AWAKE;
        loop {
            match ended.try_recv() {
                Ok(done) => {
                    self.state().doubt.was_wrong();
                    return Some(done);
                }
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if Instant::now() >= until {
                break;
            }
            pause();
        }
        let mut state = self.state();
        state.doubt.was_right();
        if !matches!(state.post, Post::Handed(handed, _) if handed == ticket) {
            return None;
        }
        // Who stands by is there still, and had no processor.
        if let Post::Handed(_, job) = mem::replace(&mut state.post, Post::Manned) {
            self.is_handed.store(false, Release);
            drop(state);
            self.send(job, false);
        }
        None
    }

    /// Sends work to one of the runtime's threads, which is to stand by for more, or not.
    fn send(self: &Arc<Self>, job: Box<dyn Job>, stands_by: bool) {
        let standby = self.clone();
        spawn_blocking(move || standby.serve(job, stands_by));
    }

    fn serve(&self, mut job: Box<dyn Job>, stands_by: bool) {
        let leaves_at = Instant::now() + SHIFT;
        loop {
            job.work();
            let now = Instant::now();
            // Before its end is told: who hears of it may have more to hand over at once.
            let is_manned = self.end_work(now, stands_by && now < leaves_at);
            // A waker of somebody's may panic, and nobody would find that out who hands over more.
            let _ = catch_unwind(AssertUnwindSafe(|| job.tell()));
            match is_manned.then(|| self.next_job(now + WAITS)).flatten() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    /// Remembers when work has ended; true where the thread now stands by.
    fn end_work(&self, now: Instant, stands_by: bool) -> bool {
        let mut state = self.state();
        state.ended = Some(now);
        let mans = stands_by && matches!(state.post, Post::Empty);
        if mans {
            state.post = Post::Manned;
        }
        mans
    }

    /// What is handed over until then, to the thread that stands by; none where it no longer does.
    fn next_job(&self, until: Instant) -> Option<Box<dyn Job>> {
        loop {
            let is_over = Instant::now() >= until;
            if is_over || self.is_handed.load(Acquire) {
                let mut state = self.state();
                match mem::take(&mut state.post) {
                    Post::Handed(_, job) => {
                        self.is_handed.store(false, Release);
                        return Some(job);
                    }
                    // What was handed over was taken back.
                    Post::Manned if !is_over => state.post = Post::Manned,
                    _ => {
                        state.doubt.pauses();
                        return None;
                    }
                }
            }
            pause();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step leaves it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standby").finish_non_exhaustive()
    }
}

/// Work whose end is told apart from it.
trait Job: Send {
    fn work(&mut self);

    fn tell(self: Box<Self>);
}

struct Task<W, T> {
    work: Option<W>,
    done: Option<Result<T, Panic>>,
    end: Sender<Result<T, Panic>>,
}

type Panic = Box<dyn Any + Send>;

impl<W: FnOnce() -> T + Send, T: Send> Job for Task<W, T> {
    fn work(&mut self) {
        // Who waits for the work has its panic, and the thread goes on.
        self.done = self.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    }

    fn tell(self: Box<Self>) {
        if let Some(done) = self.done {
            // Nobody may wait any more: then it is dropped here, where that may wait for the disk.
            let _ = self.end.send(done);
        }
    }
}

/// Lets a moment pass, of which the other half of the processor's core has more.
fn pause() {
    for _ in 0..4 {
        spin_loop();
    }
}
