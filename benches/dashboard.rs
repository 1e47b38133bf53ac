//! Costs of the dashboard for a service: `cargo bench --bench dashboard` writes docs/dashboard.md.
//!
//! The service and its load run on threads of this process with different names; only the processor time of the
//! service's threads counts. Intervals without a viewer, with one and with ten take turns, first under 10,000 requests
//! per second, then without requests. `FLEETING_QUICK=1` makes the run short, and writes nothing.

#[path = "measure.rs"]
mod measure;

use std::{
    fmt::Write as _,
    fs,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use fleeting::{Cache, Limit, RateLimiter, Window};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    task::AbortHandle,
    time::{MissedTickBehavior, interval, sleep},
};

const REQUESTS_PER_SECOND: u64 = 10_000;

/// Number of clients, each of which sends a batch a hundred times per second.
const CLIENTS: u64 = 10;

const VIEWERS: [usize; 3] = [0, 1, 10];

/// Number of named caches and limiters in addition to those of the requests, as in a typical process.
const OTHERS: usize = 8;

static RESPONSES: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
struct Service {
    pages: Cache<u64, String>,
    requests: RateLimiter<u64>,
}

fn main() {
    let quick = measure::is_quick();
    let (rounds, duration) =
        if quick { (2, Duration::from_secs(2)) } else { (9, Duration::from_secs(5)) };
    let service = runtime("service");
    let load = runtime("load");
    let port = service.block_on(serve(&service));
    let mut page = format!(
        "# Costs of the dashboard\n\n\
         Made by `cargo bench --bench dashboard`: processor time of the service's threads, in percent of one core; \
         medians of {rounds} intervals of {} s, in which all configurations take turns. The process has {} named \
         caches and {} named limiters.\n\n\
         | requests per second | without a viewer | one viewer | ten viewers | share of the sampler thread |\n\
         | ---: | ---: | ---: | ---: | ---: |\n",
        duration.as_secs(),
        OTHERS + 1,
        OTHERS + 1,
    );
    for busy in [true, false] {
        let clients: Vec<_> =
            (0..if busy { CLIENTS } else { 0 }).map(|client| send(&load, port, client)).collect();
        wait(&load, Duration::from_secs(2));
        let mut shares = VIEWERS.map(|_| Vec::new());
        let (mut more, mut of_thread) = ([Vec::new(), Vec::new()], Vec::new());
        let (mut responses, mut time) = (0, 0.0);
        for _ in 0..rounds {
            let mut round = Vec::new();
            for (viewers, shares) in VIEWERS.into_iter().zip(&mut shares) {
                let viewers: Vec<_> = (0..viewers).map(|_| view(&load, port)).collect();
                wait(&load, Duration::from_millis(500));
                let before = (
                    processor_time("service"),
                    processor_time("fleeting-dashbo"),
                    RESPONSES.load(Relaxed),
                );
                let start = std::time::Instant::now();
                wait(&load, duration);
                let seconds = start.elapsed().as_secs_f64();
                let thread = (processor_time("fleeting-dashbo") - before.1) / seconds;
                let all = (processor_time("service") - before.0) / seconds + thread;
                responses += RESPONSES.load(Relaxed) - before.2;
                time += seconds;
                shares.push(100.0 * all);
                round.push(100.0 * all);
                of_thread.push(100.0 * thread);
                viewers.into_iter().for_each(|viewer: AbortHandle| viewer.abort());
            }
            // Differences within one round, so that slow changes of the machine cancel out.
            more.iter_mut().zip(&round[1..]).for_each(|(more, with)| more.push(with - round[0]));
        }
        clients.into_iter().for_each(|client| client.abort());
        let [one, ten] = more.map(measure::median);
        let alone = measure::median(std::mem::take(&mut shares[0]));
        writeln!(
            page,
            "| {:.0} | {alone:.2} | {one:+.2} | {ten:+.2} | {:.3} |",
            responses as f64 / time,
            measure::median(of_thread)
        )
        .expect("writing to a String cannot fail");
    }
    println!("{page}");
    if !quick {
        fs::write("docs/dashboard.md", page).expect("docs/dashboard.md can be written");
    }
}

fn wait(runtime: &Runtime, time: Duration) {
    // `sleep` must be created inside the runtime, whose timer it uses.
    runtime.block_on(async { sleep(time).await });
}

