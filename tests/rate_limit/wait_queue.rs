//! The line of a key: who in it is not polled, how many wait in it and how long, and what is counted of it.

use std::{pin::pin, time::Duration};

use fleeting::{Limit, Permit, RateLimiter};
use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tokio_test::{
    assert_pending,
    task::{self, Spawn},
};

use crate::{
    limits::{MILLISECOND, MINUTE, SECOND, WINDOWS, limiter, limiter_of, take},
    waiting::{Order, waiters},
};

// Who is not polled.

/// One that waits for `key`, was polled once, and is no longer.
fn silent<'a>(
    limiter: &'a RateLimiter<String>,
    key: &'static str,
) -> Spawn<impl Future<Output = Permit> + 'a> {
    let mut silent = task::spawn(limiter.until_ready(key));
    assert_pending!(silent.poll());
    silent
}

#[tokio::test(start_paused = true)]
async fn one_that_is_no_longer_polled_holds_up_the_others_for_a_second() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let start = Instant::now();
        let kept = silent(&limiter, "ada");
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..3, &order).await;
        sleep(2_500 * MILLISECOND).await;
        assert!(kept.is_woken(), "it may pass since a second");
        // Late, but it asked first.
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

#[tokio::test(start_paused = true)]
async fn several_that_are_no_longer_polled_hold_up_the_others_for_a_second_each() {
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
async fn one_that_is_no_longer_polled_comes_to_the_head_unseen() {
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
async fn one_that_is_no_longer_polled_does_not_hear_of_new_limits() {
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

/// A machine that slept: all timers are over at once, and nobody was polled meanwhile.
#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_changes_no_order() {
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

/// A future is polled by whoever selects over it, and dropped at any await.
#[tokio::test(start_paused = true)]
async fn a_branch_of_select_that_lost_passes_when_it_is_waited_for_again() {
    let limiter = limiter(Limit::per_second(1));
    let start = Instant::now();
    take(&limiter, "ada", 1).await;
    let mut kept = pin!(limiter.until_ready("ada"));
    tokio::select! {
        biased;
        _ = &mut kept => panic!("there is no room yet"),
        () = sleep(MILLISECOND) => {}
    }
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..2, &order).await;
    sleep(10 * SECOND).await;
    for task in tasks {
        task.await.unwrap();
    }
    kept.await;
    assert_eq!(start.elapsed(), 10 * SECOND + MILLISECOND, "there is room again");
    assert_eq!(limiter.stats().admitted, 4);
}

// How many wait, and how long.

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
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
            // At the soonest: who is at the head may have been charged.
            assert_eq!((start.elapsed(), limited.retry_after()), (Duration::ZERO, 2 * SECOND));
        }
        assert!(limiter.until_ready_within("bob", SECOND).await.is_ok(), "another key");
        // Who waits for ever is not sent away.
        limiter.until_ready("ada").await;
        assert_eq!(start.elapsed(), 3 * SECOND);
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok(), "{window:?}");
        }
        assert_eq!((limiter.stats().waited, limiter.stats().admitted), (3, 5));
        assert!(limiter.until_ready_within("ada", MINUTE).await.is_ok(), "nobody waits any more");
    }
}

#[tokio::test(start_paused = true)]
#[should_panic = "max_waiting must be at least 1, got 0"]
async fn that_nobody_may_wait_panics() {
    let _ = RateLimiter::<u32>::builder().max_waiting(0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_longer_by_a_random_time() {
    const JITTER: Duration = Duration::from_millis(300);

    let limiter = RateLimiter::<u32>::builder().limit(Limit::per_second(1)).jitter(JITTER).build();
    let start = Instant::now();
    let wait = |key| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter.until_ready(&key).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "who need not wait does not");
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
    // But not beyond its end.
    let start = Instant::now();
    assert!(limiter.until_ready_within(&100, SECOND).await.is_ok());
    assert!(limiter.until_ready_within(&100, SECOND).await.is_ok());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_denials() {
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
        // By others in a plan, and by one that nobody has.
        let plan = vec![Limit::per_minute(1); 9];
        assert!(limiter.check_with("bob", &plan).await.is_ok());
        assert!(limiter.check_with("bob", &plan).await.is_err());
        assert_eq!(limiter.denials(), denials(2, 2), "{window:?}");
        // Beyond the bound, and behind others.
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
