//! Directory queues from a shell, or from programs in any language.
//!
//! ```text
//! cargo run --example dirq -- add /tmp/jobs one two three
//! cargo run --example dirq -- drain /tmp/jobs
//! ```
//!
//! Elements come out as lines of JSON, and go in as the same: `dirq drain a | dirq add b`.
//!
//! ```text
//! {"name":"5f3c1a80/5f3c1aa1d3e4f7","element":"what a simple queue holds"}
//! {"name":"00000000/5f3c1aa1d3e4f7","element":{"body":"text","header":{"key":"value"}}}
//! ```
//!
//! Bytes that are not UTF-8 are `{"hex":"00ff"}`. A line to add needs no name. A queue of the kind `normal`
//! takes a schema to read or add elements: `--schema body:string,header:table?`.
//!
//! | command | what it does |
//! | --- | --- |
//! | `add QUEUE [TEXT]...` | adds texts (simple queues), or the lines of stdin; prints their names |
//! | `list QUEUE`, `count QUEUE` | the names, locked or not; how many there are |
//! | `get QUEUE NAME...` | prints elements, which it locks as long as that takes |
//! | `peek QUEUE NAME...` | prints elements, locked or not, and leaves no trace |
//! | `lock`, `unlock QUEUE NAME...` | whether each could be locked (if not all: status 1) |
//! | `touch QUEUE NAME...` | makes elements, and so their locks, young: a purge lets them be for longer |
//! | `remove QUEUE NAME...` | locks elements and removes them |
//! | `drain QUEUE`, `watch QUEUE` | prints each element and removes it; `watch` waits for more |
//! | `dead QUEUE` | prints the dead letters: what failed too often; `--remove` removes them |
//! | `retry QUEUE [NAME]...` | lets dead letters come again, all or some, at once or `--in` some seconds |
//! | `purge QUEUE` | takes away what dead processes left |
//! | `convert FROM TO` | moves all to a queue of the other kind |
//!
//! `get` and `remove` with `--locked` are for elements that you have locked. An element is removed when its line
//! is written: of those of a `drain` that was killed, the last may come again. Ctrl-C unlocks what is locked.
//!
//! # What can't be done
//!
//! `drain`, `watch`, `convert`, `dead` and `purge` tell on stderr of what they can't read, move or take away, leave it, and
//! do the rest. What others have locked, what rests after a failure, and what is dead, `drain`, `watch` and `convert` leave;
//! `convert` says how many these are. The other commands end at the first element, or line of stdin, that is bad; with `--skip-bad` they tell of
//! it and go on, too.
//!
//! | status | when |
//! | --- | --- |
//! | 0 | all was done; with `--skip-bad`, all but what was told of |
//! | 1 | something could not be done: stderr tells of it, or the line says `false` |
//! | 2 | the arguments can't be understood |
//! | 130 | Ctrl-C ended it |
//!
//! Long commands show their progress where stderr is a terminal.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    error::Error,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    str,
    time::Duration,
};

use clap::{Parser, Subcommand, ValueEnum};
use fleeting::dirq::{Element, Lock, Name, Purge, Queue, QueueSimple, Value, Walk};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

type Failure = Box<dyn Error + Send + Sync>;

/// How often `watch` looks where the system doesn't tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Directory queues: see the top of examples/dirq.rs.
#[derive(Parser)]
#[command(name = "dirq")]
struct Args {
    /// The kind of the queue. By default what it is, and for a new one simple, or normal with a schema.
    #[arg(long, global = true)]
    kind: Option<Kind>,
    /// The fields of a normal queue's elements, such as `body:string,header:table?`.
    #[arg(long, global = true)]
    schema: Option<String>,
    /// Let each element that is added survive a crash of the machine.
    #[arg(long, global = true)]
    sync: bool,
    /// Go on past what can't be read, added or moved, and tell of it alone.
    #[arg(long, global = true)]
    skip_bad: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    Simple,
    Normal,
}

