//! Who waits for a rate limiter, in which order, and that nobody is starved by who checks.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Limit, RateLimiter, Window};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use crate::limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter, limiter_of, take};

// Waiting.

pub(crate) type Order = Arc<Mutex<Vec<(u32, Duration)>>>;

/// Those who wait for `key`, in the order of asking. When it lets them in, they say so.
pub(crate) async fn waiters(
    limiter: &RateLimiter<String>,
    key: &'static str,
    ids: std::ops::Range<u32>,
    order: &Order,
) -> Vec<JoinHandle<()>> {
    let start = Instant::now();
    let wait = |id| {
        let (limiter, order) = (limiter.clone(), order.clone());
        tokio::spawn(async move {
            limiter.until_ready(key).await;
            order.lock().unwrap().push((id, start.elapsed()));
        })
    };
    let tasks = ids.map(wait).collect();
    // Each has asked by now.
    yield_now().await;
    tasks
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_key_are_let_in_in_the_order_of_asking() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        let order = Order::default();
        for task in waiters(&limiter, "ada", 0..50, &order).await {
            task.await.unwrap();
        }
        let expected: Vec<_> = (0..50).map(|id| (id, id * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().admitted, 50);
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_lets_several_in_at_once_and_in_order() {
    let limiter = limiter(Limit::new(3, SECOND));
    let order = Order::default();
    for task in waiters(&limiter, "ada", 0..10, &order).await {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..10).map(|id| (id, id / 3 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_was_not_charged_and_those_behind_move_up() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..10, &order).await;
        sleep(500 * MILLISECOND).await;
        for gone in [0, 1, 5, 9] {
            tasks[gone].abort();
        }
        for (id, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), [0, 1, 5, 9].contains(&id));
        }
        let expected: Vec<_> =
            [2, 3, 4, 6, 7, 8].into_iter().zip(1..).map(|(id, at)| (id, at * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().admitted, 7, "who gave up was not charged");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_alone_and_gives_up_leaves_nothing_behind() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    for _ in 0..5 {
        let waited = timeout(100 * MILLISECOND, limiter.until_ready("ada")).await;
        assert!(waited.is_err());
    }
    let start = Instant::now();
    limiter.until_ready("ada").await;
    assert_eq!(start.elapsed(), SECOND / 2);
    assert_eq!(limiter.stats().admitted, 2);
}

#[tokio::test(start_paused = true)]
async fn different_keys_do_not_wait_for_each_other() {
    let limiter = limiter(Limit::new(1, MINUTE));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let adas = waiters(&limiter, "ada", 0..3, &order).await;
    let bobs = waiters(&limiter, "bob", 10..12, &order).await;
    for task in adas.into_iter().chain(bobs) {
        task.await.unwrap();
    }
    let minutes = |id, minutes| (id, minutes * MINUTE);
    let mut order = order.lock().unwrap();
    assert_eq!(order[0], minutes(10, 0), "at once");
    order.sort();
    assert_eq!(*order, [(0, 1), (1, 2), (2, 3), (10, 0), (11, 1)].map(|(id, at)| minutes(id, at)));
}

#[tokio::test(start_paused = true)]
async fn a_check_may_come_before_those_who_wait() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..2, &order).await;
    sleep(SECOND - MILLISECOND).await;
    limiter.reset("ada").await;
    take(&limiter, "ada", 1).await;
    for task in tasks {
        task.await.unwrap();
    }
    let milliseconds = |n| n * MILLISECOND;
    assert_eq!(*order.lock().unwrap(), [(0, milliseconds(1_999)), (1, milliseconds(2_999))]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_with_an_end_is_over_at_once_where_that_is_clear() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        let start = Instant::now();
        assert!(limiter.until_ready_within("ada", Duration::ZERO).await.is_ok(), "there is room");
        for wait in [Duration::ZERO, MILLISECOND, SECOND - NANOSECOND] {
            let limited = limiter.until_ready_within("ada", wait).await.unwrap_err();
            assert!(limited.retry_after() >= SECOND, "{window:?}");
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}");
        assert_eq!(limiter.stats().admitted, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_when_there_is_room_ends_with_a_permit() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    for wait in [SECOND, 5 * SECOND, Duration::MAX] {
        let start = Instant::now();
        assert!(limiter.until_ready_within("ada", wait).await.is_ok());
        assert_eq!(start.elapsed(), SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_behind_others_is_over_at_its_end() {
    let limiter = limiter(Limit::new(1, 10 * SECOND));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..3, &order).await;
    let start = Instant::now();
    // At once, as far as it is clear from those behind the head.
    for wait in [Duration::ZERO, 3 * SECOND, 29 * SECOND] {
        let limited = limiter.until_ready_within("ada", wait).await.unwrap_err();
        assert_eq!((start.elapsed(), limited.retry_after()), (Duration::ZERO, 30 * SECOND));
        assert_eq!((limited.limit(), limited.cost()), (&Limit::new(1, 10 * SECOND), 1));
    }
    let late = limiter.until_ready_within("ada", 35 * SECOND);
    // In the time of the others: it waits for the third, and for none that gave up.
    let permit = limiter.until_ready_within("ada", 40 * SECOND);
    let (late, permit) = tokio::join!(late, async { (permit.await.is_ok(), start.elapsed()) });
    assert_eq!(late.unwrap_err().retry_after(), Duration::ZERO, "it is over by now");
    assert_eq!(permit, (true, 40 * SECOND));
    for task in tasks {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..3).map(|id| (id, (id + 1) * 10 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(limiter.stats().admitted, 5);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_many_is_not_overtaken_by_who_waits_for_few() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::new(4, 4 * SECOND));
        limiter.check_n("ada", 4).await.unwrap();
        let order = Order::default();
        let start = Instant::now();
        let wait = |cost| {
            let (limiter, order) = (limiter.clone(), order.clone());
            tokio::spawn(async move {
                limiter.until_ready_n("ada", cost).await.unwrap();
                order.lock().unwrap().push((cost, start.elapsed()));
            })
        };
        let tasks = [wait(4), wait(1), wait(3)];
        for task in tasks {
            task.await.unwrap();
        }
        let small = if window == Window::Log { 8 } else { 5 };
        let expected = [(4, 4 * SECOND), (1, small * SECOND), (3, 8 * SECOND)];
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_never_pass_waits_for_nobody() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4));
        take(&limiter, "ada", 4).await;
        let waiter = waiters(&limiter, "ada", 0..1, &Order::default()).await;
        let start = Instant::now();
        let limited = limiter.until_ready_n("ada", 5).await.unwrap_err();
        assert_eq!((limited.ready_at(), limited.cost()), (None, 5));
        assert_eq!(limiter.until_ready_n("ada", 0).await.unwrap().remaining(), u32::MAX);
        assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}");
        waiter.into_iter().for_each(|task| task.abort());
    }
}

/// What is given back or settled meanwhile wakes nobody, and is there for who comes next.
#[tokio::test(start_paused = true)]
async fn a_debt_that_comes_while_one_waits_is_waited_for() {
    let limiter = limiter(Limit::per_minute(2));
    let permit = limiter.check_n("ada", 2).await.unwrap();
    let start = Instant::now();
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..1, &order).await;
    sleep(30 * SECOND).await;
    permit.settle(10).await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(start.elapsed(), 90 * SECOND);
}

