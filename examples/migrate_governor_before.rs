//! A limit per user with governor, before its migration: `migrate_governor_after` is the same program with this crate.

use std::{num::NonZeroU32, sync::Arc, thread, time::Duration};

use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};

fn main() {
    let burst = NonZeroU32::new(3).expect("3 is not 0");
    let quota = Quota::per_hour(NonZeroU32::MIN).allow_burst(burst);
    let limiter: Arc<DefaultKeyedRateLimiter<String>> = Arc::new(RateLimiter::keyed(quota));
    let idle_keys = limiter.clone();
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(60));
            idle_keys.retain_recent();
            idle_keys.shrink_to_fit();
        }
    });

    let (clock, user) = (DefaultClock::default(), "ada".to_owned());
    for _ in 0..4 {
        match limiter.check_key(&user) {
            Ok(()) => println!("admitted"),
            Err(denied) => println!("denied for {:?}", denied.wait_time_from(clock.now())),
        }
    }
}
