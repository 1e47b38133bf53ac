//! Examples that serve HTTP, run as processes.

use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{example::example, patience::patience};

/// A running example, killed on drop.
pub(crate) struct Server {
    /// Its first line: `http://127.0.0.1:` and the port.
    pub(crate) url: String,
    /// The lines that it prints after the first one.
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Server {
    /// Starts the example `name`, whose arguments tell it to listen on a free port.
    pub(crate) fn start(name: &str, args: &[&str]) -> Self {
        let path = example(name);
        let mut child = Command::new(&path)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", path.display()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut server = Self { url: String::new(), lines: BufReader::new(stdout).lines(), child };
        let first = server.lines.next().expect("the example prints a line");
        server.url = first.expect("stdout is UTF-8");
        assert!(server.url.starts_with("http://127.0.0.1:"), "unexpected line {}", server.url);
        server
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &id]).status().expect("kill runs");
        assert!(status.success(), "kill exited with {status}");
    }

    /// Waits until the process exits.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                return status;
            }
            assert!(start.elapsed() < patience(), "the example still runs after SIGTERM");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
