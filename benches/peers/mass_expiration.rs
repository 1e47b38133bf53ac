//! Mass expiration: a million entries expire at one instant, next to a hundred thousand live ones that a task reads.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    candidates::{ByHand, Candidate, Fleeting, Moka, Retainer},
    head, median,
    ops::TTL,
};

/// Results of one mass expiration, in the units of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct MassExpiration {
    pub(crate) name: &'static str,
    /// Time until all expired entries are removed.
    pub(crate) removed_ms: f64,
    /// Time until a lossless subscriber has received every event.
    pub(crate) received_ms: Option<f64>,
    pub(crate) p999_us: f64,
    pub(crate) worst_us: f64,
    pub(crate) is_stopped: bool,
}

/// Time after which a candidate is stopped if entries remain.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn table(quick: bool) -> (String, Vec<MassExpiration>) {
    let (due, rounds) = if quick { (20_000, 1) } else { (1_000_000, 5) };
    let mut results: Vec<Vec<MassExpiration>> = vec![Vec::new(); 4];
    for _ in 0..rounds {
        results[0]
            .push(mass_expiration("DashMap + now, retain", ByHand::new(due), due, None).await);
        results[1].push(mass_expiration("moka", Moka::new(due), due, None).await);
        results[2].push(mass_expiration("fleeting", Fleeting::new(due), due, None).await);
        let fleeting = Fleeting::new(due);
        let mut events = fleeting.0.events_lossless(4_096);
        let received = tokio::spawn(async move {
            for _ in 0..due {
                events.recv().await.expect("the stream has not ended");
            }
            Instant::now()
        });
        results[3].push(
            mass_expiration("fleeting, lossless subscriber", fleeting, due, Some(received)).await,
        );
    }
    // Once, and last: a stopped candidate may continue to work, and would slow the others.
    results.push(vec![mass_expiration("retainer", Retainer::new(due), due, None).await]);
    let results: Vec<MassExpiration> = results.into_iter().map(middle).collect();
    let mut page = format!(
        "\n## Mass expiration\n\n{due} entries expire at one instant, next to {} live ones that a task reads in a \
         loop. Medians of {rounds} runs; one run of retainer, which is stopped if entries remain after \
         {TIMEOUT:?}.\n\n",
        due / 10
    );
    let heads = ["all removed", "subscriber has all events", "reader's p99.9", "reader's worst"];
    head(&mut page, "", &heads);
    for result in &results {
        if result.is_stopped {
            writeln!(page, "| {} | stopped | | stopped | stopped |", result.name)
                .expect("writing to a String cannot fail");
            continue;
        }
        let received = result.received_ms.map_or("".into(), |received| format!("{received:.0} ms"));
        writeln!(
            page,
            "| {} | {:.0} ms | {received} | {:.1} µs | {:.0} µs |",
            result.name, result.removed_ms, result.p999_us, result.worst_us
        )
        .expect("writing to a String cannot fail");
    }
    (page, results)
}

fn middle(results: Vec<MassExpiration>) -> MassExpiration {
    let of = |value: fn(&MassExpiration) -> f64| median(results.iter().map(value).collect());
    MassExpiration {
        name: results[0].name,
        removed_ms: of(|s| s.removed_ms),
        received_ms: results[0]
            .received_ms
            .map(|_| of(|s| s.received_ms.expect("each run has a subscriber"))),
        p999_us: of(|s| s.p999_us),
        worst_us: of(|s| s.worst_us),
        is_stopped: results.iter().all(|result| result.is_stopped),
    }
}

async fn mass_expiration<S: Candidate>(
    name: &'static str,
    candidate: S,
    due: usize,
    received: Option<tokio::task::JoinHandle<Instant>>,
) -> MassExpiration {
    let live = due / 10;
    let live_keys: Arc<[String]> = (0..live).map(|i| format!("live:{i:015}")).collect();
    for key in live_keys.iter() {
        candidate.set_ex(key.clone(), Arc::new(1), TTL).await;
    }
    let deadline = Instant::now() + Duration::from_secs(if due > 100_000 { 8 } else { 1 });
    for i in 0..due {
        let ttl = deadline - Instant::now();
        candidate.set_ex(format!("due:{i:016}"), Arc::new(1), ttl).await;
    }
    assert!(Instant::now() + Duration::from_millis(500) < deadline, "filling {name} took too long");
    let sweeper = candidate.sweeper();
    let stop = Arc::new(AtomicBool::new(false));
    sleep_until(deadline - Duration::from_millis(200)).await;
    let reader = tokio::spawn(read(candidate.clone(), live_keys, stop.clone()));
    sleep_until(deadline).await;
    let all_removed = async {
        while candidate.len().await > live {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let is_stopped = timeout_at(deadline + TIMEOUT, all_removed).await.is_err();
    let removed = deadline.elapsed();
    let received = match received {
        Some(received) => Some(received.await.expect("the subscriber does not panic") - deadline),
        None => None,
    };
    stop.store(true, Relaxed);
    if let Some(sweeper) = sweeper {
        sweeper.abort();
    }
    // The reader of a stopped candidate may still wait for a lock, so its latency is at least the timeout.
    let latencies =
        if is_stopped { None } else { Some(reader.await.expect("the reader does not panic")) };
    let mut latencies = latencies.unwrap_or_else(|| vec![TIMEOUT.as_nanos() as u64]);
    latencies.sort_unstable();
    let us = |latency: u64| latency as f64 / 1e3;
    let result = MassExpiration {
        name,
        removed_ms: 1e3 * removed.as_secs_f64(),
        received_ms: received.map(|received| 1e3 * received.as_secs_f64()),
        p999_us: us(latencies[latencies.len() * 999 / 1_000]),
        worst_us: us(latencies[latencies.len() - 1]),
        is_stopped,
    };
    eprintln!("{result:?} in {} reads", latencies.len());
    result
}

/// Returns the duration of each read, from shortly before the deadline until all entries are removed.
async fn read<S: Candidate>(candidate: S, keys: Arc<[String]>, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut latencies = Vec::with_capacity(30_000_000);
    for key in keys.iter().cycle() {
        let start = Instant::now();
        let value = candidate.get(key).await;
        latencies.push(start.elapsed().as_nanos() as u64);
        assert!(value.is_some(), "{key} is live");
        if stop.load(Relaxed) || latencies.len() == latencies.capacity() {
            break;
        }
    }
    latencies
}
