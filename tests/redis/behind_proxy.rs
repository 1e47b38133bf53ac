//! Two servers in processes of their own behind a reverse proxy, as nginx would be: what clients send never raises a
//! quota, an obeyed `Retry-After` is admitted, and no flood makes the servers grow.
//!
//! `FLEETING_PROXY_SECONDS` sets the duration (3 by default). There are 50 connections per second of it, up to 10,000:
//! with 600, ten thousand for ten minutes.

use std::{
    collections::HashMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    patience::patience,
    servers::{Server, connect},
};

const QUOTA: u32 = 20;
const PER: Duration = Duration::from_secs(2);

/// Number of connections that obey `Retry-After`, each from an address of its own.
const OBEDIENT: u32 = 10;

/// Admitted requests by path and address of the client: the times before and after each.
type Admitted = Arc<Mutex<HashMap<(&'static str, Ipv4Addr), Vec<(Instant, Instant)>>>>;

/// Process of this test in another role; killed when dropped.
struct Process {
    child: Child,
    port: u16,
    /// Kept open: after a minute, the test harness of the process prints that its test still runs, and would fail.
    _output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process, which prints its port.
    fn start(role: String) -> Self {
        let test = "behind_proxy::clients_behind_a_proxy_stay_within_their_quotas";
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("FLEETING_PROXY_ROLE", role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.by_ref().lines();
        let mut ports = lines.filter_map(|line| line.unwrap().split("port ").nth(1)?.parse().ok());
        let port = ports.next().expect("the process prints its port");
        Self { child, port, _output: output }
    }

    /// Returns the resident memory in megabytes.
    fn resident(&self) -> u64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4_096 / 1_000_000
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("port {}", listener.local_addr().unwrap().port());
    listener
}

/// Serves `/memory`, `/plans` and, with the quota that both servers share, `/shared`.
async fn run_server(redis: &str) {
    let trusted = || TrustedProxies::new(["127.0.0.1"]).unwrap();
    let limit = || Limit::new(QUOTA, PER);
    let memory = RateLimiter::builder().limit(limit()).max_keys(5_000).build();
    let by_plan = RateLimiter::builder().limit(limit()).max_keys(5_000).build();
    let shared = fleeting::redis::RateLimiter::builder(&connect(redis).await, "proxied")
        .limit(limit())
        .timeout(patience())
        .build()
        .unwrap();
    let plans = RateLimitLayer::by_ip(by_plan, trusted()).limits(|request, _| {
        let quota = request.headers.get("x-plan")?.to_str().ok()?.parse().ok()?;
        Some([Limit::per_hour(quota)].into())
    });
    let app = Router::new()
        .route("/memory", get("hello").layer(RateLimitLayer::by_ip(memory, trusted())))
        .route("/plans", get("hello").layer(plans))
        .route("/shared", get("hello").layer(RateLimitLayer::by_ip(shared, trusted())));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listen().await, app).await.unwrap();
}

/// Forwards requests to the servers, in turns; those whose quota is in memory always to the same one. Adds the address
/// of the client to `X-Forwarded-For`, as nginx's `$proxy_add_x_forwarded_for`.
async fn run_proxy(ports: [u16; 2]) {
    let listener = listen().await;
    let idle: Arc<[Mutex<Vec<TcpStream>>; 2]> = Arc::default();
    let turns = Arc::new(AtomicUsize::new(0));
    loop {
        let (mut client, peer) = listener.accept().await.unwrap();
        let (idle, turns) = (idle.clone(), turns.clone());
        let IpAddr::V4(ip) = peer.ip() else { panic!("the client is {peer}") };
        tokio::spawn(async move {
            while let Some(request) = read_message(&mut client).await {
                let has_turns = request.starts_with(b"GET /shared");
                let turn = turns.fetch_add(1, Relaxed);
                let server = (if has_turns { turn } else { ip.to_bits() as usize }) % 2;
                let known = idle[server].lock().unwrap().pop();
                let mut connection = match known {
                    Some(connection) => connection,
                    None => TcpStream::connect(("127.0.0.1", ports[server])).await.unwrap(),
                };
                connection.write_all(&forwarded(&request, ip)).await.unwrap();
                let response = read_message(&mut connection).await.expect("the server answers");
                idle[server].lock().unwrap().push(connection);
                if client.write_all(&response).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn forwarded(request: &[u8], ip: Ipv4Addr) -> Vec<u8> {
    let request = str::from_utf8(request).unwrap();
    let head = request.strip_suffix("\r\n\r\n").unwrap();
    let mut lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
    match lines.iter_mut().find(|line| line.starts_with("x-forwarded-for:")) {
        Some(line) => *line += &format!(", {ip}"),
        None => lines.push(format!("x-forwarded-for: {ip}")),
    }
    (lines.join("\r\n") + "\r\n\r\n").into_bytes()
}

/// Reads one HTTP message with its body; `None` at the end of the connection.
async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        if let Some(end) = message.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = str::from_utf8(&message[..end]).unwrap();
            let length: usize = field(head, "content-length").unwrap_or(0);
            while message.len() < end + 4 + length {
                stream.read_buf(&mut message).await.ok().filter(|read| *read > 0)?;
            }
            return Some(message);
        }
        stream.read_buf(&mut message).await.ok().filter(|read| *read > 0)?;
    }
}

fn field<T: std::str::FromStr>(head: &str, name: &str) -> Option<T> {
    let line = head.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    line.parse().ok()
}

/// Connects to the proxy from an address of this machine.
async fn connect_from(ip: Ipv4Addr, proxy: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip.into(), 0)).unwrap();
    socket.connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), proxy)).await.unwrap()
}

