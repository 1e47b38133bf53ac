//! The slot is filled and emptied, jobs are handed over and taken back, and no caller waits forever.

use std::{
    future::Future,
    pin::pin,
    sync::mpsc,
    task::{Context, Wake, Waker},
    thread::{self, JoinHandle},
};

use tokio::{runtime::Runtime, task::yield_now};

use super::*;

fn new_handoff() -> Arc<SpinHandoff> {
    Arc::new(SpinHandoff::new(Threads::new(4)))
}

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3600);

/// Returns a handoff whose slot is filled by a thread that runs `times` jobs and is always scheduled.
fn spinning_worker(times: usize) -> (Arc<SpinHandoff>, JoinHandle<()>) {
    let handoff = new_handoff();
    assert!(handoff.finish_work(Instant::now(), true));
    let thread = thread::spawn({
        let handoff = handoff.clone();
        move || {
            for _ in 0..times {
                let job = handoff.next_job(Instant::now() + LONG).expect("the worker spins");
                let send_result = job();
                assert!(handoff.finish_work(Instant::now(), true));
                let _ = catch_unwind(AssertUnwindSafe(send_result));
            }
        }
    });
    (handoff, thread)
}

/// Returns a handoff whose slot is filled without a thread, as if the thread were never scheduled.
fn stalled_worker() -> Arc<SpinHandoff> {
    let handoff = new_handoff();
    assert!(handoff.finish_work(Instant::now(), true));
    handoff
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn job_runs_on_the_spinning_thread() {
    let (handoff, thread) = spinning_worker(2);
    runtime().block_on(async {
        for _ in 0..2 {
            let done = handoff.run(false, || thread::current().id()).await;
            assert_eq!(done.unwrap(), thread.thread().id());
        }
    });
    thread.join().unwrap();
}

#[test]
fn worker_spins_for_the_next_job_after_back_to_back_calls() {
    let runtime = runtime();
    let handoff = new_handoff();
    runtime.block_on(async {
        // Depends on the scheduler, so it may take several attempts on a busy machine.
        while handoff.state().tickets < 3 {
            for short in [true, false] {
                assert_eq!(handoff.run(short, || 7).await.unwrap(), 7);
            }
        }
    });
    drop(runtime);
    assert!(matches!(handoff.state().slot, WorkerSlot::Empty), "no thread spins forever");
}

#[tokio::test]
async fn job_is_taken_back_from_a_worker_that_is_not_scheduled() {
    let handoff = stalled_worker();
    assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
    assert!(matches!(handoff.state().slot, WorkerSlot::Spinning));
    assert!(!handoff.has_job.load(Acquire));
    // Spinning is suspended for some calls, for twice as many after each failure.
    for expected in [8, 16, 32] {
        for _ in 0..expected {
            let tickets = handoff.state().tickets;
            assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
            assert_eq!(handoff.state().tickets, tickets);
        }
        let tickets = handoff.state().tickets;
        assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
        assert_eq!(handoff.state().tickets, tickets + 1);
    }
}

#[tokio::test]
async fn idle_worker_stops_spinning_and_the_next_calls_do_not_spin() {
    let handoff = stalled_worker();
    assert!(handoff.next_job(Instant::now()).is_none());
    assert!(matches!(handoff.state().slot, WorkerSlot::Empty));
    for _ in 0..8 {
        assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
        assert!(matches!(handoff.state().slot, WorkerSlot::Empty), "the thread spins");
    }
    assert!(!handoff.state().backoff.skips_call());
}

#[tokio::test]
async fn no_work_waits_behind_other_work() {
    let handoff = new_handoff();
    let (release, released) = mpsc::channel::<()>();
    let mut slow = pin!(handoff.run(true, move || released.recv()));
    let waker = Waker::noop();
    assert!(slow.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    for _ in 0..100 {
        assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
    }
    drop(release);
    assert!(slow.await.unwrap().is_err());
}

#[tokio::test]
async fn work_above_the_limit_waits_and_is_withdrawn_with_its_caller() {
    let handoff = new_handoff();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let waker = Waker::noop();
    let mut slow: Vec<_> = (0..5)
        .map(|_| {
            let released = released.clone();
            let wait = move || drop(released.lock().map(|released| released.recv()));
            let handoff = handoff.clone();
            Box::pin(async move { handoff.run(false, wait).await })
        })
        .collect();
    for call in &mut slow {
        assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    // All four threads work, and the fifth call waits.
    let (sender, ran) = mpsc::channel();
    {
        let mut dropped = pin!(handoff.run(false, move || sender.send(())));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(release);
    for call in slow {
        call.await.unwrap();
    }
    assert_eq!(handoff.run(false, || 7).await.unwrap(), 7);
    assert!(ran.recv().is_err(), "the work was executed although its caller was gone");
}

#[tokio::test]
async fn work_that_waits_for_a_thread_keeps_none_from_others_although_its_caller_is_not_polled() {
    let handoff = new_handoff();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let waker = Waker::noop();
    let mut calls: Vec<_> = (0..9)
        .map(|_| {
            let released = released.clone();
            let wait = move || drop(released.lock().map(|released| released.recv()));
            let handoff = handoff.clone();
            Box::pin(async move { handoff.run(false, wait).await })
        })
        .collect();
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(release);
    let next = tokio::time::timeout(Duration::from_secs(120), handoff.run(false, || 7)).await;
    assert_eq!(next.expect("a thread is free").unwrap(), 7);
}

#[test]
fn panic_of_a_job_reaches_its_caller() {
    let (handoff, thread) = spinning_worker(2);
    let runtime = runtime();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(handoff.run(false, || panic!("of the work")))
    }));
    let panic = panicked.map(drop).expect_err("it panics");
    assert_eq!(panic.downcast_ref(), Some(&"of the work"));
    assert_eq!(runtime.block_on(handoff.run(false, || 7)).unwrap(), 7);
    thread.join().unwrap();
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("of a waker");
    }
}

