//! A limit per user, after its migration from governor: `migrate_governor_before` is the same program with governor.

use std::time::Duration;

use fleeting::{Limit, RateLimiter, Window};

#[tokio::main]
async fn main() {
    let limiter = RateLimiter::<String>::builder()
        .limit(Limit::new(3, Duration::from_secs(3 * 3_600)))
        .window(Window::Gcra) // without this line: at most three calls in any three hours
        .build();

    for _ in 0..4 {
        match limiter.check("ada").await {
            Ok(_) => println!("admitted"),
            Err(denied) => println!("denied for {:?}", denied.retry_after()),
        }
    }
}
