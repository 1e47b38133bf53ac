//! Checks compared with governor's: `cargo bench --bench rate_limit` writes docs/rate-limit.md.
//!
//! Every number is the median of rounds in which all candidates take turns, on one machine in one run; only the ratios
//! are comparable between machines. `FLEETING_QUICK=1` makes the run short, and writes nothing.

use std::{
    convert::Infallible,
    fmt::Write,
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies, Window};
use governor::{DefaultKeyedRateLimiter, Quota};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tower::{Service, ServiceExt};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];
const NAMES: &str = "| | governor | Log | Buckets(10) | Gcra |\n| --- | --- | --- | --- | --- |\n";

/// Number of keys that are checked while idle keys are removed.
const READ: u64 = 1_000;

/// Size of a measurement: rounds, calls per round, and keys.
#[derive(Clone, Copy)]
struct Size {
    rounds: usize,
    calls: u64,
    keys: u64,
}

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let size = match quick {
        true => Size { rounds: 3, calls: 20_000, keys: 20_000 },
        false => Size { rounds: 15, calls: 200_000, keys: 1_000_000 },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut page = String::from(
        "# Rate limits compared with governor\n\n\
         Made by `cargo bench --bench rate_limit`: medians of rounds in which all candidates take turns, on one \
         machine in one run. The ratio to governor is in brackets; only ratios are comparable between machines. `u64` \
         keys.\n\n\
         ## Nanoseconds per check\n\n",
    );
    page += NAMES;
    let hot = Limit::per_minute(1_000);
    let few = Limit::per_hour(10);
    row(&mut page, "allow, hot key", size, |of| {
        runtime.block_on(of.time(&hot, size.calls, |i| i / 1_000))
    });
    row(&mut page, "deny, hot key", size, |of| runtime.block_on(of.time(&few, size.calls, |_| 7)));
    let mut random = SmallRng::seed_from_u64(1);
    let order: Vec<u64> = (0..2 * size.calls).map(|_| random.random_range(0..size.keys)).collect();
    let fewer = Size { rounds: size.rounds / 3, ..size };
    row(&mut page, "allow, 1 M random keys", fewer, |of| {
        let filled = of.filled(&hot, size.keys, &runtime);
        runtime.block_on(filled.checks(2 * size.calls, |i| order[i as usize]))
    });
    row(&mut page, "a new key of a flood, above `max_keys`", fewer, |of| {
        let full = of.bounded(&few, FULL, &runtime);
        runtime.block_on(full.checks(size.keys, |i| FULL + i))
    });
    row(&mut page, "allow, one key, 2 threads", size, |of| {
        let many = Limit::per_hour(1_000_000_000);
        let subject = Arc::new(of.made(&many, &runtime));
        let start = Instant::now();
        let tasks = [(), ()].map(|()| {
            let subject = subject.clone();
            runtime.spawn(async move { subject.checks(size.calls / 2, |_| 7).await })
        });
        for task in tasks {
            runtime.block_on(task).expect("no check panics");
        }
        start.elapsed().as_nanos() as f64 / size.calls as f64
    });
    page += &format!(
        "\nThe flood has {} keys, in addition to {FULL} keys in use; governor has no bound, and stores all of them. \
         \"Hot\" is a key that spends a quota of 1,000 per minute call by call, and then the next quota. \"Deny\" is \
         a key that has spent its quota of 10 per hour. A `Log` needs the time of each call to the nanosecond, and \
         reading the precise clock is about half the cost of its calls. The other windows, and all denials, use the \
         coarse clock if it suffices for the decision; they are equally exact.\n\
         \n## Removal of {} idle keys\n\n\
         Durations of checks of other keys during the removal, by `retain_recent` in governor and by a sweep in \
         fleeting.\n\n",
        size.keys, size.keys
    );
    page += &runtime.block_on(removal(size));
    page += &runtime.block_on(long_log(size.keys as u32));
    page += "\n## The axum layer\n\nMedian nanoseconds per request through a `Router` with one route, without a \
             socket.\n\n";
    page += &runtime.block_on(layers(size));
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rate-limit.md");
        std::fs::write(path, page).expect("docs/rate-limit.md can be written");
    }
}

/// Number of keys in use, and bound of the limiter, during a flood.
const FULL: u64 = 100_000;

/// A limiter to be measured.
#[derive(Clone, Copy)]
enum Candidate {
    Governor,
    Fleeting(Window),
}

enum Subject {
    Governor(DefaultKeyedRateLimiter<u64>),
    Fleeting(RateLimiter<u64>),
}

impl Candidate {
    /// Builds the limiter within the runtime, which it needs.
    fn made(self, limit: &Limit, runtime: &tokio::runtime::Runtime) -> Subject {
        let _inside = runtime.enter();
        self.make(limit)
    }