#[test]
fn spinning_worker_survives_a_panicking_waker() {
    let runtime = runtime();
    let handoff = new_handoff();
    let entered = runtime.enter();
    let (release, released) = mpsc::channel::<()>();
    let waker = Waker::from(Arc::new(PanickingWaker));
    // As for back-to-back calls: the thread fills the slot before it sends the result.
    let (sender, ended) = oneshot::channel();
    let work = move || released.recv().is_err();
    let Ok(((), permit)) = handoff.threads.enter((), |(), _| ()) else {
        panic!("a thread is free")
    };
    handoff.spawn(new_job(permit, work, sender), true);
    let mut ended = pin!(ended);
    assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(release);
    drop(entered);
    // Dropping the runtime waits for its blocking threads.
    drop(runtime);
    let state = handoff.state();
    assert!(state.last_finished.is_some());
    assert!(matches!(state.slot, WorkerSlot::Empty), "the slot is filled although no thread spins");
}

#[test]
fn job_runs_although_its_caller_is_dropped() {
    struct Dropped(mpsc::Sender<thread::ThreadId>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    let (handoff, thread) = spinning_worker(1);
    let (sender, dropped) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    {
        let mut call = pin!(handoff.run(false, move || {
            let _ = released.recv();
            Dropped(sender)
        }));
        let waker = Waker::noop();
        assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(release);
    assert_eq!(dropped.recv().unwrap(), thread.thread().id());
    thread.join().unwrap();
}

#[test]
fn runtime_shuts_down_while_another_runtime_uses_its_thread() {
    let handoff = new_handoff();
    let (stop, stopped) = mpsc::channel::<()>();
    let other = thread::spawn({
        let handoff = handoff.clone();
        move || {
            runtime().block_on(async {
                while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
                    yield_now().await;
                }
            });
        }
    });
    for _ in 0..10 {
        let runtime = runtime();
        runtime.block_on(async {
            for _ in 0..20 {
                assert_eq!(handoff.run(true, || 7).await.unwrap(), 7);
            }
        });
        drop(runtime);
    }
    drop(stop);
    other.join().unwrap();
}