#[derive(Subcommand)]
enum Command {
    /// Add texts, or the elements in the lines of stdin.
    Add { queue: PathBuf, texts: Vec<String> },
    /// Print the names of all elements.
    List { queue: PathBuf },
    /// Print how many elements there are.
    Count { queue: PathBuf },
    /// Print elements.
    Get {
        queue: PathBuf,
        names: Vec<Name>,
        /// You have locked them.
        #[arg(long)]
        locked: bool,
    },
    /// Print elements, locked or not.
    Peek { queue: PathBuf, names: Vec<Name> },
    /// Lock elements, for a program that works on them.
    Lock { queue: PathBuf, names: Vec<Name> },
    /// Give locks back.
    Unlock { queue: PathBuf, names: Vec<Name> },
    /// Make elements young, and so their locks.
    Touch { queue: PathBuf, names: Vec<Name> },
    /// Remove elements.
    Remove {
        queue: PathBuf,
        names: Vec<Name>,
        /// You have locked them.
        #[arg(long)]
        locked: bool,
    },
    /// Print all elements, and remove each.
    Drain {
        queue: PathBuf,
        /// At most so many.
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Print elements as they come, and remove each.
    Watch {
        queue: PathBuf,
        /// At most so many.
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Print the elements that failed too often.
    Dead {
        queue: PathBuf,
        /// Remove each.
        #[arg(long)]
        remove: bool,
    },
    /// Let elements that failed too often come again.
    Retry {
        queue: PathBuf,
        /// All, unless some are named.
        names: Vec<Name>,
        /// In so many seconds.
        #[arg(long = "in", value_name = "SECONDS", default_value_t = 0)]
        delay: u64,
    },
    /// Take away what dead processes left.
    Purge {
        queue: PathBuf,
        /// The age in seconds from which on an element is taken for left on its way in or out; 0 for never.
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        max_temp: u64,
        /// The age in seconds from which on a lock is taken for left; 0 for never.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        max_lock: u64,
    },
    /// Move all elements to a queue of the other kind.
    ///
    /// An element of the simple queue is the JSON of the other's fields, unless `--field` names the one it is.
    Convert {
        from: PathBuf,
        to: PathBuf,
        #[arg(long)]
        field: Option<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let stopped = tokio::signal::ctrl_c();
    // Dropped in mid-work, it gives back its locks.
    let done = tokio::select! {
        done = run(&args) => done,
        _ = stopped => return ExitCode::from(130),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if args.skip_bad => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            complain(&*failure);
            ExitCode::FAILURE
        }
    }
}

/// False where not all could be done that was asked for.
async fn run(args: &Args) -> Result<bool, Failure> {
    let open = |path| Either::open(args, path, kind_of(args, path));
    match &args.command {
        Command::Add { queue, texts } if texts.is_empty() => {
            let queue = open(queue).await?;
            let mut lines = lines_of_stdin();
            let bar = progress(None);
            while let Some(line) = lines.recv().await {
                match queue.add_line(&line?).await {
                    Ok(name) => say(&json!({ "name": name }))?,
                    Err(failure) => bar.suspend(|| args.pass_over(failure))?,
                }
                bar.inc(1);
            }
        }
        Command::Add { queue, texts } => {
            let Either::Simple(queue) = open(queue).await? else {
                return Err("texts are for simple queues; give elements as lines on stdin".into());
            };
            for name in queue.add_many(texts).await? {
                say(&json!({ "name": name }))?;
            }
        }
        Command::List { queue } => {
            let queue = open(queue).await?;
            let mut names = queue.names();
            let mut all = true;
            while let Some(name) = names.next().await {
                match name {
                    Ok(name) => say(&json!({ "name": name }))?,
                    Err(error) => {
                        complain(&error);
                        all = false;
                    }
                }
            }
            return Ok(all);
        }
        Command::Count { queue } => say(&json!({ "count": open(queue).await?.count().await? }))?,
        Command::Get { queue, names, locked } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.read(name, *locked).await {
                    Ok(element) => say(&json!({ "name": name, "element": element }))?,
                    Err(failure) => args.pass_over(failure)?,
                }
            }
        }
        Command::Peek { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.peek(name).await {
                    Ok(element) => say(&json!({ "name": name, "element": element }))?,
                    Err(failure) => args.pass_over(failure)?,
                }
            }
        }
        Command::Lock { queue, names } => {
            let queue = open(queue).await?;
            let mut all = true;
            for name in names {
                let locked = queue.lock(name).await?;
                say(&json!({ "name": name, "locked": locked }))?;
                all &= locked;
            }
            return Ok(all);
        }
        Command::Unlock { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.unlock(name).await {
                    Ok(()) => say(&json!({ "name": name, "locked": false }))?,
                    Err(failure) => args.pass_over(failure)?,
                }
            }
        }
        Command::Touch { queue, names } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.touch(name).await {
                    Ok(()) => say(&json!({ "name": name, "touched": true }))?,
                    Err(failure) => args.pass_over(failure)?,
                }
            }
        }
        Command::Remove { queue, names, locked } => {
            let queue = open(queue).await?;
            for name in names {
                match queue.take_out(name, *locked).await {
                    Ok(()) => say(&json!({ "name": name, "removed": true }))?,
                    Err(failure) => args.pass_over(failure)?,
                }
            }
        }
        Command::Dead { queue, remove } => {
            let queue = open(queue).await?;
            if let Either::Normal(queue, _) = &queue {
                must_have_schema(queue)?;
            }
            if !remove {
                return print_dead(&queue).await;
            }
            let bar = progress(None);
            let removed = match &queue {
                Either::Simple(queue) => {
                    remove_dead(async |max| queue.take_dead(max).await, |b| of_bytes(b), &bar).await
                }
                Either::Normal(queue, _) => {
                    remove_dead(async |max| queue.take_dead(max).await, of_element, &bar).await
                }
            };
            return tell_of_the_rest(&queue, removed).await;
        }
        Command::Retry { queue, names, delay } => {
            let queue = open(queue).await?;
            let delay = Duration::from_secs(*delay);
            return revive(&queue, names, delay).await;
        }
        Command::Drain { queue, limit } => {
            let queue = open(queue).await?;
            let bar = progress(Some(queue.count().await?.min(limit.unwrap_or(u64::MAX))));
            return match &queue {
                Either::Simple(queue) => {
                    print_all(queue.locked(), |bytes| of_bytes(bytes), *limit, &bar).await
                }
                Either::Normal(queue, _) => {
                    must_have_schema(queue)?;
                    print_all(queue.locked(), of_element, *limit, &bar).await
                }
            };
        }
        Command::Watch { queue, limit } => {
            let bar = progress(None);
            return match open(queue).await? {
                Either::Simple(queue) => {
                    print_all(queue.watch(LOOK_EVERY), |bytes| of_bytes(bytes), *limit, &bar).await
                }
                Either::Normal(queue, _) => {
                    must_have_schema(&queue)?;
                    print_all(queue.watch(LOOK_EVERY), of_element, *limit, &bar).await
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
            say(&json!({
                "temporary": report.temporary,
                "locks": report.locks,
                "directories": report.directories,
                "records": report.records,
                "failed": report.failed,
            }))?;
            return Ok(report.failed == 0);
        }
        Command::Convert { from, to, field } => {
            let other = match kind_of(args, from) {
                Kind::Simple => Kind::Normal,
                Kind::Normal => Kind::Simple,
            };
            if let Some(kind) = detect(to).filter(|&kind| kind != other) {
                return Err(format!("{} is {kind:?} too", to.display()).into());
            }
            let (from, to) = (open(from).await?, Either::open(args, to, other).await?);
            return convert(&from, &to, field.as_deref()).await;
        }
    }
    Ok(true)
}

