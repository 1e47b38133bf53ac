//! Directory queues from a shell, or from programs in any language.
//!
//! ```text
//! cargo run --example dirq -- add /tmp/jobs one two three
//! cargo run --example dirq -- drain /tmp/jobs
//! ```
//!
//! Elements are printed as lines of JSON, and added from the same lines: `dirq drain a | dirq add b`.
//!
//! ```text
//! {"name":"5f3c1a80/5f3c1aa1d3e4f7","element":"text of an element of a simple queue"}
//! {"name":"00000000/5f3c1aa1d3e4f7","element":{"body":"text","header":{"key":"value"}}}
//! ```
//!
//! Bytes that are not UTF-8 are written as `{"hex":"00ff"}`. A line to add needs no name. A queue of kind `normal`
//! needs a schema to read or add elements: `--schema body:string,header:table?`.
//!
//! | command | effect |
//! | --- | --- |
//! | `add QUEUE [TEXT]...` | adds texts (simple queues only) or the elements on stdin; prints their names |
//! | `list QUEUE`, `count QUEUE` | prints the names or the number of all elements, locked or not |
//! | `get QUEUE NAME...` | prints elements; each is locked while it is read |
//! | `peek QUEUE NAME...` | prints elements, locked or not, without changing anything |
//! | `lock`, `unlock QUEUE NAME...` | locks or unlocks elements; status 1 if one could not be locked |
//! | `touch QUEUE NAME...` | sets the age of elements and their locks to zero, which postpones their purge |
//! | `remove QUEUE NAME...` | locks elements and removes them |
//! | `drain QUEUE`, `watch QUEUE` | prints and removes each element; `watch` waits for more |
//! | `watch QUEUE --exec COMMAND` | runs a shell command for each element, and removes it if the command succeeds |
//! | `dead QUEUE` | prints the dead letters: elements that failed too often; `--remove` also removes them |
//! | `revive QUEUE [NAME]...` | revives all or some dead letters, immediately or after `--in` seconds |
//! | `purge QUEUE` | removes leftovers of crashed processes |
//! | `convert FROM TO` | moves all elements to a queue of the other kind |
//!
//! Pass `--locked` to `get` and `remove` if you have locked the elements. `drain` and `watch` remove an element after
//! its line is written: if they are killed, the last printed element may be delivered again. Ctrl-C and SIGTERM release
//! the locks that the command holds; the interrupted command of `watch --exec` is no failed attempt.
//!
//! `watch --exec` passes the bytes of an element of a simple queue, or the JSON of a normal one, to the stdin of the
//! command, and its name and number of attempts in `DIRQ_NAME` and `DIRQ_ATTEMPTS`. It keeps the lock young while the
//! command runs. If the command fails, the element is delivered again after a backoff of 1 s to 1 min. After
//! `--max-attempts`, it is a dead letter, whose reason is the status of the command and the end of its stderr.
//!
//! # Failures
//!
//! `drain`, `watch`, `convert` and `dead` report each element that they cannot read or move on stderr, keep it, and
//! continue. `purge` continues, too, and prints the number of failures. `drain`, `watch` and `convert` also skip
//! elements that are locked by others, wait for a retry, or are dead letters; `convert` prints their number. The other
//! commands stop at the first bad element or line of stdin; with `--skip-bad` they report it and continue.
//!
//! | status | meaning |
//! | --- | --- |
//! | 0 | success; with `--skip-bad`, bad elements were reported on stderr |
//! | 1 | failure: see stderr, or the lines with `false` |
//! | 2 | invalid arguments |
//! | 130 | interrupted by Ctrl-C or SIGTERM |
//!
//! Long commands show their progress if stderr is a terminal.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    error::Error,
    fmt,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    pin::pin,
    process::{ExitCode, Stdio},
    str,
    time::Duration,
};

use clap::{Parser, Subcommand, ValueEnum, value_parser};
use fleeting::dirq::{
    DeadElement, Element, Lock, Name, Purge, Queue, QueueSimple, Schema, Value, Walk,
};
use futures_util::{FutureExt, future::FusedFuture};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::timeout,
};

type Failure = Box<dyn Error + Send + Sync>;

/// Polling interval of `watch`, for changes without a notification: unlocked elements, and network file systems.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Examples:
  dirq add jobs one two three    # creates the queue, and prints the name of each element
  dirq list jobs                 # prints the names again, oldest first
  dirq drain jobs --limit 1      # prints the oldest element, and removes it
  dirq add copy < /dev/null      # no text: reads lines of JSON from stdin
  dirq drain jobs | dirq add copy
  dirq watch copy --limit 1      # without --limit, waits for more elements
  dirq watch copy --limit 1 --max-attempts 5 --exec 'wc -c'    # delivers again what the command fails on
  dirq dead copy                 # elements that failed too often; deliver them again with: dirq revive copy
  dirq --schema body:string convert --field body copy normal

Exit status:
  0    success; with --skip-bad, see stderr for bad elements
  1    failure: see stderr, or the lines with false
  2    invalid arguments
  130  interrupted by Ctrl-C or SIGTERM

