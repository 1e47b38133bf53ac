//! Concurrent writers at the bound. One writer is compared with the oracle, in `model.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Cache, Cause};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

/// The weight may exceed the bound only by the entries that concurrent writers are writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn concurrent_writers_stay_within_the_bound() {
    const WRITERS: u64 = 8;
    for bound in [1_u64, 10, 1_000] {
        for by_weight in [false, true] {
            let builder = Cache::builder().publish(ALL);
            let cache = match by_weight {
                false => builder.max_entries(bound as usize).build(),
                true => builder.max_weight(3 * bound, |_, value: &u64| (*value % 4) as u32).build(),
            };
            let most = if by_weight { 3 * bound } else { bound };
            let above = if by_weight { 3 * WRITERS } else { WRITERS };
            let mut events = cache.events_lossless(1_000);
            let over = Arc::new(AtomicBool::new(false));
            let watcher = tokio::spawn({
                let (cache, over) = (cache.clone(), over.clone());
                async move {
                    while !over.load(Relaxed) {
                        // The shards are read one after the other, so an entry that is moved in between may count
                        // twice.
                        let weight = cache.weight();
                        assert!(weight <= most + above, "{weight} of {most}");
                        tokio::task::yield_now().await;
                    }
                }
            });
            let event_counter = tokio::spawn(async move {
                let (mut count, mut evicted) = (0_u64, 0_u64);
                while let Some(event) = events.recv().await {
                    count += 1;
                    evicted += u64::from(event.cause == Cause::Evicted);
                }
                (count, evicted)
            });
            let writers = (0..WRITERS).map(|writer| {
                let cache = cache.clone();
                tokio::spawn(async move {
                    let mut random = SmallRng::seed_from_u64(0x5eed_0015 + writer);
                    let mut written = 0;
                    for number in 0..5_000_u64 {
                        let key = random.random_range(0..4 * bound);
                        match random.random_range(0..20) {
                            0 => _ = cache.remove(&key).await,
                            1 => _ = cache.get(&key).await,
                            2 => _ = cache.update(&key, |value| *value += 1).await,
                            3 => {
                                let ttl = Duration::from_micros(random.random_range(0..3_000));
                                cache.set_ex(key, number, ttl).await;
                                written += 1;
                            }
                            _ => {
                                cache.set(key, number).await;
                                written += 1;
                            }
                        }
                    }
                    written
                })
            });
            let written = futures::future::join_all(writers).await;
            let written: u64 = written.into_iter().map(|writer| writer.expect("no panic")).sum();
            over.store(true, Relaxed);
            watcher.await.expect("the watcher does not panic");
            assert!(cache.weight() <= most, "{} of {most}", cache.weight());
            if !by_weight {
                assert_eq!(cache.weight(), cache.len() as u64);
            }
            let stats = cache.stats();
            let weight: u64 =
                cache.values().map(|value| if by_weight { value % 4 } else { 1 }).sum();
            assert!(weight <= cache.weight());
            let resident = cache.len() as u64;
            cache.clear().await;
            assert_eq!(cache.weight(), 0, "each entry is counted exactly once");
            cache.shutdown().await;
            let (count, evicted) = event_counter.await.expect("no panic");
            assert_eq!(
                count, written,
                "each written value has one event; {resident} resident at the end"
            );
            assert_eq!(evicted, stats.evicted);
        }
    }
}
