//! Shared parts of the tests: a cache without its handle, and the exploration of interleavings.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use shuttle::thread;

use crate::engine::{
    clock::{Clock, Deadline, Tick},
    event::{Cause, Event, LosslessEvents, Publisher},
    store::{LockWait, StepLimits, Store},
};

pub(super) const ALL: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

pub(super) type Received = (u32, Cause);

/// A cache without its handle: the store and the streams, at times that the test chooses.
pub(super) struct Parts {
    pub(super) store: Store<u8, u32, foldhash::fast::FixedState>,
    pub(super) publisher: Arc<Publisher<u8, u32>>,
    pub(super) clock: Clock,
    pub(super) start: Tick,
}

impl Parts {
    pub(super) fn new() -> Arc<Self> {
        let clock = Clock::new();
        let store = Store::new(2, 0, foldhash::fast::FixedState::default());
        let causes = Cause::bits(ALL);
        let publisher = Publisher::new(store.journal().clone(), clock.clone(), causes, 1_000);
        Arc::new(Self { store, publisher: Arc::new(publisher), start: clock.now(), clock })
    }

    pub(super) fn at(&self, second: u64) -> Tick {
        self.clock.tick_of(self.clock.instant(self.start) + Duration::from_secs(second))
    }

    pub(super) fn until(&self, second: u64) -> Deadline {
        self.at(second).into()
    }

    pub(super) fn subscribe(&self) -> LosslessEvents<u8, u32> {
        LosslessEvents::new(&self.publisher, 100)
    }

    pub(super) fn set(&self, value: u32, now: u64, deadline: u64) -> Option<u32> {
        let deadline = self.until(deadline);
        let replaced = self.store.set(1, value, &self.at(now), |_| deadline);
        self.publisher.flush();
        replaced
    }

    pub(super) fn get(&self, now: u64) -> Option<u32> {
        let value = self.store.get(&1, &self.at(now));
        self.publisher.flush();
        value
    }

    pub(super) fn get_ex(&self, now: u64, deadline: u64) -> Option<u32> {
        let value = self.store.get_ex(&1, &self.at(now), |_| self.until(deadline));
        self.publisher.flush();
        value
    }

    pub(super) fn remove(&self, now: u64, cause: Cause) -> Option<u32> {
        let value = self.store.remove(&1, &self.at(now), cause);
        self.publisher.flush();
        value
    }

    /// Sweeps window by window, as the sweeper does.
    pub(super) fn sweep(&self, now: u64) -> usize {
        let mut expired = 0;
        for shard in 0..self.store.shard_count() {
            let mut shard_pass =
                Store::<u8, u32, foldhash::fast::FixedState>::begin_shard_pass(shard);
            let mut tries = 0;
            while !shard_pass.is_done() {
                let (room, mut unrecorded) = (self.publisher.room(Cause::Expired), Vec::new());
                let lock_wait = match tries {
                    0 => LockWait::None,
                    // One try with the gate closed. Shuttle does not model time, so a longer spin is no other case.
                    1 | 2 => LockWait::Spin(Duration::ZERO),
                    _ => LockWait::Wait,
                };
                let (all, now) = (|buckets| buckets, self.at(now));
                let look = self.store.sweep_windows(
                    &mut shard_pass,
                    all,
                    &now,
                    StepLimits { max_expired: room, lock_wait },
                    &mut unrecorded,
                );
                tries += 1;
                expired += look.map_or(0, |look| look.expired);
                self.publisher.flush();
            }
        }
        expired
    }

    /// Returns the resident value, expired or not.
    pub(super) fn resident(&self) -> Option<u32> {
        self.store.get(&1, &self.start)
    }
}

/// Returns the events received so far.
pub(super) fn drain(events: &mut LosslessEvents<u8, u32>) -> Vec<Received> {
    use futures_core::Stream;
    let mut received = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(event)) = std::pin::Pin::new(&mut *events).poll_next(&mut cx) {
        let Event { value, cause, .. } = *event;
        received.push((value, cause));
    }
    received
}

pub(super) fn explore(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(test, iterations());
}

pub(super) fn iterations() -> usize {
    std::env::var("SHUTTLE_ITERATIONS").map_or(5_000, |n| n.parse().expect("a number"))
}

pub(super) fn spawn<P: Send + Sync + 'static, T: Send + 'static>(
    parts: &Arc<P>,
    work: impl FnOnce(&P) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let parts = parts.clone();
    thread::spawn(move || work(&parts))
}
