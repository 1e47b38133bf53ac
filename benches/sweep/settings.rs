//! Costs and delays of other settings of the sweeper.

use std::{sync::Arc, time::Duration};

use fleeting::Sweep;
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep},
};

use super::{
    LONG, SECOND, filled, key,
    load::share_of_a_core,
    mass_expiration::{lags, mass_expiration},
    measure::{ms, quantile},
    million,
};

struct Setting {
    every: u64,
    sample: f64,
    repeat_at: f64,
    budget: f64,
}

pub(crate) fn settings(runtime: &Runtime) {
    println!(
        "\n| every | sample | repeat at | budget | bound on staleness | 1 M live, none due \
         | 1 M live, 8,000 due per second | lag of 1,000 due among 1 M: p50 / p99 / worst \
         | 1 M expire at once: all removed |"
    );
    println!("|{}", " --- |".repeat(9));
    let rotations = [(1_000, 1.0), (250, 1.0), (100, 1.0), (50, 1.0), (20, 1.0), (100, 0.1)];
    for (every, sample) in rotations {
        runtime.block_on(measure(Setting { every, sample, repeat_at: 0.1, budget: 1.0 }));
    }
    for (repeat_at, budget) in [(0.5, 1.0), (0.1, 0.5), (0.1, 0.1)] {
        runtime.block_on(measure(Setting { every: 100, sample: 1.0, repeat_at, budget }));
    }
}

async fn measure(setting: Setting) {
    let every = Duration::from_millis(setting.every);
    let sweep = Sweep::default()
        .every(every)
        .sample(setting.sample)
        .repeat_at(setting.repeat_at)
        .budget(setting.budget);
    let cache = filled(sweep, million()).await;
    // The first sweep after growth examines all entries.
    sleep(2 * every + SECOND).await;
    let idle = share_of_a_core(5 * SECOND).await;
    for i in 0..million() {
        let ttl = Duration::from_millis(2_000 + (i as u64 * 7_919) % 125_000);
        cache.expire(&key(i), ttl).await;
    }
    sleep(3 * SECOND).await;
    let busy = share_of_a_core(5 * SECOND).await;
    for i in 0..million() {
        cache.set_ex(key(i), Arc::new(0), LONG).await;
    }
    sleep(2 * every + SECOND).await;
    let lags = lags(&cache).await;
    let deadline = Instant::now() + 3 * SECOND;
    let (removed, _) = mass_expiration(cache, deadline, false).await;
    println!(
        "| {} ms | {} | {} | {} | {:.1} s | {:.2} % | {:.2} % | {:.0} / {:.0} / {:.0} ms | {:.0} ms |",
        setting.every,
        setting.sample,
        setting.repeat_at,
        setting.budget,
        every.as_secs_f64() * (1.0 / setting.sample).ceil(),
        100.0 * idle,
        100.0 * busy,
        ms(quantile(&lags, 0.5)),
        ms(quantile(&lags, 0.99)),
        ms(quantile(&lags, 1.0)),
        ms(removed),
    );
}
