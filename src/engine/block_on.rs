//! Runs a future on the calling thread, for the methods that are not async.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Acquire, Release},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::task::coop::unconstrained;

use crate::engine::{
    coop,
    sync::{atomic::AtomicBool, thread},
};

/// Wakes the thread that waits for one future. Each call of [`block_on`] has its own, because calls nest: a loader may
/// call the cache, and must not use up the wake-up of the call that runs it.
struct BlockedThread {
    thread: thread::Thread,
    is_woken: AtomicBool,
}

impl Wake for BlockedThread {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Release);
        self.thread.unpark();
    }
}

/// Runs `future` to its end, and returns its result. It yields to no task and takes no part in Tokio's cooperative
/// budget, so the thread waits only if the future waits for another caller.
///
/// # Panics
///
/// Panics with debug assertions if it would wait on a thread that drives a Tokio runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(unconstrained(future));
    let waiter =
        Arc::new(BlockedThread { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(waiter.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = coop::without_yields(|| future.as_mut().poll(&mut cx)) {
            return output;
        }
        debug_assert!(
            !coop::drives_runtime(),
            "a loader method of `SyncCache` would block a thread that drives a Tokio runtime, until another caller has \
             loaded the value: call it in `spawn_blocking`, or await the method of `Cache`"
        );
        while waiter.is_woken.compare_exchange(true, false, AcqRel, Acquire).is_err() {
            thread::park();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        time::Duration,
    };

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn future_that_is_woken_by_another_thread_completes() {
        let (sender, receiver) = oneshot::channel();
        let sends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            sender.send(42)
        });
        assert_eq!(block_on(receiver), Ok(42));
        assert_eq!(sends.join().expect("the thread sends"), Ok(()));
    }

    #[test]
    fn inner_call_does_not_use_up_the_wake_up_of_the_outer_one() {
        let (sender, mut receiver) = oneshot::channel();
        let mut sender = Some(sender);
        let outer = std::future::poll_fn(|cx| {
            let polled = std::pin::Pin::new(&mut receiver).poll(cx);
            if let Some(sender) = sender.take() {
                // The outer call is woken while the inner one waits on the same thread.
                let (inner_sender, inner_receiver) = oneshot::channel();
                let sends = std::thread::spawn(move || {
                    sender.send(1).expect("the outer call waits");
                    inner_sender.send(2).expect("the inner call waits");
                });
                assert_eq!(block_on(inner_receiver), Ok(2));
                sends.join().expect("the thread sends");
            }
            polled
        });
        assert_eq!(block_on(outer), Ok(1));
    }

    #[tokio::test]
    async fn spent_budget_and_yields_do_not_make_the_thread_wait() {
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::consume_budget().await;
        }
        block_on(async {
            for _ in 0..1_000 {
                coop::proceed().await;
                tokio::task::consume_budget().await;
                coop::yield_now().await;
            }
        });
    }

    #[test]
    fn wait_on_a_thread_that_drives_a_runtime_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (_sender, receiver) = oneshot::channel::<()>();
        let waits = AssertUnwindSafe(|| runtime.block_on(async { drop(block_on(receiver)) }));
        let panic = catch_unwind(waits).expect_err("the wait would never end");
        let text = crate::engine::panics::message(&*panic);
        assert!(text.contains("spawn_blocking"), "{text}");
    }

    #[test]
    fn blocking_thread_of_a_runtime_may_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (sender, receiver) = oneshot::channel();
        let waits = runtime.spawn_blocking(move || block_on(receiver));
        std::thread::sleep(Duration::from_millis(5));
        sender.send(42).expect("the thread waits");
        let got = runtime.block_on(waits).expect("the wait does not panic");
        assert_eq!(got, Ok(42));
    }
}