Each command has a help of its own: dirq drain --help";

/// Directory queues from a shell: elements are printed as lines of JSON, and added from the same lines.
///
/// A queue is a directory. Its elements are files in it, so they survive the processes that use the queue. Any number
/// of processes may add and take elements at the same time, also with the libraries for Python, Perl, C and Java: an
/// element is locked while a process works on it.
///
/// A simple queue (the default) holds texts, a normal queue objects with the fields of its --schema:
///
///   {"name":"5f3c1a80/5f3c1aa1d3e4f7","element":"text"}
///   {"name":"5f3c1a80/5f3c1aa1d3e4f7","element":{"body":"text","header":{"key":"value"}}}
///
/// The name identifies the element. A line to add needs none. Bytes that are not UTF-8 are {"hex":"00ff"}.
#[derive(Parser)]
#[command(name = "dirq", after_long_help = AFTER_HELP, verbatim_doc_comment)]
struct Args {
    /// Kind of the queue; by default detected, and for a new queue simple, or normal with --schema
    #[arg(long, global = true)]
    kind: Option<Kind>,
    /// Fields of the elements of a normal queue, such as body:string,header:table?
    #[arg(long, global = true, value_parser = check_schema)]
    schema: Option<String>,
    /// Sync each added element to disk, so that it survives a crash of the machine
    #[arg(long, global = true)]
    sync: bool,
    /// Report bad elements and lines on stderr and continue, with status 0
    #[arg(long, global = true)]
    skip_bad: bool,
    #[command(subcommand)]
    command: Command,
}