/// A queue of either kind.
enum Either {
    Simple(QueueSimple),
    /// With the types of its fields.
    Normal(Queue, HashMap<String, String>),
}

/// The same call on either kind.
macro_rules! either {
    ($either:expr, $queue:ident => $call:expr) => {
        match $either {
            Either::Simple($queue) => $call,
            Either::Normal($queue, _) => $call,
        }
    };
}

impl Either {
    async fn open(args: &Args, path: &Path, kind: Kind) -> Result<Self, Failure> {
        if kind == Kind::Simple {
            let queue = QueueSimple::builder(path).sync(args.sync).open().await?;
            return Ok(Self::Simple(queue));
        }
        let mut queue = Queue::builder(path).sync(args.sync);
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
        self.add(line.get("element").ok_or("a line has no \"element\"")?).await
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

    async fn must_lock(&self, name: &Name, is_locked: bool) -> Result<(), Failure> {
        match is_locked || self.lock(name).await? {
            true => Ok(()),
            false => Err(is_taken(name)),
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

    async fn dead(&self) -> Result<Vec<(Name, u32)>, Failure> {
        Ok(either!(self, queue => queue.dead().await?))
    }

    async fn revive(&self, name: &Name, delay: Duration) -> Result<bool, Failure> {
        Ok(either!(self, queue => queue.revive(name, delay).await?))
    }

    /// Locks an element as long as that takes, unless it is.
    async fn read(&self, name: &Name, is_locked: bool) -> Result<Json, Failure> {
        let read = match self {
            Self::Simple(queue) if is_locked => Some(of_bytes(&queue.get(name).await?)),
            Self::Simple(queue) => queue.get_element(name).await?.map(|bytes| of_bytes(&bytes)),
            Self::Normal(queue, _) if is_locked => Some(of_element(&queue.get(name).await?)),
            Self::Normal(queue, _) => queue.get_element(name).await?.map(|e| of_element(&e)),
        };
        read.ok_or_else(|| is_taken(name))
    }

    async fn peek(&self, name: &Name) -> Result<Json, Failure> {
        let element = match self {
            Self::Simple(queue) => queue.peek(name).await?.map(|bytes| of_bytes(&bytes)),
            Self::Normal(queue, _) => queue.peek(name).await?.map(|element| of_element(&element)),
        };
        element.ok_or_else(|| format!("{name} is gone").into())
    }

    async fn take_out(&self, name: &Name, is_locked: bool) -> Result<(), Failure> {
        self.must_lock(name, is_locked).await?;
        either!(self, queue => queue.remove(name).await?);
        Ok(())
    }
}

impl Args {
    /// Tells of what is bad, where it is not to end all.
    fn pass_over(&self, failure: Failure) -> Result<(), Failure> {
        if !self.skip_bad {
            return Err(failure);
        }
        complain(&*failure);
        Ok(())
    }
}

/// How many dead letters are held at once: to find the next, all are listed.
const DEAD_AT_ONCE: usize = 512;

fn is_taken(name: &Name) -> Failure {
    format!("{name} is locked by somebody else, or gone").into()
}

/// Prints the dead letters; false where some can't be read.
async fn print_dead(queue: &Either) -> Result<bool, Failure> {
    let dead = queue.dead().await?;
    let bar = progress(Some(dead.len() as u64));
    let mut all = true;
    for (name, attempts) in dead {
        match queue.peek(&name).await {
            Ok(element) => {
                say(&json!({ "name": name, "attempts": attempts, "element": element }))?;
            }
            Err(failure) => {
                bar.suspend(|| complain(&*failure));
                all = false;
            }
        }
        bar.inc(1);
    }
    Ok(all)
}

/// The same, and removes each. What somebody else has locked stays.
async fn remove_dead<T: Send + 'static>(
    take: impl AsyncFn(usize) -> Result<Vec<Lock<T>>, fleeting::dirq::Error>,
    to_json: impl Fn(&T) -> Json,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    loop {
        let dead = take(DEAD_AT_ONCE).await?;
        if dead.is_empty() {
            return Ok(());
        }
        for letter in &dead {
            let (name, attempts) = (letter.name(), letter.attempts());
            let element = to_json(letter.value());
            say(&json!({ "name": name, "attempts": attempts, "element": element }))?;
            bar.inc(1);
        }
        Lock::ack_all(dead).await?;
    }
}

/// Tells of all that can't be read, where one of it ended `done`; false where there is some.
async fn tell_of_the_rest(queue: &Either, done: Result<(), Failure>) -> Result<bool, Failure> {
    let Err(failure) = done else { return Ok(true) };
    let mut told = false;
    for (name, _) in queue.dead().await? {
        if let Err(failure) = queue.peek(&name).await {
            complain(&*failure);
            told = true;
        }
    }
    if told { Ok(false) } else { Err(failure) }
}

/// Lets all that is dead come again, unless some are named; false where one of these was not dead.
async fn revive(queue: &Either, names: &[Name], delay: Duration) -> Result<bool, Failure> {
    let (mut all, mut names) = (true, names.to_vec());
    if names.is_empty() {
        names.extend(queue.dead().await?.into_iter().map(|(name, _)| name));
    }
    for name in names {
        let revived = queue.revive(&name, delay).await?;
        say(&json!({ "name": name, "revived": revived }))?;
        all &= revived;
    }
    Ok(all)
}

/// False where some elements stay, as they can't be read.
async fn print_all<T: Send + 'static>(
    mut locks: Walk<Lock<T>>,
    to_json: impl Fn(&T) -> Json,
    limit: Option<u64>,
    bar: &ProgressBar,
) -> Result<bool, Failure> {
    let mut unreadable = Unreadable::default();
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let Some(lock) = unreadable.next(&mut locks, bar).await else { break };
        say(&json!({ "name": lock.name(), "element": to_json(lock.value()) }))?;
        lock.ack().await?;
        bar.inc(1);
    }
    Ok(unreadable.0.is_empty())
}

