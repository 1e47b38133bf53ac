//! A sentinel of its own, which watches over a server of a test.

use std::{
    fs,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{START, Server, answers, ask, free_port, program, run};

/// Watches a server and its replicas, which it calls `main`, and makes a replica the master when the master is away.
pub(crate) struct Sentinel {
    shell: Child,
    port: u16,
    _folder: TempDir,
}

impl Sentinel {
    /// Its replicas must be there already: else it is long until they are noticed.
    pub(crate) fn of(master: &Server) -> Self {
        Self::with(master, "")
    }

    /// With more settings, of one line each.
    pub(crate) fn with(master: &Server, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the sentinel");
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
            fs::write(&file, settings).expect("the folder can be written to");
            let (mut shell, _) =
                run(&[&program(), file.to_str().expect("it is text"), "--sentinel"]);
            if answers(&mut shell, port) {
                return Self { shell, port, _folder: folder };
            }
        }
        panic!("{} does not start as a sentinel; its log is in {:?}", program(), folder.keep());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until it knows so many replicas of the master.
    pub(crate) fn knows_replicas(&self, replicas: usize) {
        let until = Instant::now() + START;
        while !ask(self.port, "SENTINEL MASTER main")
            .contains(&format!("num-slaves\r\n$1\r\n{replicas}"))
        {
            assert!(Instant::now() < until, "the sentinel finds no replica");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The master's port.
    pub(crate) fn master(&self) -> u16 {
        let answer = ask(self.port, "SENTINEL GET-MASTER-ADDR-BY-NAME main");
        answer.trim_end().rsplit("\r\n").next().and_then(|port| port.parse().ok()).unwrap_or(0)
    }

    /// Asks it to make a replica the master now.
    pub(crate) fn fail_over(&self) {
        let until = Instant::now() + START;
        while !ask(self.port, "SENTINEL FAILOVER main").starts_with("+OK") {
            assert!(Instant::now() < until, "the sentinel has no good replica");
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