/// Sends a request; returns the wait that the server demands if it denies.
async fn request(stream: &mut TcpStream, path: &str, headers: &str) -> Result<(), Duration> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let response = timeout(patience(), read_message(stream)).await.expect("the proxy answers");
    let response = String::from_utf8(response.expect("the proxy keeps the connection")).unwrap();
    if response.starts_with("HTTP/1.1 200") {
        return Ok(());
    }
    assert!(response.starts_with("HTTP/1.1 429"), "{response}");
    Err(Duration::from_secs(field(&response, "retry-after").expect("a denial has `Retry-After`")))
}

fn obedient_ip(client: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 3, 0, 1).to_bits() + client)
}

/// Field by which a client pretends to be another, or any text of it.
fn forged(random: &mut SmallRng) -> String {
    let victim = obedient_ip(random.random_range(0..OBEDIENT));
    let text = match random.random_range(0..5) {
        0 => return String::new(),
        1 => victim.to_string(),
        2 => format!("{victim}, 127.0.0.1"),
        3 => format!("\"{victim}, ,unknown"),
        _ => format!("{}", Ipv4Addr::from_bits(random.random())),
    };
    format!("x-forwarded-for: {text}\r\nx-{}: 1\r\n", random.random::<u32>())
}

/// Sends until `end`, regardless of the answers, from an address that other connections have too.
async fn crowd(ip: Ipv4Addr, pause: Duration, proxy: u16, end: Instant, admitted: Admitted) {
    let mut random = SmallRng::seed_from_u64(ip.to_bits().into());
    let mut stream = connect_from(ip, proxy).await;
    while Instant::now() < end {
        let path = ["/memory", "/shared"][random.random_range(0..2)];
        let before = Instant::now();
        if request(&mut stream, path, &forged(&mut random)).await.is_ok() {
            let times = (before, Instant::now());
            admitted.lock().unwrap().entry((path, ip)).or_default().push(times);
        }
        sleep(pause.mul_f64(2.0 * random.random::<f64>())).await;
    }
}