/// What was said of elements that can't be read: of each once, however often it comes.
#[derive(Default)]
struct Unreadable(HashSet<String>);

impl Unreadable {
    /// The next that can be read.
    async fn next<T: Send + 'static>(
        &mut self,
        locks: &mut Walk<Lock<T>>,
        bar: &ProgressBar,
    ) -> Option<Lock<T>> {
        loop {
            match locks.next().await? {
                Ok(lock) => return Some(lock),
                Err(error) => {
                    let said = sentence(&error);
                    if !self.0.contains(&said) {
                        bar.suspend(|| eprintln!("{said}"));
                        self.0.insert(said);
                    }
                }
            }
        }
    }
}

/// False where some elements stay, as they have no form in the other queue.
async fn convert(from: &Either, to: &Either, field: Option<&str>) -> Result<bool, Failure> {
    let bar = progress(Some(from.count().await?));
    let (mut told, mut unreadable) = (0, Unreadable::default());
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
                told += u64::from(!finish(lock, moved, &bar).await?);
            }
        }
        (Either::Normal(from, _), Either::Simple(to)) => {
            must_have_schema(from)?;
            let mut locks = from.locked();
            while let Some(lock) = unreadable.next(&mut locks, &bar).await {
                let body = match field {
                    Some(field) => only(lock.value(), field),
                    None => Ok(of_element(lock.value()).to_string().into_bytes()),
                };
                let moved = match body {
                    Ok(body) => to.add(body).await.map_err(Failure::from),
                    Err(failure) => Err(failure),
                };
                told += u64::from(!finish(lock, moved, &bar).await?);
            }
        }
        _ => unreachable!("the kinds were made to differ"),
    }
    told += unreadable.0.len() as u64;
    // Those that others have locked, that rest, or are dead, and those that came meanwhile.
    let silent = from.count().await?.saturating_sub(told);
    if silent > 0 {
        eprintln!("{silent} elements stay: they are locked, rest, are dead, or came meanwhile");
    }
    Ok(told + silent == 0)
}

