//! One process of a history, and the records of its calls.

use std::{
    env,
    fmt::Display,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::redis::{Client, Error};
use rand::{SeedableRng, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::patience::patience;

/// Variable with the arguments of a process.
pub(super) const ARGUMENTS: &str = "FLEETING_HISTORY";

/// One of the processes, in that process.
pub(crate) struct Process {
    pub(crate) url: String,
    pub(crate) number: usize,
    /// Maximum delay after which the server may still execute a call whose reply was lost. Longer than a server is
    /// stopped.
    pub(crate) max_delay: Duration,
    pub(crate) folder: PathBuf,
    until: Instant,
    seed: u64,
    file: Mutex<BufWriter<File>>,
    ops: AtomicU64,
    errors: AtomicU64,
}

impl Process {
    /// Returns this process, unless it is the parent.
    pub(crate) fn of_environment() -> Option<Self> {
        let arguments = env::var(ARGUMENTS).ok()?;
        let mut arguments = arguments.splitn(6, ' ');
        let mut next = || arguments.next().expect("the parent passes all arguments").to_owned();
        let (url, number, duration) = (next(), next().parse().unwrap(), next().parse().unwrap());
        let (seed, max_delay) = (next().parse().unwrap(), next().parse().unwrap());
        let folder = PathBuf::from(next());
        let file = File::create(records_of(&folder, number)).expect("the directory is writable");
        Some(Self {
            url,
            number,
            max_delay: Duration::from_millis(max_delay),
            folder,
            until: Instant::now() + Duration::from_millis(duration),
            seed,
            file: Mutex::new(BufWriter::new(file)),
            ops: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        })
    }

    pub(crate) fn client(&self) -> Client {
        Client::builder(&*self.url).timeout(patience() / 24).lazy().unwrap()
    }

    pub(crate) fn is_running(&self) -> bool {
        Instant::now() < self.until
    }

    /// Runs tasks, each with its number and random choices of its own.
    pub(crate) async fn run<F>(&self, tasks: usize, task: impl Fn(usize, SmallRng) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for number in 0..tasks {
            let seed = self.seed + (self.number * tasks + number) as u64;
            running.spawn(task(number, SmallRng::seed_from_u64(seed)));
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }

    /// Completes the records.
    pub(crate) fn end(&self) {
        let (ops, errors) = (self.ops.load(Relaxed), self.errors.load(Relaxed));
        self.record(format_args!("end {ops} {errors}"));
        self.file.lock().unwrap().flush().expect("the records are written");
    }

    /// Adds a line to the records.
    pub(crate) fn record(&self, line: impl Display) {
        writeln!(self.file.lock().unwrap(), "{line}").expect("the records are written");
    }

    /// Returns the outcome of a call. Fails on errors other than those that the injected faults cause: temporary ones,
    /// and those of a full server, of methods that `needs_memory`.
    pub(crate) fn outcome<T>(&self, answer: Result<T, Error>, needs_memory: bool) -> Outcome<T> {
        self.ops.fetch_add(1, Relaxed);
        let error = match answer {
            Ok(value) => return Outcome::Done(value),
            Err(error) => error,
        };
        self.errors.fetch_add(1, Relaxed);
        self.record(format_args!("error {}", now()));
        let is_full =
            matches!(&error, Error::Server(error) if error.code() == Some("OOM")) && needs_memory;
        assert!(error.is_temporary() || is_full, "{error:?}");
        match error {
            Error::Unanswered(_) => Outcome::Unknown,
            _ => Outcome::Refused,
        }
    }
}

/// Returns the file with the records of a process.
pub(super) fn records_of(folder: &Path, process: usize) -> PathBuf {
    folder.join(process.to_string())
}

/// Outcome of a call in which a server may have been at fault.
pub(crate) enum Outcome<T> {
    Done(T),
    /// Nothing was executed.
    Refused,
    /// The call may or may not have been executed, or may be executed later.
    Unknown,
}

impl<T> Outcome<T> {
    pub(crate) fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Refused | Self::Unknown => None,
        }
    }
}

/// Returns the nanoseconds of a clock that all processes share, and that never jumps.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
