//! Sweeper settings and sweep reports: a background task with a bound on staleness, then manual sweeps.

use std::time::Duration;

use tokio::time::{advance, sleep};

use fleeting::{Cache, Sweep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // Each sweep examines a quarter of the entries, so expired entries stay in memory for at most four seconds. If at
    // least half of the examined entries have expired, the pass is repeated immediately, until the sweeper has used a
    // fifth of the time.
    let sweep = Sweep::default().every(SECOND).sample(0.25).repeat_at(0.5).budget(0.2);
    let cache = filled(sweep, 9_000, 1_000).await;
    for second in 1..=5 {
        sleep(SECOND).await;
        println!("after {second} s {:>5} in memory, {} live", cache.len(), cache.live_len());
    }
    assert_eq!(cache.len(), cache.live_len());

    // No background task: the program starts each sweep. Expired entries are not readable, swept or not.
    let sweep = Sweep::manual().sample(0.25).repeat_at(0.5);
    for (live, expired) in [(9_000, 1_000), (1_000, 9_000)] {
        println!("\n{expired} of 10000 have expired");
        let cache = filled(sweep, live, expired).await;
        advance(SECOND).await;
        assert_eq!((cache.len(), cache.live_len()), (10_000, live as usize));
        for number in 1..=4 {
            let report = cache.sweep().await;
            println!(
                "sweep {number}: passes {}, examined {:>5}, expired {:>4}",
                report.passes, report.looked_at, report.expired
            );
        }
        assert_eq!(cache.len(), cache.live_len());
    }
}

/// Returns a cache with `live` persistent entries and `expiring` entries whose TTL is one second.
async fn filled(sweep: Sweep, live: u32, expiring: u32) -> Cache<u32, ()> {
    let cache = Cache::builder().sweep(sweep).build();
    for key in 0..live {
        cache.set(key, ()).await;
    }
    for key in live..live + expiring {
        cache.set_ex(key, (), SECOND).await;
    }
    // The first sweep after a cache has grown examines all entries. It must not appear in the printed reports.
    cache.sweep().await;
    cache
}