/// Else each of its elements is an error.
fn must_have_schema(queue: &Queue) -> Result<(), Failure> {
    match queue.schema() {
        Some(_) => Ok(()),
        None => {
            Err(format!("the queue {} has no schema: give --schema", queue.path().display()).into())
        }
    }
}

/// Removes what has moved, and tells why not what stays.
async fn finish<T: Send + 'static>(
    lock: Lock<T>,
    moved: Result<Name, Failure>,
    bar: &ProgressBar,
) -> Result<bool, Failure> {
    bar.inc(1);
    match moved {
        Ok(name) => {
            say(&json!({ "from": lock.name(), "name": name }))?;
            lock.ack().await?;
            Ok(true)
        }
        Err(failure) => {
            bar.suspend(|| {
                eprint!("{} stays: ", lock.name());
                complain(&*failure);
            });
            lock.unlock().await?;
            Ok(false)
        }
    }
}

/// The bytes of the one field that an element has.
fn only(element: &Element, field: &str) -> Result<Vec<u8>, Failure> {
    if let Some((other, _)) = element.iter().find(|(name, _)| *name != field) {
        return Err(format!("it has the field {other:?} too").into());
    }
    match element.get(field) {
        Some(Value::Binary(bytes)) => Ok(bytes.to_vec()),
        Some(Value::String(text)) => Ok(text.clone().into_bytes()),
        _ => Err(format!("its field {field:?} is no text and no bytes").into()),
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

/// A text, or `{"hex": ...}`.
fn bytes(json: &Json) -> Result<Vec<u8>, Failure> {
    if let Json::String(text) = json {
        return Ok(text.clone().into_bytes());
    }
    let hex = json.get("hex").and_then(Json::as_str);
    let hex = hex.ok_or_else(|| format!("{json} is neither a text nor {{\"hex\": ...}}"))?;
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0);
    let digits = digits.ok_or_else(|| format!("{hex:?} is not pairs of hexadecimal digits"))?;
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn element_of(json: &Json, types: &HashMap<String, String>) -> Result<Element, Failure> {
    let fields = json.as_object().ok_or_else(|| format!("{json} is no object of fields"))?;
    let mut element = Element::new();
    for (field, json) in fields {
        let value = match types.get(field).map(String::as_str) {
            Some("table") => {
                let table: BTreeMap<String, String> = serde_json::from_value(json.clone())
                    .map_err(|error| format!("the table {field:?}: {error}"))?;
                Value::from(table)
            }
            Some("binary") => Value::from(bytes(json)?),
            // The queue says what is wrong with a field that is unknown.
            _ => Value::from(String::from_utf8(bytes(json)?)?),
        };
        element = element.with(field, value);
    }
    Ok(element)
}

fn kind_of(args: &Args, path: &Path) -> Kind {
    let new = if args.schema.is_some() { Kind::Normal } else { Kind::Simple };
    args.kind.or_else(|| detect(path)).unwrap_or(new)
}

/// A normal queue has its two other directories from its first moment; a simple one, nothing of its own.
fn detect(path: &Path) -> Option<Kind> {
    if path.join("temporary").is_dir() && path.join("obsolete").is_dir() {
        return Some(Kind::Normal);
    }
    let is_used = path.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    is_used.then_some(Kind::Simple)
}

/// Hidden unless stderr is a terminal.
fn progress(len: Option<u64>) -> ProgressBar {
    let (bar, template) = match len {
        Some(len) => {
            (ProgressBar::new(len), "{wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos}, {per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is right"))
}

/// Read on a thread of its own, as stdin can't be waited for.
fn lines_of_stdin() -> mpsc::Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel(64);
    std::thread::spawn(move || {
        let _ = io::stdin().lock().lines().try_for_each(|line| sender.blocking_send(line));
    });
    lines
}

fn say(line: &Json) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

fn complain(failure: &dyn Error) {
    eprintln!("{}", sentence(failure));
}

/// With all its causes.
fn sentence(failure: &dyn Error) -> String {
    let mut sentence = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        sentence += &format!(": {error}");
        cause = error.source();
    }
    sentence
}
