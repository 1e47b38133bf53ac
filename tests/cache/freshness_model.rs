//! Random calls of a loader method at any time, compared with a naive model of the stale windows.

use std::time::Duration;

use fleeting::Freshness;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, advance};

use crate::freshness::{builder, load, run_background_tasks};

const SECOND: Duration = Duration::from_secs(1);

/// Result of a loader method at any time, compared with a model of a few lines.
#[tokio::test(start_paused = true)]
async fn freshness_agrees_with_a_naive_model() {
    let mut random = SmallRng::seed_from_u64(0x5eed_0150);
    for round in 0..200 {
        let [revalidate, if_error] = [0, 0].map(|_: u32| random.random_range(0..4_u32) * 2);
        let negative = random.random_range(0..3_u32);
        let builder =
            builder().stale_while_revalidate(revalidate * SECOND).stale_if_error(if_error * SECOND);
        let cache = match negative {
            0 => builder.build(),
            seconds => builder.negative_ttl(seconds * SECOND).build(),
        };
        // Value and its deadline; end of the kept error; end of the refresh backoff, and number of failures in a row.
        let (mut value, mut error) = (None::<(u32, Duration)>, Duration::ZERO);
        let (mut pause, mut fails, mut forgotten) = (Duration::ZERO, 0_u32, Duration::ZERO);
        let (start, mut next) = (Instant::now(), 0);
        for step in 0..60 {
            let now = start.elapsed();
            next += 1;
            let source = if random.random_bool(0.5) { Ok(next) } else { Err("down") };
            let ttl = random.random_range(0..3_u32);
            let got = load(&cache, ttl, source).await;
            run_background_tasks().await;
            let is_within =
                |window: u32| value.filter(|(_, expired_at)| now < *expired_at + window * SECOND);
            let may_retry = now >= pause || now >= forgotten;
            let mut fail = |error_until: &mut Duration| {
                if negative > 0 || revalidate > 0 {
                    let row = if now < forgotten { fails } else { 0 };
                    let wait = SECOND * 2_u32.pow(row).min(60);
                    *error_until = now + negative * SECOND;
                    (pause, fails) = (now + wait, row + 1);
                    forgotten = now + (2 * wait).max(negative * SECOND);
                }
            };
            let expected = if let Some((value, _)) = is_within(0) {
                Ok((value, Freshness::Fresh))
            } else if let Some((stale, _)) = is_within(revalidate) {
                if may_retry {
                    match source {
                        Ok(new) => {
                            value = Some((new, now + ttl * SECOND));
                            (error, pause, fails, forgotten) = Default::default();
                        }
                        Err(_) => fail(&mut error),
                    }
                }
                Ok((stale, Freshness::Stale))
            } else {
                let failed = is_within(if_error).map(|(stale, _)| (stale, Freshness::Stale));
                match source {
                    _ if now < error => failed.ok_or(()),
                    Ok(new) => {
                        value = Some((new, now + ttl * SECOND));
                        (error, pause, fails, forgotten) = Default::default();
                        Ok((new, Freshness::Loaded))
                    }
                    Err(_) => {
                        fail(&mut error);
                        failed.ok_or(())
                    }
                }
            };
            assert_eq!(got.map_err(|_| ()), expected, "round {round}, step {step}");
            if random.random_bool(0.05) {
                cache.remove(&1).await;
                value = None;
                (error, pause, fails, forgotten) = Default::default();
            }
            if random.random_bool(0.3) {
                cache.sweep().await;
            }
            advance(SECOND * random.random_range(0..3)).await;
        }
    }
}
