//! Directory queues compared with the Python package dirq: `cargo bench --features dirq --bench dirq` writes
//! docs/dirq.md.
//!
//! The package must be in the venv of `scripts/python.sh`, or available to the Python named by FLEETING_DIRQ_PYTHON.
//! Every number is the median of rounds in which both take turns in one directory, on one machine in one run; only the
//! ratios are comparable between machines. `FLEETING_QUICK=1` makes the run short, and writes nothing.

mod calls;
mod workers;

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use fleeting::dirq::{Element, Lock, Queue, QueueSimple, Schema, Walk};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Runtime;

const BODY: [u8; 200] = [b'x'; 200];

/// Elements per round.
const COUNT: usize = 2_000;

/// Elements in the queue for `count`.
const MANY: usize = 20_000;

/// Elements per round of synced adds.
const SYNCED: usize = 200;

fn main() {
    workers::work_if_started_for_it();
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let rounds = if quick { 3 } else { 41 };
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("a temporary directory");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        python: Python::start(),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime"),
        rounds,
    };
    let mut page = String::from(
        "# Directory queues compared with the Python package\n\n\
         Made by `cargo bench --features dirq --bench dirq`: medians of rounds in which both take turns, in one \
         directory, on one machine in one run. Only the ratios are comparable between machines. Bodies of 200 bytes, \
         one process, one call after another, unless noted otherwise.\n\n\
         ## In memory\n\n\
         On Linux' tmpfs, operations on one element run on the calling thread: `add`, `lock`, `get`, `remove`, \
         `dequeue`, `ack`, and the next element of `names` and `locked` after their directory has been listed. Each \
         directory listing, `add_many` and `count` runs on a thread for blocking work. `add_many` makes no element visible before all are \
         written.\n\n",
    );
    let memory = bench.folder.clone();
    page += &bench.simple("Simple queues", &memory);
    page += &bench.normal("Normal queues", &memory);
    page += &bench.counts();
    page += "\n## On a quick disk\n\n\
             On ext4 in an image in memory: the costs of a disk's file system without the disk. As on any disk, each \
             call runs on a thread for blocking work, so that a slow disk blocks no other task. If calls follow each \
             other closely, that thread spins for the next call and the caller spins for the result, so that neither \
             has to be woken. `locked` locks up to 64 elements per call.\n\n";
    bench.rounds = bench.rounds.min(15);
    match Image::mount(&memory) {
        Ok(image) => {
            page += &bench.disk(&image.folder);
            page += &workers::table(&bench.runtime, &image.folder);
        }
        Err(why) => {
            writeln!(page, "Not measured: {why}.\n").expect("writing to a String cannot fail")
        }
    }
    writeln!(
        page,
        "## On this machine's disk\n\nOn {}. The disk is shared, and throttled after each burst, so these numbers are \
         approximate.\n",
        file_system(disk.path())
    )
    .expect("writing to a String cannot fail");
    bench.rounds = bench.rounds.min(7);
    page += &bench.disk(disk.path());
    println!("{page}");
    if !quick {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/dirq.md");
        fs::write(path, page).expect("docs/dirq.md can be written");
    }
}

struct Bench {
    folder: PathBuf,
    python: Python,
    runtime: Runtime,
    rounds: usize,
}

/// Measures a queue. A macro, because the two kinds of queues are two types with the same methods.
macro_rules! rounds {
    ($bench:ident, $kind:literal, $path:ident, $queue:ident, $new:expr, $is_whole:expr) => {{
        let mut samples = [const { Vec::new() }; 10];
        for _ in 0..$bench.rounds {
            samples[0].push($bench.python.seconds(concat!($kind, " add"), &$path));
            samples[1].push($bench.python.seconds(concat!($kind, " take"), &$path));
            $bench.time(&mut samples[2], async || {
                for _ in 0..COUNT {
                    $queue.add($new()).await.expect("the elements can be added");
                }
            });
            $bench.time(&mut samples[3], async || {
                let mut names = $queue.names();
                while let Some(name) = names.next().await {
                    let name = name.expect("a name");
                    assert!($queue.lock(&name).await.expect("a lock"));
                    assert!($is_whole(&$queue.get(&name).await.expect("the element is locked")));
                    $queue.remove(&name).await.expect("the element is locked");
                }
            });
            $bench.time(&mut samples[4], async || {
                for _ in 0..COUNT / 1_000 {
                    $queue
                        .add_many((0..1_000).map(|_| $new()))
                        .await
                        .expect("the elements can be added");
                }
            });
            $bench.time(&mut samples[5], async || {
                let mut names = $queue.names();
                while let Some(name) = names.next().await {
                    let taken = $queue.dequeue(&name.expect("a name")).await.expect("a lock");
                    assert!($is_whole(&taken.expect("the element exists")));
                }
            });
            $bench.time(&mut samples[6], async || {
                // Eight concurrent calls, as by the tasks of a server.
                stream::iter(0..COUNT)
                    .map(|_| $queue.add($new()))
                    .buffer_unordered(8)
                    .try_for_each(async |_| Ok(()))
                    .await
                    .expect("the elements can be added");
            });
            $bench.time(&mut samples[7], async || {
                let mut locks = $queue.locked();
                while let Some(lock) = locks.next().await {
                    let lock = lock.expect("a lock");
                    assert!($is_whole(lock.value()));
                    lock.ack().await.expect("the element is locked");
                }
            });
            $bench.time(&mut samples[4], async || {
                for _ in 0..COUNT / 1_000 {
                    $queue
                        .add_many((0..1_000).map(|_| $new()))
                        .await
                        .expect("the elements can be added");
                }
            });
            $bench.time(&mut samples[8], async || take_chunks($queue.locked()).await);
            let names: Vec<_> = $bench.runtime.block_on(async {
                let names = $queue.add_many((0..COUNT).map(|_| $new())).await;
                names.expect("the elements can be added")
            });
            $bench.time(&mut samples[9], async || {
                stream::iter(&names)
                    .map(|name| $queue.dequeue(name))
                    .buffer_unordered(8)
                    .try_for_each(async |taken| {
                        assert!($is_whole(&taken.expect("the element exists")));
                        Ok(())
                    })
                    .await
                    .expect("locks");
            });
        }
        samples
    }};
}

