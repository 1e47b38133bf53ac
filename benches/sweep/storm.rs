//! How late what dies leaves: a thousand among a million, and a million at once.

use std::{sync::Arc, time::Duration};

use fleeting::Sweep;
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, sleep_until},
};

use super::{
    MILLISECOND, SECOND, Sessions, filled, key,
    measure::{median, ms, quantile},
    million, print,
};

pub(crate) fn lag(runtime: &Runtime) {
    let lags = runtime.block_on(async {
        let cache = filled(Sweep::default(), million()).await;
        sleep(2 * SECOND).await;
        lags(&cache).await
    });
    let shown = [0.5, 0.99, 1.0].map(|share| format!("{:.0}", ms(quantile(&lags, share))));
    print(
        "lag",
        "1,000 due beside 1 M: lag p50 / p99 / worst",
        &format!("{} ms", shown.join(" / ")),
    );
}

pub(crate) fn storms(runtime: &Runtime) {
    let (mut alone, mut gone, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        for is_told in [false, true] {
            let (all_gone, all_told) = runtime.block_on(async {
                let start = Instant::now();
                let cache = filled(Sweep::default(), million()).await;
                // What is to be done until then takes less than the filling did.
                let deadline = Instant::now() + start.elapsed() + SECOND / 2;
                storm(cache, deadline, is_told).await
            });
            if let Some(all_told) = all_told {
                gone.push(ms(all_gone));
                told.push(ms(all_told));
            } else {
                alone.push(ms(all_gone));
            }
        }
    }
    print(
        "storm",
        "1 M dead at once: all gone; with a lossless subscriber all gone / told (medians of 3)",
        &format!("{:.0} ms; {:.0} / {:.0} ms", median(alone), median(gone), median(told)),
    );
}

/// How late a thousand values leave whose deadlines are spread over three seconds, in order.
pub(crate) async fn lags(cache: &Sessions) -> Vec<Duration> {
    let mut events = cache.events_lossless(2_000);
    for i in 0..1_000 {
        cache.set_ex(format!("due:{i:016}"), Arc::new(0), 3 * i * MILLISECOND).await;
    }
    let mut lags = Vec::new();
    while lags.len() < 1_000 {
        let event = events.recv().await.expect("the cache lives");
        lags.push(event.lag().expect("it had a deadline"));
    }
    lags.sort();
    lags
}

/// How long it takes until a million values that die at `deadline` are gone, beside a hundred thousand others; and
/// until a lossless subscriber has been told of all, where there is one.
pub(crate) async fn storm(
    cache: Sessions,
    deadline: Instant,
    is_told: bool,
) -> (Duration, Option<Duration>) {
    let dying = million();
    for i in 0..dying {
        cache.expire_at(&key(i), deadline).await;
    }
    for i in 0..dying / 10 {
        cache.set(format!("stays:{i:014}"), Arc::new(0)).await;
    }
    assert!(Instant::now() < deadline, "the machine is too slow for this figure");
    let listener = is_told.then(|| {
        let mut events = cache.events_lossless(4_096);
        tokio::spawn(async move {
            for _ in 0..dying {
                events.recv().await.expect("the cache lives");
            }
            deadline.elapsed()
        })
    });
    sleep_until(deadline).await;
    while cache.len() > dying / 10 {
        sleep(MILLISECOND).await;
    }
    let gone = deadline.elapsed();
    let told = match listener {
        Some(listener) => Some(listener.await.expect("it only listens")),
        None => None,
    };
    (gone, told)
}
