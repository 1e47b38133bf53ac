//! Opens directory queues with any files in them: elements, locks, records of deliveries, reasons, and names and
//! schemas of any text. Nothing panics, nothing outside of the queue is changed, and an element that is added to it is
//! delivered.
#![no_main]

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use arbitrary::Arbitrary;
use fleeting::dirq::{Element, Name, Purge, Queue, QueueSimple, Schema};
use libfuzzer_sys::fuzz_target;

/// Schema of the queues, if that of the input is invalid.
const SCHEMA: &str = "body:string,header:table?,bytes:binary?";

#[derive(Arbitrary, Debug)]
struct Input {
    is_simple: bool,
    name: String,
    schema: String,
    files: Vec<File>,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
struct File {
    place: Place,
    contents: Contents,
}

#[derive(Arbitrary, Debug)]
enum Place {
    /// An element, or for normal queues a field of it or another file in it.
    Element(Number, Number, Option<Field>),
    /// Record or reason of an element, or a draft of one.
    Record(Number, Number, Suffix),
    Any(Vec<PathPart>),
}

/// One of few numbers, so that records and elements match.
#[derive(Arbitrary, Debug)]
struct Number(u8);

#[derive(Arbitrary, Debug)]
enum Field {
    Body,
    Header,
    Bytes,
    Locked,
    Other(PathPart),
}

#[derive(Arbitrary, Debug)]
enum Suffix {
    None,
    Reason,
    Draft,
    ReasonDraft,
    Lock,
}

#[derive(Arbitrary, Debug)]
struct PathPart(Vec<u8>);

#[derive(Arbitrary, Debug)]
enum Contents {
    Directory,
    Bytes(Vec<u8>),
    Table(Vec<(String, String)>),
    /// Text of a record.
    Record(u32, Option<u64>),
    Link(Vec<u8>),
    LinkOutside,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Count,
    Names,
    Read,
    Dead,
    Locked(End),
    TakeDead(End),
    Revive,
    Purge,
}

/// End of a lock.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum End {
    Ack,
    Fail,
    Release,
    RetryNow,
    Drop,
}

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("fleeting-fuzz-{}", std::process::id()))
});

fuzz_target!(|input: Input| {
    if let Ok(name) = input.name.parse::<Name>() {
        assert_eq!(name.to_string(), input.name);
    }
    let _ = fs::remove_dir_all(&*FOLDER);
    let queue = FOLDER.join("queue");
    fs::create_dir_all(&queue).expect("the folder is writable");
    fs::write(FOLDER.join("outside"), "secret").expect("the folder is writable");
    for file in &input.files {
        file.create(&queue);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match input.is_simple {
            true => check_simple(&queue, &input.calls).await,
            false => check_normal(&queue, &input.schema, &input.calls).await,
        }
    });
    assert_eq!(fs::read(FOLDER.join("outside")).expect("it was not removed"), b"secret");
    let _ = fs::remove_dir_all(&*FOLDER);
});

impl File {
    /// Creates the file, unless another one prevents it.
    fn create(&self, queue: &Path) {
        let path = queue.join(self.place.path());
        let Some(parent) = path.parent() else { return };
        let _ = fs::create_dir_all(parent);
        let link = |target: &[u8]| _ = symlink(OsStr::from_bytes(&without_nul(target)), &path);
        match &self.contents {
            Contents::Directory => _ = fs::create_dir(&path),
            Contents::Bytes(bytes) => self.write(&path, bytes),
            Contents::Table(lines) => {
                let lines = lines.iter().map(|(key, value)| format!("{key}\t{value}\n"));
                self.write(&path, lines.collect::<String>().as_bytes());
            }
            Contents::Record(attempts, due) => {
                let due = due.map_or("dead".to_owned(), |due| due.to_string());
                link(format!("{attempts} {due}").as_bytes());
            }
            Contents::Link(target) => link(target),
            Contents::LinkOutside => link(b"../../outside"),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) {
        // A link that was created before must not be followed.
        if !path.is_symlink() {
            let _ = fs::write(path, bytes);
        }
    }
}

impl Place {
    /// Returns a path below the queue.
    fn path(&self) -> PathBuf {
        match self {
            Place::Element(Number(directory), Number(element), field) => {
                let element = format!("{:08x}/{:014x}", directory % 3, element % 4);
                match field {
                    None => element.into(),
                    Some(field) => Path::new(&element).join(field.name()),
                }
            }
            Place::Record(Number(directory), Number(element), suffix) => {
                let suffix = match suffix {
                    Suffix::None => "",
                    Suffix::Reason => ".reason",
                    Suffix::Draft => ".tmp",
                    Suffix::ReasonDraft => ".reason.tmp",
                    Suffix::Lock => ".lck",
                };
                format!("retries/{:08x}-{:014x}{suffix}", directory % 3, element % 4).into()
            }
            Place::Any(parts) => parts.iter().take(3).map(PathPart::name).collect(),
        }
    }
}

impl Field {
    fn name(&self) -> PathBuf {
        match self {
            Field::Body => "body".into(),
            Field::Header => "header".into(),
            Field::Bytes => "bytes".into(),
            Field::Locked => "locked".into(),
            Field::Other(part) => part.name(),
        }
    }
}

impl PathPart {
    /// Returns a name that is neither empty nor leads out of its directory.
    fn name(&self) -> PathBuf {
        let mut bytes = without_nul(&self.0);
        bytes.retain(|byte| *byte != b'/');
        bytes.truncate(40);
        if bytes.iter().all(|byte| *byte == b'.') {
            bytes.push(b'x');
        }
        OsStr::from_bytes(&bytes).into()
    }
}

fn without_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| *byte != 0).collect()
}

