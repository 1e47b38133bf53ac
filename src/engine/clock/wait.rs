//! Waiting for an instant of one clock, on the timer of another runtime. That timer may keep another time: a paused or
//! advanced clock in tests. Then a sleep may end immediately or too early, repeatedly.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{task::spawn_blocking, time::timeout_at};

use super::{Clock, deadline::Deadline};

/// Interval for checks of a clock that differs from the timer's.
const PAUSE: Duration = Duration::from_millis(10);

impl Clock {
    /// Waits for `future` until both this clock and the timer have reached `deadline`; returns `None` if they reach it
    /// first. A runtime is needed only if there is a deadline. Cancel safe if `future` is.
    pub(crate) async fn timeout_at<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        let Some(at) = self.instant_of(deadline) else { return Some(future.await) };
        if let Ok(output) = timeout_at(at, future.as_mut()).await {
            return Some(output);
        }
        // Reached only if the timer keeps another time.
        while !deadline.is_expired(self.now()) {
            if let Some(output) = pause(future.as_mut()).await {
                return Some(output);
            }
        }
        None
    }
}

/// Waits for `future`, for a short real time at most. It sleeps on a thread, because the timer of a paused clock
/// cannot.
async fn pause<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    // If the caller is cancelled, the thread sleeps on for the rest of `PAUSE` and touches nothing.
    let mut pause = spawn_blocking(|| thread::sleep(PAUSE));
    // The future first: its output takes precedence over the deadline.
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Pin::new(&mut pause).poll(cx).map(|_| None),
    })
    .await
}
