//! Directory queues beside the Python package dirq: `cargo bench --features dirq --bench dirq` writes docs/dirq.md.
//!
//! It needs that package, in the venv of `scripts/python.sh` or in the Python that FLEETING_DIRQ_PYTHON names.
//! Every figure is the median of rounds in which both take turns in one directory, on one machine in one run: the
//! ratios are what counts. `FLEETING_QUICK=1` makes it short, and writes nothing.

mod calls;

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

/// Elements a round.
const COUNT: usize = 2_000;

/// Elements in the queue that is counted.
const MANY: usize = 20_000;

/// Elements a round that are synced.
const SYNCED: usize = 200;

fn main() {
    let quick = std::env::var_os("FLEETING_QUICK").is_some();
    let rounds = if quick { 3 } else { 41 };
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("a folder");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
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
        "# Directory queues beside the Python package\n\n\
         Made by `cargo bench --features dirq --bench dirq`: medians of rounds in which both take turns, in one directory, on one \
         machine in one run. What counts is the ratio. Bodies of 200 bytes, one process, one call after another; \
         elements a second.\n\n\
         ## In memory\n\n\
         On Linux' tmpfs, what is about one element is done in place: `add`, `lock`, `get`, `remove`, `dequeue`, \
         `ack`, and to go on with what `names` and `locked` have listed. Each list, `add_many` and `count` is one \
         trip to a thread for blocking work. `add_many` shows no element before all are written.\n\n",
    );
    let memory = bench.folder.clone();
    page += &bench.simple("Simple queues", &memory);
    page += &bench.normal("Normal queues", &memory);
    page += &bench.counts();
    page += "\n## On a disk that is quick\n\n\
             On ext4 in an image that is in memory: all that a disk's file system costs, but for the disk. As on any \
             disk, each call is made by a thread that may wait, so that a disk that is slow stops no other task. Where \
             calls follow each other closely, that thread stays awake for the next, and who calls looks out for its \
             end: neither has to be woken. `locked` locks up to 64 elements a call.\n\n";
    bench.rounds = bench.rounds.min(15);
    match Image::mount(&memory) {
        Ok(image) => page += &bench.disk(&image.folder),
        Err(why) => writeln!(page, "Not measured: {why}.\n").expect("a string takes all"),
    }
    writeln!(
        page,
        "## On this machine's disk\n\nOn {}. It is shared, and slowed down after each burst: a rough picture.\n",
        file_system(disk.path())
    )
    .expect("a string takes all");
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

