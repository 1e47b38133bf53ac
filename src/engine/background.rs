//! The crate's own thread, on which caches and limiters run that were built with `background_thread()`.
//!
//! The thread is started by the first of them, and ends some time after the last one, so that tests and programs that
//! build one after the other do not start a thread for each.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    time::sleep,
};

use crate::engine::runtime_thread;

/// Time for which the thread waits for another cache before it ends, and interval at which it looks for one.
const LINGER: Duration = Duration::from_secs(5);

static THREAD: Mutex<Option<RunningThread>> = Mutex::new(None);

struct RunningThread {
    runtime: Handle,
    users: usize,
    /// Number of users that there have been, by which the thread notices that none has come in the meantime.
    joined: u64,
}

/// Mark of a cache or a limiter that runs on the thread. The thread lives for as long as there is one.
pub(crate) struct BackgroundThread(());

impl BackgroundThread {
    /// Joins the crate's thread, starts it if it is not running, and returns its runtime.
    ///
    /// # Panics
    ///
    /// Panics if the operating system denies the thread.
    pub(crate) fn join() -> (Self, Handle) {
        let mut running = running();
        let thread = running.get_or_insert_with(start);
        thread.users += 1;
        thread.joined += 1;
        (Self(()), thread.runtime.clone())
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        if let Some(thread) = &mut *running() {
            thread.users -= 1;
        }
    }
}

fn running() -> MutexGuard<'static, Option<RunningThread>> {
    // A panic in `start` leaves it unchanged.
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> RunningThread {
    let mut builder = Builder::new_current_thread();
    builder.enable_time();
    let runtime = runtime_thread::start("fleeting", builder, until_unused());
    let runtime =
        runtime.unwrap_or_else(|error| panic!("the background thread cannot be started: {error}"));
    RunningThread { runtime, users: 0, joined: 0 }
}

/// Waits until there was no user and no task for some time. From then on, a new user starts a new thread.
async fn until_unused() {
    let mut joined = 0;
    loop {
        sleep(LINGER).await;
        let mut running = running();
        let Some(thread) = &*running else { return };
        // Callbacks of a cache that is gone may still process its last events.
        let has_tasks = Handle::current().metrics().num_alive_tasks() > 0;
        if thread.users == 0 && thread.joined == joined && !has_tasks {
            *running = None;
            return;
        }
        joined = thread.joined;
    }
}
