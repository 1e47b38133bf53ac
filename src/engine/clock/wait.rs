//! Waits for an instant of one clock, on the timer of whatever runtime polls. That may keep another time: in tests, a
//! clock that is paused or advanced, and then a sleep is over at once, or too soon, and ever again.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{task::spawn_blocking, time::timeout_at};

use super::{Clock, deadline::Deadline};

/// How often a clock is looked at that is not the one of the timer.
const PAUSE: Duration = Duration::from_millis(10);

impl Clock {
    /// Waits for `future` until this clock has reached `deadline`, and the timer's too; `None` where that came first. A
    /// runtime is needed only where there is a deadline. Cancel safe where `future` is.
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
        // Only where the timer keeps another time.
        while !deadline.is_dead(self.now()) {
            if let Some(output) = pause(future.as_mut()).await {
                return Some(output);
            }
        }
        None
    }
}

/// Waits for `future`, for a while of real time at most: on a thread, as no timer of a paused clock can.
async fn pause<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut pause = spawn_blocking(|| thread::sleep(PAUSE));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Pin::new(&mut pause).poll(cx).map(|_| None),
    })
    .await
}