/// Sends until denied, waits as long as demanded, and expects to be admitted then. Returns the number of waits.
async fn obey(
    ip: Ipv4Addr,
    path: &'static str,
    proxy: u16,
    end: Instant,
    admitted: Admitted,
) -> u32 {
    let mut stream = connect_from(ip, proxy).await;
    let mut waits = 0;
    let mut has_waited = false;
    // On a busy machine, no quota may be spent by the end.
    while Instant::now() < end || waits == 0 && Instant::now() < end + patience() {
        let before = Instant::now();
        match request(&mut stream, path, "").await {
            Ok(()) => {
                let times = (before, Instant::now());
                admitted.lock().unwrap().entry((path, ip)).or_default().push(times);
                has_waited = false;
            }
            Err(wait) => {
                assert!(!has_waited, "{path} was denied after the wait that it demanded");
                sleep(wait).await;
                has_waited = true;
                waits += 1;
            }
        }
    }
    waits
}

/// Sends until `end`, each request from a new address and by a new plan.
async fn flood(next: Arc<AtomicU32>, proxy: u16, end: Instant) {
    while Instant::now() < end {
        let number = next.fetch_add(1, Relaxed);
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(127, 16, 0, 1).to_bits() + number % 10_000_000);
        let mut stream = connect_from(ip, proxy).await;
        for path in ["/memory", "/plans", "/shared"] {
            let headers =
                format!("x-plan: {}\r\nx-new-{number}: {number}\r\n", number % 100_000 + 1);
            let _ = request(&mut stream, path, &headers).await;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Asserts that no window contains more admitted requests than the quota, by the times between which each was charged.
fn check_windows(admitted: &Admitted) {
    for ((path, ip), times) in &mut *admitted.lock().unwrap() {
        times.sort_unstable();
        for (index, (first, _)) in times.iter().enumerate() {
            let begun = times[index..].iter().take_while(|(before, _)| *before < *first + PER);
            let certain = begun.filter(|(_, after)| *after < *first + PER).count();
            assert!(certain <= QUOTA as usize, "{certain} of {ip} passed {path} within {PER:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_behind_a_proxy_stay_within_their_quotas() {
    if let Ok(role) = env::var("FLEETING_PROXY_ROLE") {
        match role.split_once(' ').unwrap() {
            ("server", redis) => run_server(redis).await,
            (first, second) => run_proxy([first, second].map(|port| port.parse().unwrap())).await,
        }
        return;
    }
    let seconds = env::var("FLEETING_PROXY_SECONDS").map_or(3, |text| text.parse().unwrap());
    let connections = (50 * seconds as u32).min(10_000);
    let redis = Server::start();
    let servers = [(); 2].map(|()| Process::start(format!("server {}", redis.url())));
    let proxy = Process::start(format!("{} {}", servers[0].port, servers[1].port));
    let (end, port) = (Instant::now() + Duration::from_secs(seconds), proxy.port);
    let admitted = Admitted::default();
    let mut tasks = JoinSet::new();
    for client in 0..connections {
        // Ten connections per address, and about a thousand requests per second.
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(127, 2, 0, 1).to_bits() + client / 10);
        let pause = Duration::from_millis(connections.into());
        tasks.spawn(crowd(ip, pause, port, end, admitted.clone()));
    }
    let flooded = Arc::new(AtomicU32::new(0));
    for _ in 0..connections.div_ceil(100) {
        tasks.spawn(flood(flooded.clone(), port, end));
    }
    let path = |client| if client % 2 == 0 { "/memory" } else { "/shared" };
    let obey = |client| obey(obedient_ip(client), path(client), port, end, admitted.clone());
    let obedient: Vec<_> = (0..OBEDIENT).map(|client| tokio::spawn(obey(client))).collect();

    sleep(Duration::from_secs(seconds) / 2).await;
    let before: Vec<u64> = servers.iter().map(Process::resident).collect();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let mut waits = 0;
    for task in obedient {
        let obeyed = task.await.unwrap();
        assert!(obeyed > 0, "no quota was spent");
        waits += obeyed;
    }
    let after: Vec<u64> = servers.iter().map(Process::resident).collect();
    println!(
        "{connections} connections, {} new keys, {waits} waits; MB before and after: {before:?} {after:?}",
        flooded.load(Relaxed)
    );
    check_windows(&admitted);
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + before / 4 + 10, "the server grew from {before} to {after} MB");
    }
}
