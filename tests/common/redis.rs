//! Real servers for tests. Each runs on a free loopback port and is killed when its handle is dropped.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

#[path = "fake_server.rs"]
mod fake_server;
#[path = "proxy.rs"]
mod proxy;
#[path = "sentinel.rs"]
mod sentinel;
#[path = "stopped_server.rs"]
mod stopped_server;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Weak},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::patience::patience;

#[allow(unused_imports)]
pub(crate) use self::{
    fake_server::{FakeServer, Reply},
    proxy::Proxy,
    sentinel::Sentinel,
    stopped_server::StoppedServer,
};

/// Arguments of a server that closes connections with more than 64 MiB of pending replies, less than the largest
/// replies of sixteen shards at once.
pub(crate) const SMALL_ANSWERS: [&str; 5] =
    ["--client-output-buffer-limit", "normal", "64mb", "0", "0"];

/// Handle to a server. It is killed when the handle is dropped, or when this process ends for any reason.
pub(crate) struct Server {
    /// Shell that runs [`WATCH`].
    shell: Child,
    pid: u32,
    port: u16,
    folder: TempDir,
    args: Vec<String>,
}

impl Server {
    /// Starts a server without persistence.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Returns the server shared by the tests of a binary, which runs as long as any of them holds it.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().expect("another test failed to start the shared server");
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts a replica of `master`.
    pub(crate) fn replica_of(master: &Self) -> Self {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        replica.wait_until_synced();
        replica
    }

