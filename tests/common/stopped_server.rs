//! Real server whose clock stands still, so that results do not depend on the time that a test takes.

use std::{
    cell::Cell,
    ops::Deref,
    time::{Duration, SystemTime},
};

use super::{Server, program};

/// Server whose time passes only by [`pass`](Self::pass) and [`set_now`](Self::set_now).
pub(crate) struct StoppedServer {
    server: Server,
    /// In microseconds.
    now: Cell<u64>,
}

impl StoppedServer {
    /// Starts a server at the real time.
    ///
    /// Returns `None` for Valkey, which reads the clock from a counter of the processor, so that it cannot be stopped.
    /// The scripts are the same.
    pub(crate) fn start() -> Option<Self> {
        if program().contains("valkey") {
            return None;
        }
        let server = Server::start_with_clock();
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("the clock is later").as_micros() as u64;
        server.stop_clock(now);
        Some(Self { server, now: Cell::new(now) })
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(crate) fn set_now(&self, micros: u64) {
        self.now.set(micros);
        self.server.stop_clock(micros);
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.set_now(self.now() + time.as_micros() as u64);
    }
}

impl Deref for StoppedServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
