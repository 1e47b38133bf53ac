//! Time limit of background refreshes, for the refresh itself and for callers that wait for it.

use std::{
    future::{pending, poll_fn},
    panic::catch_unwind,
    pin::pin,
    sync::mpsc::{self, RecvTimeoutError},
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{sleep, timeout},
};

/// Time limit of a background refresh. It has no caller who could cancel it, so without a limit a stuck loader would
/// block all later refreshes of its key. A caller that waits for a refresh waits for as long, by a timer of its own.
pub(crate) const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns whether this context has a runtime with a timer. There is no other way to learn it than by a panic.
pub(super) fn has_timer() -> bool {
    Handle::try_current().is_ok() && catch_unwind(|| drop(sleep(Duration::ZERO))).is_ok()
}

/// Waits for `future` until the time limit of a refresh, by a timer of the caller: that of a runtime that is not driven
/// never elapses. Returns `None` if it elapses first.
pub(super) async fn within_timeout<F: Future>(future: F) -> Option<F::Output> {
    if has_timer() {
        return timeout(REFRESH_TIMEOUT, future).await.ok();
    }
    let (mut future, mut sleep) = (pin!(future), pin!(sleep_on_thread(REFRESH_TIMEOUT)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Waits for this time by a thread, which ends with the future. Never ends if there is none to be had.
async fn sleep_on_thread(duration: Duration) {
    let (elapsed, wait) = oneshot::channel();
    let (_cancels, is_cancelled) = mpsc::channel::<()>();
    let sleep = move || {
        if let Err(RecvTimeoutError::Timeout) = is_cancelled.recv_timeout(duration) {
            let _ = elapsed.send(());
        }
    };
    let thread = thread::Builder::new().name("fleeting-timeout".to_owned()).spawn(sleep);
    if thread.is_err() || wait.await.is_err() {
        pending::<()>().await;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn thread_sleeps_without_a_runtime_and_ends_with_its_future() {
        let start = std::time::Instant::now();
        let mut sleep = tokio_test::task::spawn(sleep_on_thread(Duration::from_millis(20)));
        assert!(sleep.poll().is_pending());
        while !sleep.is_woken() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(sleep.poll().is_ready());
        assert!(start.elapsed() >= Duration::from_millis(20));
        let hour = Duration::from_secs(3_600);
        let mut sleep = tokio_test::task::spawn(sleep_on_thread(hour));
        assert!(sleep.poll().is_pending());
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
            let names = tasks.filter_map(|task| {
                std::fs::read_to_string(task.expect("it is readable").path().join("comm")).ok()
            });
            names.filter(|name| name.trim() == "fleeting-timeou").count()
        };
        for (count, sleep) in [(1, Some(sleep)), (0, None)] {
            while threads() != count {
                thread::sleep(Duration::from_millis(1));
            }
            drop(sleep);
        }
    }
}
