//! Value that takes an access to a disk or a server to measure: it is measured in the background, at most once per ten
//! seconds. Neither the exporter of metrics nor the dashboard waits for it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between the beginnings of two measurements.
const INTERVAL: Duration = Duration::from_secs(10);
/// The time after which a measurement that has not ended makes the value unknown: the disk or the server hangs.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The latest value of a measurement, shared by all handles of the measured object.
#[derive(Debug)]
pub(crate) struct Measurement<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    /// `None` if it is unknown.
    latest: Option<T>,
    /// Time of the next measurement; `None` before the first.
    next: Option<Instant>,
    /// Time at which the current measurement began.
    running_since: Option<Instant>,
}

/// A measurement in progress. If it is dropped, it has failed.
pub(crate) struct RunningMeasurement<T> {
    of: Arc<Measurement<T>>,
    start: Instant,
    value: Option<T>,
    pause: Duration,
}

impl<T: Copy> Measurement<T> {
    /// Returns the latest value, and has `start` begin a measurement if it is too old. Returns `None` if the value is
    /// unknown, because it was not measured yet, or the last measurement failed.
    ///
    /// `start` is called under no lock, and must not wait for the measurement.
    pub(crate) fn read(self: &Arc<Self>, start: impl FnOnce(RunningMeasurement<T>)) -> Option<T> {
        let now = Instant::now();
        let latest = {
            let mut state = self.state();
            if let Some(since) = state.running_since {
                return state.latest.filter(|_| now.duration_since(since) < MAX_TIME);
            }
            if state.next.is_some_and(|next| next > now) {
                return state.latest;
            }
            state.running_since = Some(now);
            state.latest
        };
        let of = self.clone();
        start(RunningMeasurement { of, start: now, value: None, pause: INTERVAL });
        latest
    }
}

impl<T> Measurement<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The state is consistent at every point where a thread can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RunningMeasurement<T> {
    /// Ends the measurement; `None` if it has failed. At most one of `share` seconds is spent on measurements.
    pub(crate) fn end(mut self, value: Option<T>, share: u32) {
        self.value = value;
        self.pause = self.start.elapsed().saturating_mul(share).max(INTERVAL);
    }
}

impl<T> Drop for RunningMeasurement<T> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.latest = self.value.take();
        state.next = Some(self.start + self.pause);
        state.running_since = None;
    }
}

impl<T> Default for Measurement<T> {
    fn default() -> Self {
        Self(Mutex::new(State { latest: None, next: None, running_since: None }))
    }
}
