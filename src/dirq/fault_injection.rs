//! Tests that crash a process, inject an error, or run another process, at each of its system calls in turn.

mod crash;
mod dead_letters;
mod failed_calls;
mod file_limits;
mod interleavings;
#[path = "../../tests/common/log.rs"]
mod log;
mod network;
mod regressions;
mod syscall_boundary;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, File},
    mem,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::FutureExt;
use rustix::io::Errno;
use tempfile::TempDir;
use tokio::task::unconstrained;

use super::{
    DirQueue, DirQueueBuilder, Element, Error, Name, Purge, Queue, QueueSimple,
    add::Add,
    fs::faults::{Fault, with_plan},
    protocol::Protocol,
};

/// A simulated process that uses a queue of either kind.
#[derive(Clone)]
enum Process {
    Simple(QueueSimple),
    Normal(Queue),
}

/// Makes the same call on either kind of queue.
macro_rules! either {
    ($process:expr, $queue:ident => $call:expr) => {
        match $process {
            Process::Simple($queue) => $call,
            Process::Normal($queue) => $call,
        }
    };
}
use either;

/// The settings of a queue and of its file system.
#[derive(Clone, Copy, Debug)]
struct Config {
    normal: bool,
    sync: bool,
    /// True if directories are kept open, as in memory.
    cached: bool,
    /// True if the file system supports renaming without replacing.
    renames: bool,
    /// True if deliveries are counted.
    counted: bool,
}

const SIMPLE: Config =
    Config { normal: false, sync: false, cached: true, renames: true, counted: false };
const NORMAL: Config = Config { normal: true, ..SIMPLE };
const BOTH_KINDS: [Config; 2] = [SIMPLE, NORMAL];

impl Config {
    fn all() -> impl Iterator<Item = Self> {
        let all = (0..32).map(|bits| Self {
            normal: bits & 1 > 0,
            sync: bits & 2 > 0,
            cached: bits & 4 > 0,
            renames: bits & 8 > 0,
            counted: bits & 16 > 0,
        });
        // The counting of deliveries is independent of the other two settings.
        all.filter(|config| !config.counted || config.cached && config.renames)
    }

    /// Returns the fault that results from the simulated file system alone.
    fn default_fault(self, what: &str) -> Fault {
        match what {
            "statfs" if !self.cached => Fault::Fail(Errno::NOSYS),
            "rename to a free name" if !self.renames => Fault::Fail(Errno::INVAL),
            _ => Fault::None,
        }
    }
}

impl Process {
    /// Starts a process whose calls succeed.
    fn start(path: &Path, config: Config) -> Self {
        with_plan(move |what| config.default_fault(what), || Self::open(path, config))
            .expect("no fault is injected")
    }

    fn open(path: &Path, config: Config) -> Result<Self, Error> {
        let Config { normal, sync, counted, .. } = config;
        if normal {
            let schema = "body:string,more:binary?".parse().expect("the schema is valid");
            let mut queue = Queue::builder(path).schema(schema).sync(sync).in_place();
            if counted {
                queue = queue.backoff(Duration::ZERO, Duration::ZERO);
            }
            return in_place(queue.open()).map(Self::Normal);
        }
        // The directory of new elements must not change during a test.
        let all_time = Duration::from_secs(1 << 31);
        let mut queue = QueueSimple::builder(path).granularity(all_time).sync(sync).in_place();
        if counted {
            queue = queue.backoff(Duration::ZERO, Duration::ZERO);
        }
        in_place(queue.open()).map(Self::Simple)
    }

    fn add(&self, body: &str) -> Result<Name, Error> {
        match self {
            Self::Simple(queue) => in_place(queue.add(body)),
            Self::Normal(queue) => in_place(queue.add(element(body))),
        }
    }

    fn add_many(&self, bodies: &[&str]) -> Result<Vec<Name>, Error> {
        match self {
            Self::Simple(queue) => in_place(queue.add_many(bodies)),
            Self::Normal(queue) => {
                in_place(queue.add_many(bodies.iter().map(|body| element(body))))
            }
        }
    }

    /// Executes several adds as one group.
    fn add_each(&self, bodies: &[&str]) -> Vec<Result<Name, Error>> {
        match self {
            Self::Simple(queue) => {
                let bodies = bodies.iter().map(|&body| Bytes::from(body.to_owned()));
                queue.protocol.add_each(&bodies.collect::<Vec<_>>())
            }
            Self::Normal(queue) => {
                let schema = queue.schema().expect("the queue has a schema");
                let files = bodies.iter().map(|body| {
                    schema.encode(element(body)).expect("the element matches the schema")
                });
                queue.protocol.add_each(&files.collect::<Vec<_>>())
            }
        }
    }

    fn names(&self) -> Vec<Name> {
        let mut names = either!(self, queue => queue.names());
        std::iter::from_fn(|| in_place(names.next()))
            .collect::<Result<_, _>>()
            .expect("the queue can be listed")
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        either!(self, queue => in_place(queue.lock(name)))
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        either!(self, queue => in_place(queue.unlock(name)))
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        either!(self, queue => in_place(queue.remove(name)))
    }

    fn dequeue(&self, name: &Name) -> Result<Option<String>, Error> {
        Ok(match self {
            Self::Simple(queue) => in_place(queue.dequeue(name))?.map(|body| text(&body)),
            Self::Normal(queue) => in_place(queue.dequeue(name))?.map(|element| body_of(&element)),
        })
    }

    fn purge(&self) -> Result<super::PurgeReport, Error> {
        either!(self, queue => in_place(queue.purge(Purge::default())))
    }

    /// Removes all elements, and returns how often each body occurred.
    fn drain(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        for name in self.names() {
            let body = self.dequeue(&name).expect("no fault is injected");
            *found.entry(body.expect("the element is not locked")).or_default() += 1;
        }
        found
    }

    fn path(&self) -> &Path {
        either!(self, queue => queue.path())
    }
}

impl<S> DirQueueBuilder<S> {
    /// Runs all work on the calling thread, where a plan applies to it.
    pub(crate) fn in_place(mut self) -> Self {
        self.options.in_place = true;
        self
    }
}

/// Returns the result of a call that completes in place, as all calls of a queue do that was opened so.
fn in_place<T>(call: impl Future<Output = T>) -> T {
    unconstrained(call).now_or_never().expect("the queue was opened in place")
}

/// Creates a directory in memory if possible, where system calls are fast.
fn temp_dir() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .expect("a directory can be created")
}

fn element(body: &str) -> Element {
    Element::new().with("body", body).with("more", b"\0")
}

fn body_of(element: &Element) -> String {
    element.string("body").expect("the element has a body").to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns all paths below `top`, each before its contents.
fn tree(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&entry.path()));
        }
    }
    found
}

/// Makes everything below `top` stale for a purge.
fn make_stale(top: &Path) {
    let past = SystemTime::now() - Duration::from_secs(3600);
    // In reverse order, because changing an entry also changes its directory.
    for path in tree(top).iter().rev() {
        // Records of deliveries have no age.
        if !path.is_symlink() {
            File::open(path).and_then(|file| file.set_modified(past)).expect("the path exists");
        }
    }
}
