//! Wait queue of a key: waiters that are not polled, `max_waiting`, `jitter`, and the counted denials.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use fleeting::{Limit, Permit, RateLimiter, Sweep};
use tokio::{
    runtime,
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tokio_test::{
    assert_pending,
    task::{self, Spawn},
};

use crate::{
    limits::{MILLISECOND, MINUTE, SECOND, WINDOWS, limiter, limiter_of, take},
    patience::patience,
    waiting::{Order, waiters},
};

// Waiters that are not polled.

/// Returns a waiter for `key` that was polled once.
fn silent<'a>(
    limiter: &'a RateLimiter<String>,
    key: &'static str,
) -> Spawn<impl Future<Output = Permit> + 'a> {
    let mut silent = task::spawn(limiter.until_ready(key));
    assert_pending!(silent.poll());
    silent
}

#[tokio::test(start_paused = true)]
async fn waiter_that_is_not_polled_delays_the_others_by_one_second() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let start = Instant::now();
        let kept = silent(&limiter, "ada");
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..3, &order).await;
        sleep(2_500 * MILLISECOND).await;
        assert!(kept.is_woken(), "the waiter was not woken when it could pass");
        // Late, but it joined first.
        kept.await;
        assert_eq!(start.elapsed(), 3 * SECOND, "{window:?}");
        for task in tasks {
            task.await.unwrap();
        }
        let expected = [(0, 2 * SECOND), (1, 4 * SECOND), (2, 5 * SECOND)];
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().waited, 4);
    }
}

/// Calls `until_ready` whenever it is woken.
struct CallingWaker(RateLimiter<String>, AtomicUsize);

impl Wake for CallingWaker {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Relaxed);
        drop(silent(&self.0, "ada"));
    }
}

#[test]
fn waker_of_a_silent_head_may_call_the_limiter() {
    let (done, is_done) = mpsc::channel();
    // In a thread of its own, since a deadlock would block the test.
    thread::spawn(move || {
        let runtime =
            runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be built").block_on(async {
            let limiter = limiter(Limit::new(1, 60 * MINUTE));
            take(&limiter, "ada", 1).await;
            let waker = Arc::new(CallingWaker(limiter.clone(), AtomicUsize::new(0)));
            let mut head = pin!(limiter.until_ready("ada"));
            let polled = head.as_mut().poll(&mut Context::from_waker(&Waker::from(waker.clone())));
            assert!(polled.is_pending());
            let mut other = silent(&limiter, "ada");
            // The timer of the head wakes it too; the subject is the wake-up by the other waiter.
            loop {
                advance(SECOND).await;
                let woken = waker.1.load(Relaxed);
                assert_pending!(other.poll());
                if waker.1.load(Relaxed) > woken {
                    break;
                }
            }
        });
        done.send(()).expect("the test waits");
    });
    is_done.recv_timeout(patience()).expect("a waker was called under the lock");
}

#[tokio::test(start_paused = true)]
async fn each_waiter_that_is_not_polled_delays_the_others_by_one_second() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    let kept = [silent(&limiter, "ada"), silent(&limiter, "ada"), silent(&limiter, "ada")];
    let order = Order::default();
    for task in waiters(&limiter, "ada", 0..2, &order).await {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [(0, 4 * SECOND), (1, 5 * SECOND)]);
    for kept in kept {
        kept.await;
    }
    assert_eq!(limiter.stats().admitted, 6);
}

#[tokio::test(start_paused = true)]
async fn waiter_that_becomes_the_head_without_being_polled_delays_the_others_by_seconds() {
    let limiter = limiter(Limit::per_hour(1));
    for is_reset in [true, false] {
        take(&limiter, "ada", 1).await;
        let start = Instant::now();
        let head = waiters(&limiter, "ada", 0..1, &Order::default()).await;
        let _kept = silent(&limiter, "ada");
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 1..2, &order).await;
        sleep(MINUTE).await;
        if is_reset {
            limiter.reset("ada").await;
        }
        head.into_iter().for_each(|task| task.abort());
        for task in tasks {
            task.await.unwrap();
        }
        let expected =
            if is_reset { MINUTE..MINUTE + 7 * SECOND } else { 60 * MINUTE..61 * MINUTE };
        assert!(expected.contains(&start.elapsed()), "{:?}", start.elapsed());
        limiter.reset("ada").await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_is_not_polled_delays_set_limits_by_one_second() {
    let limiter = limiter(Limit::per_hour(1));
    take(&limiter, "ada", 1).await;
    let start = Instant::now();
    let _kept = silent(&limiter, "ada");
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..1, &order).await;
    sleep(MINUTE).await;
    limiter.set_limits([Limit::per_hour(2)]);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(start.elapsed(), 61 * SECOND);
}

/// As after a suspend: all timers fire at the same time, and no waiter was polled before.
#[tokio::test(start_paused = true)]
async fn clock_jump_does_not_change_the_order_of_waiters() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..20, &order).await;
        for _ in 0..5 {
            advance(30 * SECOND).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        let ids: Vec<u32> = order.lock().unwrap().iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..20).collect::<Vec<_>>(), "{window:?}");
    }
}

