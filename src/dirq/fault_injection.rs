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
    fs::faults::{Fate, is_planned, with},
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
struct Setting {
    normal: bool,
    sync: bool,
    /// Whether directories are kept open, as in memory.
    cached: bool,
    /// Whether the file system can rename to a free name at once.
    renames: bool,
    /// Whether deliveries are counted.
    counted: bool,
}

const ANY: Setting =
    Setting { normal: false, sync: false, cached: true, renames: true, counted: false };
const NORMAL: Setting = Setting { normal: true, ..ANY };
const BOTH: [Setting; 2] = [ANY, NORMAL];

impl Setting {
    fn all() -> impl Iterator<Item = Self> {
        let all = (0..32).map(|bits| Self {
            normal: bits & 1 > 0,
            sync: bits & 2 > 0,
            cached: bits & 4 > 0,
            renames: bits & 8 > 0,
            counted: bits & 16 > 0,
        });
        // What is remembered of an element knows nothing of the other two.
        all.filter(|setting| !setting.counted || setting.cached && setting.renames)
    }

    /// What becomes of a call by the file system's kind alone.
    fn fate(self, what: &str) -> Fate {
        match what {
            "statfs" if !self.cached => Fate::Refused(Errno::NOSYS),
            "rename to a free name" if !self.renames => Fate::Refused(Errno::INVAL),
            _ => Fate::Made,
        }
    }
}

impl Process {
    /// One whose calls all go well.
    fn start(path: &Path, setting: Setting) -> Self {
        with(move |what| setting.fate(what), || Self::open(path, setting)).expect("nothing fails")
    }

    fn open(path: &Path, setting: Setting) -> Result<Self, Error> {
        let Setting { normal, sync, counted, .. } = setting;
        if normal {
            let schema = "body:string,more:binary?".parse().expect("it is a schema");
            let mut queue = Queue::builder(path).schema(schema).sync(sync);
            if counted {
                queue = queue.backoff(Duration::ZERO, Duration::ZERO);
            }
            return now(queue.open()).map(Self::Normal);
        }
        // No test is to meet the end of a minute.
        let all_time = Duration::from_secs(1 << 31);
        let mut queue = QueueSimple::builder(path).granularity(all_time).sync(sync);
        if counted {
            queue = queue.backoff(Duration::ZERO, Duration::ZERO);
        }
        now(queue.open()).map(Self::Simple)
    }

    fn add(&self, body: &str) -> Result<Name, Error> {
        match self {
            Self::Simple(queue) => now(queue.add(body)),
            Self::Normal(queue) => now(queue.add(element(body))),
        }
    }

    fn add_many(&self, bodies: &[&str]) -> Result<Vec<Name>, Error> {
        match self {
            Self::Simple(queue) => now(queue.add_many(bodies)),
            Self::Normal(queue) => now(queue.add_many(bodies.iter().map(|body| element(body)))),
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
        by_a_plan(add)
    }

    fn names(&self) -> Vec<Name> {
        let mut names = either!(self, queue => queue.names());
        std::iter::from_fn(|| now(names.next()))
            .collect::<Result<_, _>>()
            .expect("it can be listed")
    }

    fn lock(&self, name: &Name) -> Result<bool, Error> {
        either!(self, queue => now(queue.lock(name)))
    }

    fn unlock(&self, name: &Name) -> Result<(), Error> {
        either!(self, queue => now(queue.unlock(name)))
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        either!(self, queue => now(queue.remove(name)))
    }

    fn dequeue(&self, name: &Name) -> Result<Option<String>, Error> {
        Ok(match self {
            Self::Simple(queue) => now(queue.dequeue(name))?.map(|body| text(&body)),
            Self::Normal(queue) => now(queue.dequeue(name))?.map(|element| body_of(&element)),
        })
    }

    fn purge(&self) -> Result<super::PurgeReport, Error> {
        either!(self, queue => now(queue.purge(Purge::default())))
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
fn now<T>(call: impl Future<Output = T>) -> T {
    by_a_plan(|| unconstrained(call).now_or_never().expect("all is done in place"))
}

/// Does `work` by the plan that there is, or else by one in which nothing fails.
fn by_a_plan<T>(work: impl FnOnce() -> T) -> T {
    match is_planned() {
        true => work(),
        false => with(|_| Fate::Made, work),
    }
}

/// A directory whose calls cost little.
fn folder() -> TempDir {
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
fn age(top: &Path) {
    let past = SystemTime::now() - Duration::from_secs(3600);
    // A change in a directory is one of it.
    for path in tree(top).iter().rev() {
        // What is remembered of an element has no age.
        if !path.is_symlink() {
            File::open(path).and_then(|file| file.set_modified(past)).expect("it is there");
        }
    }
}
