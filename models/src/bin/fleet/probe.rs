//! Connection without a client library, to measure the server: each write and read is known.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::{patience::patience, servers::Server};

/// Connection to a server.
pub(crate) struct Probe(BufReader<TcpStream>);

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Processor time of the main thread in microseconds.
    pub(crate) cpu_us: f64,
    pub(crate) reads: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    pub(crate) memory: f64,
    pub(crate) commands: f64,
}

impl Probe {
    pub(crate) fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server answers");
        stream.set_read_timeout(Some(patience())).expect("a timeout above 0");
        stream.set_nodelay(true).expect("a TCP connection");
        Self(BufReader::new(stream))
    }

    /// Sends commands in one write, without waiting for replies.
    pub(crate) fn send(&mut self, commands: &[&[&str]]) {
        let mut text = String::new();
        for command in commands {
            text += &format!("*{}\r\n", command.len());
            for arg in *command {
                text += &format!("${}\r\n{arg}\r\n", arg.len());
            }
        }
        self.0.get_mut().write_all(text.as_bytes()).expect("the server is connected");
    }

    /// Receives a reply that is a line or a string.
    pub(crate) fn receive(&mut self) -> String {
        let line = self.line();
        let Some(length) = line.strip_prefix('$') else { return line };
        let Ok(length) = length.parse::<usize>() else { return String::new() };
        let mut text = vec![0; length + 2];
        self.0.read_exact(&mut text).expect("the server is connected");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    pub(crate) fn ask(&mut self, command: &[&str]) -> String {
        self.send(&[command]);
        self.receive()
    }

    /// Receives lines until none arrives for a tenth of a second.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let tenth = Some(Duration::from_millis(100));
        self.0.get_mut().set_read_timeout(tenth).expect("a timeout above 0");
        let mut lines = Vec::new();
        let mut line = String::new();
        while self.0.read_line(&mut line).is_ok_and(|read| read > 0) {
            lines.push(std::mem::take(&mut line));
        }
        lines
    }

    pub(crate) fn counters(&mut self) -> Counters {
        let info = self.ask(&["INFO", "everything"]);
        let number = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<f64>().ok()).expect("INFO has the counter")
        };
        let cpu = number("used_cpu_sys_main_thread") + number("used_cpu_user_main_thread");
        Counters {
            cpu_us: cpu * 1e6,
            reads: number("total_reads_processed"),
            bytes_in: number("total_net_input_bytes"),
            bytes_out: number("total_net_output_bytes"),
            memory: number("used_memory"),
            commands: number("total_commands_processed"),
        }
    }

    /// Returns how often the server has executed a command since the start or the last reset.
    pub(crate) fn calls(&mut self, command: &str) -> f64 {
        let info = self.ask(&["INFO", "commandstats"]);
        let name = format!("cmdstat_{command}:calls=");
        let calls = info.lines().find_map(|line| line.strip_prefix(&*name)?.split(',').next());
        calls.map_or(0.0, |calls| calls.parse().expect("a number of calls"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server replies");
        line.trim_end().to_owned()
    }
}

impl Counters {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            reads: self.reads - before.reads,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            memory: self.memory - before.memory,
            commands: self.commands - before.commands,
        }
    }
}
