//! What each setting of the sweeper costs and gives: processor share, lag and the end of a storm.
//!
//! `cargo bench --bench sweep` prints the table of `docs/sweep.md`.

use std::{sync::Arc, time::Duration};

use fleeting::{Cache, Sweep};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep};

const MILLION: usize = 1_000_000;
const LONG: Duration = Duration::from_secs(86_400);

type Sessions = Cache<String, Arc<u64>>;

struct Row {
    every: u64,
    sample: f64,
    repeat_at: f64,
    budget: f64,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    println!(
        "| every | sample | repeat at | budget | staleness at most | 1 M live, none due \
         | 1 M live, 8,000 due a second | lag of 1,000 among 1 M: p50 / p99 / worst \
         | 1 M dead at once: all gone |"
    );
    println!("|{}", " --- |".repeat(9));
    let rotations = [(1_000, 1.0), (250, 0.25), (100, 0.1), (50, 0.05), (100, 0.25), (20, 0.1)];
    for (every, sample) in rotations {
        runtime.block_on(measure(Row { every, sample, repeat_at: 0.1, budget: 1.0 }));
    }
    for (repeat_at, budget) in [(0.5, 1.0), (0.1, 0.5), (0.1, 0.1)] {
        runtime.block_on(measure(Row { every: 100, sample: 0.1, repeat_at, budget }));
    }
}

async fn measure(row: Row) {
    let every = Duration::from_millis(row.every);
    let sweep = Sweep::default()
        .every(every)
        .sample(row.sample)
        .repeat_at(row.repeat_at)
        .budget(row.budget);
    let cache: Sessions = Cache::builder().sweep(sweep).build();
    for i in 0..MILLION {
        cache.set_ex(format!("live:{i:015}"), Arc::new(0), LONG).await;
    }
    // Its first sweep after growing looks at everything.
    sleep(2 * every + Duration::from_secs(1)).await;
    let idle = share_of_a_core().await;
    for i in 0..MILLION {
        let ttl = Duration::from_millis(2_000 + (i as u64 * 7_919) % 125_000);
        cache.expire(&format!("live:{i:015}"), ttl).await;
    }
    sleep(Duration::from_secs(3)).await;
    let busy = share_of_a_core().await;
    for i in 0..MILLION {
        cache.set_ex(format!("live:{i:015}"), Arc::new(0), LONG).await;
    }
    sleep(2 * every + Duration::from_secs(1)).await;
    let lags = lags(&cache).await;
    let storm = storm(cache).await;
    println!(
        "| {} ms | {} | {} | {} | {:.1} s | {:.2} % | {:.2} % | {:.0} / {:.0} / {:.0} ms | {:.0} ms |",
        row.every,
        row.sample,
        row.repeat_at,
        row.budget,
        every.as_secs_f64() * (1.0 / row.sample).ceil(),
        100.0 * idle,
        100.0 * busy,
        ms(lags[500]),
        ms(lags[990]),
        ms(lags[999]),
        ms(storm),
    );
}

/// The share of one core that the process uses while nothing but the sweeper works.
async fn share_of_a_core() -> f64 {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), cpu());
    sleep(Duration::from_secs(5)).await;
    (cpu() - before) / start.elapsed().as_secs_f64()
}

/// How late a thousand values leave whose deadlines are spread over three seconds.
async fn lags(cache: &Sessions) -> Vec<Duration> {
    let mut events = cache.events_lossless(2_000);
    for i in 0..1_000 {
        let ttl = Duration::from_millis(3 * i);
        cache.set_ex(format!("due:{i:016}"), Arc::new(0), ttl).await;
    }
    let mut lags = Vec::new();
    while lags.len() < 1_000 {
        let event = events.recv().await.expect("the cache lives");
        lags.push(event.lag().expect("it had a deadline"));
    }
    lags.sort();
    lags
}

/// How long it takes until a million values that die at one instant are gone.
async fn storm(cache: Sessions) -> Duration {
    let deadline = Instant::now() + Duration::from_secs(3);
    for i in 0..MILLION {
        cache.expire_at(&format!("live:{i:015}"), deadline).await;
    }
    for i in 0..MILLION / 10 {
        cache.set(format!("stays:{i:014}"), Arc::new(0)).await;
    }
    assert!(Instant::now() < deadline, "the machine is too slow for this figure");
    tokio::time::sleep_until(deadline).await;
    while cache.len() > MILLION / 10 {
        sleep(Duration::from_millis(1)).await;
    }
    deadline.elapsed()
}

fn ms(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}