/// Runs the calls on a queue of either kind. Files of another form are skipped, or an error.
macro_rules! run_calls {
    ($queue:expr, $calls:expr) => {
        for call in $calls {
            match call {
                Call::Count => _ = $queue.count().await,
                Call::Names => {
                    let mut names = $queue.names();
                    while let Some(Ok(name)) = names.next().await {
                        assert_eq!(name.to_string().parse::<Name>().expect("a name"), name);
                    }
                }
                Call::Read => {
                    let mut names = $queue.names();
                    while let Some(Ok(name)) = names.next().await {
                        let _ = $queue.peek(&name).await;
                        let _ = $queue.get(&name).await;
                    }
                }
                Call::Dead => {
                    let _ = ($queue.dead().await, $queue.dead_len().await);
                }
                Call::Locked(end) => {
                    let mut locked = $queue.locked();
                    // A lock that is released is delivered again.
                    for _ in 0..20 {
                        match locked.next().await {
                            Some(Ok(lock)) => end_lock!(lock, end),
                            Some(Err(_)) => {}
                            None => break,
                        }
                    }
                }
                Call::TakeDead(end) => {
                    for lock in $queue.take_dead(20).await.unwrap_or_default() {
                        end_lock!(lock, end);
                    }
                }
                Call::Revive => {
                    for dead in $queue.dead().await.unwrap_or_default() {
                        let _ = $queue.revive(&dead.name, Duration::ZERO).await;
                    }
                }
                Call::Purge => {
                    let purge = Purge::default().max_temp(Duration::ZERO).max_lock(Duration::ZERO);
                    let _ = $queue.purge(purge).await;
                }
            }
        }
    };
}

macro_rules! end_lock {
    ($lock:expr, $end:expr) => {
        match $end {
            End::Ack => _ = $lock.ack().await,
            End::Fail => _ = $lock.fail("a reason").await,
            End::Release => _ = $lock.release().await,
            End::RetryNow => _ = $lock.retry_in(Duration::ZERO).await,
            End::Drop => drop($lock),
        }
    };
}

async fn check_simple(path: &Path, calls: &[Call]) {
    let builder = QueueSimple::builder(path).backoff(Duration::ZERO, Duration::ZERO);
    let Ok(queue) = builder.max_attempts(2).open().await else { return };
    run_calls!(queue, calls);
    // Its directory may be a file.
    let Ok(name) = queue.add(b"a body").await else { return };
    assert!(queue.lock(&name).await.expect("a new element can be locked"));
    assert_eq!(queue.get(&name).await.expect("a locked element can be read"), &b"a body"[..]);
    queue.remove(&name).await.expect("a locked element can be removed");
}

async fn check_normal(path: &Path, schema: &str, calls: &[Call]) {
    let (schema, is_own) = match schema.parse::<Schema>() {
        Ok(schema) => (schema, false),
        Err(_) => (SCHEMA.parse().expect("the schema is valid"), true),
    };
    let builder = Queue::builder(path).schema(schema).backoff(Duration::ZERO, Duration::ZERO);
    let Ok(queue) = builder.max_attempts(2).open().await else { return };
    run_calls!(queue, calls);
    let element = Element::new().with("body", "a body");
    if !is_own {
        return;
    }
    let Ok(name) = queue.add(element.clone()).await else { return };
    assert!(queue.lock(&name).await.expect("a new element can be locked"));
    assert_eq!(queue.get(&name).await.expect("a locked element can be read"), element);
    queue.remove(&name).await.expect("a locked element can be removed");
}
