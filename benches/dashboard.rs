//! What the dashboard costs a service: `cargo bench --bench dashboard` writes docs/dashboard.md.
//!
//! The service and its load are threads of this process, apart by their names: what counts is the processor time of the
//! service's. Stretches without a viewer, with one and with ten follow each other in turns, first under 10,000 requests a
//! second, then with none. `FLEETING_QUICK=1` makes it short, and writes nothing.

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

const REQUESTS_A_SECOND: u64 = 10_000;

/// That send a batch each, a hundred times a second.
const CLIENTS: u64 = 10;

const VIEWERS: [usize; 3] = [0, 1, 10];

/// Beside those that requests ask: a process has more than two.
const OTHERS: usize = 8;

static ANSWERS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
struct Service {
    pages: Cache<u64, String>,
    requests: RateLimiter<u64>,
}

fn main() {
    let quick = measure::is_quick();
    let (rounds, stretch) =
        if quick { (2, Duration::from_secs(2)) } else { (9, Duration::from_secs(5)) };
    let service = runtime("service");
    let load = runtime("load");
    let port = service.block_on(serve(&service));
    let mut page = format!(
        "# What the dashboard costs\n\n\
         Made by `cargo bench --bench dashboard`: processor time of the service's threads, in percent of one core; medians \
         of {rounds} stretches of {} s in which all take turns. The process has {} caches and {} limiters with names.\n\n\
         | requests a second | without a viewer | one viewer | ten viewers | of it, the thread that looks |\n\
         | ---: | ---: | ---: | ---: | ---: |\n",
        stretch.as_secs(),
        OTHERS + 1,
        OTHERS + 1,
    );
    for busy in [true, false] {
        let clients: Vec<_> =
            (0..if busy { CLIENTS } else { 0 }).map(|client| ask(&load, port, client)).collect();
        wait(&load, Duration::from_secs(2));
        let mut shares = VIEWERS.map(|_| Vec::new());
        let (mut more, mut of_thread) = ([Vec::new(), Vec::new()], Vec::new());
        let (mut answers, mut time) = (0, 0.0);
        for _ in 0..rounds {
            let mut round = Vec::new();
            for (viewers, shares) in VIEWERS.into_iter().zip(&mut shares) {
                let viewers: Vec<_> = (0..viewers).map(|_| view(&load, port)).collect();
                wait(&load, Duration::from_millis(500));
                let before = (spent("service"), spent("fleeting-dashbo"), ANSWERS.load(Relaxed));
                let start = std::time::Instant::now();
                wait(&load, stretch);
                let seconds = start.elapsed().as_secs_f64();
                let thread = (spent("fleeting-dashbo") - before.1) / seconds;
                let all = (spent("service") - before.0) / seconds + thread;
                answers += ANSWERS.load(Relaxed) - before.2;
                time += seconds;
                shares.push(100.0 * all);
                round.push(100.0 * all);
                of_thread.push(100.0 * thread);
                viewers.into_iter().for_each(|viewer: AbortHandle| viewer.abort());
            }
            // Neighbours in time: the machine's own changes are in both.
            more.iter_mut().zip(&round[1..]).for_each(|(more, with)| more.push(with - round[0]));
        }
        clients.into_iter().for_each(|client| client.abort());
        let [one, ten] = more.map(measure::median);
        let alone = measure::median(std::mem::take(&mut shares[0]));
        writeln!(
            page,
            "| {:.0} | {alone:.2} | {one:+.2} | {ten:+.2} | {:.3} |",
            answers as f64 / time,
            measure::median(of_thread)
        )
        .expect("memory can be written to");
    }
    println!("{page}");
    if !quick {
        fs::write("docs/dashboard.md", page).expect("docs/ can be written to");
    }
}

fn wait(runtime: &Runtime, time: Duration) {
    // Made inside of the runtime, whose clock it needs.
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
    let port = listener.local_addr().expect("it is bound").port();
    runtime.spawn(async move {
        axum::serve(listener, app).await.expect("it serves");
        drop(others);
    });
    port
}

/// Half of them are answered, and half denied.
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

fn ask(load: &Runtime, port: u16, client: u64) -> AbortHandle {
    const BATCHES: u64 = 100;
    let batch = REQUESTS_A_SECOND / CLIENTS / BATCHES;
    let asking = load.spawn(async move {
        let connection = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        let (mut answers, mut requests) = connection.into_split();
        tokio::spawn(async move {
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(read @ 1..) = answers.read(&mut bytes).await {
                let heads = bytes[..read].windows(9).filter(|nine| nine == b"HTTP/1.1 ").count();
                ANSWERS.fetch_add(heads as u64, Relaxed);
            }
        });
        let mut ticks = interval(Duration::from_secs(1) / BATCHES as u32);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for tick in 0_u64.. {
            ticks.tick().await;
            let mut text = String::new();
            for n in 0..batch {
                let page = (client * 7_919 + tick * batch + n) % 50_000;
                write!(text, "GET /{page} HTTP/1.1\r\nhost: x\r\n\r\n").expect("it is memory");
            }
            requests.write_all(text.as_bytes()).await.expect("it takes requests");
        }
    });
    asking.abort_handle()
}

/// As a browser does: a stream, and when it has ended the next.
fn view(load: &Runtime, port: u16) -> AbortHandle {
    let viewing = load.spawn(async move {
        loop {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
            let request = b"GET /fleeting/stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await.expect("it takes requests");
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(1..) = stream.read(&mut bytes).await {}
        }
    });
    viewing.abort_handle()
}

/// Seconds of processor time that threads of this name have had.
fn spent(name: &str) -> f64 {
    let mut nanoseconds = 0_u64;
    for task in fs::read_dir("/proc/self/task").expect("Linux") {
        let path = task.expect("Linux").path();
        // One that has ended meanwhile has none.
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
