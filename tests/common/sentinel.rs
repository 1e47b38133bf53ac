//! Redis Sentinel for tests, which monitors a server of the test.

use std::{
    fs,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Server, answers, ask, free_port, program, run};
use crate::patience::patience;

/// Handle to a sentinel, which monitors a master as service `main` and promotes a replica when the master is down.
pub(crate) struct Sentinel {
    shell: Child,
    port: u16,
    _folder: TempDir,
}

impl Sentinel {
    /// Starts a sentinel for `master`. Replicas must be connected already, since the sentinel discovers later ones
    /// slowly.
    pub(crate) fn of(master: &Server) -> Self {
        Self::with(master, "")
    }

    /// Starts a sentinel with additional lines of configuration.
    pub(crate) fn with(master: &Server, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("the temporary directory can be created");
        let file = folder.path().join("sentinel.conf");
        for _ in 0..10 {
            let port = free_port();
            let settings = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nlogfile log\n\
                 sentinel monitor main 127.0.0.1 {} 1\n\
                 sentinel down-after-milliseconds main 300\n\
                 sentinel failover-timeout main 3000\n{more}\n",
                folder.path().display(),
                master.port
            );
            fs::write(&file, settings).expect("the directory is writable");
            let (mut shell, _) =
                run(&[&program(), file.to_str().expect("the path is valid UTF-8"), "--sentinel"]);
            if answers(&mut shell, port) {
                return Self { shell, port, _folder: folder };
            }
        }
        panic!("{} does not start as a sentinel; its log is in {:?}", program(), folder.keep());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the sentinel knows `replicas` replicas of the master.
    pub(crate) fn knows_replicas(&self, replicas: usize) {
        let until = Instant::now() + patience();
        while !ask(self.port, "SENTINEL MASTER main")
            .contains(&format!("num-slaves\r\n$1\r\n{replicas}"))
        {
            assert!(Instant::now() < until, "the sentinel did not discover the replicas");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the port of the master.
    pub(crate) fn master(&self) -> u16 {
        let answer = ask(self.port, "SENTINEL GET-MASTER-ADDR-BY-NAME main");
        answer.trim_end().rsplit("\r\n").next().and_then(|port| port.parse().ok()).unwrap_or(0)
    }

    /// Makes the sentinel promote a replica now.
    pub(crate) fn fail_over(&self) {
        let until = Instant::now() + patience();
        while !ask(self.port, "SENTINEL FAILOVER main").starts_with("+OK") {
            assert!(Instant::now() < until, "the sentinel has no replica to promote");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