    fn make(self, limit: &Limit) -> Subject {
        match self {
            Candidate::Governor => {
                let quota = NonZeroU32::new(limit.quota()).expect("a quota");
                let step = limit.per() / limit.quota();
                let quota = Quota::with_period(step).expect("longer than zero").allow_burst(quota);
                Subject::Governor(DefaultKeyedRateLimiter::keyed(quota))
            }
            Candidate::Fleeting(window) => {
                let builder = RateLimiter::builder().limit(limit.clone()).max_keys(2_000_000);
                Subject::Fleeting(builder.window(window).build())
            }
        }
    }

    /// Builds a limiter that has reached its bound of keys, if it has one.
    fn bounded(self, limit: &Limit, keys: u64, runtime: &tokio::runtime::Runtime) -> Subject {
        let subject = match self {
            Candidate::Governor => self.make(limit),
            Candidate::Fleeting(window) => {
                let _inside = runtime.enter();
                let builder = RateLimiter::builder().limit(limit.clone()).max_keys(keys as usize);
                Subject::Fleeting(builder.window(window).build())
            }
        };
        runtime.block_on(subject.checks(keys, |i| i));
        subject
    }

    fn filled(self, limit: &Limit, keys: u64, runtime: &tokio::runtime::Runtime) -> Subject {
        let subject = self.made(limit, runtime);
        runtime.block_on(subject.checks(keys, |i| i));
        subject
    }

    async fn time(self, limit: &Limit, calls: u64, key: impl Fn(u64) -> u64) -> f64 {
        self.make(limit).checks(calls, key).await
    }
}

impl Subject {
    /// Returns nanoseconds per check.
    async fn checks(&self, calls: u64, key: impl Fn(u64) -> u64) -> f64 {
        let start = Instant::now();
        match self {
            Subject::Governor(limiter) => {
                for i in 0..calls {
                    black_box(limiter.check_key(&key(i)).is_ok());
                }
            }
            Subject::Fleeting(limiter) => {
                for i in 0..calls {
                    black_box(limiter.check(&key(i)).await.is_ok());
                }
            }
        }
        start.elapsed().as_nanos() as f64 / calls as f64
    }
}

fn row(page: &mut String, name: &str, size: Size, time: impl Fn(Candidate) -> f64) {
    let all = [Candidate::Governor].into_iter().chain(WINDOWS.map(Candidate::Fleeting));
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); 4];
    for _ in 0..size.rounds {
        all.clone().zip(&mut samples).for_each(|(of, samples)| samples.push(time(of)));
    }
    let samples: Vec<f64> = samples.into_iter().map(median).collect();
    write!(page, "| {name} | {:.0} |", samples[0]).expect("writing to a String cannot fail");
    for value in &samples[1..] {
        write!(page, " {value:.0} ({:.2}) |", value / samples[0])
            .expect("writing to a String cannot fail");
    }
    page.push('\n');
    eprintln!("{name}: {samples:.1?}");
}

