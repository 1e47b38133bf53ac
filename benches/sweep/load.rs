//! Share of a core that the sweeper uses, by the processor time of this process.

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
        // The first sweeps after growth examine all entries.
        sleep(3 * SECOND).await;
        median_share(async || ()).await
    });
    print("idle", "1 M live, none due", &percent(share));
}

pub(crate) fn busy(runtime: &Runtime) {
    // Range of the deadlines in milliseconds: 8,000 of a million per second.
    const SPREAD: u64 = 125_000;

    let share = runtime.block_on(async {
        let cache: Sessions = Cache::new();
        let start = Instant::now() + 3 * SECOND;
        let expires_after = |i: usize| MILLISECOND * ((i as u64 * 7_919) % SPREAD) as u32;
        for i in 0..million() {
            cache.set_ex(key(i), Arc::new(0), start + expires_after(i) - Instant::now()).await;
        }
        sleep_until(start + SECOND).await;
        let mut filled_up_to = Duration::ZERO;
        median_share(async || {
            let due_before = start.elapsed().saturating_sub(MILLISECOND);
            for i in 0..million() {
                if (filled_up_to..due_before).contains(&expires_after(i)) {
                    let deadline = start + expires_after(i) + SPREAD as u32 * MILLISECOND;
                    cache.set_ex(key(i), Arc::new(0), deadline - Instant::now()).await;
                }
            }
            filled_up_to = due_before;
        })
        .await
    });
    print("busy", "1 M live, 8,000 due per second", &percent(share));
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
        // After 300 ticks without work, sweepers rest for several ticks at a time.
        sleep(40 * SECOND).await;
        (none, awake, median_share(async || ()).await)
    });
    let shown = format!(
        "{} ({} in the first half minute; {} without these caches)",
        percent(share),
        percent(awake),
        percent(none)
    );
    print("twenty", "twenty idle caches of 1,000 entries each, no entry due for minutes", &shown);
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
        "1 M, each touched every 10 s with a TTL of 30 s: the share of the sweeper",
        &shown,
    );
}

pub(crate) fn hundred_million(runtime: &Runtime) {
    let count = std::env::args().find_map(|word| word.parse().ok());
    let entries: u64 = count.unwrap_or(if is_quick() { 1_000_000 } else { 100_000_000 });
    // With fewer entries, the same number is due per second.
    let spread = HOUR.mul_f64(entries as f64 / 1e8);
    let cache: Cache<u64, u64> = runtime.block_on(async { Cache::new() });

    // Deadlines as of entries that were added one after the other: none expires before all are added, then the same
    // number per second.
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
    assert!(Instant::now() < begin, "filling became slow: {:?} in total", start.elapsed());

    let received = Arc::new(Received::default());
    let listener = {
        let (events, received) = (cache.events_lossless(65_536), received.clone());
        let handle = runtime.handle().clone();
        thread::spawn(move || handle.block_on(listen(events, &received)))
    };
    let time = if is_quick() { 5 } else { 60 } * SECOND;
    let (share, whole) = runtime.block_on(async {
        sleep_until(begin + 5 * SECOND).await;
        received.counts.store(true, Relaxed);
        let start = Instant::now();
        let share = share_of_a_core(time).await;
        received.counts.store(false, Relaxed);
        (share, start.elapsed())
    });
    let megabytes = resident();
    drop(cache);
    let listening = listener.join().expect("the subscriber does not panic");
    let shown = format!(
        "{} of a core (including {} for the subscriber), worst lag {}, {megabytes:.0} MB, {:.0} per second",
        percent(share),
        percent(listening.as_secs_f64() / whole.as_secs_f64()),
        show(Duration::from_nanos(received.worst_lag.load(Relaxed))),
        received.events.load(Relaxed) as f64 / whole.as_secs_f64(),
    );
    let millions = entries as f64 / 1e6;
    print(
        "hundred-million",
        &format!("{millions} M entries of u64, evenly spread deadlines within {spread:.0?}"),
        &shown,
    );
}

/// Returns the share of one core that the process uses while this task only waits.
pub(crate) async fn share_of_a_core(time: Duration) -> f64 {
    let time = if is_quick() { time / 10 } else { time };
    let (start, before) = (Instant::now(), process_time());
    sleep(time).await;
    (process_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// Returns the median of three measurements. Calls `prepare` before each.
async fn median_share(mut prepare: impl AsyncFnMut()) -> f64 {
    let mut shares = Vec::new();
    for _ in 0..3 {
        prepare().await;
        shares.push(share_of_a_core(4 * SECOND).await);
    }
    median(shares)
}

/// Returns the shares of a core that the process and the touches alone use.
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
    toucher.join().expect("the toucher does not panic");
    shares
}

/// Touches a ten-thousandth of the keys every millisecond, on a separate thread, and records its processor time.
fn touch(handle: &Handle, cache: &Sessions, keys: &[String], stop: &AtomicBool, spent: &AtomicU64) {
    let mut next = std::time::Instant::now();
    for chunk in keys.chunks((keys.len() / 10_000).max(1)).cycle() {
        if stop.load(Relaxed) {
            return;
        }
        handle.block_on(async {
            for key in chunk {
                let value = cache.get_ex(key, 30 * SECOND).await;
                assert!(value.is_some(), "a live session is missing");
            }
        });
        spent.store(thread_time().as_nanos() as u64, Relaxed);
        next += MILLISECOND;
        thread::sleep(next.saturating_duration_since(std::time::Instant::now()));
    }
}

/// Events that a subscriber received while it counted.
#[derive(Default)]
struct Received {
    counts: AtomicBool,
    events: AtomicUsize,
    /// In nanoseconds.
    worst_lag: AtomicU64,
}

/// Receives all events. Returns the processor time spent while it counted.
async fn listen(mut events: LosslessEvents<u64, u64>, received: &Received) -> Duration {
    let mut counted = Duration::ZERO;
    let mut since = None;
    while let Some(event) = events.recv().await {
        match (received.counts.load(Relaxed), since) {
            (true, None) => since = Some(thread_time()),
            (false, Some(before)) => {
                counted += thread_time() - before;
                since = None;
            }
            _ => {}
        }
        if since.is_some() {
            received.events.fetch_add(1, Relaxed);
            let lag = event.lag().expect("it had a deadline");
            received.worst_lag.fetch_max(lag.as_nanos() as u64, Relaxed);
        }
    }
    // The stream may end before the subscriber sees that counting has stopped.
    counted + since.map_or(Duration::ZERO, |before| thread_time() - before)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
