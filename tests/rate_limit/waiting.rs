//! `until_ready`: the order of waiters, cancellation and maximum waits; and that checks do not starve other tasks.

use std::{
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Limit, RateLimiter, Window};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::limits::{MILLISECOND, MINUTE, NANOSECOND, SECOND, WINDOWS, limiter, limiter_of, take};

// Waiting.

pub(crate) type Order = Arc<Mutex<Vec<(u32, Duration)>>>;

/// Starts waiters for `key`, which join in the order of their ids. Each adds its id and the time to `order` when it
/// passes.
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
    // Each waiter has joined by now.
    yield_now().await;
    tasks
}

#[tokio::test(start_paused = true)]
async fn waiters_for_a_key_are_admitted_in_the_order_of_joining() {
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

/// The map of queues compares only a part of the hash before it asks whether a key is the one.
#[tokio::test(start_paused = true)]
async fn refund_wakes_the_waiters_of_its_own_key_among_similar_hashes() {
    let builder = RateLimiter::<u64>::builder().limit(Limit::per_hour(1));
    let limiter = builder.hasher(BuildHasherDefault::<KeyIsHash>::default()).build();
    let (mut permits, mut waits) = (Vec::new(), Vec::new());
    for key in [0_u64, 1 << 32] {
        permits.push(limiter.check(&key).await.unwrap());
        let limiter = limiter.clone();
        waits.push(tokio::spawn(async move { limiter.until_ready(&key).await }));
        sleep(MILLISECOND).await;
    }
    permits.pop().unwrap().refund().await;
    let wait = timeout(SECOND, waits.pop().unwrap()).await;
    wait.expect("the refund wakes the waiter of its key").unwrap();
    assert!(!waits[0].is_finished());
}

#[derive(Default)]
struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is a number");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn burst_admits_several_waiters_immediately_and_in_order() {
    let limiter = limiter(Limit::new(3, SECOND));
    let order = Order::default();
    for task in waiters(&limiter, "ada", 0..10, &order).await {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..10).map(|id| (id, id / 3 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_is_not_charged_and_those_behind_move_up() {
    for window in [Window::Log, Window::Gcra] {
        let limiter = limiter_of(window, Limit::per_second(1));
        take(&limiter, "ada", 1).await;
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..10, &order).await;
        sleep(500 * MILLISECOND).await;
        for cancelled in [0, 1, 5, 9] {
            tasks[cancelled].abort();
        }
        for (id, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), [0, 1, 5, 9].contains(&id));
        }
        let expected: Vec<_> =
            [2, 3, 4, 6, 7, 8].into_iter().zip(1..).map(|(id, at)| (id, at * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
        assert_eq!(limiter.stats().admitted, 7, "a cancelled waiter was charged");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_only_waiter_does_not_delay_later_calls() {
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
async fn waiters_for_different_keys_do_not_delay_each_other() {
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
    assert_eq!(order[0], minutes(10, 0), "the first waiter did not pass immediately");
    order.sort();
    assert_eq!(*order, [(0, 1), (1, 2), (2, 3), (10, 0), (11, 1)].map(|(id, at)| minutes(id, at)));
}

#[tokio::test(start_paused = true)]
async fn check_may_pass_before_waiters() {
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
async fn until_ready_within_denies_immediately_if_it_cannot_pass_in_time() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_second(1));
        let start = Instant::now();
        assert!(
            limiter.until_ready_within("ada", Duration::ZERO).await.is_ok(),
            "a call without usage was denied"
        );
        for wait in [Duration::ZERO, MILLISECOND, SECOND - NANOSECOND] {
            let limited = limiter.until_ready_within("ada", wait).await.unwrap_err();
            assert!(limited.retry_after() >= SECOND, "{window:?}");
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}");
        assert_eq!(limiter.stats().admitted, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn until_ready_within_passes_exactly_at_its_maximum() {
    let limiter = limiter(Limit::per_second(1));
    take(&limiter, "ada", 1).await;
    for wait in [SECOND, 5 * SECOND, Duration::MAX] {
        let start = Instant::now();
        assert!(limiter.until_ready_within("ada", wait).await.is_ok());
        assert_eq!(start.elapsed(), SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn until_ready_within_ends_at_its_maximum_behind_other_waiters() {
    let limiter = limiter(Limit::new(1, 10 * SECOND));
    take(&limiter, "ada", 1).await;
    let order = Order::default();
    let tasks = waiters(&limiter, "ada", 0..3, &order).await;
    let start = Instant::now();
    // Denied immediately because of the waiters ahead.
    for wait in [Duration::ZERO, 3 * SECOND, 39 * SECOND] {
        let limited = limiter.until_ready_within("ada", wait).await.unwrap_err();
        assert_eq!((start.elapsed(), limited.retry_after()), (Duration::ZERO, 40 * SECOND));
        assert_eq!((limited.limit(), limited.cost()), (&Limit::new(1, 10 * SECOND), 1));
    }
    // Waits for the third waiter, but not for those that were denied.
    assert!(limiter.until_ready_within("ada", 40 * SECOND).await.is_ok());
    assert_eq!(start.elapsed(), 40 * SECOND);
    for task in tasks {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..3).map(|id| (id, (id + 1) * 10 * SECOND)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(limiter.stats().admitted, 5);
}

#[tokio::test(start_paused = true)]
async fn until_ready_within_ends_at_its_maximum_if_debts_delay_the_waiter_ahead() {
    let limiter = limiter(Limit::new(2, 10 * SECOND));
    let permits = [limiter.check("ada").await.unwrap(), limiter.check("ada").await.unwrap()];
    let start = Instant::now();
    let ahead = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready_n("ada", 2).await.map(|_| Instant::now()) })
    };
    yield_now().await;
    let late = {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let limited = limiter.until_ready_within("ada", 20 * SECOND).await.unwrap_err();
            (Instant::now(), limited.retry_after())
        })
    };
    // A debt counts from its charge on, so the waiter ahead passes at 24 s instead of 10 s.
    for (permit, charged_at) in permits.into_iter().zip([5, 14]) {
        sleep_until(start + charged_at * SECOND).await;
        permit.settle(2).await;
    }
    let (ended_at, retry_after) = late.await.unwrap();
    assert_eq!(ended_at - start, 20 * SECOND);
    assert_eq!(retry_after, Duration::ZERO, "a call of one unit would pass by now");
    assert_eq!(ahead.await.unwrap().unwrap() - start, 24 * SECOND);
}

/// The head of the queue, which is not charged yet, is ahead like all other waiters.
#[tokio::test(start_paused = true)]
async fn until_ready_within_counts_the_head_of_the_queue() {
    for window in WINDOWS {
        for cost in [1, 2] {
            let limiter = limiter_of(window, Limit::new(cost, MINUTE));
            limiter.check_n("ada", cost).await.unwrap();
            let mut head = tokio_test::task::spawn(limiter.until_ready_n("ada", cost));
            assert!(head.poll().is_pending());
            let start = Instant::now();
            let limited = limiter.until_ready_within("ada", MINUTE).await.unwrap_err();
            assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}: denied immediately");
            // With GCRA, the first of several units leaks before the others.
            let wait = if window == Window::Gcra { MINUTE + MINUTE / cost } else { 2 * MINUTE };
            assert_eq!(limited.retry_after(), wait, "{window:?}");
            // Once the head is charged, its units count as usage.
            assert!(head.await.is_ok());
            assert_eq!(start.elapsed(), MINUTE, "{window:?}");
            let limited = limiter.until_ready_within("ada", SECOND).await.unwrap_err();
            assert_eq!(limited.retry_after(), wait - MINUTE, "{window:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_for_many_units_is_not_overtaken_by_waiters_for_few() {
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
async fn call_that_can_never_pass_is_denied_without_waiting() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::per_minute(4));
        take(&limiter, "ada", 4).await;
        let waiter = waiters(&limiter, "ada", 0..1, &Order::default()).await;
        let start = Instant::now();
        let limited = limiter.until_ready_n("ada", 5).await.unwrap_err();
        assert_eq!((limited.ready_at(), limited.cost()), (None, 5));
        assert_eq!(limiter.until_ready_n("ada", 0).await.unwrap().remaining(), 0);
        assert_eq!(start.elapsed(), Duration::ZERO, "{window:?}");
        waiter.into_iter().for_each(|task| task.abort());
    }
}

/// A debt does not wake waiters; the next check counts it.
#[tokio::test(start_paused = true)]
async fn waiter_waits_for_a_debt_that_is_charged_while_it_waits() {
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

#[tokio::test(start_paused = true)]
async fn refund_settlement_and_reset_wake_waiters_in_order() {
    // With `Gcra`, a part of the charges has leaked by then, so each refund returns a little less than two units.
    for window in [Window::Log, Window::Buckets(10)] {
        let limiter = limiter_of(window, Limit::per_hour(6));
        let refunded = limiter.check_n("ada", 2).await.unwrap();
        let settled = limiter.check_n("ada", 2).await.unwrap();
        take(&limiter, "ada", 2).await;
        let order = Order::default();
        let tasks = waiters(&limiter, "ada", 0..6, &order).await;
        sleep(SECOND).await;
        refunded.refund().await;
        sleep(SECOND).await;
        settled.settle(0).await;
        sleep(SECOND).await;
        assert!(limiter.reset("ada").await);
        for task in tasks {
            task.await.unwrap();
        }
        let expected: Vec<_> = (0..6).map(|id| (id, (id / 2 + 1) * SECOND)).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{window:?}");
    }
}

/// Only the waiters near the head look at the clock, so a long queue costs little.
#[tokio::test(start_paused = true)]
async fn waiters_far_from_the_head_are_rarely_polled() {
    let limiter = limiter_of(Window::Gcra, Limit::per_second(100));
    take(&limiter, "ada", 100).await;
    let (polls, passed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..10_000 {
        let (limiter, polls, passed) = (limiter.clone(), polls.clone(), passed.clone());
        tokio::spawn(async move {
            let mut ready = std::pin::pin!(limiter.until_ready("ada"));
            std::future::poll_fn(|cx| {
                polls.fetch_add(1, Relaxed);
                ready.as_mut().poll(cx)
            })
            .await;
            passed.fetch_add(1, Relaxed);
        });
    }
    // All have joined then.
    sleep(MILLISECOND).await;
    let first = polls.load(Relaxed);
    assert!(first >= 10_000, "{first}");
    sleep(20 * SECOND).await;
    let (polls, passed) = (polls.load(Relaxed) - first, passed.load(Relaxed));
    assert_eq!(passed, 2_000);
    assert!(polls <= 4 * passed, "{polls} polls for {passed} calls that passed");
}

// Cooperative scheduling.

/// Returns how often another task runs while this one checks 100,000 times.
async fn turns_of_another_task<T>(mut check: impl AsyncFnMut() -> T) -> usize {
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

/// Checks consume Tokio's cooperative budget: 128 units, each for about 61 calls.
#[tokio::test(start_paused = true)]
async fn checks_do_not_starve_other_tasks() {
    let limiter = limiter(Limit::per_hour(50_000));
    let turns = turns_of_another_task(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
    let turns = turns_of_another_task(async || limiter.check("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns during denials");
    let turns = turns_of_another_task(async || limiter.peek("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns during peeks");
    let plan = [Limit::per_hour(1_000_000)];
    let turns = turns_of_another_task(async || limiter.check_with("ada", &plan).await).await;
    assert!(turns >= 10, "another task had {turns} turns during plans");
    let mut key = 0_u32;
    let turns = turns_of_another_task(async || {
        key += 1;
        limiter.check(&key.to_string()).await
    });
    let turns = turns.await;
    assert!(turns >= 10, "another task had {turns} turns during many keys");
}

#[tokio::test(start_paused = true)]
async fn waits_that_pass_immediately_do_not_starve_other_tasks() {
    let limiter = limiter(Limit::per_hour(u32::MAX));
    let turns = turns_of_another_task(async || limiter.until_ready("ada").await).await;
    assert!(turns >= 10, "another task had {turns} turns");
}

/// Checks that charge the shared window yield as well.
#[tokio::test(start_paused = true)]
async fn checks_beyond_max_keys_do_not_starve_other_tasks() {
    let limiter: RateLimiter<u32> =
        RateLimiter::builder().limit(Limit::per_hour(100)).shards(2).max_keys(50).build();
    for key in 0..50 {
        limiter.check(&key).await.unwrap();
    }
    let mut least = usize::MAX;
    // In either shard, after any number of checks in it.
    for key in [1_000, 1_001, 1_002, 1_003] {
        limiter.check(&0).await.unwrap();
        limiter.check(&1).await.unwrap();
        least = least.min(turns_of_another_task(async || limiter.check(&key).await).await);
    }
    assert!(least >= 10, "another task had {least} turns");
}

#[tokio::test(start_paused = true)]
async fn checks_that_charge_nothing_do_not_starve_other_tasks() {
    let limiter = limiter(Limit::per_hour(100));
    take(&limiter, "ada", 5).await;
    let turns = turns_of_another_task(async || limiter.check_n("ada", 0).await).await;
    assert!(turns >= 10, "another task had {turns} turns during checks of cost 0");
    let turns = turns_of_another_task(async || limiter.check_n("ada", 101).await).await;
    assert!(turns >= 10, "another task had {turns} turns during checks above the quota");
    let turns = turns_of_another_task(async || limiter.check_with("ada", &[]).await).await;
    assert!(turns >= 10, "another task had {turns} turns during checks without limits");
}