impl Bench {
    fn simple(&mut self, title: &str, folder: &Path) -> String {
        let path = folder.join("simple");
        let queue = self.runtime.block_on(QueueSimple::open(&path)).expect("a queue");
        let is_whole = |body: &[u8]| body.len() == BODY.len();
        table(title, rounds!(self, "simple", path, queue, || BODY, is_whole))
    }

    fn normal(&mut self, title: &str, folder: &Path) -> String {
        let path = folder.join("normal");
        let schema = Schema::new([("body", "string")]).expect("a schema");
        let queue = Queue::builder(&path).schema(schema).open();
        let queue = self.runtime.block_on(queue).expect("a queue");
        let text = str::from_utf8(&BODY).expect("text");
        let element = || Element::new().with("body", text);
        let is_whole = |element: &Element| element.string("body").is_some();
        table(title, rounds!(self, "normal", path, queue, element, is_whole))
    }

    fn disk(&mut self, folder: &Path) -> String {
        let simple = self.simple("Simple queues", folder);
        let normal = self.normal("Normal queues", folder);
        let calls = calls::table(folder, self.rounds);
        simple + &normal + &self.synced(folder) + &calls
    }

    /// Measures adds that survive a crash of the machine.
    fn synced(&mut self, folder: &Path) -> String {
        let path = folder.join("synced");
        let queue = QueueSimple::builder(&path).sync(true).open();
        let queue = self.runtime.block_on(queue).expect("a queue");
        let mut samples = [const { Vec::new() }; 5];
        for _ in 0..self.rounds {
            samples[0].push(self.python.seconds("simple sync", &path));
            for (index, callers) in [(1, 1), (2, 8), (3, 64)] {
                self.time(&mut samples[index], async || {
                    stream::iter(0..SYNCED)
                        .map(|_| queue.add(BODY))
                        .buffer_unordered(callers)
                        .try_for_each(async |_| Ok(()))
                        .await
                        .expect("the elements can be added");
                });
            }
            self.time(&mut samples[4], async || {
                queue.add_many([BODY; SYNCED]).await.expect("the elements can be added");
            });
            self.runtime.block_on(take_chunks(queue.locked()));
        }
        let samples = samples.map(|samples| SYNCED as f64 / median(samples));
        let names = [
            "Python: `add`, and `fsync` of the file",
            "`add`, with the file and its directory synced",
            "the same, eight concurrent calls",
            "the same, 64 concurrent calls",
            "`add_many` of 200",
        ];
        let mut page = String::from(
            "### Synced adds to a simple queue\n\n| | elements/s | relative to Python |\n| --- | --- | --- |\n",
        );
        for (name, value) in names.iter().zip(samples) {
            writeln!(page, "| {name} | {value:.0} | {:.2} |", value / samples[0])
                .expect("writing to a String cannot fail");
        }
        page + "\n"
    }

    fn counts(&mut self) -> String {
        let path = self.folder.join("counted");
        let queue = self.runtime.block_on(QueueSimple::open(&path)).expect("a queue");
        self.runtime.block_on(async {
            for _ in 0..MANY / 1_000 {
                queue.add_many([BODY; 1_000]).await.expect("the elements can be added");
            }
        });
        let mut samples = [const { Vec::new() }; 2];
        for _ in 0..self.rounds {
            samples[0].push(self.python.seconds("simple count", &path));
            self.time(&mut samples[1], async || {
                assert_eq!(queue.count().await.expect("a count"), MANY as u64);
            });
        }
        let [python, ours] = samples.map(|samples| median(samples) * 1e3);
        format!(
            "### Counting {MANY} elements of a simple queue\n\n| | ms |\n| --- | --- |\n\
             | Python | {python:.2} |\n| `count` | {ours:.2} |\n"
        )
    }

