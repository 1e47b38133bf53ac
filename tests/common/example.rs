//! Helpers for tests of the examples: building an example, and running the service.

// Each test binary compiles its own copy of this module and uses a part of it.
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

use crate::patience::patience;

/// Builds the example `name`, with the profile and in the target directory of this test. Returns the path of its
/// binary.
pub(crate) fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

    // A failed build poisons the lock. Ignored, so that the next test builds again and fails with the same message.
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
    // The path of this test is `<target>/<profile>/deps/<test>`.
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("this test is in a target directory");
    let target = folder.parent().expect("this test is in a target directory");
    let profile = match folder.file_name().and_then(|folder| folder.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!("the directory {} does not name a profile", folder.display()),
    };
    let mut cargo = Command::new(env!("CARGO"));
    // Cargo sets these variables for this test. Build scripts that read them would be built again.
    for (name, _) in std::env::vars_os() {
        let variable = name.to_string_lossy();
        if variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let output = cargo
        .args(["build", "--quiet", "--message-format", "json-render-diagnostics"])
        // The packages and features of `cargo test --workspace --all-features`, so that no crate is built twice.
        .args(["--workspace", "--all-features"])
        .args(["--example", name, "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| panic!("cannot run cargo at {}: {error}", env!("CARGO")));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the example {name} does not build:\n{stderr}");
    output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| panic!("cargo built the example {name}, but printed no executable"))
}

/// The running example `service` on a free port, killed on drop.
pub(crate) struct Service {
    /// Its first line: `http://127.0.0.1:` and the port.
    pub(crate) url: String,
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Service {
    /// Starts the service and waits for its first line.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts the service with more arguments.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        let path = example("service");
        let mut child = Command::new(&path)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", path.display()));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = mpsc::channel();
        // Reads until the end, so that a full pipe never blocks the service.
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
            "the first line of the service is not its address: {url:?}"
        );
        service
    }

    /// Returns the next line of its stdout.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(patience()) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("the service printed no further line for {:?}", patience())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the service closed its stdout"),
        }
    }

    /// Returns its address without the scheme.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Sends a signal to the service by name, such as `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap_or_else(|error| panic!("cannot run kill: {error}"));
        assert!(status.success(), "cannot send {name} to the service: kill exited with {status}");
    }

    /// Waits until the service exits. Panics after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) => assert!(
                    start.elapsed() < limit,
                    "the service still runs {limit:?} after the signal"
                ),
                Err(error) => panic!("cannot wait for the service: {error}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
