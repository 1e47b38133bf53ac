//! Windows of rate limits: the arithmetic of the server's scripts (`src/redis/rate_limiter/*.lua`), in microseconds.
//!
//! It is repeated here because the simulation copies the state of a key to a replica, which the public API cannot. The
//! test compares every decision with those of `fleeting::RateLimiter`, which the conformance tests compare with the
//! scripts.

use std::collections::VecDeque;

/// Kind of a window, as `fleeting::Window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The time of each call.
    Log,
    /// This number of buckets.
    Buckets(u64),
    /// The generic cell rate algorithm.
    Gcra,
}

/// A quota per time.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Number of calls.
    pub quota: u64,
    /// Time in microseconds.
    pub per: u64,
}

/// Charges of one key.
#[derive(Clone, Debug)]
pub enum Charges {
    /// Times of the calls.
    Log(VecDeque<u64>),
    /// Last microseconds of the buckets, with their calls, and the sum of these.
    Buckets(VecDeque<(u64, u64)>, u64),
    /// Time at which everything has leaked.
    Gcra(u64),
}

impl Charges {
    /// Creates the state of a key without charges.
    pub fn new(window: Window) -> Self {
        match window {
            Window::Log => Self::Log(VecDeque::new()),
            Window::Buckets(_) => Self::Buckets(VecDeque::new(), 0),
            Window::Gcra => Self::Gcra(0),
        }
    }

    /// Charges one call at `now`, or returns the wait until it would pass.
    pub fn check(&mut self, window: Window, limit: Limit, now: u64) -> Result<(), u64> {
        let Limit { quota, per } = limit;
        match self {
            Self::Log(calls) => {
                while calls.front().is_some_and(|call| call + per <= now) {
                    calls.pop_front();
                }
                if calls.len() as u64 >= quota {
                    return Err(calls[calls.len() - quota as usize] + per - now);
                }
                calls.push_back(now);
            }
            Self::Buckets(buckets, used) => {
                let Window::Buckets(count) = window else { unreachable!("the window is fixed") };
                let step = per.div_ceil(count);
                let per = count * step;
                while let Some((last, calls)) =
                    buckets.front().copied().filter(|b| b.0 + per <= now)
                {
                    buckets.pop_front();
                    (_, *used) = (last, *used - calls);
                }
                if *used >= quota {
                    return Err(buckets[0].0 + per - now);
                }
                *used += 1;
                match buckets.back_mut() {
                    Some((last, calls)) if *last >= now => *calls += 1,
                    Some((last, _)) => {
                        let last = *last + (now - *last).div_ceil(step) * step;
                        buckets.push_back((last, 1));
                    }
                    None => buckets.push_back((now, 1)),
                }
            }
            Self::Gcra(at) => {
                let step = per.div_ceil(quota);
                let charged = now.max(*at) + step;
                if charged > now + step * quota {
                    return Err(charged - step * quota - now);
                }
                *at = charged;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fleeting::RateLimiter;
    use tokio::time::advance;

    use super::*;
    use crate::fleet::random::Random;

    async fn compare(window: Window, real: fleeting::Window, seed: u64) {
        let mut random = Random::new(seed);
        // Quotas that divide the window, since the scripts round the steps of others up to a microsecond.
        let quota = [1, 2, 5, 50, 100][random.below(5)];
        let limit = Limit { quota, per: 1_000_000 };
        let real_limit = fleeting::Limit::new(quota as u32, Duration::from_micros(limit.per));
        let limiter = RateLimiter::<u32>::builder().limit(real_limit).window(real).build();
        let (mut charges, mut now) = (Charges::new(window), 1_000_000);
        let (mut admitted, mut denied) = (0, 0);
        for call in 0..2_000 {
            let most = [1, 100, 40_000, 1_100_000][random.below(4)] / quota as usize + 1;
            let pause = random.below(most) as u64;
            advance(Duration::from_micros(pause)).await;
            now += pause;
            let real = limiter.check(&7).await.map(drop);
            let ours = charges.check(window, limit, now);
            assert_eq!(ours.is_ok(), real.is_ok(), "call {call} of {window:?}, {limit:?}");
            if let (Err(wait), Err(limited)) = (ours, real) {
                denied += 1;
                assert_eq!(limited.retry_after(), Duration::from_micros(wait), "call {call}");
            } else {
                admitted += 1;
            }
        }
        assert!(admitted > 50 && denied > 50, "{admitted} admitted, {denied} denied");
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_and_waits_are_those_of_the_rate_limiter() {
        for seed in 0..20 {
            compare(Window::Log, fleeting::Window::Log, seed).await;
            compare(Window::Buckets(10), fleeting::Window::Buckets(10), seed).await;
            compare(Window::Gcra, fleeting::Window::Gcra, seed).await;
        }
    }
}