    fn time(&self, samples: &mut Vec<f64>, work: impl AsyncFnOnce()) {
        let start = Instant::now();
        self.runtime.block_on(work());
        samples.push(start.elapsed().as_secs_f64());
    }
}

fn table(title: &str, samples: [Vec<f64>; 10]) -> String {
    let [py_add, py_take, add, take, add_many, dequeue, add_8, locked, chunks, dequeue_8] =
        samples.map(|samples| COUNT as f64 / median(samples));
    let mut page = format!(
        "### {title}\n\n| | elements/s | relative to Python | relative to `add` |\n| --- | --- | --- | --- |\n"
    );
    for (name, value) in [
        ("Python: `add`", py_add),
        ("`add`", add),
        ("`add`, eight concurrent calls", add_8),
        ("`add_many` of 1,000", add_many),
    ] {
        let (to_python, to_add) = (value / py_add, value / add);
        writeln!(page, "| {name} | {value:.0} | {to_python:.2} | {to_add:.2} |")
            .expect("writing to a String cannot fail");
    }
    page += "\n| | elements/s | relative to Python |\n| --- | --- | --- |\n";
    for (name, value) in [
        ("Python: `lock`, `get`, `remove`", py_take),
        ("`lock`, `get`, `remove`", take),
        ("`dequeue`", dequeue),
        ("`dequeue`, eight concurrent calls", dequeue_8),
        ("`locked`, `ack`", locked),
        ("`locked` in chunks, `ack_all`", chunks),
    ] {
        writeln!(page, "| {name} | {value:.0} | {:.2} |", value / py_take)
            .expect("writing to a String cannot fail");
    }
    page + "\n"
}

/// An ext4 file system in an image in memory.
struct Image {
    folder: PathBuf,
}

impl Image {
    fn mount(memory: &Path) -> Result<Self, String> {
        let (image, folder) = (memory.join("image"), memory.join("mounted"));
        fs::create_dir(&folder).expect("the directory can be created");
        let file = fs::File::create(&image).expect("the file can be created");
        file.set_len(1 << 30).expect("the sparse file can be extended");
        let run = |program: &str, args: &[&str], paths: &[&Path]| {
            let output = Command::new(program).args(args).args(paths).output();
            let output = output.map_err(|error| format!("cannot run {program} ({error})"))?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = stderr.lines().next().unwrap_or_default().to_owned();
            output.status.success().then_some(()).ok_or_else(|| format!("{program}: {stderr}"))
        };
        run("mkfs.ext4", &["-q", "-F"], &[&image])?;
        run("mount", &["-o", "loop"], &[&image, &folder])?;
        Ok(Self { folder })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

/// Returns the type of the file system at `path`.
fn file_system(path: &Path) -> String {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output();
    let named = output.ok().filter(|output| output.status.success());
    named.map_or("the disk of the build".to_owned(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

async fn take_chunks<T: Send + 'static>(locks: Walk<Lock<T>>) {
    let mut chunks = locks.ready_chunks(64);
    while let Some(chunk) = chunks.next().await {
        let locks: Vec<_> = chunk.into_iter().collect::<Result<_, _>>().expect("locks");
        Lock::ack_all(locks).await.expect("the elements are locked");
    }
}

/// A Python process that performs one task per line of stdin, and prints its duration in seconds.
struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

const PROGRAM: &str = r#"
import os, sys, time
from dirq.QueueSimple import QueueSimple
from dirq.queue import Queue

BODY, COUNT, MANY, SYNCED = "x" * 200, *map(int, sys.argv[1:])

def take(queue):
    name = queue.first()
    while name:
        if queue.lock(name):
            queue.get(name)
            queue.remove(name)
        name = queue.next()

for line in sys.stdin:
    kind, work, path = line.rstrip("\n").split(" ", 2)
    queue = QueueSimple(path) if kind == "simple" else Queue(path, schema={"body": "string"})
    element = BODY if kind == "simple" else {"body": BODY}
    start = time.perf_counter()
    if work == "add":
        for _ in range(COUNT):
            queue.add(element)
    elif work == "sync":
        for _ in range(SYNCED):
            fd = os.open(path + "/" + queue.add(element), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    elif work == "take":
        take(queue)
    else:
        assert queue.count() == MANY
    print(time.perf_counter() - start, flush=True)
"#;

impl Python {
    fn start() -> Self {
        let python = std::env::var_os("FLEETING_DIRQ_PYTHON").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dirq-venv/bin/python"),
            PathBuf::from,
        );
        let mut child = Command::new(&python)
            .args(["-c", PROGRAM, &COUNT.to_string(), &MANY.to_string(), &SYNCED.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot run {}: {error}; create it by scripts/python.sh", python.display())
            });
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    fn seconds(&mut self, work: &str, path: &Path) -> f64 {
        writeln!(self.stdin, "{work} {}", path.display()).expect("Python reads its stdin");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("Python prints a line");
        line.trim().parse().expect("the line is a number")
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
