//! The processes of the long run: one of this library with several workers, and one of Python's package.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fleeting::dirq::{Error, Lock, Purge, QueueSimple};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

use super::log::{Log, Step};
use crate::directory::{python_command, test_name};

/// Age from which a purge removes a lock. Much longer than any job and any frozen moment.
pub(super) const MAX_LOCK: Duration = Duration::from_secs(4);

/// Passes the arguments of a process to it.
const ARGUMENTS: &str = "FLEETING_DIRQ_LONG_RUN";

/// Length of an element. The disk has room for a few thousand of them.
const BODY_LEN: usize = 200;

/// The arguments of a process.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    pub(super) queue: PathBuf,
    /// Directory of the logs, in which a file `stop` ends all adds.
    pub(super) logs: PathBuf,
    /// Number of the process.
    pub(super) process: u32,
    pub(super) seed: u64,
    pub(super) workers: usize,
}

impl Arguments {
    /// Starts the process that [`work`] runs in.
    pub(super) fn start(&self) -> Child {
        let mut command = Command::new(env::current_exe().expect("the path of this test"));
        let worker = test_name(module_path!(), "long_run_process");
        command.args(["--exact", &worker, "--ignored"]).env(ARGUMENTS, self.lines().join("\n"));
        spawn(command)
    }

    pub(super) fn start_python(&self) -> Child {
        let lines = self.lines();
        let args: Vec<_> = lines.iter().map(String::as_str).collect();
        spawn(python_command(PYTHON, &args))
    }

    fn lines(&self) -> [String; 5] {
        let Self { queue, logs, process, seed, workers } = self;
        let [queue, logs] = [queue, logs].map(|path| path.display().to_string());
        [queue, logs, process.to_string(), seed.to_string(), workers.to_string()]
    }

    fn parse(text: &str) -> Self {
        let lines: Vec<_> = text.lines().collect();
        let number = |index: usize| lines[index].parse().expect("the argument is a number");
        Self {
            queue: lines[0].into(),
            logs: lines[1].into(),
            process: number(2) as u32,
            seed: number(3),
            workers: number(4) as usize,
        }
    }
}

fn spawn(mut command: Command) -> Child {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    started.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

/// Opens the queue as each process does.
pub(super) async fn open(path: &Path) -> Result<QueueSimple, Error> {
    let (first, max) = (Duration::from_millis(10), Duration::from_millis(200));
    let purge = Purge::default().max_lock(MAX_LOCK).max_temp(MAX_LOCK);
    let queue = QueueSimple::builder(path).backoff(first, max).max_attempts(4);
    queue.purge_every(Duration::from_secs(1), purge).open().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is started by the long run, as one of its processes"]
async fn long_run_process() {
    let text = env::var(ARGUMENTS).expect("another test starts this one");
    let arguments = Arguments::parse(&text);
    let log = Arc::new(Log::create(&arguments.logs.join(arguments.process.to_string())));
    let queue = loop {
        match open(&arguments.queue).await {
            Ok(queue) => break queue,
            // The disk may be full.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    let random = |task: u64| StdRng::seed_from_u64(arguments.seed ^ task << 32);
    for worker in 0..arguments.workers {
        tokio::spawn(work(queue.clone(), log.clone(), random(worker as u64 + 1)));
    }
    add(queue, &log, &arguments, random(0)).await;
    // Until this process is killed.
    std::future::pending::<()>().await;
}

/// Adds elements in bursts, so that workers often wait, until the run ends.
async fn add(queue: QueueSimple, log: &Log, arguments: &Arguments, mut random: StdRng) {
    let stop = arguments.logs.join("stop");
    let mut number = 0;
    while !stop.exists() {
        for _ in 0..random.random_range(1..=8) {
            let id = format!("{}-{number}", arguments.process);
            number += 1;
            log.note(Step::Adding, &id);
            let step = match queue.add(format!("{id:BODY_LEN$}")).await {
                Ok(_) => Step::Added,
                Err(_) => Step::AddFailed,
            };
            log.note(step, &id);
        }
        sleep(Duration::from_millis(random.random_range(100..200))).await;
        // If the workers are slower, the disk would be full for the rest of the run.
        while queue.count().await.is_ok_and(|count| count > 1_000) && !stop.exists() {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn work(queue: QueueSimple, log: Arc<Log>, mut random: StdRng) {
    let mut jobs = queue.watch(Duration::from_secs(2));
    loop {
        match jobs.next().await {
            Some(Ok(job)) => end(job, &log, &mut random).await,
            // A full disk.
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Works on an element, and acks it or gives it back.
pub(super) async fn end(job: Lock<Bytes>, log: &Log, random: &mut StdRng) {
    let text = str::from_utf8(job.value()).expect("elements are ASCII").trim();
    assert_eq!(job.value().len(), BODY_LEN, "the element {text:?} is incomplete");
    let id = text.to_owned();
    log.note(Step::Delivered, &id);
    sleep(Duration::from_millis(random.random_range(0..10))).await;
    let returned = match random.random_range(0..100) {
        0..3 => job.fail("by chance").await,
        3..5 => job.release().await,
        5..7 => {
            drop(job);
            Ok(())
        }
        _ => {
            log.note(Step::Acking, &id);
            let step = match job.ack().await {
                Ok(()) => Step::Acked,
                Err(Error::NotLocked { .. }) => Step::NotLocked,
                Err(_) => Step::Returned,
            };
            return log.note(step, &id);
        }
    };
    let is_lost = matches!(returned, Err(Error::NotLocked { .. }));
    log.note(if is_lost { Step::NotLocked } else { Step::Returned }, &id);
}

/// The same in Python, which knows neither backoffs nor dead letters, and whose purge keeps the locks: it would remove
/// new ones, because it does not wait for the purges of other processes.
const PYTHON: &str = r#"
import os, random, sys, time
from dirq.QueueSimple import QueueSimple

path, logs, process, seed, workers = sys.argv[1:]
random.seed(int(seed))
queue = QueueSimple(path)
log = open(os.path.join(logs, process), "ab", buffering=0)
stop = os.path.join(logs, "stop")
number = 0

def note(step, id):
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    log.write(("%d %s %s\n" % (now, step, id)).encode())

def add():
    global number
    id = "%s-%d" % (process, number)
    number += 1
    note("+", id)
    try:
        queue.add(id.ljust(200))
    except OSError:
        # It may have been added, so this is neither a success nor a failure.
        return
    note("a", id)

def next_name(names):
    try:
        return next(names, None)
    except OSError:
        # A purge removed the directory that the package reads next.
        return None

def take(most):
    names = iter(queue)
    while most > 0 and (name := next_name(names)) is not None:
        try:
            if not queue.lock(name):
                continue
            id = queue.get(name).decode().strip()
        except OSError:
            # An element vanishes between two steps of the package, or the disk is full.
            continue
        most -= 1
        note("g", id)
        note("b", id)
        try:
            queue.remove(name)
        except OSError:
            note("u", id)
            continue
        note("k", id)

while True:
    if not os.path.exists(stop):
        for _ in range(random.randint(1, 4)):
            add()
    take(4)
    if random.random() < 0.1:
        try:
            queue.purge(maxtemp=4, maxlock=0)
        except OSError:
            pass
    time.sleep(random.uniform(0.05, 0.15))
"#;
