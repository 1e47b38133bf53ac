//! Randomized model of key versions: one key on a server, connections that keep an order, and tasks that read and write
//! through a cached answer. In no order of steps does a task get a version older than one that was seen or written
//! before.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

const KEY: &[u8] = b"ada";

/// Rule that the model violates, to check that the test detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A write does not invalidate its key.
    WriteWithoutInvalidation,
    /// A reply is cached although its key version is outdated.
    OutdatedReplyCached,
    /// A task joins a read whose key version is outdated.
    OutdatedReadJoined,
    /// A reply that is not cached does not invalidate its key.
    UncachedReplyWithoutInvalidation,
    /// A connection is replaced, and no key is invalidated.
    ReplacementWithoutInvalidation,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Read { read: usize },
    Write { task: usize },
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Reply { read: usize, version: u64 },
    Written { task: usize, version: u64 },
    Changed,
}

#[derive(Default)]
struct Connection {
    requests: VecDeque<Request>,
    messages: VecDeque<Message>,
    /// True if a change was not reported yet: Redis reports the changes of an event loop iteration at its end.
    is_changed: bool,
    /// Set when the connection is not used any more. The server may still execute requests that were sent on it.
    is_retired: bool,
}

enum Task {
    Idle,
    /// Waits for `read`; `seen` is the newest version that was seen when the wait began.
    Waits {
        read: usize,
        seen: u64,
    },
    Writes,
}

struct InFlightRead {
    key_version: KeyVersion,
    connection: usize,
    reply: Option<u64>,
    is_settled: bool,
}

struct Model {
    rng: SmallRng,
    fault: Fault,
    versions: KeyVersions,
    /// Version of the value on the server.
    version: u64,
    connections: Vec<Connection>,
    tasks: Vec<Task>,
    reads: Vec<InFlightRead>,
    /// Read that other tasks may join.
    joinable: Option<usize>,
    cached: Option<(u64, KeyVersion)>,
    /// Newest version that a task has seen or written.
    seen: u64,
    /// Number of answers from the cache.
    hits: u64,
}

impl Model {
    fn new(seed: u64, fault: Fault) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            fault,
            versions: KeyVersions::new(1),
            version: 0,
            connections: vec![Connection::default()],
            tasks: (0..4).map(|_| Task::Idle).collect(),
            reads: Vec::new(),
            joinable: None,
            cached: None,
            seen: 0,
            hits: 0,
        }
    }

    /// Performs one random step. Returns an error if a task gets an outdated version.
    fn step(&mut self) -> Result<(), String> {
        let bucket = self.versions.bucket(KEY);
        match self.rng.random_range(0..100) {
            0..30 => self.begin(bucket)?,
            30..55 => self.execute(),
            55..75 => self.receive(bucket),
            75..85 => self.settle(bucket),
            85..97 => self.end()?,
            97 => {
                // A write of another process.
                self.version += 1;
                self.connections.iter_mut().for_each(|connection| connection.is_changed = true);
            }
            98 if self.rng.random_ratio(1, 3) => self.replace_connection(),
            _ => self.send_again(),
        }
        Ok(())
    }

    /// Lets an idle task begin a write or a read.
    fn begin(&mut self, bucket: Bucket) -> Result<(), String> {
        let task = self.rng.random_range(0..self.tasks.len());
        if !matches!(self.tasks[task], Task::Idle) {
            return Ok(());
        }
        let connection = self.connections.len() - 1;
        if self.rng.random_ratio(1, 6) {
            self.tasks[task] = Task::Writes;
            self.connections[connection].requests.push_back(Request::Write { task });
            return Ok(());
        }
        if let Some((version, key_version)) = self.cached
            && self.versions.is_current(key_version)
        {
            self.hits += 1;
            return self.see(version, self.seen);
        }
        let read = match self.joinable {
            Some(at)
                if self.fault == Fault::OutdatedReadJoined
                    || self.versions.is_current(self.reads[at].key_version) =>
            {
                at
            }
            _ => {
                let key_version = self.versions.version(bucket);
                let read = InFlightRead { key_version, connection, reply: None, is_settled: false };
                self.reads.push(read);
                let at = self.reads.len() - 1;
                self.connections[connection].requests.push_back(Request::Read { read: at });
                self.joinable = Some(at);
                at
            }
        };
        self.tasks[task] = Task::Waits { read, seen: self.seen };
        Ok(())
    }

    /// Lets the server execute a request of one connection, and report a change now or later.
    fn execute(&mut self) {
        let at = self.rng.random_range(0..self.connections.len());
        let connection = &mut self.connections[at];
        match connection.requests.pop_front() {
            Some(Request::Read { read }) => {
                connection.messages.push_back(Message::Reply { read, version: self.version });
            }
            Some(Request::Write { task }) => {
                self.version += 1;
                connection.messages.push_back(Message::Written { task, version: self.version });
                self.connections.iter_mut().for_each(|connection| connection.is_changed = true);
            }
            None => {}
        }
        let connection = &mut self.connections[at];
        if connection.is_changed && self.rng.random_ratio(1, 2) {
            connection.is_changed = false;
            connection.messages.push_back(Message::Changed);
        }
    }

    /// Receives a message of one connection.
    fn receive(&mut self, bucket: Bucket) {
        let at = self.rng.random_range(0..self.connections.len());
        match self.connections[at].messages.pop_front() {
            // The push of a retired connection is not received.
            Some(Message::Changed) if self.connections[at].is_retired => {}
            Some(Message::Changed) => self.versions.invalidate(bucket),
            Some(Message::Reply { read, version }) => {
                let read = &mut self.reads[read];
                if read.connection == at {
                    read.reply = Some(version);
                }
            }
            Some(Message::Written { task, version }) => {
                if self.fault != Fault::WriteWithoutInvalidation {
                    self.versions.invalidate(bucket);
                }
                self.tasks[task] = Task::Idle;
                self.seen = self.seen.max(version);
            }
            None => {}
        }
    }

    /// Caches the reply of a read if its key version is current; invalidates the key otherwise.
    fn settle(&mut self, bucket: Bucket) {
        let mut ready = self.reads.iter_mut().enumerate();
        let ready = ready.find(|(_, read)| read.reply.is_some() && !read.is_settled);
        let Some((at, read)) = ready else { return };
        let version = read.reply.expect("the read has its reply");
        if self.fault == Fault::OutdatedReplyCached {
            read.key_version = self.versions.version(bucket);
        }
        if self.versions.is_current(read.key_version) {
            self.cached = Some((version, read.key_version));
        } else if self.fault != Fault::UncachedReplyWithoutInvalidation {
            self.versions.invalidate(bucket);
        }
        read.is_settled = true;
        if self.joinable == Some(at) {
            self.joinable = None;
        }
    }

    /// Moves a read to the current connection, as a server that is unavailable makes the client retry it. Its reply is
    /// newer than those of reads that were sent after it.
    fn send_again(&mut self) {
        let at = self.rng.random_range(0..self.connections.len());
        let requests = &mut self.connections[at].requests;
        let read = requests.iter().position(|request| matches!(request, Request::Read { .. }));
        if let Some(Request::Read { read }) = read.and_then(|read| requests.remove(read)) {
            let last = self.connections.len() - 1;
            self.connections[last].requests.push_back(Request::Read { read });
            self.reads[read].connection = last;
        }
    }

    /// Delivers the answer of a settled read to one of its waiters.
    fn end(&mut self) -> Result<(), String> {
        let task = self.rng.random_range(0..self.tasks.len());
        if let Task::Waits { read, seen } = self.tasks[task]
            && self.reads[read].is_settled
        {
            let version = self.reads[read].reply.expect("a settled read has its reply");
            self.tasks[task] = Task::Idle;
            return self.see(version, seen);
        }
        Ok(())
    }

    fn replace_connection(&mut self) {
        let last = self.connections.len() - 1;
        self.connections[last].is_retired = true;
        self.connections.push(Connection::default());
        if self.fault != Fault::ReplacementWithoutInvalidation {
            self.versions.invalidate_all();
        }
    }

    /// Completes all requests in flight without beginning new ones. A valid cached answer is then the version on the
    /// server.
    fn drain(&mut self) -> Result<(), String> {
        let bucket = self.versions.bucket(KEY);
        let is_busy = |connection: &Connection| {
            !connection.requests.is_empty()
                || !connection.messages.is_empty()
                || connection.is_changed
        };
        while self.connections.iter().any(is_busy) {
            self.execute();
            self.receive(bucket);
            self.settle(bucket);
        }
        match self.cached {
            Some((version, key_version))
                if self.versions.is_current(key_version) && version < self.version =>
            {
                Err(format!("version {version} is cached, the server has {}", self.version))
            }
            _ => Ok(()),
        }
    }

    fn see(&mut self, version: u64, seen: u64) -> Result<(), String> {
        if version < seen {
            return Err(format!("version {version} was read after {seen}"));
        }
        self.seen = self.seen.max(version);
        Ok(())
    }
}