// Taking turns.

/// How many turns another task has while one checks 100,000 times.
async fn turns_beside<T>(mut check: impl AsyncFnMut() -> T) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let count = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            count.fetch_add(1, Relaxed);
            yield_now().await;
        }
    });
    for _ in 0..100_000 {
        check().await;
    }
    other.abort();
    turns.load(Relaxed)
}

/// What the `async` of a check is for: 128 of Tokio's budget, each for some 61 calls.
#[tokio::test(start_paused = true)]
async fn a_task_that_only_checks_starves_nobody() {
    let limiter = limiter(Limit::per_hour(50_000));
    let turns = turns_beside(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
    let turns = turns_beside(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns beside denials");
    let turns = turns_beside(async || limiter.peek("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns beside peeks");
    let plan = [Limit::per_hour(1_000_000)];
    let turns = turns_beside(async || limiter.check_with("ada", &plan).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside plans");
    let mut key = 0_u32;
    let turns = turns_beside(async || {
        key += 1;
        limiter.check(&key.to_string()).await
    });
    let turns = turns.await;
    assert!(turns >= 10, "another task had {turns} turns beside many keys");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_with_room_starves_nobody() {
    let limiter = limiter(Limit::per_hour(u32::MAX));
    let turns = turns_beside(async || limiter.until_ready("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
}

/// What is charged to no key of its own takes turns, too.
#[tokio::test(start_paused = true)]
async fn a_task_that_checks_keys_beyond_the_bound_starves_nobody() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::per_hour(100)).shards(2).max_keys(50).build();
    for key in 0..50 {
        limiter.check(&key).await.unwrap();
    }
    let mut least = usize::MAX;
    // In either shard, after some number of checks in it.
    for key in [1_000, 1_001, 1_002, 1_003] {
        limiter.check(&0).await.unwrap();
        limiter.check(&1).await.unwrap();
        least = least.min(turns_beside(async || limiter.check(&key).await).await);
    }
    assert!(least >= 10, "another task had {least} turns");
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_checks_charge_nothing_starves_nobody() {
    let limiter = limiter(Limit::per_hour(100));
    take(&limiter, "ada", 5).await;
    let turns = turns_beside(async || limiter.check_n("ada", 0).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks of nothing");
    let turns = turns_beside(async || limiter.check_n("ada", 101).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks of too much");
    let turns = turns_beside(async || limiter.check_with("ada", &[]).await).await;
    assert!(turns >= 10, "another task had {turns} turns beside checks without limits");
}
