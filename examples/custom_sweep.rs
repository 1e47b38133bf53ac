//! How dead values leave: the settings of the sweeper, and what its reports say.

use std::time::Duration;

use tokio::time::{advance, sleep};

use fleeting::{Cache, Sweep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // Each second it looks at a quarter of the entries, so the dead stay for four seconds at most.
    // Where half of what it saw had to go, it looks at the next quarter at once, unless that would
    // take more than a fifth of the time.
    let sweep = Sweep::default().every(SECOND).sample(0.25).repeat_at(0.5).budget(0.2);
    let cache = filled(sweep, 9_000, 1_000).await;
    for second in 1..=5 {
        sleep(SECOND).await;
        println!("after {second} s {:>5} in memory, {} live", cache.len(), cache.live_len());
    }
    assert_eq!(cache.len(), cache.live_len());

    // No task: the program says when. What is dead can't be read all the same, swept or not.
    let sweep = Sweep::manual().sample(0.25).repeat_at(0.5);
    for (live, dying) in [(9_000, 1_000), (1_000, 9_000)] {
        println!("\n{dying} of 10000 are dead");
        let cache = filled(sweep, live, dying).await;
        advance(SECOND).await;
        assert_eq!((cache.len(), cache.live_len()), (10_000, live as usize));
        for number in 1..=4 {
            let report = cache.sweep().await;
            println!(
                "sweep {number}: passes {}, looked at {:>5}, expired {:>4}",
                report.passes, report.looked_at, report.expired
            );
        }
        assert_eq!(cache.len(), cache.live_len());
    }
}

/// A cache with `live` entries for ever, and `dying` ones for a second.
async fn filled(sweep: Sweep, live: u32, dying: u32) -> Cache<u32, ()> {
    let cache = Cache::builder().sweep(sweep).build();
    for key in 0..live {
        cache.set(key, ()).await;
    }
    for key in live..live + dying {
        cache.set_ex(key, (), SECOND).await;
    }
    // The first look after a cache has grown is at everything.
    cache.sweep().await;
    cache
}