/// Fails if the text is not a schema.
fn check_schema(text: &str) -> Result<String, fleeting::dirq::Error> {
    text.parse::<Schema>().map(|_| text.to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    Simple,
    Normal,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Normal => "normal",
        }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Add texts (simple queues only) or the elements on stdin; print their names
    Add {
        /// Directory of the queue; created if it does not exist
        queue: PathBuf,
        /// Texts to add; without any, lines of JSON are read from stdin
        texts: Vec<String>,
    },
    /// Print the names of all elements, locked or not
    List {
        /// Directory of the queue
        queue: PathBuf,
    },
    /// Print the number of elements, locked or not
    Count {
        /// Directory of the queue
        queue: PathBuf,
    },
    /// Print elements; each is locked while it is read
    Get {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
        /// You have locked the elements: do not lock them again
        #[arg(long)]
        locked: bool,
    },
    /// Print elements, locked or not, without changing anything
    Peek {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
    },
    /// Lock elements, to work on them in another program; status 1 if one could not be locked
    Lock {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
    },
    /// Unlock elements
    Unlock {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
    },
    /// Set the age of elements and their locks to zero, which postpones their purge
    Touch {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
    },
    /// Lock elements and remove them
    Remove {
        /// Directory of the queue
        queue: PathBuf,
        /// Names of elements, as printed by add and list
        names: Vec<Name>,
        /// You have locked the elements: do not lock them again
        #[arg(long)]
        locked: bool,
    },
    /// Print and remove all elements
    ///
    /// An element is removed after its line is written: if the command is killed, the last one may be delivered again.
    /// Skips elements that are locked by others, wait for a retry, or are dead letters.
    Drain {
        /// Directory of the queue
        queue: PathBuf,
        /// Maximum number of elements
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Print and remove all elements, and wait for more
    ///
    /// With --exec, runs a shell command for each element, one after the other, and prints a line with its success.
    /// The element is on the stdin of the command; its name and number of attempts are in DIRQ_NAME and DIRQ_ATTEMPTS.
    /// Start the program several times to run several commands at once.
    Watch {
        /// Directory of the queue
        queue: PathBuf,
        /// Maximum number of elements
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Shell command; an element is removed if it succeeds, and otherwise delivered again after a backoff
        #[arg(long, value_name = "COMMAND")]
        exec: Option<String>,
        /// Number of failures after which an element is a dead letter; by default it is tried forever
        #[arg(long, value_name = "N", requires = "exec", value_parser = value_parser!(u32).range(1..))]
        max_attempts: Option<u32>,
    },
    /// Print the dead letters: elements that failed too often
    Dead {
        /// Directory of the queue
        queue: PathBuf,
        /// Also remove them
        #[arg(long)]
        remove: bool,
    },
    /// Revive dead letters, so that they are delivered again
    #[command(alias = "retry")]
    Revive {
        /// Directory of the queue
        queue: PathBuf,
        /// Dead letters to revive; without any, all
        names: Vec<Name>,
        /// Delay of the next delivery
        #[arg(long = "in", value_name = "SECONDS", default_value_t = 0)]
        delay: u64,
    },
    /// Remove leftovers of crashed processes
    Purge {
        /// Directory of the queue
        queue: PathBuf,
        /// Age from which on temporary files and directories are removed; 0 to keep all
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        max_temp: u64,
        /// Age from which on locks are removed; 0 to keep all
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        max_lock: u64,
    },
    /// Move all elements to a queue of the other kind
    ///
    /// An element of the simple queue is the JSON object of the fields, or with --field, the value of that single
    /// field. Skips elements that are locked by others, wait for a retry, or are dead letters, and prints their number.
    Convert {
        /// Directory of the queue to empty
        from: PathBuf,
        /// Directory of the queue of the other kind; created if it does not exist
        to: PathBuf,
        /// The only field of the normal queue's elements
        #[arg(long)]
        field: Option<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // `watch --exec` returns its element first, so that the interruption is not a failed attempt. `remove` first
    // removes the element that it has locked, because no guard would release that lock.
    let ends_itself =
        matches!(args.command, Command::Watch { exec: Some(_), .. } | Command::Remove { .. });
    // If a signal wins, `run` is dropped between two steps, which releases its locks.
    let done = tokio::select! {
        done = run(&args) => done,
        () = stopped(), if !ends_itself => Err(Interrupted.into()),
    };
    match done {
        Err(failure) if failure.is::<Interrupted>() => ExitCode::from(130),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if args.skip_bad && fails_by_bad_elements(&args.command) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            report(&*failure);
            ExitCode::FAILURE
        }
    }
}

/// Returns whether a command that returns false has only found bad elements. The lines of the others report failures as
/// `false`, or count them.
fn fails_by_bad_elements(command: &Command) -> bool {
    !matches!(
        command,
        Command::Lock { .. }
            | Command::Revive { .. }
            | Command::Purge { .. }
            | Command::Watch { exec: Some(_), .. }
    )
}

/// The end of a command by a signal.
#[derive(Debug)]
struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl Error for Interrupted {}

/// Waits for Ctrl-C or SIGTERM.
async fn stopped() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Returns false if a part of the command failed, and the failure has been reported.
async fn run(args: &Args) -> Result<bool, Failure> {
    let create = async |path| Either::open(args, path, kind_of(args, path)?, None).await;
    let open = async |path| {
        require_directory(path)?;
        create(path).await
    };
    match &args.command {
        Command::Add { queue, texts } if texts.is_empty() => {
            let queue = create(queue).await?;
            let mut lines = lines_of_stdin();
            let bar = progress(None);
            while let Some(line) = lines.recv().await {
                let added = match line {
                    Ok(line) => queue.add_line(&line).await,
                    // Not UTF-8. After another error, nothing more can be read.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.into()),
                    Err(error) => return Err(error.into()),
                };
                match added {
                    Ok(name) => print_line(&json!({ "name": name }))?,
                    Err(failure) => bar.suspend(|| args.skip_or_fail(failure))?,
                }
                bar.inc(1);
            }
        }
        Command::Add { queue, texts } => {
            let Either::Simple(queue) = create(queue).await? else {
                return Err(
                    "texts are for simple queues only; pass elements as lines of stdin".into()
                );
            };
            for name in queue.add_many(texts).await? {
                print_line(&json!({ "name": name }))?;
            }
        }
        Command::List { queue } => {
            let queue = open(queue).await?;
            let mut names = queue.names();
            let mut all = true;
            while let Some(name) = names.next().await {
                match name {
                    Ok(name) => print_line(&json!({ "name": name }))?,
                    Err(error) => {
                        report(&error);
                        all = false;
                    }
                }
            }
            return Ok(all);
        }
        Command::Count { queue } => {
            print_line(&json!({ "count": open(queue).await?.count().await? }))?
        }
        Command::Get { queue, names, locked } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.read(name, *locked).await {
                    Ok(element) => print_line(&json!({ "name": name, "element": element }))?,
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
        }
        Command::Peek { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.peek(name).await {
                    Ok(element) => print_line(&json!({ "name": name, "element": element }))?,
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
        }
        Command::Lock { queue, names } => {
            let queue = open(queue).await?;
            let mut all = true;
            for name in names {
                match queue.lock(name).await {
                    Ok(locked) => {
                        print_line(&json!({ "name": name, "locked": locked }))?;
                        all &= locked;
                    }
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
            return Ok(all);
        }
        Command::Unlock { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.unlock(name).await {
                    Ok(()) => print_line(&json!({ "name": name, "locked": false }))?,
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
        }
        Command::Touch { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.touch(name).await {
                    Ok(()) => print_line(&json!({ "name": name, "touched": true }))?,
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
        }
        Command::Remove { queue, names, locked } => {
            let queue = open(queue).await?;
            let mut stopped = pin!(stopped());
            for name in names {
                if (&mut stopped).now_or_never().is_some() {
                    return Err(Interrupted.into());
                }
                match queue.remove_element(name, *locked).await {
                    Ok(()) => print_line(&json!({ "name": name, "removed": true }))?,
                    Err(failure) => args.skip_or_fail(failure)?,
                }
            }
        }
        Command::Dead { queue, remove } => {
            let queue = open(queue).await?;
            if let Either::Normal(queue, _) = &queue {
                require_schema(queue)?;
            }
            if !remove {
                return print_dead(&queue).await;
            }
            let bar = progress(None);
            let removed = match &queue {
                Either::Simple(simple) => {
                    let take = async |max| simple.take_dead(max).await;
                    remove_dead(&queue, take, |bytes| of_bytes(bytes), &bar).await
                }
                Either::Normal(normal, _) => {
                    let take = async |max| normal.take_dead(max).await;
                    remove_dead(&queue, take, of_element, &bar).await
                }
            };
            return report_unreadable(&queue, removed).await;
        }
        Command::Revive { queue, names, delay } => {
            let queue = open(queue).await?;
            let delay = Duration::from_secs(*delay);
            return revive(args, &queue, names, delay).await;
        }
        Command::Drain { queue, limit } => {
            let queue = open(queue).await?;
            let bar = progress(Some(queue.count().await?.min(limit.unwrap_or(u64::MAX))));
            return match &queue {
                Either::Simple(queue) => {
                    print_all(queue.locked(), |bytes| of_bytes(bytes), *limit, &bar).await
                }
                Either::Normal(queue, _) => {
                    require_schema(queue)?;
                    print_all(queue.locked(), of_element, *limit, &bar).await
                }
            };
        }
        Command::Watch { queue, limit, exec: Some(command), max_attempts } => {
            require_directory(queue)?;
            let kind = kind_of(args, queue)?;
            // Counted, so that an element whose command kills this program is a dead letter some day, too.
            let max_attempts = Some(max_attempts.unwrap_or(u32::MAX));
            return match Either::open(args, queue, kind, max_attempts).await? {
                Either::Simple(queue) => {
                    let jobs = queue.watch(POLL_INTERVAL);
                    execute_each(jobs, |bytes| bytes.to_vec(), command, *limit, args.skip_bad).await
                }
                Either::Normal(queue, _) => {
                    require_schema(&queue)?;
                    let json = |element: &Element| of_element(element).to_string().into_bytes();
                    execute_each(queue.watch(POLL_INTERVAL), json, command, *limit, args.skip_bad)
                        .await
                }
            };
        }
        Command::Watch { queue, limit, .. } => {
            let bar = progress(None);
            return match open(queue).await? {
                Either::Simple(queue) => {
                    print_all(queue.watch(POLL_INTERVAL), |bytes| of_bytes(bytes), *limit, &bar)
                        .await
                }
                Either::Normal(queue, _) => {
                    require_schema(&queue)?;
                    print_all(queue.watch(POLL_INTERVAL), of_element, *limit, &bar).await
                }
            };
        }
        Command::Purge { queue, max_temp, max_lock } => {
            let [max_temp, max_lock] = [*max_temp, *max_lock].map(Duration::from_secs);
            let purge = Purge::default().max_temp(max_temp).max_lock(max_lock);
            let bar = progress(None);
            bar.enable_steady_tick(Duration::from_millis(100));
            let report = match open(queue).await? {
                Either::Simple(queue) => queue.purge(purge).await?,
                Either::Normal(queue, _) => queue.purge(purge).await?,
            };
            bar.finish_and_clear();
            print_line(&json!({
                "temporary": report.temporary,
                "locks": report.locks,
                "future_locks": report.future_locks,
                "directories": report.directories,
                "records": report.records,
                "failed": report.failed,
            }))?;
            return Ok(report.failed == 0);
        }
        Command::Convert { from, to, field } => {
            require_directory(from)?;
            let other = match kind_of(args, from)? {
                Kind::Simple => Kind::Normal,
                Kind::Normal => Kind::Simple,
            };
            if let Some(kind) = detect(to).filter(|&kind| kind != other) {
                let kind = kind.name();
                return Err(format!(
                    "{} is also a {kind} queue; name one of the other kind",
                    to.display()
                )
                .into());
            }
            let (from, to) = (open(from).await?, Either::open(args, to, other, None).await?);
            return convert(&from, &to, field.as_deref()).await;
        }
    }
    Ok(true)
}

/// A queue of either kind.
enum Either {
    Simple(QueueSimple),
    /// The queue, and the type of each field by its name.
    Normal(Queue, HashMap<String, String>),
}

/// Evaluates the same call on a queue of either kind.
macro_rules! either {
    ($either:expr, $queue:ident => $call:expr) => {
        match $either {
            Either::Simple($queue) => $call,
            Either::Normal($queue, _) => $call,
        }
    };
}

impl Either {
    /// Opens a queue. It counts deliveries if `max_attempts` is given.
    async fn open(
        args: &Args,
        path: &Path,
        kind: Kind,
        max_attempts: Option<u32>,
    ) -> Result<Self, Failure> {
        if kind == Kind::Simple {
            let mut queue = QueueSimple::builder(path).sync(args.sync);
            if let Some(max_attempts) = max_attempts {
                queue = queue.max_attempts(max_attempts);
            }
            return Ok(Self::Simple(queue.open().await?));
        }
        let mut queue = Queue::builder(path).sync(args.sync);
        if let Some(max_attempts) = max_attempts {
            queue = queue.max_attempts(max_attempts);
        }
        let mut types = HashMap::new();
        if let Some(schema) = &args.schema {
            queue = queue.schema(schema.parse()?);
            let fields = schema.split(',').filter_map(|field| field.split_once(':'));
            let bare = |given: &str| given.trim().trim_end_matches(['?', '*']).to_owned();
            types = fields.map(|(name, given)| (name.trim().to_owned(), bare(given))).collect();
        }
        Ok(Self::Normal(queue.open().await?, types))
    }

    async fn add(&self, element: &Json) -> Result<Name, Failure> {
        Ok(match self {
            Self::Simple(queue) => queue.add(bytes(element)?).await?,
            Self::Normal(queue, types) => queue.add(element_of(element, types)?).await?,
        })
    }

    async fn add_line(&self, line: &str) -> Result<Name, Failure> {
        let line: Json = serde_json::from_str(line)?;
        self.add(line.get("element").ok_or("line has no \"element\"")?).await
    }

    fn names(&self) -> Walk<Name> {
        either!(self, queue => queue.names())
    }

    async fn count(&self) -> Result<u64, Failure> {
        Ok(either!(self, queue => queue.count().await?))
    }

    async fn lock(&self, name: &Name) -> Result<bool, Failure> {
        Ok(either!(self, queue => queue.lock(name).await?))
    }

    async fn require_lock(&self, name: &Name, is_locked: bool) -> Result<(), Failure> {
        match is_locked || self.lock(name).await? {
            true => Ok(()),
            false => Err(not_available(name)),
        }
    }

    async fn unlock(&self, name: &Name) -> Result<(), Failure> {
        either!(self, queue => queue.unlock(name).await?);
        Ok(())
    }

    async fn touch(&self, name: &Name) -> Result<(), Failure> {
        either!(self, queue => queue.touch(name).await?);
        Ok(())
    }

    async fn dead(&self) -> Result<Vec<DeadElement>, Failure> {
        Ok(either!(self, queue => queue.dead().await?))
    }

    async fn revive(&self, name: &Name, delay: Duration) -> Result<bool, Failure> {
        Ok(either!(self, queue => queue.revive(name, delay).await?))
    }

    /// Returns an element, which is locked while it is read unless `is_locked`.
    async fn read(&self, name: &Name, is_locked: bool) -> Result<Json, Failure> {
        let read = match self {
            Self::Simple(queue) if is_locked => Some(of_bytes(&queue.get(name).await?)),
            Self::Simple(queue) => queue.get_element(name).await?.map(|bytes| of_bytes(&bytes)),
            Self::Normal(queue, _) if is_locked => Some(of_element(&queue.get(name).await?)),
            Self::Normal(queue, _) => queue.get_element(name).await?.map(|e| of_element(&e)),
        };
        read.ok_or_else(|| not_available(name))
    }

    async fn peek(&self, name: &Name) -> Result<Json, Failure> {
        let element = match self {
            Self::Simple(queue) => queue.peek(name).await?.map(|bytes| of_bytes(&bytes)),
            Self::Normal(queue, _) => queue.peek(name).await?.map(|element| of_element(&element)),
        };
        element.ok_or_else(|| format!("element {name} does not exist").into())
    }

    async fn remove_element(&self, name: &Name, is_locked: bool) -> Result<(), Failure> {
        self.require_lock(name, is_locked).await?;
        let removed = either!(self, queue => queue.remove(name).await);
        if !is_locked
            && let Err(error) = &removed
            && !matches!(error, fleeting::dirq::Error::NotLocked { .. })
        {
            // The original error is more useful than that of the cleanup.
            let _ = self.unlock(name).await;
        }
        Ok(removed?)
    }
}

impl Args {
    /// Reports a failure and continues if `--skip-bad` is given, else returns it.
    fn skip_or_fail(&self, failure: Failure) -> Result<(), Failure> {
        if !self.skip_bad {
            return Err(failure);
        }
        report(&*failure);
        Ok(())
    }
}

/// Number of dead letters to lock at a time. Each call lists all dead letters, so a small number would be slow.
const DEAD_LETTER_BATCH: usize = 512;

fn not_available(name: &Name) -> Failure {
    format!("element {name} is locked or does not exist").into()
}

/// Prints the dead letters. Returns false if some cannot be read.
async fn print_dead(queue: &Either) -> Result<bool, Failure> {
    let dead = queue.dead().await?;
    let bar = progress(Some(dead.len() as u64));
    let mut all = true;
    for dead in dead {
        match queue.peek(&dead.name).await {
            Ok(element) => print_line(&dead_line(&dead, element))?,
            Err(failure) => {
                bar.suspend(|| report(&*failure));
                all = false;
            }
        }
        bar.inc(1);
    }
    Ok(all)
}

/// Returns the line of a dead letter. It has a reason if the worker gave one.
fn dead_line(dead: &DeadElement, element: Json) -> Json {
    let mut line = json!({ "name": dead.name, "attempts": dead.attempts, "element": element });
    if let Some(reason) = &dead.reason {
        line["reason"] = json!(reason);
    }
    line
}

/// Prints the dead letters and removes each, except those that are locked by others.
async fn remove_dead<T: Send + 'static>(
    queue: &Either,
    take: impl AsyncFn(usize) -> Result<Vec<Lock<T>>, fleeting::dirq::Error>,
    to_json: impl Fn(&T) -> Json,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let listed: HashMap<_, _> =
        queue.dead().await?.into_iter().map(|dead| (dead.name, dead)).collect();
    loop {
        let dead = take(DEAD_LETTER_BATCH).await?;
        if dead.is_empty() {
            return Ok(());
        }
        for letter in &dead {
            let (name, element) = (letter.name(), to_json(letter.value()));
            print_line(&match listed.get(name) {
                Some(dead) => dead_line(dead, element),
                None => json!({ "name": name, "attempts": letter.attempts(), "element": element }),
            })?;
            bar.inc(1);
        }
        Lock::ack_all(dead).await?;
    }
}

/// Reports all dead letters that cannot be read, if `done` failed at one of them. Returns false if there are any.
async fn report_unreadable(queue: &Either, done: Result<(), Failure>) -> Result<bool, Failure> {
    let Err(failure) = done else { return Ok(true) };
    let mut reported = false;
    for dead in queue.dead().await? {
        if let Err(failure) = queue.peek(&dead.name).await {
            report(&*failure);
            reported = true;
        }
    }
    if reported { Ok(false) } else { Err(failure) }
}

/// Revives the named dead letters, by default all. Returns false if a named element is not a dead letter.
async fn revive(
    args: &Args,
    queue: &Either,
    names: &[Name],
    delay: Duration,
) -> Result<bool, Failure> {
    let (mut all, mut names) = (true, names.to_vec());
    if names.is_empty() {
        names.extend(queue.dead().await?.into_iter().map(|dead| dead.name));
    }
    for name in names {
        match queue.revive(&name, delay).await {
            Ok(revived) => {
                print_line(&json!({ "name": name, "revived": revived }))?;
                all &= revived;
            }
            Err(failure) => args.skip_or_fail(failure)?,
        }
    }
    Ok(all)
}

/// Prints and removes elements. Returns false if some cannot be read and so remain.
async fn print_all<T: Send + 'static>(
    mut locks: Walk<Lock<T>>,
    to_json: impl Fn(&T) -> Json,
    limit: Option<u64>,
    bar: &ProgressBar,
) -> Result<bool, Failure> {
    let mut unreadable = Unreadable::default();
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let Some(lock) = unreadable.next(&mut locks, bar).await else { break };
        print_line(&json!({ "name": lock.name(), "element": to_json(lock.value()) }))?;
        lock.ack().await?;
        bar.inc(1);
    }
    Ok(unreadable.0.is_empty())
}

/// Interval at which the lock of an element is renewed while its command runs.
const RENEWAL: Duration = Duration::from_secs(60);

/// Runs a shell command for each element, and prints a line with its success. Returns false if any command failed, or
/// if an element could not be read and bad elements are not skipped.
async fn execute_each<T: Send + 'static>(
    mut jobs: Walk<Lock<T>>,
    to_bytes: impl Fn(&T) -> Vec<u8>,
    command: &str,
    limit: Option<u64>,
    skip_bad: bool,
) -> Result<bool, Failure> {
    let (mut unreadable, bar, mut all) = (Unreadable::default(), progress(None), true);
    let mut stopped = pin!(stopped());
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let job = tokio::select! {
            job = unreadable.next(&mut jobs, &bar) => job,
            () = &mut stopped => return Err(Interrupted.into()),
        };
        let Some(job) = job else { break };
        let (name, attempts) = (*job.name(), job.attempts());
        let mut child = spawn(command, &name, attempts)?;
        let work = finish_command(&mut child, to_bytes(job.value()));
        let ended = tokio::select! {
            ended = job.keep_alive(RENEWAL, work) => Some(ended),
            () = &mut stopped => None,
        };
        // After a signal to this program, and if the lock was lost. Before the element is released: another process may
        // run the command, too.
        if !matches!(ended, Some(Ok(_))) {
            kill(&mut child).await?;
        }
        let Some(ended) = ended else {
            unless_lost(job.release().await)?;
            return Err(Interrupted.into());
        };
        let failed = match ended {
            Ok(done) => done?.err(),
            Err(error) => Some(message(&error)),
        };
        let mut line = json!({ "name": name, "attempts": attempts, "done": failed.is_none() });
        match failed {
            None => unless_lost(job.ack().await)?,
            Some(reason) => {
                line["reason"] = json!(reason);
                all = false;
                unless_lost(job.fail(reason).await)?;
            }
        }
        print_line(&line)?;
        bar.inc(1);
    }
    Ok(all && (skip_bad || unreadable.0.is_empty()))
}

/// Ignores that a lock was lost to another process, which ends the element itself.
fn unless_lost(ended: Result<(), fleeting::dirq::Error>) -> Result<(), Failure> {
    match ended {
        Ok(()) | Err(fleeting::dirq::Error::NotLocked { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Starts a shell command, in a process group of its own.
fn spawn(command: &str, name: &Name, attempts: u32) -> io::Result<process::Child> {
    process::Command::new("sh")
        .args(["-c", command])
        .env("DIRQ_NAME", name.to_string())
        .env("DIRQ_ATTEMPTS", attempts.to_string())
        .stdin(Stdio::piped())
        // The stdout of this program is for its own lines.
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Number of bytes of stderr that are kept: its last line is the reason of a failure.
const MAX_STDERR: usize = 64 * 1024;

/// Time for which stderr is read after the end of a command: a process that it has left in the background may keep
/// stderr open.
const STDERR_GRACE: Duration = Duration::from_millis(100);

/// Writes `input` to the stdin of a command, and waits for its end. Returns the reason of its failure, if it fails.
async fn finish_command(
    child: &mut process::Child,
    input: Vec<u8>,
) -> io::Result<Result<(), String>> {
    let (mut stdin, mut stderr) = (child.stdin.take(), child.stderr.take());
    let mut output = Vec::new();
    let status = {
        let write = async {
            if let Some(stdin) = &mut stdin {
                // Fails if the command ends without reading everything, which is its right.
                let _ = stdin.write_all(&input).await;
            }
            drop(stdin.take());
        };
        let read = async {
            if let Some(stderr) = &mut stderr {
                // On failure, the reason lacks the rest.
                while stderr.read_buf(&mut output).await.is_ok_and(|count| count > 0) {
                    if output.len() > 2 * MAX_STDERR {
                        output.drain(..output.len() - MAX_STDERR);
                    }
                }
            }
        };
        let mut pipes = pin!(async { tokio::join!(write, read) }.fuse());
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                _ = &mut pipes, if !pipes.is_terminated() => {}
            }
        };
        if !pipes.is_terminated() {
            let _ = timeout(STDERR_GRACE, pipes).await;
        }
        status
    };
    if status.success() {
        return Ok(Ok(()));
    }
    // The end of stderr: the reason of a failure comes last.
    let stderr = String::from_utf8_lossy(&output);
    let last = stderr.trim().lines().last().unwrap_or_default();
    Ok(Err(format!("{status}: {last}").trim_end_matches([':', ' ']).to_owned()))
}

/// Kills a command and the processes that it has started, and waits for its end.
async fn kill(child: &mut process::Child) -> io::Result<()> {
    // `None` if it has ended.
    if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
        kill_process_group(group, Signal::KILL)?;
    }
    child.wait().await.map(drop)
}

/// Messages about unreadable elements that have been printed. A walk may return the same element more than once.
#[derive(Default)]
struct Unreadable(HashSet<String>);

impl Unreadable {
    /// Returns the lock of the next readable element.
    async fn next<T: Send + 'static>(
        &mut self,
        locks: &mut Walk<Lock<T>>,
        bar: &ProgressBar,
    ) -> Option<Lock<T>> {
        loop {
            match locks.next().await? {
                Ok(lock) => return Some(lock),
                Err(error) => {
                    let message = message(&error);
                    if !self.0.contains(&message) {
                        bar.suspend(|| eprintln!("{message}"));
                        self.0.insert(message);
                    }
                }
            }
        }
    }
}

/// Moves all elements. Returns false if some remain.
async fn convert(from: &Either, to: &Either, field: Option<&str>) -> Result<bool, Failure> {
    let bar = progress(Some(from.count().await?));
    let (mut reported, mut unreadable) = (0, Unreadable::default());
    match (from, to) {
        (Either::Simple(from), Either::Normal(to, types)) => {
            let mut locks = from.locked();
            while let Some(lock) = unreadable.next(&mut locks, &bar).await {
                let element = match field {
                    Some(field) => element_of(&json!({ field: of_bytes(lock.value()) }), types),
                    None => serde_json::from_slice(lock.value())
                        .map_err(Failure::from)
                        .and_then(|fields| element_of(&fields, types)),
                };
                let moved = match element {
                    Ok(element) => to.add(element).await.map_err(Failure::from),
                    Err(failure) => Err(failure),
                };
                reported += u64::from(!finish(lock, moved, &bar).await?);
            }
        }
        (Either::Normal(from, _), Either::Simple(to)) => {
            require_schema(from)?;
            let mut locks = from.locked();
            while let Some(lock) = unreadable.next(&mut locks, &bar).await {
                let body = match field {
                    Some(field) => only_field(lock.value(), field),
                    None => Ok(of_element(lock.value()).to_string().into_bytes()),
                };
                let moved = match body {
                    Ok(body) => to.add(body).await.map_err(Failure::from),
                    Err(failure) => Err(failure),
                };
                reported += u64::from(!finish(lock, moved, &bar).await?);
            }
        }
        _ => unreachable!("both queues have the same kind"),
    }
    reported += unreadable.0.len() as u64;
    // Elements that are locked by others, wait for a retry, are dead letters, or were added in the meantime.
    let skipped = from.count().await?.saturating_sub(reported);
    if skipped > 0 {
        eprintln!(
            "{skipped} elements not moved: locked, waiting for a retry, dead letters, or just added"
        );
    }
    Ok(reported + skipped == 0)
}

/// Fails if the queue has no schema, with one error in place of one per element.
fn require_schema(queue: &Queue) -> Result<(), Failure> {
    match queue.schema() {
        Some(_) => Ok(()),
        None => {
            Err(format!("queue {} has no schema; pass --schema", queue.path().display()).into())
        }
    }
}

/// Removes a moved element, or reports why it was not moved and unlocks it.
async fn finish<T: Send + 'static>(
    lock: Lock<T>,
    moved: Result<Name, Failure>,
    bar: &ProgressBar,
) -> Result<bool, Failure> {
    bar.inc(1);
    match moved {
        Ok(name) => {
            let from = *lock.name();
            // First: if the line cannot be printed, the element must not be in both queues.
            lock.ack().await?;
            print_line(&json!({ "from": from, "name": name }))?;
            Ok(true)
        }
        Err(failure) => {
            bar.suspend(|| {
                eprint!("{} not moved: ", lock.name());
                report(&*failure);
            });
            lock.unlock().await?;
            Ok(false)
        }
    }
}

/// Returns the bytes of `field`, which must be the only field of the element.
fn only_field(element: &Element, field: &str) -> Result<Vec<u8>, Failure> {
    if let Some((other, _)) = element.iter().find(|(name, _)| *name != field) {
        return Err(format!("element also has a field {other:?}; omit --field").into());
    }
    match element.get(field) {
        Some(Value::Binary(bytes)) => Ok(bytes.to_vec()),
        Some(Value::String(text)) => Ok(text.clone().into_bytes()),
        _ => Err(format!("field {field:?} is neither text nor bytes").into()),
    }
}

fn of_bytes(bytes: &[u8]) -> Json {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}

fn of_element(element: &Element) -> Json {
    let of_value = |value: &Value| match value {
        Value::Binary(bytes) => of_bytes(bytes),
        Value::String(text) => json!(text),
        Value::Table(table) => json!(table),
    };
    element.iter().map(|(field, value)| (field.clone(), of_value(value))).collect()
}

/// Decodes a text, or `{"hex": ...}`.
fn bytes(json: &Json) -> Result<Vec<u8>, Failure> {
    if let Json::String(text) = json {
        return Ok(text.clone().into_bytes());
    }
    let hex = json.get("hex").and_then(Json::as_str);
    let hex = hex.ok_or_else(|| format!("{json} is neither a text nor {{\"hex\": ...}}"))?;
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0);
    let digits = digits.ok_or_else(|| format!("{hex:?} is not an even number of hex digits"))?;
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn element_of(json: &Json, types: &HashMap<String, String>) -> Result<Element, Failure> {
    let fields = json.as_object().ok_or_else(|| format!("{json} is not an object of fields"))?;
    let mut element = Element::new();
    for (field, json) in fields {
        let value = match types.get(field).map(String::as_str) {
            Some("table") => {
                let table: BTreeMap<String, String> = serde_json::from_value(json.clone())
                    .map_err(|error| format!("table {field:?}: {error}"))?;
                Value::from(table)
            }
            Some("binary") => Value::from(bytes(json)?),
            // An unknown field is rejected by the queue, with a better message.
            _ => Value::from(String::from_utf8(bytes(json)?)?),
        };
        element = element.with(field, value);
    }
    Ok(element)
}

/// Fails if there is no queue: opening it would create one.
fn require_directory(path: &Path) -> Result<(), Failure> {
    match path.try_exists()? {
        true => Ok(()),
        false => Err(format!("queue {} does not exist; create it with add", path.display()).into()),
    }
}

/// Returns the kind of a queue. Fails if the given kind is not that of the existing queue.
fn kind_of(args: &Args, path: &Path) -> Result<Kind, Failure> {
    let new = if args.schema.is_some() { Kind::Normal } else { Kind::Simple };
    match (detect(path), args.kind) {
        (Some(found), Some(given)) if found != given => {
            Err(format!("{} is a {} queue; omit --kind", path.display(), found.name()).into())
        }
        (found, given) => Ok(found.or(given).unwrap_or(new)),
    }
}

/// Returns the kind of an existing queue. A normal queue has two directories of its own from its creation on. A simple
/// queue has none, so any other directory that is not empty counts as one.
fn detect(path: &Path) -> Option<Kind> {
    if path.join("temporary").is_dir() && path.join("obsolete").is_dir() {
        return Some(Kind::Normal);
    }
    let is_used = path.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    is_used.then_some(Kind::Simple)
}

/// Returns a progress bar, or a spinner without `len`; both are hidden unless stderr is a terminal.
fn progress(len: Option<u64>) -> ProgressBar {
    let (bar, template) = match len {
        Some(len) => {
            (ProgressBar::new(len), "{wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos}, {per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
}

/// Reads stdin on a separate thread, because a blocking read cannot be cancelled.
fn lines_of_stdin() -> mpsc::Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel(64);
    std::thread::spawn(move || {
        let _ = io::stdin().lock().lines().try_for_each(|line| sender.blocking_send(line));
    });
    lines
}

fn print_line(line: &Json) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

fn report(failure: &dyn Error) {
    eprintln!("{}", message(failure));
}

/// Returns the message of an error and of all its sources.
fn message(failure: &dyn Error) -> String {
    let mut message = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}