fn runtime(name: &str) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all().build().expect("a runtime")
}

async fn serve(runtime: &Runtime) -> u16 {
    let mut others = Vec::new();
    for n in 0..OTHERS {
        let cache = Cache::<u64, String>::builder().name(format!("other {n}")).build();
        let limiter = RateLimiter::<u64>::builder()
            .name(format!("other {n}"))
            .limit(Limit::per_second(1))
            .build();
        others.push((cache, limiter));
    }
    let service = Service {
        pages: Cache::builder().name("pages").max_entries(100_000).build(),
        requests: RateLimiter::builder()
            .name("requests")
            .limit(Limit::per_second(5))
            .window(Window::Gcra)
            .build(),
    };
    let app = Router::new()
        .route("/{page}", get(read))
        .with_state(service)
        .nest("/fleeting", fleeting::dashboard());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a local address").port();
    runtime.spawn(async move {
        axum::serve(listener, app).await.expect("the server runs");
        drop(others);
    });
    port
}

/// Returns a page. About half of the requests are denied.
async fn read(State(service): State<Service>, Path(page): Path<u64>) -> (StatusCode, String) {
    if service.requests.check(&(page % 1_000)).await.is_err() {
        return (StatusCode::TOO_MANY_REQUESTS, String::new());
    }
    if let Some(text) = service.pages.get(&page).await {
        return (StatusCode::OK, text);
    }
    let text = "x".repeat(100);
    service.pages.set_ex(page, text.clone(), Duration::from_millis(500)).await;
    (StatusCode::OK, text)
}

fn send(load: &Runtime, port: u16, client: u64) -> AbortHandle {
    const BATCHES: u64 = 100;
    let batch = REQUESTS_PER_SECOND / CLIENTS / BATCHES;
    let sending = load.spawn(async move {
        let connection =
            TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts connections");
        let (mut responses, mut requests) = connection.into_split();
        tokio::spawn(async move {
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(read @ 1..) = responses.read(&mut bytes).await {
                let heads = bytes[..read].windows(9).filter(|nine| nine == b"HTTP/1.1 ").count();
                RESPONSES.fetch_add(heads as u64, Relaxed);
            }
        });
        let mut ticks = interval(Duration::from_secs(1) / BATCHES as u32);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for tick in 0_u64.. {
            ticks.tick().await;
            let mut text = String::new();
            for n in 0..batch {
                let page = (client * 7_919 + tick * batch + n) % 50_000;
                write!(text, "GET /{page} HTTP/1.1\r\nhost: x\r\n\r\n")
                    .expect("writing to a String cannot fail");
            }
            requests.write_all(text.as_bytes()).await.expect("the request is sent");
        }
    });
    sending.abort_handle()
}

/// Views the dashboard as a browser does: opens a stream, and the next one when it ends, and requests each sample that
/// it announces.
fn view(load: &Runtime, port: u16) -> AbortHandle {
    let viewing = load.spawn(async move {
        let samples =
            TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts connections");
        let (mut responses, mut requests) = samples.into_split();
        tokio::spawn(async move {
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(1..) = responses.read(&mut bytes).await {}
        });
        loop {
            let mut stream = TcpStream::connect(("127.0.0.1", port))
                .await
                .expect("the server accepts connections");
            let request = b"GET /fleeting/stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await.expect("the request is sent");
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(1..) = stream.read(&mut bytes).await {
                let request = b"GET /fleeting/sample HTTP/1.1\r\nhost: x\r\n\r\n";
                requests.write_all(request).await.expect("the request is sent");
            }
        }
    });
    viewing.abort_handle()
}

/// Returns the processor time, in seconds, of all threads with this name.
fn processor_time(name: &str) -> f64 {
    let mut nanoseconds = 0_u64;
    for task in fs::read_dir("/proc/self/task").expect("Linux") {
        let path = task.expect("Linux").path();
        // The file is missing if the thread has just ended.
        let Ok(comm) = fs::read_to_string(path.join("comm")) else { continue };
        if comm.trim_end() == name
            && let Ok(line) = fs::read_to_string(path.join("schedstat"))
        {
            let first = line.split(' ').next().and_then(|word| word.parse::<u64>().ok());
            nanoseconds += first.expect("the first number");
        }
    }
    nanoseconds as f64 / 1e9
}