/// Returns the first seed for which an outdated version is read, and the number of answers from the cache.
fn run(fault: Fault, seeds: u64) -> (Option<(u64, String)>, u64) {
    let mut hits = 0;
    for seed in 0..seeds {
        let mut model = Model::new(seed, fault);
        let steps = (0..400).try_for_each(|_| model.step());
        if let Err(error) = steps.and_then(|()| model.drain()) {
            return (Some((seed, error)), hits);
        }
        hits += model.hits;
    }
    (None, hits)
}

fn seeds() -> u64 {
    std::env::var("FLEETING_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000)
}

#[test]
fn cached_answer_is_never_older_than_a_version_seen_before() {
    let (outdated, hits) = run(Fault::None, seeds());
    assert_eq!(outdated, None);
    assert!(hits > 10 * seeds(), "only {hits} answers came from the cache");
}

#[test]
fn model_detects_the_violation_of_each_rule() {
    let faults = [
        Fault::WriteWithoutInvalidation,
        Fault::OutdatedReplyCached,
        Fault::OutdatedReadJoined,
        Fault::UncachedReplyWithoutInvalidation,
        Fault::ReplacementWithoutInvalidation,
    ];
    for fault in faults {
        let (outdated, _) = run(fault, 20_000);
        assert!(outdated.is_some(), "{fault:?} is not detected");
    }
}

#[test]
fn outdated_version_never_becomes_current_again() {
    let versions = KeyVersions::new(10_000);
    let ada = versions.bucket(b"ada");
    // Searched for, as the hasher is seeded randomly.
    let bob = (0_u32..).map(|n| versions.bucket(&n.to_le_bytes())).find(|bucket| *bucket != ada);
    let bob = bob.expect("there are several buckets");
    let of = |bucket| versions.version(bucket);
    let (of_ada, of_bob) = (of(ada), of(bob));
    versions.invalidate(ada);
    assert!(!versions.is_current(of_ada) && versions.is_current(of_bob));
    let again = of(ada);
    versions.invalidate_all();
    assert!(!versions.is_current(of_ada) && !versions.is_current(again));
    assert!(!versions.is_current(of_bob));
    assert!(versions.is_current(of(ada)));
}