/// What is measured of both kinds of queues, which are two types with the same calls.
macro_rules! rounds {
    ($bench:ident, $kind:literal, $path:ident, $queue:ident, $new:expr, $is_whole:expr) => {{
        let mut figures = [const { Vec::new() }; 10];
        for _ in 0..$bench.rounds {
            figures[0].push($bench.python.seconds(concat!($kind, " add"), &$path));
            figures[1].push($bench.python.seconds(concat!($kind, " take"), &$path));
            $bench.time(&mut figures[2], async || {
                for _ in 0..COUNT {
                    $queue.add($new()).await.expect("room");
                }
            });
            $bench.time(&mut figures[3], async || {
                let mut names = $queue.names();
                while let Some(name) = names.next().await {
                    let name = name.expect("a name");
                    assert!($queue.lock(&name).await.expect("a lock"));
                    assert!($is_whole(&$queue.get(&name).await.expect("it is locked")));
                    $queue.remove(&name).await.expect("it is locked");
                }
            });
            $bench.time(&mut figures[4], async || {
                for _ in 0..COUNT / 1_000 {
                    $queue.add_many((0..1_000).map(|_| $new())).await.expect("room");
                }
            });
            $bench.time(&mut figures[5], async || {
                let mut names = $queue.names();
                while let Some(name) = names.next().await {
                    let taken = $queue.dequeue(&name.expect("a name")).await.expect("a lock");
                    assert!($is_whole(&taken.expect("it is there")));
                }
            });
            $bench.time(&mut figures[6], async || {
                // Eight calls at a time, as from the tasks of a server.
                stream::iter(0..COUNT)
                    .map(|_| $queue.add($new()))
                    .buffer_unordered(8)
                    .try_for_each(async |_| Ok(()))
                    .await
                    .expect("room");
            });
            $bench.time(&mut figures[7], async || {
                let mut locks = $queue.locked();
                while let Some(lock) = locks.next().await {
                    let lock = lock.expect("a lock");
                    assert!($is_whole(lock.value()));
                    lock.ack().await.expect("it is locked");
                }
            });
            $bench.time(&mut figures[4], async || {
                for _ in 0..COUNT / 1_000 {
                    $queue.add_many((0..1_000).map(|_| $new())).await.expect("room");
                }
            });
            $bench.time(&mut figures[8], async || take_chunks($queue.locked()).await);
            let names: Vec<_> = $bench.runtime.block_on(async {
                let names = $queue.add_many((0..COUNT).map(|_| $new())).await;
                names.expect("room")
            });
            $bench.time(&mut figures[9], async || {
                stream::iter(&names)
                    .map(|name| $queue.dequeue(name))
                    .buffer_unordered(8)
                    .try_for_each(async |taken| {
                        assert!($is_whole(&taken.expect("it is there")));
                        Ok(())
                    })
                    .await
                    .expect("locks");
            });
        }
        figures
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

    /// What survives a crash of the machine.
    fn synced(&mut self, folder: &Path) -> String {
        let path = folder.join("synced");
        let queue = QueueSimple::builder(&path).sync(true).open();
        let queue = self.runtime.block_on(queue).expect("a queue");
        let mut figures = [const { Vec::new() }; 5];
        for _ in 0..self.rounds {
            figures[0].push(self.python.seconds("simple sync", &path));
            for (index, callers) in [(1, 1), (2, 8), (3, 64)] {
                self.time(&mut figures[index], async || {
                    stream::iter(0..SYNCED)
                        .map(|_| queue.add(BODY))
                        .buffer_unordered(callers)
                        .try_for_each(async |_| Ok(()))
                        .await
                        .expect("room");
                });
            }
            self.time(&mut figures[4], async || {
                queue.add_many([BODY; SYNCED]).await.expect("room");
            });
            self.runtime.block_on(take_chunks(queue.locked()));
        }
        let figures = figures.map(|figures| SYNCED as f64 / median(figures));
        let names = [
            "Python: `add`, and `fsync` of the file",
            "`add`, with the file and its directory synced",
            "the same, eight calls at a time",
            "the same, 64 calls at a time",
            "`add_many` of 200",
        ];
        let mut page = String::from(
            "### Synced adds to a simple queue\n\n| | elements a second | to Python's |\n| --- | --- | --- |\n",
        );
        for (name, figure) in names.iter().zip(figures) {
            writeln!(page, "| {name} | {figure:.0} | {:.2} |", figure / figures[0])
                .expect("a string takes all");
        }
        page + "\n"
    }

    fn counts(&mut self) -> String {
        let path = self.folder.join("counted");
        let queue = self.runtime.block_on(QueueSimple::open(&path)).expect("a queue");
        self.runtime.block_on(async {
            for _ in 0..MANY / 1_000 {
                queue.add_many([BODY; 1_000]).await.expect("room");
            }
        });
        let mut figures = [const { Vec::new() }; 2];
        for _ in 0..self.rounds {
            figures[0].push(self.python.seconds("simple count", &path));
            self.time(&mut figures[1], async || {
                assert_eq!(queue.count().await.expect("a count"), MANY as u64);
            });
        }
        let [python, ours] = figures.map(|figures| median(figures) * 1e3);
        format!(
            "### A count of {MANY} elements of a simple queue\n\n| | ms |\n| --- | --- |\n\
             | Python | {python:.2} |\n| `count` | {ours:.2} |\n"
        )
    }

    fn time(&self, figures: &mut Vec<f64>, work: impl AsyncFnOnce()) {
        let start = Instant::now();
        self.runtime.block_on(work());
        figures.push(start.elapsed().as_secs_f64());
    }
}

fn table(title: &str, figures: [Vec<f64>; 10]) -> String {
    let [py_add, py_take, add, take, add_many, dequeue, add_8, locked, chunks, dequeue_8] =
        figures.map(|figures| COUNT as f64 / median(figures));
    let mut page = format!(
        "### {title}\n\n| | elements a second | to Python's | to `add` |\n| --- | --- | --- | --- |\n"
    );
    for (name, figure) in [
        ("Python: `add`", py_add),
        ("`add`", add),
        ("`add`, eight calls at a time", add_8),
        ("`add_many` of 1,000", add_many),
    ] {
        let (to_python, to_add) = (figure / py_add, figure / add);
        writeln!(page, "| {name} | {figure:.0} | {to_python:.2} | {to_add:.2} |")
            .expect("a string takes all");
    }
    page += "\n| | elements a second | to Python's |\n| --- | --- | --- |\n";
    for (name, figure) in [
        ("Python: `lock`, `get`, `remove`", py_take),
        ("`lock`, `get`, `remove`", take),
        ("`dequeue`", dequeue),
        ("`dequeue`, eight calls at a time", dequeue_8),
        ("`locked`, `ack`", locked),
        ("`locked` in chunks, `ack_all`", chunks),
    ] {
        writeln!(page, "| {name} | {figure:.0} | {:.2} |", figure / py_take)
            .expect("a string takes all");
    }
    page + "\n"
}

/// A file system of a disk, in memory.
struct Image {
    folder: PathBuf,
}

impl Image {
    fn mount(memory: &Path) -> Result<Self, String> {
        let (image, folder) = (memory.join("image"), memory.join("mounted"));
        fs::create_dir(&folder).expect("a folder can be made");
        let file = fs::File::create(&image).expect("a file can be made");
        file.set_len(1 << 30).expect("it takes no room until it is written");
        let run = |program: &str, args: &[&str], paths: &[&Path]| {
            let output = Command::new(program).args(args).args(paths).output();
            let output = output.map_err(|error| format!("{program} can't be run ({error})"))?;
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default().to_owned();
            output.status.success().then_some(()).ok_or_else(|| format!("{program}: {said}"))
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

/// The name of the file system at `path`.
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
        Lock::ack_all(locks).await.expect("they are locked");
    }
}

/// A Python that does one thing a line of its stdin, and prints how many seconds that took.
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
                panic!("{} can't be run: {error}; scripts/python.sh makes it", python.display())
            });
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, stdin, stdout }
    }

    fn seconds(&mut self, work: &str, path: &Path) -> f64 {
        writeln!(self.stdin, "{work} {}", path.display()).expect("Python listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("Python answers");
        line.trim().parse().expect("Python says a number")
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
