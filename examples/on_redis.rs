//! A cache, a rate limiter and a dictionary of jobs on a Redis server, shared by all processes that use it.
//!
//! ```text
//! cargo run --features redis --example on_redis -- redis://127.0.0.1:6379
//! ```
//!
//! Run it twice within an hour: the second process finds the rate that the first has loaded, is denied its second
//! call, and does the job that failed in the first.

use std::{env, process, time::Duration};

use fleeting::{
    Limit,
    redis::{Cache, Client, Error, RateLimiter, TimeoutDict},
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".to_owned());
    let client = Client::connect(url).await?; // cheap to clone: one client for all types
    share_values(&client).await?;
    share_limit(&client).await?;
    share_jobs(&client).await
}

/// One load per key across all processes. With `.near(n)`, a process also keeps values in its own memory.
async fn share_values(client: &Client) -> Result<(), Error> {
    let rates: Cache<String, String> = Cache::new(client, "rates")?;
    let load = async || format!("1.08, loaded by process {}", process::id());
    let rate = rates.get_or_set_with("EUR", Duration::from_secs(3_600), load).await?;
    println!("rate: {rate}");
    Ok(())
}

/// Three calls per hour, in all processes together.
async fn share_limit(client: &Client) -> Result<(), Error> {
    let calls = RateLimiter::builder(client, "calls").limit(Limit::per_hour(3)).build()?;
    for _ in 0..2 {
        match calls.check("ada").await {
            Ok(permit) => println!("admitted, {} left", permit.remaining()),
            Err(Error::Limited(limited)) => println!("denied: {limited}"),
            Err(error) => return Err(error),
        }
    }
    let _: RateLimiter<String> = calls;
    Ok(())
}

/// A job is delivered until it is acknowledged. If a process crashes, its job is delivered again after the lease.
async fn share_jobs(client: &Client) -> Result<(), Error> {
    let jobs: TimeoutDict<String, String> =
        TimeoutDict::builder(client, "jobs").max_attempts(5).build()?;
    if jobs.get("mail").await?.is_none() {
        jobs.set("mail".to_owned(), "hello".to_owned(), Duration::ZERO).await?;
    }
    let job = jobs.next_claim(Duration::from_secs(30)).await?;
    println!("job {}, attempt {}", job.key(), job.attempts());
    match job.attempts() {
        1 => job.retry_in(Duration::ZERO).await?, // failed
        _ => job.ack().await?,                    // done
    };
    Ok(())
}
