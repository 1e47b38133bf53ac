//! What becomes of a queue whose process dies, is refused something, or meets another one: at each of its calls to the
//! kernel, one after another.

mod crash;
mod failed_calls;
mod file_limits;
mod interleavings;
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

use futures_util::FutureExt;
use rustix::io::Errno;
use tempfile::TempDir;
use tokio::task::unconstrained;

use super::{
    DirQueue, Element, Error, Name, Purge, Queue, QueueSimple,
    fs::faults::{Fault, has_plan, with_plan},
    group::AddInGroups,
    protocol::Protocol,
};

/// A process that uses a queue of either kind.
#[derive(Clone)]
enum Process {
    Simple(QueueSimple),
    Normal(Queue),
}

/// The same call on either kind.
macro_rules! either {
    ($process:expr, $queue:ident => $call:expr) => {
        match $process {
            Process::Simple($queue) => $call,
            Process::Normal($queue) => $call,
        }
    };
}
use either;

/// What a queue is opened with.
#[derive(Clone, Copy, Debug)]
struct Config {
    normal: bool,
    sync: bool,
    /// Whether directories are kept open, as in memory.
    cached: bool,
    /// Whether the file system can rename to a free name at once.
    renames: bool,
    /// Whether deliveries are counted.
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
        // What is remembered of an element knows nothing of the other two.
        all.filter(|config| !config.counted || config.cached && config.renames)
    }

    /// What becomes of a call by the file system's kind alone.
    fn default_fault(self, what: &str) -> Fault {
        match what {
            "statfs" if !self.cached => Fault::Fail(Errno::NOSYS),
            "rename to a free name" if !self.renames => Fault::Fail(Errno::INVAL),
            _ => Fault::None,
        }
    }
}

impl Process {
    /// One whose calls all go well.
    fn start(path: &Path, config: Config) -> Self {
        with_plan(move |what| config.default_fault(what), || Self::open(path, config))
            .expect("nothing fails")
    }

    fn open(path: &Path, config: Config) -> Result<Self, Error> {
        let Config { normal, sync, counted, .. } = config;
        if normal {
            let schema = "body:string,more:binary?".parse().expect("it is a schema");
            let mut queue = Queue::builder(path).schema(schema).sync(sync);
            if counted {
                queue = queue.backoff(Duration::ZERO, Duration::ZERO);
            }
            return in_place(queue.open()).map(Self::Normal);
        }
        // No test is to meet the end of a minute.
        let all_time = Duration::from_secs(1 << 31);
        let mut queue = QueueSimple::builder(path).granularity(all_time).sync(sync);
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

    /// Adds of several callers that are made together.
    fn add_each(&self, bodies: &[&str]) -> Vec<Result<Name, Error>> {
        let add = || match self {
            Self::Simple(queue) => {
                let bodies = bodies.iter().map(|body| body.as_bytes().to_vec());
                queue.protocol.add_each(bodies.collect())
            }
            Self::Normal(queue) => {
                let schema = queue.schema().expect("it has one");
                let files =
                    bodies.iter().map(|body| schema.encode(element(body)).expect("it fits"));
                queue.protocol.add_each(files.collect())
            }
        };
        with_any_plan(add)
    }

    fn names(&self) -> Vec<Name> {
        let mut names = either!(self, queue => queue.names());
        std::iter::from_fn(|| in_place(names.next()))
            .collect::<Result<_, _>>()
            .expect("it can be listed")
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

    /// Takes all that there is, and returns how often each body came.
    fn drain(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        for name in self.names() {
            let body = self.dequeue(&name).expect("nothing fails");
            *found.entry(body.expect("nobody has it locked")).or_default() += 1;
        }
        found
    }

    fn path(&self) -> &Path {
        either!(self, queue => queue.path())
    }
}

/// The result of a call that is made in place, as all are by a plan. Without one it makes one.
fn in_place<T>(call: impl Future<Output = T>) -> T {
    with_any_plan(|| unconstrained(call).now_or_never().expect("all is done in place"))
}

/// Does `work` by the plan that there is, or else by one in which nothing fails.
fn with_any_plan<T>(work: impl FnOnce() -> T) -> T {
    match has_plan() {
        true => work(),
        false => with_plan(|_| Fault::None, work),
    }
}

/// A directory whose calls cost little.
fn temp_dir() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .expect("a directory can be made")
}

fn element(body: &str) -> Element {
    Element::new().with("body", body).with("more", b"\0")
}

fn body_of(element: &Element) -> String {
    element.string("body").expect("it has a body").to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All paths below `top`, each before what is in it.
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

/// Makes all that is below `top` older than a purge lets be.
fn make_stale(top: &Path) {
    let past = SystemTime::now() - Duration::from_secs(3600);
    // A change in a directory is one of it.
    for path in tree(top).iter().rev() {
        // What is remembered of an element has no make_stale.
        if !path.is_symlink() {
            File::open(path).and_then(|file| file.set_modified(past)).expect("it is there");
        }
    }
}
