//! Remaining quota by the real clock, whose coarse reading lies up to some milliseconds in the past: neither a charge
//! nor a unit that is free again is missed. The real clock is the subject.

use std::{hint::spin_loop, time::Duration};

use fleeting::{Limit, RateLimiter};
use tokio::time::{Instant, sleep_until};

use crate::limits::{WINDOWS, limiter_of};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn remaining_counts_each_charge_once_right_after_it() {
    for window in WINDOWS {
        // Long enough that no unit is free again during the test.
        let limiter = limiter_of(window, Limit::new(10, 10 * HOUR));
        for round in 0..100 {
            let key = round.to_string();
            for left in (0..10).rev() {
                let permit = limiter.check(&key).await.unwrap();
                assert_eq!(permit.remaining(), left, "{window:?}, check");
                assert_eq!(limiter.peek(&key).await.remaining(), left, "{window:?}, peek");
                let free = limiter.check_n(&key, 0).await.unwrap();
                assert_eq!(free.remaining(), left, "{window:?}, check of cost 0");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn remaining_by_several_limits_counts_each_charge_once() {
    for window in WINDOWS {
        let limiter: RateLimiter<u32> = RateLimiter::builder()
            .window(window)
            .limit(Limit::new(4, 4 * HOUR))
            .limit(Limit::new(1_000_000_000, HOUR))
            .build();
        for key in 0..100 {
            assert_eq!(limiter.check_n(&key, 2).await.unwrap().remaining(), 2, "{window:?}");
            let state = limiter.peek(&key).await;
            assert_eq!(state.standings()[0].remaining(), 2, "{window:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn peek_finds_a_unit_from_the_time_on_at_which_it_is_free() {
    for window in WINDOWS {
        let limiter = limiter_of(window, Limit::new(20, Duration::from_millis(60)));
        let (mut found, mut round) = (0, 0);
        while found < 20 {
            assert!(round < 10_000, "{window:?}: a unit was free in {round} rounds");
            round += 1;
            let key = round.to_string();
            limiter.check_n(&key, 20).await.unwrap();
            // On a busy machine, a unit may be free again.
            let Err(limited) = limiter.check(&key).await else { continue };
            found += 1;
            let ready_at = limited.ready_at().unwrap();
            // A timer may be late by more than the coarse clock lies in the past.
            sleep_until(ready_at - Duration::from_millis(10)).await;
            while Instant::now() < ready_at {
                spin_loop();
            }
            assert!(limiter.peek(&key).await.remaining() >= 1, "{window:?}");
            assert!(limiter.check_n(&key, 0).await.unwrap().remaining() >= 1, "{window:?}");
        }
    }
}
