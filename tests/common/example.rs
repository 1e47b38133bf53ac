//! What the tests of the examples share: building an example, and running the service.

// Each test binary compiles this module anew, and uses its share of it.
#![allow(dead_code)]

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a program may take to say its first line, on a machine that does much else.
const START: Duration = Duration::from_secs(120);

/// The binary of the example `name`, built with the profile and in the target folder of this test.
pub(crate) fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

    // A build that failed for one test fails for the next with the same sentence.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    if let Some(path) = built.get(name) {
        return path.clone();
    }
    let path = build(name);
    built.insert(name.to_owned(), path.clone());
    path
}

fn build(name: &str) -> PathBuf {
    // The test is `<target>/<profile's folder>/deps/<test>`.
    let test = std::env::current_exe().expect("the path of this test is unknown");
    let folder = test.ancestors().nth(2).expect("this test is not in a target folder");
    let target = folder.parent().expect("this test is not in a target folder");
    let profile = match folder.file_name().and_then(|folder| folder.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!("the folder {} tells no profile", folder.display()),
    };
    let mut cargo = Command::new(env!("CARGO"));
    // What this test was told of its own crate; dependencies that ask for it would be built anew.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let output = cargo
        .args(["build", "--quiet", "--message-format", "json-render-diagnostics"])
        // The packages and features of `cargo test --workspace --all-features`, so that nothing is built twice.
        .args(["--workspace", "--all-features"])
        .args(["--example", name, "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| panic!("cargo at {} can't be run: {error}", env!("CARGO")));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the example {name} does not build:\n{complaint}");
    output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| panic!("cargo built the example {name} but names no executable"))
}

/// The example `service` on a free port, killed when this is dropped.
pub(crate) struct Service {
    /// What its first line says: `http://127.0.0.1:` and the port.
    pub(crate) url: String,
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Service {
    /// Starts it, and waits for its first line.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with more arguments.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        let path = example("service");
        let mut child = Command::new(&path)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} can't be run: {error}", path.display()));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = mpsc::channel();
        // Reads to the end, so that the service never waits for a full pipe.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut service = Self { url: String::new(), child, lines };
        service.url = service.line();
        let url = &service.url;
        assert!(
            url.strip_prefix("http://127.0.0.1:").is_some_and(|port| port.parse::<u16>().is_ok()),
            "the first line of the service is not its address but {url:?}"
        );
        service
    }

    /// The next line of its stdout.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(START) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("the service said nothing more on stdout for {START:?}")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the service closed its stdout"),
        }
    }

    /// Its address as a socket takes it.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Sends it a signal by its name, such as `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap_or_else(|error| panic!("kill can't be run: {error}"));
        assert!(status.success(), "the service can't be sent {name}: kill ended with {status}");
    }

    /// Waits for its end, at most `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) => assert!(
                    start.elapsed() < limit,
                    "the service still runs {limit:?} after it was told to stop"
                ),
                Err(error) => panic!("the service can't be waited for: {error}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