/// Returns a table with the durations of checks of some keys while idle keys are removed.
async fn removal(size: Size) -> String {
    let mut page = String::from("| | p99.9 | worst |\n| --- | --- | --- |\n");
    let window = Duration::from_secs(2);
    // A quota of 1, so that a key stays in use for the whole window in every algorithm.
    let limit = Limit::new(1, window);
    let all = [Candidate::Governor].into_iter().chain(WINDOWS.map(Candidate::Fleeting));
    let mut samples: Vec<[Vec<f64>; 2]> = vec![Default::default(); 4];
    for _ in 0..size.rounds / 3 {
        for (of, [high, worst]) in all.clone().zip(&mut samples) {
            let subject = Arc::new(of.make(&limit));
            let start = Instant::now();
            subject.checks(size.keys, |i| i + READ).await;
            tokio::time::sleep(window.saturating_sub(start.elapsed())).await;
            let stop = Arc::new(AtomicBool::new(false));
            let reader = {
                let (subject, stop) = (subject.clone(), stop.clone());
                let handle = tokio::runtime::Handle::current();
                thread::spawn(move || latencies(&handle, &subject, &stop))
            };
            match &*subject {
                Subject::Governor(limiter) => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    limiter.retain_recent();
                }
                Subject::Fleeting(limiter) => {
                    while limiter.stats().keys > READ as usize {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            stop.store(true, Relaxed);
            let mut latencies = reader.join().expect("the reader does not panic");
            latencies.sort_unstable();
            high.push(latencies[latencies.len() * 999 / 1_000] as f64 / 1e3);
            worst.push(latencies[latencies.len() - 1] as f64 / 1e3);
        }
    }
    for (of, [high, worst]) in all.zip(samples) {
        let name = match of {
            Candidate::Governor => "governor".to_owned(),
            Candidate::Fleeting(window) => format!("{window:?}"),
        };
        let (high, worst) = (median(high), median(worst));
        eprintln!("removal, {name}: {high:.1} {worst:.0}");
        writeln!(page, "| {name} | {high:.1} µs | {worst:.0} µs |")
            .expect("writing to a String cannot fail");
    }
    page
}

/// Measures calls for a key whose `Log` contains very many calls.
async fn long_log(calls: u32) -> String {
    let hour = Duration::from_secs(3_600);
    let limiter = RateLimiter::<u64>::builder().limit(Limit::new(2 * calls, hour)).build();
    let call_half = async || {
        for _ in 0..calls / 2 {
            limiter.check(&7).await.expect("quota is left");
        }
    };
    call_half().await;
    let middle = Instant::now();
    call_half().await;
    let peek_half = async || {
        let limits = [Limit::new(2 * calls, middle.elapsed())];
        drop(black_box(limiter.peek_with(&7, &limits).await));
    };
    let deny = async || {
        let cost = 2 * calls - calls / 2;
        assert!(black_box(limiter.check_n(&7, cost).await).is_err());
    };
    let rows = [
        ("peek, after half of the calls have left the window", time_of(&peek_half).await),
        ("denial of a cost for which half of the calls have to leave", time_of(&deny).await),
    ];
    let mut page = format!("\n## A `Log` of {calls} calls of one key\n\n| | ns |\n| --- | --- |\n");
    for (name, nanoseconds) in rows {
        writeln!(page, "| {name} | {nanoseconds:.0} |").expect("writing to a String cannot fail");
    }
    page
}

/// Returns the median duration of a call in nanoseconds.
async fn time_of(call: &impl AsyncFn()) -> f64 {
    let mut samples = Vec::new();
    for _ in 0..1_001 {
        let start = Instant::now();
        call().await;
        samples.push(start.elapsed().as_nanos() as f64);
    }
    median(samples)
}

fn latencies(handle: &tokio::runtime::Handle, subject: &Subject, stop: &AtomicBool) -> Vec<u64> {
    let mut latencies = Vec::with_capacity(20_000_000);
    handle.block_on(async {
        for key in (0..READ).cycle() {
            let start = Instant::now();
            match subject {
                Subject::Governor(limiter) => drop(black_box(limiter.check_key(&key))),
                Subject::Fleeting(limiter) => drop(black_box(limiter.check(&key).await)),
            }
            latencies.push(start.elapsed().as_nanos() as u64);
            if stop.load(Relaxed) || latencies.len() == latencies.capacity() {
                break;
            }
        }
    });
    latencies
}

/// Measures the same route without a layer, behind this crate's layer, and behind tower-governor's.
async fn layers(size: Size) -> String {
    let route = || Router::new().route("/", get(async || "hello"));
    let limiter =
        RateLimiter::builder().limit(Limit::per_hour(1_000_000_000)).window(Window::Gcra).build();
    let governor = GovernorConfigBuilder::default()
        .period(Duration::from_nanos(1))
        .burst_size(1_000_000_000)
        .use_headers()
        .finish()
        .expect("a quota");
    let mut routers = [
        route(),
        route().layer(RateLimitLayer::by_ip(limiter, TrustedProxies::none())),
        route().layer(GovernorLayer::new(governor)),
    ];
    let mut samples: [Vec<f64>; 3] = [vec![], vec![], vec![]];
    for _ in 0..size.calls / 2 {
        for (router, samples) in routers.iter_mut().zip(&mut samples) {
            samples.push(request(router).await);
        }
    }
    let [bare, ours, theirs] = samples.map(median);
    format!(
        "| | per request | more than the bare route |\n| --- | --- | --- |\n\
         | the bare route | {bare:.0} | |\n\
         | fleeting, with all fields | {ours:.0} | {:.0} |\n\
         | tower-governor, with its fields | {theirs:.0} | {:.0} |\n",
        ours - bare,
        theirs - bare
    )
}

async fn request(router: &mut Router) -> f64 {
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1_234);
    let mut request = Request::builder().uri("/").body(Body::empty()).expect("a request");
    request.extensions_mut().insert(ConnectInfo(peer));
    let start = Instant::now();
    let router: Result<&mut Router, Infallible> = ServiceExt::<Request<Body>>::ready(router).await;
    let response = router.expect("a router is ready").call(request).await.expect("no error");
    let elapsed = start.elapsed().as_nanos() as f64;
    assert_eq!(response.status(), 200);
    elapsed
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