/// The future is polled by one `select!`, and awaited again later.
#[tokio::test(start_paused = true)]
async fn losing_branch_of_select_passes_when_it_is_awaited_again() {
    let limiter = limiter(Limit::per_second(1));
    let start = Instant::now();
    take(&limiter, "ada", 1).await;
    let mut kept = pin!(limiter.until_ready("ada"));
    tokio::select! {
        biased;
        _ = &mut kept => panic!("the quota is exhausted"),
        () = sleep(MILLISECOND) => {}
    }
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..2, &order).await;
    sleep(10 * SECOND).await;
    for task in tasks {
        task.await.unwrap();
    }
    kept.await;
    assert_eq!(
        start.elapsed(),
        10 * SECOND + MILLISECOND,
        "quota is free again, so it passes immediately"
    );
    assert_eq!(limiter.stats().admitted, 4);
}

// Number and duration of waits.

#[tokio::test(start_paused = true)]
async fn no_more_calls_wait_than_max_waiting() {
    for window in WINDOWS {
        let limiter = RateLimiter::<String>::builder()
            .window(window)
            .limit(Limit::per_second(1))
            .max_waiting(2)
            .build();
        take(&limiter, "ada", 1).await;
        let start = Instant::now();
        let wait = |max_wait| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready_within("ada", max_wait).await.map(drop) })
        };
        let waiting = [wait(MINUTE), wait(Duration::MAX)];
        yield_now().await;
        for max_wait in [MINUTE, Duration::MAX] {
            let limited = limiter.until_ready_within("ada", max_wait).await.unwrap_err();
            assert_eq!((start.elapsed(), limited.retry_after()), (Duration::ZERO, 3 * SECOND));
        }
        assert!(
            limiter.until_ready_within("bob", SECOND).await.is_ok(),
            "a waiter for another key was denied"
        );
        // A call that waits without a limit is not denied.
        limiter.until_ready("ada").await;
        assert_eq!(start.elapsed(), 3 * SECOND);
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok(), "{window:?}");
        }
        assert_eq!((limiter.stats().waited, limiter.stats().admitted), (3, 5));
        assert!(
            limiter.until_ready_within("ada", MINUTE).await.is_ok(),
            "denied although no call waits"
        );
    }
}

#[tokio::test(start_paused = true)]
#[should_panic = "max_waiting must be at least 1, got 0"]
async fn max_waiting_of_zero_panics() {
    let _ = RateLimiter::<u32>::builder().max_waiting(0);
}

#[tokio::test(start_paused = true)]
async fn jitter_lengthens_a_wait_by_a_random_time() {
    const JITTER: Duration = Duration::from_millis(300);

    // Seeded, because one run in 500 has fewer distinct milliseconds.
    let builder = RateLimiter::<u32>::builder().sweep(Sweep::default().seed(1));
    let limiter = builder.limit(Limit::per_second(1)).jitter(JITTER).build();
    let start = Instant::now();
    let wait = |key| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter.until_ready(&key).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "a call that need not wait was delayed");
            limiter.until_ready(&key).await;
            start.elapsed()
        })
    };
    let mut waits = Vec::new();
    for task in (0..50).map(wait).collect::<Vec<_>>() {
        waits.push(task.await.unwrap());
    }
    waits.sort();
    waits.dedup();
    assert!(waits.iter().all(|wait| (SECOND..=SECOND + JITTER).contains(wait)), "{waits:?}");
    assert!(waits.len() > 40, "{waits:?}");
    // But not beyond the maximum wait.
    let start = Instant::now();
    assert!(limiter.until_ready_within(&100, SECOND).await.is_ok());
    assert!(limiter.until_ready_within(&100, SECOND).await.is_ok());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn denials_are_counted_by_limit() {
    for window in WINDOWS {
        let limits = [Limit::per_second(1).named("burst"), Limit::per_hour(2).named("hourly")];
        let limiter = RateLimiter::<String>::builder()
            .window(window)
            .limit(limits[0].clone())
            .limit(limits[1].clone())
            .max_keys(2)
            .build();
        let denials = |first, second| [(limits[0].clone(), first), (limits[1].clone(), second)];
        take(&limiter, "ada", 1).await;
        assert!(limiter.check("ada").await.is_err());
        assert_eq!(limiter.denials(), denials(1, 0), "{window:?}");
        advance(SECOND).await;
        take(&limiter, "ada", 1).await;
        advance(SECOND).await;
        assert!(limiter.check("ada").await.is_err());
        assert!(limiter.until_ready_within("ada", SECOND).await.is_err());
        assert_eq!(limiter.denials(), denials(1, 2), "{window:?}");
        // By the limits of a plan, and by a limit that the limiter does not have.
        let plan = vec![Limit::per_minute(1); 9];
        assert!(limiter.check_with("bob", &plan).await.is_ok());
        assert!(limiter.check_with("bob", &plan).await.is_err());
        assert_eq!(limiter.denials(), denials(2, 2), "{window:?}");
        // Beyond the bound of keys, and behind other waiters.
        take(&limiter, "eve", 1).await;
        assert!(limiter.check("eve").await.is_err());
        let head = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.until_ready("ada").await }
        });
        yield_now().await;
        assert!(limiter.until_ready_within("ada", SECOND).await.is_err());
        head.abort();
        let stats = limiter.stats();
        assert_eq!(stats.denied, limiter.denials().iter().map(|(_, denials)| denials).sum::<u64>());
    }
}