    /// Waits until the replica is synchronized with its master.
    fn wait_until_synced(&self) {
        let until = Instant::now() + patience();
        while !ask(self.port, "INFO replication").contains("master_link_status:up") {
            assert!(Instant::now() < until, "the replica is not synchronized with its master");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a command on a new connection and returns the first part of the raw reply.
    pub(crate) fn ask(&self, command: &str) -> String {
        ask(self.port, command)
    }

    /// Sends a command on a new connection and returns the raw reply, which must be a small one.
    pub(crate) fn forward(&self, command: &[Vec<u8>]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for arg in command {
            write!(request, "${}\r\n", arg.len()).expect("a Vec grows");
            request.extend([arg, &b"\r\n"[..]].concat());
        }
        exchange(self.port, &request)
    }

    /// Starts a server that writes each change to disk before it replies, so that [`restart`](Server::restart) loses
    /// none.
    pub(crate) fn durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server with this `maxmemory-policy` and `maxmemory`; a `memory` of 0 sets no maximum.
    pub(crate) fn with_policy(policy: &str, memory: &str) -> Self {
        Self::start_with(&["--maxmemory-policy", policy, "--maxmemory", memory])
    }

    /// Lets the server behave as if its memory were full: it refuses commands that may need more (`OOM`).
    pub(crate) fn refuse_memory(&self) {
        self.ask("CONFIG SET maxmemory-policy noeviction");
        assert!(self.ask("CONFIG SET maxmemory 1").starts_with("+OK"));
    }

    /// Ends [`refuse_memory`](Server::refuse_memory).
    pub(crate) fn allow_memory(&self) {
        assert!(self.ask("CONFIG SET maxmemory 0").starts_with("+OK"));
    }

    pub(crate) fn start_with(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("the temporary directory can be created"), args)
    }

    /// Starts a server whose clock can be [set](Server::set_clock) and [stopped](Server::stop_clock).
    pub(crate) fn start_with_clock() -> Self {
        Self::start_in(folder_with_clock(), &[])
    }

    /// Starts a replica of `master` with a clock of its own.
    pub(crate) fn replica_with_clock(master: &Self) -> Self {
        let port = master.port.to_string();
        let replica = Self::start_in(folder_with_clock(), &["--replicaof", "127.0.0.1", &port]);
        replica.wait_until_synced();
        replica
    }

    /// Sets the server's clock to `ahead` of the real time.
    pub(crate) fn set_clock(&self, ahead: Duration) {
        self.write_clock(0, &[0, ahead.as_micros() as u64]);
        // Valkey reads the clock only periodically.
        thread::sleep(Duration::from_millis(20));
    }

    /// Stops the server's clock at a time, in microseconds. Not supported by Valkey.
    pub(crate) fn stop_clock(&self, at: u64) {
        self.write_clock(0, &[at, 0]);
    }

    /// Lets each look of the server at its clock advance it by `step`. Zero ends this, and takes these steps back.
    pub(crate) fn advance_clock_per_look(&self, step: Duration) {
        self.write_clock(2, &[step.as_micros() as u64]);
    }

    /// Writes some of the numbers of `clock.c`, from the one at `at` on.
    fn write_clock(&self, at: u64, numbers: &[u64]) {
        let file = fs::OpenOptions::new().write(true).open(self.folder.path().join("clock"));
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        file.and_then(|file| file.write_all_at(&bytes, 8 * at))
            .expect("the server was started with a clock");
    }

    fn start_in(folder: TempDir, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        // Retried, since another process may take the port before the server binds it.
        for _ in 0..10 {
            let port = free_port();
            let (mut shell, pid) = spawn(port, &folder, &args);
            if answers(&mut shell, port) {
                return Self { shell, pid, port, folder, args };
            }
        }
        panic!("{} does not start; its log is in {:?}", program(), folder.keep());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.signal("-KILL");
        self.shell.wait().expect("the shell is a child of this process");
    }

    /// Restarts the server after [`kill`](Server::kill), on the same port and directory.
    pub(crate) fn restart(&mut self) {
        let until = Instant::now() + patience();
        while Instant::now() < until {
            (self.shell, self.pid) = spawn(self.port, &self.folder, &self.args);
            if answers(&mut self.shell, self.port) {
                return;
            }
        }
        panic!("{} does not restart on port {}", program(), self.port);
    }

    /// Restarts the server after [`kill`](Server::kill) so that loading takes `each` per command. Returns while it
    /// loads.
    pub(crate) fn restart_slowly(&mut self, each: Duration) {
        let mut args = self.args.clone();
        let delay = each.as_micros().to_string();
        args.extend(["--key-load-delay", &delay].map(String::from));
        (self.shell, self.pid) = spawn(self.port, &self.folder, &args);
        let until = Instant::now() + patience();
        while !ask(self.port, "PING").starts_with("-LOADING") {
            assert!(Instant::now() < until, "{} does not report that it is loading", program());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the server with SIGSTOP: connections stay open, but nothing is answered.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
        // The signal is asynchronous: on another processor, the server may still run for a short time.
        let stat = format!("/proc/{}/stat", self.pid);
        while !fs::read_to_string(&stat).expect("the server is running").contains(") T ") {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    /// Starts a server that also accepts TLS on the returned port, with the certificate of `tests/data/tls`.
    pub(crate) fn start_encrypted() -> (Self, u16) {
        Self::start_with_tls("authority.pem", "no")
    }

    /// Starts a server that also accepts TLS on the returned port, from clients with a certificate of the client
    /// authority of `tests/data/tls`.
    pub(crate) fn start_with_client_certificates() -> (Self, u16) {
        Self::start_with_tls("client_authority.pem", "yes")
    }

    fn start_with_tls(authority: &str, auth_clients: &str) -> (Self, u16) {
        // `./test.sh` skips these tests by name on a server that is built without TLS.
        let thread = thread::current();
        let test = thread.name().expect("the test runs on its own thread");
        assert!(
            test.contains("over_tls"),
            "'{test}' uses TLS, so its name must contain 'over_tls'"
        );
        let port = free_port();
        let file = |name: &str| format!("{}/tests/data/tls/{name}", env!("CARGO_MANIFEST_DIR"));
        let server = Self::start_with(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &file("server.pem"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file(authority),
            "--tls-auth-clients",
            auth_clients,
        ]);
        (server, port)
    }

    /// Returns a connection of the plain `redis` client, to inspect the data on the server.
    pub(crate) async fn plain(&self) -> redis::aio::MultiplexedConnection {
        plain(&self.url()).await
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid.to_string()]).status();
        assert!(status.expect("`kill` runs").success(), "`kill {signal}` failed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Cluster of three masters.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let nodes: Vec<Server> = (0..3).map(|_| Self::node()).collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let output = Command::new(cli())
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| panic!("the tests need `{}`: {error}", cli()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let cluster = Self { nodes };
        let until = Instant::now() + patience();
        let is_complete = |node: &Server| {
            let info = ask(node.port, "CLUSTER INFO");
            info.contains("state:ok") && info.contains("slots_ok:16384")
        };
        while !cluster.nodes.iter().all(is_complete) {
            assert!(Instant::now() < until, "the cluster did not form in time");
            thread::sleep(Duration::from_millis(50));
        }
        cluster
    }

    /// Adds replicas, one for each of the first masters.
    pub(crate) fn add_replicas(&self, replicas: usize) -> Vec<Server> {
        let replicas: Vec<Server> = (0..replicas).map(|_| Self::node()).collect();
        for replica in &replicas {
            ask(replica.port, &format!("CLUSTER MEET 127.0.0.1 {}", self.nodes[0].port));
        }
        let until = Instant::now() + patience();
        for (replica, master) in replicas.iter().zip(&self.nodes) {
            let id = ask(master.port, "CLUSTER MYID");
            let id = id.lines().nth(1).expect("the node has an ID").to_owned();
            while !ask(replica.port, &format!("CLUSTER REPLICATE {id}")).starts_with("+OK") {
                assert!(Instant::now() < until, "the replica does not know its master");
                thread::sleep(Duration::from_millis(20));
            }
        }
        for replica in &replicas {
            replica.wait_until_synced();
            // All nodes must know it as a replica, or they do not vote for it in a failover.
            let port = format!(":{}@", replica.port);
            let is_replica = |line: &str| line.contains(&port) && line.contains("slave");
            for node in &self.nodes {
                while !ask(node.port, "CLUSTER NODES").lines().any(is_replica) {
                    assert!(Instant::now() < until, "a node does not know the replica");
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        replicas
    }

    fn node() -> Server {
        let timeout = ["--cluster-node-timeout", "2000"];
        // A replica stays eligible, however long it was disconnected from its master.
        let validity = ["--cluster-replica-validity-factor", "0"];
        // The slots of the other nodes stay available, however long a node is down.
        let coverage = ["--cluster-require-full-coverage", "no"];
        let args = [&["--cluster-enabled", "yes"], &timeout[..], &validity, &coverage];
        Server::start_with(&args.concat())
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub(crate) fn nodes(&mut self) -> &mut [Server] {
        &mut self.nodes
    }
}

/// Returns a connection of the plain `redis` client, with timeouts that are generous for loaded machines.
pub(crate) async fn plain(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("the URL is valid");
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(patience()))
        .set_response_timeout(Some(patience()));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the server answers")
}

/// Returns a client with a timeout that is generous for loaded machines.
pub(crate) async fn connect(urls: impl fleeting::redis::Urls) -> fleeting::redis::Client {
    let builder = fleeting::redis::Client::builder(urls).timeout(patience());
    builder.connect().await.expect("the server answers")
}

/// Returns the server program: `FLEETING_REDIS_SERVER`, or else `redis-server`.
pub(crate) fn program() -> String {
    std::env::var("FLEETING_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// Returns the command-line client: `FLEETING_REDIS_CLI`, or else `redis-cli`.
fn cli() -> String {
    std::env::var("FLEETING_REDIS_CLI").unwrap_or_else(|_| "redis-cli".into())
}

/// Shell script that starts a server, prints its process ID, and kills it when the pipe from this process closes.
const WATCH: &str = r#"
    exec 3<&0
    "$0" "$@" </dev/null >/dev/null 2>&1 3<&- &
    server=$!
    echo $server
    (cat <&3 >/dev/null; kill -KILL $server) >/dev/null 2>&1 &
    wait $server
"#;

/// Returns a new directory with the library that replaces the clock of a server.
fn folder_with_clock() -> TempDir {
    let folder = tempfile::tempdir().expect("the temporary directory can be created");
    fs::write(folder.path().join("clock"), [0; 24]).expect("the directory is writable");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "tests/data/clock.c", "-o"])
        .arg(folder.path().join("clock.so"))
        .status();
    assert!(built.expect("the tests need `cc`").success(), "`cc` failed");
    folder
}

fn spawn(port: u16, folder: &TempDir, args: &[String]) -> (Child, u32) {
    let (program, port) = (program(), port.to_string());
    let clock = |file: &str| folder.path().join(file).display().to_string();
    let (library, file) =
        (format!("LD_PRELOAD={}", clock("clock.so")), format!("CLOCK={}", clock("clock")));
    let mut command = Vec::new();
    if folder.path().join("clock").exists() {
        command.extend(["env", &library, &file]);
    }
    command.extend([&*program, "--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    command.extend(["--dir", folder.path().to_str().expect("the path is valid UTF-8")]);
    command.extend(["--logfile", "log", "--enable-debug-command", "yes"]);
    // Replicas synchronize without a delay.
    command.extend(["--repl-diskless-sync-delay", "0"]);
    command.extend(args.iter().map(String::as_str));
    run(&command)
}

fn run(command: &[&str]) -> (Child, u32) {
    let program = program();
    let version = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
    if let Err(error) = version {
        panic!("the tests need `{program}` (Debian: apt-get install redis-server): {error}");
    }
    let mut shell = Command::new("sh")
        .args(["-c", WATCH])
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("`sh` runs");
    let mut pid = String::new();
    let output = shell.stdout.as_mut().expect("stdout is piped");
    BufReader::new(output).read_line(&mut pid).expect("the shell prints the process ID");
    (shell, pid.trim().parse().expect("the process ID is a number"))
}

/// Waits until the server answers or exits. Returns whether it answers.
fn answers(shell: &mut Child, port: u16) -> bool {
    let until = Instant::now() + patience();
    while Instant::now() < until
        && shell.try_wait().expect("the shell is a child of this process").is_none()
    {
        let answer = ask(port, "PING");
        if answer.starts_with("+PONG") || answer.starts_with("-NOAUTH") {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Sends a command on a new connection and returns the first part of the raw reply; empty if there is none.
pub(crate) fn ask(port: u16, command: &str) -> String {
    let answer = exchange(port, format!("{command}\r\n").as_bytes());
    String::from_utf8_lossy(&answer).into_owned()
}

fn exchange(port: u16, request: &[u8]) -> Vec<u8> {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return Vec::new() };
    let _ = stream.set_read_timeout(Some(patience() / 10));
    let _ = stream.write_all(request);
    let mut answer = vec![0; 4096];
    let len = stream.read(&mut answer).unwrap_or(0);
    answer.truncate(len);
    answer
}

fn free_port() -> u16 {
    // A cluster node also listens on its port + 10,000.
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("the listener is bound").port();
        if port < 55_000 {
            return port;
        }
    }
}
