//! A million entries dead at one instant, beside a hundred thousand live ones that a reader keeps reading.

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
    head, median,
    ops::TTL,
    subjects::{ByHand, Fleeting, Moka, Retainer, Subject},
};

/// One storm. Milliseconds and microseconds, as they are shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storm {
    pub(crate) name: &'static str,
    /// Until all dead ones are gone.
    pub(crate) gone_ms: f64,
    /// Until a lossless subscriber has every event.
    pub(crate) told_ms: Option<f64>,
    pub(crate) p999_us: f64,
    pub(crate) worst_us: f64,
    pub(crate) given_up: bool,
}

/// Where a subject has not let all leave by then, it is given up.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn table(quick: bool) -> (String, Vec<Storm>) {
    let (dead, rounds) = if quick { (20_000, 1) } else { (1_000_000, 5) };
    let mut storms: Vec<Vec<Storm>> = vec![Vec::new(); 4];
    for _ in 0..rounds {
        storms[0].push(storm("DashMap + now, retain", ByHand::new(dead), dead, None).await);
        storms[1].push(storm("moka", Moka::new(dead), dead, None).await);
        storms[2].push(storm("fleeting", Fleeting::new(dead), dead, None).await);
        let fleeting = Fleeting::new(dead);
        let mut events = fleeting.0.events_lossless(4_096);
        let told = tokio::spawn(async move {
            for _ in 0..dead {
                events.recv().await.expect("the cache lives");
            }
            Instant::now()
        });
        storms[3].push(storm("fleeting, told lossless", fleeting, dead, Some(told)).await);
    }
    // Once and at last: what is given up may go on working, and would be in the way of others.
    storms.push(vec![storm("retainer", Retainer::new(dead), dead, None).await]);
    let storms: Vec<Storm> = storms.into_iter().map(middle).collect();
    let mut page = format!(
        "\n## The storm\n\n{dead} entries die at one instant beside {} live ones, which a task keeps \
         reading. Medians of {rounds} storms; of retainer one, and what is not gone after {PATIENCE:?} is \
         given up.\n\n",
        dead / 10
    );
    let heads = ["all gone", "subscriber has all", "reader's p99.9", "reader's worst"];
    head(&mut page, "", &heads);
    for storm in &storms {
        if storm.given_up {
            writeln!(page, "| {} | given up | | given up | given up |", storm.name)
                .expect("a string takes all");
            continue;
        }
        let told = storm.told_ms.map_or("".into(), |told| format!("{told:.0} ms"));
        writeln!(
            page,
            "| {} | {:.0} ms | {told} | {:.1} µs | {:.0} µs |",
            storm.name, storm.gone_ms, storm.p999_us, storm.worst_us
        )
        .expect("a string takes all");
    }
    (page, storms)
}

fn middle(storms: Vec<Storm>) -> Storm {
    let of = |figure: fn(&Storm) -> f64| median(storms.iter().map(figure).collect());
    Storm {
        name: storms[0].name,
        gone_ms: of(|s| s.gone_ms),
        told_ms: storms[0].told_ms.map(|_| of(|s| s.told_ms.expect("each round is told"))),
        p999_us: of(|s| s.p999_us),
        worst_us: of(|s| s.worst_us),
        given_up: storms.iter().all(|storm| storm.given_up),
    }
}

async fn storm<S: Subject>(
    name: &'static str,
    subject: S,
    dead: usize,
    told: Option<tokio::task::JoinHandle<Instant>>,
) -> Storm {
    let live = dead / 10;
    let live_keys: Arc<[String]> = (0..live).map(|i| format!("live:{i:015}")).collect();
    for key in live_keys.iter() {
        subject.set_ex(key.clone(), Arc::new(1), TTL).await;
    }
    let deadline = Instant::now() + Duration::from_secs(if dead > 100_000 { 8 } else { 1 });
    for i in 0..dead {
        let ttl = deadline - Instant::now();
        subject.set_ex(format!("dead:{i:015}"), Arc::new(1), ttl).await;
    }
    assert!(Instant::now() + Duration::from_millis(500) < deadline, "{name} was too slow to fill");
    let sweeper = subject.sweeper();
    let stop = Arc::new(AtomicBool::new(false));
    sleep_until(deadline - Duration::from_millis(200)).await;
    let reader = tokio::spawn(read(subject.clone(), live_keys, stop.clone()));
    sleep_until(deadline).await;
    let all_gone = async {
        while subject.len().await > live {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let given_up = timeout_at(deadline + PATIENCE, all_gone).await.is_err();
    let gone = deadline.elapsed();
    let told = match told {
        Some(told) => Some(told.await.expect("it only listens") - deadline),
        None => None,
    };
    stop.store(true, Relaxed);
    if let Some(sweeper) = sweeper {
        sweeper.abort();
    }
    // A reader that still waits for a lock has waited since then.
    let latencies = if given_up { None } else { Some(reader.await.expect("it only reads")) };
    let mut latencies = latencies.unwrap_or_else(|| vec![PATIENCE.as_nanos() as u64]);
    latencies.sort_unstable();
    let us = |latency: u64| latency as f64 / 1e3;
    let storm = Storm {
        name,
        gone_ms: 1e3 * gone.as_secs_f64(),
        told_ms: told.map(|told| 1e3 * told.as_secs_f64()),
        p999_us: us(latencies[latencies.len() * 999 / 1_000]),
        worst_us: us(latencies[latencies.len() - 1]),
        given_up,
    };
    eprintln!("{storm:?} in {} reads", latencies.len());
    storm
}

/// How long each read took, from a little before the storm to its end.
async fn read<S: Subject>(subject: S, keys: Arc<[String]>, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut latencies = Vec::with_capacity(30_000_000);
    for key in keys.iter().cycle() {
        let start = Instant::now();
        let value = subject.get(key).await;
        latencies.push(start.elapsed().as_nanos() as u64);
        assert!(value.is_some(), "{key} lives");
        if stop.load(Relaxed) || latencies.len() == latencies.capacity() {
            break;
        }
    }
    latencies
}
