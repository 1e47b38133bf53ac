//! Limiters, windows and durations that the tests of rate limits share.

use std::time::Duration;

use fleeting::{Limit, RateLimiter, Window};

pub(crate) const NANOSECOND: Duration = Duration::from_nanos(1);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

pub(crate) fn limiter(limit: Limit) -> RateLimiter<String> {
    RateLimiter::builder().limit(limit).build()
}

pub(crate) fn limiter_of(window: Window, limit: Limit) -> RateLimiter<String> {
    RateLimiter::builder().window(window).limit(limit).build()
}

pub(crate) async fn take(limiter: &RateLimiter<String>, key: &str, times: u32) {
    for _ in 0..times {
        limiter.check(key).await.expect("quota is left");
    }
}
