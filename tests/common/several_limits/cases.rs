//! Single promises of several limits that were broken in memory and on Redis.

use std::{slice, time::Duration};

use fleeting::{Limit, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::{Backend, Setup};

/// Returns a setup with one limit.
fn setup_of(window: Window, limit: Limit) -> Setup {
    Setup { window, plans: vec![vec![limit]], max_keys: None, sweeps: false }
}

/// A call in a bucket of a long window may count later by a shorter one, which must find it there when it is refunded.
pub(crate) async fn nothing_is_in_use_by_any_limit_when_all_calls_were_refunded<B: Backend>(
    seeds: u64,
    limiter_of: impl Fn(&Setup) -> B,
) {
    for seed in 0..seeds {
        let mut random = SmallRng::seed_from_u64(seed);
        let window = match random.random_range(0..4) {
            0 => Window::Log,
            buckets => Window::Buckets(buckets),
        };
        let limits: Vec<Limit> = (0..3)
            .map(|_| {
                let per = [100, 1_000, 7_000, 60_000][random.random_range(0..4)];
                Limit::new(random.random_range(1..10), Duration::from_millis(per))
            })
            .collect();
        let limiter = limiter_of(&setup_of(window, limits[0].clone()));
        let mut permits = Vec::new();
        for _ in 0..random.random_range(3..20) {
            let limit = &limits[random.random_range(0..3)..][..1];
            match random.random_range(0..4) {
                0..2 => {
                    let cost = random.random_range(1..4);
                    permits.extend(limiter.check("ada", cost, Some(limit)).await);
                }
                2 => _ = limiter.peek("ada", limit).await,
                _ => limiter.pass(random.random_range(1..10_000) * 1_000).await,
            }
        }
        for permit in permits {
            limiter.refund(permit).await;
        }
        for limit in &limits {
            let left = limiter.peek("ada", slice::from_ref(limit)).await.remaining();
            assert_eq!(left, limit.quota(), "seed {seed}: {window:?}, {limits:?}");
        }
    }
}

/// A debt counts for longer than the window, during which the key is checked by other limits.
pub(crate) async fn debt_is_not_forgotten_while_other_limits_are_used<B: Backend>(
    limiter_of: impl Fn(&Setup) -> B,
) {
    const DAY: Duration = Duration::from_secs(86_400);
    let (daily, more, minutely) =
        (Limit::new(2, DAY), Limit::new(6, 2 * DAY), Limit::per_minute(1));
    let limiter = limiter_of(&setup_of(Window::Gcra, daily));
    let hours = async |hours: u64| limiter.pass(hours * 3_600_000_000).await;
    let Ok(permit) = limiter.check("ada", 1, None).await else { panic!("quota is left") };
    limiter.settle(permit, 7).await;
    // The state of the longest window is kept anyway: it is that of another limit.
    assert!(limiter.check("ada", 1, Some(slice::from_ref(&more))).await.is_err());
    hours(21).await;
    assert!(limiter.check("ada", 1, None).await.is_err());
    for later in [49, 0] {
        _ = limiter.check("ada", 1, Some(slice::from_ref(&minutely))).await;
        hours(later).await;
    }
    // Of seven units, less than six have leaked in 70 hours.
    assert!(limiter.check("ada", 1, None).await.is_err());
    // The other two calls count, too.
    hours(38).await;
    assert!(limiter.check("ada", 2, None).await.is_ok());
}
