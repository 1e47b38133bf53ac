//! The share of a core that the sweeper takes, as the kernel counts the processor time of this process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fleeting::{Cache, LosslessEvents, Sweep};
use tokio::{
    runtime::{Handle, Runtime},
    time::{Instant, sleep, sleep_until},
};

use super::{
    LONG, MILLISECOND, SECOND, Sessions, filled, key,
    measure::{is_quick, median, process_time, resident, show, thread_time},
    million, print,
};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn idle(runtime: &Runtime) {
    let share = runtime.block_on(async {
        let _cache = filled(Sweep::default(), million()).await;
        // Its first sweeps after growing look at everything.
        sleep(3 * SECOND).await;
        median_share(async || ()).await
    });
    print("idle", "1 M live, none due", &percent(share));
}

pub(crate) fn busy(runtime: &Runtime) {
    // Milliseconds over which deadlines are spread: 8,000 of a million a second.
    const SPREAD: u64 = 125_000;

    let share = runtime.block_on(async {
        let cache: Sessions = Cache::new();
        let start = Instant::now() + 3 * SECOND;
        let dies_after = |i: usize| MILLISECOND * ((i as u64 * 7_919) % SPREAD) as u32;
        for i in 0..million() {
            cache.set_ex(key(i), Arc::new(0), start + dies_after(i) - Instant::now()).await;
        }
        sleep_until(start + SECOND).await;
        let mut filled_up_to = Duration::ZERO;
        median_share(async || {
            let dead = start.elapsed().saturating_sub(MILLISECOND);
            for i in 0..million() {
                if (filled_up_to..dead).contains(&dies_after(i)) {
                    let deadline = start + dies_after(i) + SPREAD as u32 * MILLISECOND;
                    cache.set_ex(key(i), Arc::new(0), deadline - Instant::now()).await;
                }
            }
            filled_up_to = dead;
        })
        .await
    });
    print("busy", "1 M live, 8,000 due a second", &percent(share));
}

pub(crate) fn twenty(runtime: &Runtime) {
    let (none, awake, share) = runtime.block_on(async {
        let none = median_share(async || ()).await;
        let mut caches = Vec::new();
        for _ in 0..20 {
            caches.push(filled(Sweep::default(), 1_000).await);
        }
        sleep(2 * SECOND).await;
        let awake = median_share(async || ()).await;
        // After so many ticks for nothing, sweepers rest.
        sleep(40 * SECOND).await;
        (none, awake, median_share(async || ()).await)
    });
    let shown = format!(
        "{} ({} in the first half minute, and {} without them)",
        percent(share),
        percent(awake),
        percent(none)
    );
    print("twenty", "twenty idle caches of 1,000 entries each, nothing due for minutes", &shown);
}

pub(crate) fn sliding(runtime: &Runtime) {
    let (whole, touches) = slide(runtime, Sweep::default());
    let (manual, manual_touches) = slide(runtime, Sweep::manual());
    let shown = format!(
        "{} (the touches take {}, and {} without a sweeper)",
        percent((whole - touches) - (manual - manual_touches)),
        percent(touches),
        percent(manual_touches),
    );
    print(
        "sliding",
        "1 M, each touched every 10 s with a TTL of 30 s: what the sweeper adds",
        &shown,
    );
}

pub(crate) fn hundred_million(runtime: &Runtime) {
    let count = std::env::args().find_map(|word| word.parse().ok());
    let entries: u64 = count.unwrap_or(if is_quick() { 1_000_000 } else { 100_000_000 });
    // As many a second of fewer.
    let spread = HOUR.mul_f64(entries as f64 / 1e8);
    let cache: Cache<u64, u64> = runtime.block_on(async { Cache::new() });

    // As if they had come one after the other: none dies before all are there, then as many each second.
    let (start, first) = (Instant::now(), entries / 20);
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    let fill = async |range: std::ops::Range<u64>, begin: Instant| {
        for i in range {
            let place = i.wrapping_mul(golden) as f64 / 2f64.powi(64);
            cache.set_ex(i, i, begin + spread.mul_f64(place) - Instant::now()).await;
        }
    };
    runtime.block_on(fill(0..first, start + LONG));
    let begin = start + 50 * start.elapsed() + 5 * SECOND;
    runtime.block_on(fill(0..entries, begin));
    assert!(Instant::now() < begin, "it became slow: {:?} for all", start.elapsed());

    let heard = Arc::new(Heard::default());
    let listener = {
        let (events, heard) = (cache.events_lossless(65_536), heard.clone());
        let handle = runtime.handle().clone();
        thread::spawn(move || handle.block_on(listen(events, &heard)))
    };
    let time = if is_quick() { 5 } else { 60 } * SECOND;
    let (share, whole) = runtime.block_on(async {
        sleep_until(begin + 5 * SECOND).await;
        heard.counts.store(true, Relaxed);
        let start = Instant::now();
        let share = share_of_a_core(time).await;
        heard.counts.store(false, Relaxed);
        (share, start.elapsed())
    });
    let megabytes = resident();
    drop(cache);
    let listening = listener.join().expect("it only listens");
    let shown = format!(
        "{} of a core (of that {} the subscriber's), worst lag {}, {megabytes:.0} MB, {:.0} a second",
        percent(share),
        percent(listening.as_secs_f64() / whole.as_secs_f64()),
        show(Duration::from_nanos(heard.worst_lag.load(Relaxed))),
        heard.events.load(Relaxed) as f64 / whole.as_secs_f64(),
    );
    let millions = entries as f64 / 1e6;
    print(
        "hundred-million",
        &format!("{millions} M entries of u64, {spread:.0?} to live, spread evenly"),
        &shown,
    );
}

