//! Lag of expirations: a thousand due entries among a million, and a million at once.

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
        "1,000 due among 1 M: lag p50 / p99 / worst",
        &format!("{} ms", shown.join(" / ")),
    );
}

pub(crate) fn mass_expirations(runtime: &Runtime) {
    let (mut alone, mut removed, mut received) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        for is_subscribed in [false, true] {
            let (all_removed, all_received) = runtime.block_on(async {
                let start = Instant::now();
                let cache = filled(Sweep::default(), million()).await;
                // Setting the deadlines takes less time than filling the cache.
                let deadline = Instant::now() + start.elapsed() + SECOND / 2;
                mass_expiration(cache, deadline, is_subscribed).await
            });
            if let Some(all_received) = all_received {
                removed.push(ms(all_removed));
                received.push(ms(all_received));
            } else {
                alone.push(ms(all_removed));
            }
        }
    }
    print(
        "mass-expiration",
        "1 M expire at once: all removed; with a lossless subscriber: all removed / all events received (medians of 3)",
        &format!("{:.0} ms; {:.0} / {:.0} ms", median(alone), median(removed), median(received)),
    );
}

/// Returns the sorted lags of a thousand values whose deadlines are spread over three seconds.
pub(crate) async fn lags(cache: &Sessions) -> Vec<Duration> {
    let mut events = cache.events_lossless(2_000);
    for i in 0..1_000 {
        cache.set_ex(format!("due:{i:016}"), Arc::new(0), 3 * i * MILLISECOND).await;
    }
    let mut lags = Vec::new();
    while lags.len() < 1_000 {
        let event = events.recv().await.expect("the stream has not ended");
        lags.push(event.lag().expect("it had a deadline"));
    }
    lags.sort();
    lags
}

/// Returns the time until a million values that expire at `deadline` are removed, next to a hundred thousand others;
/// and with a lossless subscriber, the time until it has received all events.
pub(crate) async fn mass_expiration(
    cache: Sessions,
    deadline: Instant,
    is_subscribed: bool,
) -> (Duration, Option<Duration>) {
    let expiring = million();
    for i in 0..expiring {
        cache.expire_at(&key(i), deadline).await;
    }
    for i in 0..expiring / 10 {
        cache.set(format!("other:{i:014}"), Arc::new(0)).await;
    }
    assert!(Instant::now() < deadline, "the machine is too slow for this benchmark");
    let listener = is_subscribed.then(|| {
        let mut events = cache.events_lossless(4_096);
        tokio::spawn(async move {
            for _ in 0..expiring {
                events.recv().await.expect("the stream has not ended");
            }
            deadline.elapsed()
        })
    });
    sleep_until(deadline).await;
    while cache.len() > expiring / 10 {
        sleep(MILLISECOND).await;
    }
    let removed = deadline.elapsed();
    let received = match listener {
        Some(listener) => Some(listener.await.expect("the subscriber does not panic")),
        None => None,
    };
    (removed, received)
}
