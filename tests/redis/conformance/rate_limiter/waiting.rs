//! Callers that wait until they are admitted.

use std::time::Duration;

use fleeting::{Limit, Window};
use tokio::time::{Instant, sleep};

use super::{Embedded, Limiter, OnRedis, WINDOWS};
use crate::clock::ms as per;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        until_ready_n_waits_for_several_units,
        until_ready_admits_waiters_in_fifo_order,
        cancelled_until_ready_does_not_block_later_waiters,
        until_ready_within_is_denied_immediately_if_it_cannot_pass_in_time,
    }
}

async fn until_ready_n_waits_for_several_units<L: Limiter>() {
    for window in WINDOWS {
        let limiter = L::with_limits(window, &[Limit::new(4, per(80))]).await;
        assert!(limiter.check_n("ada", 4).await.is_ok());
        let begin = Instant::now();
        assert!(limiter.until_ready_n("ada", 4).await.is_ok());
        assert!(begin.elapsed() >= per(60), "{window:?}");
        let limited = limiter.until_ready_n("ada", 5).await.unwrap_err();
        assert_eq!(limited.ready_at(), None);
    }
}

async fn until_ready_admits_waiters_in_fifo_order<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::new(1, per(30))]).await;
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let begin = Instant::now();
    for waiter in 0..5 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        tokio::spawn(async move {
            limiter.until_ready("ada").await;
            sender.send(waiter).unwrap();
        });
        sleep(Duration::from_millis(2)).await;
    }
    for waiter in 0..5 {
        assert_eq!(order.recv().await, Some(waiter));
    }
    assert!(begin.elapsed() >= per(4 * 30));
}

async fn cancelled_until_ready_does_not_block_later_waiters<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::new(1, per(60))]).await;
    assert!(limiter.check("ada").await.is_ok());
    let impatient = tokio::time::timeout(per(20), limiter.until_ready("ada")).await;
    assert!(impatient.is_err());
    limiter.until_ready("ada").await;
}

async fn until_ready_within_is_denied_immediately_if_it_cannot_pass_in_time<L: Limiter>() {
    let limiter = L::with_limits(Window::Log, &[Limit::new(1, per(100))]).await;
    assert!(limiter.check("ada").await.is_ok());
    let begin = Instant::now();
    let limited = limiter.until_ready_within("ada", per(20)).await.unwrap_err();
    assert!(begin.elapsed() < per(20), "the denial is immediate");
    assert!(limited.retry_after() > per(20));
    assert!(limiter.until_ready_within("ada", per(200)).await.is_ok());
}