/// The share of one core that the process uses while this task only waits.
pub(crate) async fn share_of_a_core(time: Duration) -> f64 {
    let time = if is_quick() { time / 10 } else { time };
    let (start, before) = (Instant::now(), process_time());
    sleep(time).await;
    (process_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// The middle of three, before each of which `prepare` has its turn.
async fn median_share(mut prepare: impl AsyncFnMut()) -> f64 {
    let mut shares = Vec::new();
    for _ in 0..3 {
        prepare().await;
        shares.push(share_of_a_core(4 * SECOND).await);
    }
    median(shares)
}

/// The shares of a core that the process takes, and that the touches alone take.
fn slide(runtime: &Runtime, sweep: Sweep) -> (f64, f64) {
    let keys: Arc<[String]> = (0..million()).map(key).collect();
    let cache = runtime.block_on(async {
        let cache: Sessions = Cache::builder().sweep(sweep).build();
        for key in keys.iter() {
            cache.set_ex(key.clone(), Arc::new(0), 30 * SECOND).await;
        }
        cache
    });
    let (stop, spent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let toucher = {
        let (stop, spent, handle) = (stop.clone(), spent.clone(), runtime.handle().clone());
        thread::spawn(move || touch(&handle, &cache, &keys, &stop, &spent))
    };
    let shares = runtime.block_on(async {
        sleep(if is_quick() { SECOND } else { 5 * SECOND }).await;
        let (start, before) = (Instant::now(), spent.load(Relaxed));
        let whole = share_of_a_core(8 * SECOND).await;
        let touches = Duration::from_nanos(spent.load(Relaxed) - before);
        (whole, touches.as_secs_f64() / start.elapsed().as_secs_f64())
    });
    stop.store(true, Relaxed);
    toucher.join().expect("it only touches");
    shares
}

/// Touches a ten-thousandth of the keys each millisecond, on a thread of its own, and notes what that has cost.
fn touch(handle: &Handle, cache: &Sessions, keys: &[String], stop: &AtomicBool, spent: &AtomicU64) {
    let mut next = std::time::Instant::now();
    for chunk in keys.chunks((keys.len() / 10_000).max(1)).cycle() {
        if stop.load(Relaxed) {
            return;
        }
        handle.block_on(async {
            for key in chunk {
                let value = cache.get_ex(key, 30 * SECOND).await;
                assert!(value.is_some(), "a live session is lost");
            }
        });
        spent.store(thread_time().as_nanos() as u64, Relaxed);
        next += MILLISECOND;
        thread::sleep(next.saturating_duration_since(std::time::Instant::now()));
    }
}

/// What a subscriber was told while it counted.
#[derive(Default)]
struct Heard {
    counts: AtomicBool,
    events: AtomicUsize,
    /// Nanoseconds.
    worst_lag: AtomicU64,
}

/// Returns the processor time that it took while it counted.
async fn listen(mut events: LosslessEvents<u64, u64>, heard: &Heard) -> Duration {
    let mut counted = Duration::ZERO;
    let mut since = None;
    while let Some(event) = events.recv().await {
        match (heard.counts.load(Relaxed), since) {
            (true, None) => since = Some(thread_time()),
            (false, Some(before)) => {
                counted += thread_time() - before;
                since = None;
            }
            _ => {}
        }
        if since.is_some() {
            heard.events.fetch_add(1, Relaxed);
            let lag = event.lag().expect("it had a deadline");
            heard.worst_lag.fetch_max(lag.as_nanos() as u64, Relaxed);
        }
    }
    // The stream may end before it hears that it counts no more.
    counted + since.map_or(Duration::ZERO, |before| thread_time() - before)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
