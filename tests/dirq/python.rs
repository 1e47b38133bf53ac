//! Interoperability with the Python package `dirq` 1.8, in the same directory at the same time.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fleeting::dirq::{Element, Error, Name, Purge, Queue, QueueSimple, Schema};

use super::tempdir;
use crate::directory::{age, all, make_old, name, python, python_command, test_name, tree};
use crate::patience::patience;

const SCHEMA: &str = "body:string,data:binary?,header:table?";

/// Prelude of all programs: defines `queue(kind, path)`.
const PRELUDE: &str = r#"
import json, os, sys, time
from dirq.queue import Queue
from dirq.QueueSimple import QueueSimple

def queue(kind, path, **options):
    if kind == "simple":
        return QueueSimple(path, **options)
    schema = {"body": "string", "data": "binary?", "header": "table?"}
    return Queue(path, schema=schema, **options)
"#;

fn run(program: &str, args: &[&str]) -> String {
    python(&format!("{PRELUDE}{program}"), args)
}

async fn simple(path: &Path) -> QueueSimple {
    QueueSimple::open(path).await.unwrap()
}

async fn normal(path: &Path) -> Queue {
    let schema: Schema = SCHEMA.parse().unwrap();
    Queue::builder(path).schema(schema).open().await.unwrap()
}

/// Either kind of queue, with the methods that tests of both need.
#[derive(Clone)]
enum Any {
    Simple(QueueSimple),
    Normal(Queue),
}

impl Any {
    async fn open(kind: &str, path: &Path) -> Self {
        match kind {
            "simple" => Self::Simple(simple(path).await),
            "normal" => Self::Normal(normal(path).await),
            _ => panic!("{kind} is not a kind of queue"),
        }
    }

    async fn add(&self, body: &str) -> Result<Name, Error> {
        match self {
            Self::Simple(queue) => queue.add(body).await,
            Self::Normal(queue) => queue.add(Element::new().with("body", body)).await,
        }
    }

    async fn names(&self) -> Vec<Name> {
        match self {
            Self::Simple(queue) => all(queue.names()).await,
            Self::Normal(queue) => all(queue.names()).await,
        }
    }

    async fn lock(&self, name: &Name) -> bool {
        match self {
            Self::Simple(queue) => queue.lock(name).await.unwrap(),
            Self::Normal(queue) => queue.lock(name).await.unwrap(),
        }
    }

    async fn dequeue(&self, name: &Name) -> Option<String> {
        match self {
            Self::Simple(queue) => {
                let body = queue.dequeue(name).await.unwrap()?;
                Some(String::from_utf8(body.to_vec()).unwrap())
            }
            Self::Normal(queue) => {
                let element = queue.dequeue(name).await.unwrap()?;
                Some(element.string("body").unwrap().to_owned())
            }
        }
    }

    async fn count(&self) -> u64 {
        match self {
            Self::Simple(queue) => queue.count().await.unwrap(),
            Self::Normal(queue) => queue.count().await.unwrap(),
        }
    }

    async fn purge(&self, purge: Purge) -> fleeting::dirq::PurgeReport {
        match self {
            Self::Simple(queue) => queue.purge(purge).await.unwrap(),
            Self::Normal(queue) => queue.purge(purge).await.unwrap(),
        }
    }
}

#[tokio::test]
async fn simple_elements_are_exchanged_with_python() {
    let dir = tempdir().unwrap();
    let queue = simple(dir.path()).await;
    let bodies = [&b""[..], b"plain", b"\0\xff\r\n", &[7; 100_000]];
    let mut ours = queue.add_many(bodies).await.unwrap();
    let path = dir.path().join("moved");
    fs::write(&path, "moved").unwrap();
    ours.push(queue.add_path(path).await.unwrap());

    let theirs = run(
        r#"
q = queue("simple", sys.argv[1])
found = []
for name in q:
    assert q.lock(name), name
    found.append([name, q.get(name).hex()])
    q.remove(name)
for _, body in found:
    q.add(bytes.fromhex(body))
assert q.count() == len(found)
print(json.dumps(found))
"#,
        &[dir.path().to_str().unwrap()],
    );
    let found: Vec<(Name, String)> = serde_json::from_str(&theirs).unwrap();
    let hex = |body: &[u8]| body.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected: Vec<_> =
        ours.into_iter().zip(bodies.into_iter().chain([&b"moved"[..]]).map(hex)).collect();
    assert_eq!(found, expected);

    let names = all(queue.names()).await;
    assert_eq!(names.len(), found.len());
    for (name, (_, body)) in names.iter().zip(found) {
        assert!(queue.lock(name).await.unwrap());
        assert_eq!(hex(&queue.get(name).await.unwrap()), body);
        queue.remove(name).await.unwrap();
    }
    assert_eq!(queue.count().await.unwrap(), 0);
}

#[tokio::test]
async fn elements_with_fields_are_exchanged_with_python() {
    let dir = tempdir().unwrap();
    let queue = normal(dir.path()).await;
    let elements = [
        Element::new().with("body", ""),
        Element::new().with("body", "grüße, 世界 \u{1F600}\r\n\0").with("data", b"\0\xff\r\n"),
        Element::new().with("body", "x").with("header", [("", ""), ("a", "b")]),
        Element::new().with("body", "x").with("header", [("", ""); 0]),
    ];
    let ours = queue.add_many(elements.clone()).await.unwrap();

    let theirs = run(
        r#"
q = queue("normal", sys.argv[1])
found = []
for name in q:
    assert q.lock(name), name
    element = q.get(name)
    q.remove(name)
    q.add(element)
    if "data" in element:
        element["data"] = list(element["data"])
    found.append([name, element])
    if len(found) == 4:
        break
print(json.dumps(found))
"#,
        &[dir.path().to_str().unwrap()],
    );
    let found: Vec<(Name, serde_json::Value)> = serde_json::from_str(&theirs).unwrap();
    assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), ours);
    assert_eq!(found[1].1["body"], "grüße, 世界 \u{1F600}\r\n\0");
    assert_eq!(found[1].1["data"], serde_json::json!([0, 255, 13, 10]));
    assert_eq!(found[2].1["header"], serde_json::json!({"": "", "a": "b"}));
    assert_eq!(found[3].1["header"], serde_json::json!({}));

    let names = all(queue.names()).await;
    assert_eq!(names.len(), 4);
    for (name, element) in names.iter().zip(elements) {
        assert_eq!(queue.dequeue(name).await.unwrap(), Some(element));
    }
}

#[tokio::test]
async fn tables_have_the_same_encoding_as_in_python() {
    let odd = [
        "",
        " ",
        "a",
        "a ",
        "\t",
        "\n",
        "\\",
        "\\t",
        "\\n",
        "\\\\",
        "\\\\t",
        "\\x",
        "a\tb\nc\\d",
        "\r",
        "\r\n",
        "\0",
        "\u{1}",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "grüße",
        "世界",
        "\u{1F600}",
        "\u{ffff}",
        "\u{10ffff}",
        "Z",
        "é",
        "\u{fb01}",
    ];
    let dir = tempdir().unwrap();
    let queue = normal(dir.path()).await;
    for shift in 0..odd.len() {
        let table: BTreeMap<_, _> =
            (0..odd.len()).map(|i| (odd[i], odd[(i + shift) % odd.len()])).collect();
        queue.add(Element::new().with("body", "x").with("header", table)).await.unwrap();
    }
    // Python reads each table, compares it, and adds the same.
    let names = run(
        r#"
q = queue("normal", sys.argv[1])
odd = json.loads(sys.argv[2])
names = []
for shift, name in enumerate(list(q)):
    element = q.get_element(name)
    expected = {key: odd[(i + shift) % len(odd)] for i, key in enumerate(odd)}
    assert element["header"] == expected, (element["header"], expected)
    names.append([name, q.add(element)])
print(json.dumps(names))
"#,
        &[dir.path().to_str().unwrap(), &serde_json::to_string(&odd).unwrap()],
    );
    let names: Vec<(Name, Name)> = serde_json::from_str(&names).unwrap();
    assert_eq!(names.len(), odd.len());
    for (ours, theirs) in names {
        let bytes =
            |name: Name| fs::read(dir.path().join(name.to_string()).join("header")).unwrap();
        assert_eq!(
            String::from_utf8(bytes(ours)).unwrap(),
            String::from_utf8(bytes(theirs)).unwrap()
        );
        assert_eq!(queue.peek(&ours).await.unwrap(), queue.peek(&theirs).await.unwrap());
    }
}

#[tokio::test]
async fn locks_are_respected_by_python_and_by_rust() {
    let dir = tempdir().unwrap();
    for kind in ["simple", "normal"] {
        let path = dir.path().join(kind);
        let queue = Any::open(kind, &path).await;
        let (a, b) = (queue.add("a").await.unwrap(), queue.add("b").await.unwrap());
        assert!(queue.lock(&a).await);
        let locked = run(
            r#"
q = queue(sys.argv[1], sys.argv[2])
print(json.dumps([q.lock(name) for name in sys.argv[3:]]))
"#,
            &[kind, path.to_str().unwrap(), &a.to_string(), &b.to_string()],
        );
        assert_eq!(locked.trim(), "[false, true]", "{kind}");
        assert!(!queue.lock(&b).await, "{kind}");
        assert!(age(&path.join(b.to_string())) < Duration::from_secs(60));
    }
}

#[tokio::test]
async fn leftovers_of_python_and_rust_are_purged_by_the_other() {
    let dir = tempdir().unwrap();
    for kind in ["simple", "normal"] {
        let path = dir.path().join(kind);
        let queue = Any::open(kind, &path).await;
        for purger in ["ours", "theirs"] {
            // Leftovers of the other implementation: a lock, and a temporary element of a crashed writer.
            let (locked, draft) = if purger == "theirs" {
                let name = queue.add("locked").await.unwrap();
                assert!(queue.lock(&name).await);
                let draft = "00000000000001";
                (name, draft)
            } else {
                let locked = run(
                    r#"
q = queue(sys.argv[1], sys.argv[2])
name = q.add(b"locked" if sys.argv[1] == "simple" else {"body": "locked"})
assert q.lock(name)
print(name)
"#,
                    &[kind, path.to_str().unwrap()],
                );
                (name(locked.trim()), "00000000000002")
            };
            let directory = &locked.to_string()[..8];
            let draft = match kind {
                "simple" => path.join(directory).join(format!("{draft}.tmp")),
                _ => path.join("temporary").join(draft),
            };
            match kind {
                "simple" => fs::write(&draft, "half").unwrap(),
                _ => {
                    fs::create_dir(&draft).unwrap();
                    fs::write(draft.join("body"), "half").unwrap();
                }
            }
            fs::create_dir(path.join("00000000")).ok();
            fs::create_dir(path.join("ffffffff")).ok();
            make_old(&draft, Duration::from_secs(301));
            make_old(&path.join(locked.to_string()), Duration::from_secs(601));
            match purger {
                "ours" => {
                    let report = queue.purge(Purge::default()).await;
                    assert_eq!((report.temporary, report.locks), (1, 1), "{kind}");
                }
                _ => drop(run(
                    "queue(sys.argv[1], sys.argv[2]).purge()",
                    &[kind, path.to_str().unwrap()],
                )),
            }
            assert!(!draft.exists(), "{kind} {purger}");
            assert_eq!(queue.dequeue(&locked).await.as_deref(), Some("locked"), "{kind} {purger}");
            let left: Vec<_> =
                tree(&path).into_iter().filter(|path| !path.ends_with('/')).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// Adds and removes elements until all processes have added their share and the queue is empty.
const WORKER: &str = r#"
kind, path, out, worker, parts, workers = sys.argv[1:]
parts, workers = int(parts), int(workers)
q = queue(kind, path)
seen = open(os.path.join(out, "seen-" + worker), "w")

def drain(most):
    for name in q:
        if most == 0:
            return
        try:
            if not q.lock(name):
                continue
        except OSError:
            # The package raises where an element vanishes between its two steps.
            continue
        body = q.get(name)
        q.remove(name)
        body = body.decode() if kind == "simple" else body["body"]
        seen.write(body + "\n")
        most -= 1

for part in range(parts):
    body = "%s-%d" % (worker, part)
    q.add(body.encode() if kind == "simple" else {"body": body})
    if part % 7 == 0:
        drain(5)
open(os.path.join(out, "done-" + worker), "w").close()
deadline = time.time() + 300
all_done = lambda: all(os.path.exists(os.path.join(out, "done-%d" % i)) for i in range(workers))
while not (all_done() and not list(q)):
    drain(-1)
    assert time.time() < deadline, "the other processes hang"
    time.sleep(0.002)
"#;

const PARTS: usize = 500;
const WORKERS: usize = 4;

#[tokio::test]
async fn four_processes_share_a_simple_queue() {
    share_between_four_processes("simple").await;
}

#[tokio::test]
async fn four_processes_share_a_normal_queue() {
    share_between_four_processes("normal").await;
}

async fn share_between_four_processes(kind: &str) {
    let dir = tempdir().unwrap();
    let (path, out) = (dir.path().join("queue"), dir.path().join("out"));
    fs::create_dir(&out).unwrap();
    let (parts, workers) = (PARTS.to_string(), WORKERS.to_string());
    let children: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let id = worker.to_string();
            let args = [kind, path.to_str().unwrap(), out.to_str().unwrap(), &id, &parts, &workers];
            let mut command = if worker % 2 == 0 {
                python_command(&format!("{PRELUDE}{WORKER}"), &args)
            } else {
                let mut command = Command::new(env::current_exe().unwrap());
                let worker = test_name(module_path!(), "worker");
                command.args(["--exact", &worker, "--ignored", "--nocapture"]);
                command.env("FLEETING_DIRQ_WORKER", args.join("\n"));
                command
            };
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let output_text = [output.stdout, output.stderr]
            .map(|output_text| String::from_utf8_lossy(&output_text).into_owned());
        assert!(output.status.success(), "a worker failed: {}", output_text.concat());
    }
    let mut seen = BTreeMap::<String, u32>::new();
    let mut shares = Vec::new();
    for worker in 0..WORKERS {
        let lines = fs::read_to_string(out.join(format!("seen-{worker}"))).unwrap();
        shares.push(lines.lines().count());
        for line in lines.lines() {
            *seen.entry(line.to_owned()).or_default() += 1;
        }
    }
    println!("{kind}: each worker had {shares:?}");
    assert_eq!(seen.len(), PARTS * WORKERS, "elements were lost");
    assert!(seen.values().all(|&times| times == 1), "elements were duplicated");
    let left: Vec<_> = tree(&path).into_iter().filter(|path| !path.ends_with('/')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is started by the tests of four processes, as one of them"]
async fn worker() {
    let args = env::var("FLEETING_DIRQ_WORKER").expect("another test starts this one");
    let args: Vec<_> = args.lines().collect();
    let (kind, path, out, id) = (args[0], Path::new(args[1]), Path::new(args[2]), args[3]);
    let queue = Any::open(kind, path).await;
    let mut seen = Vec::new();
    for part in 0..PARTS {
        queue.add(&format!("{id}-{part}")).await.unwrap();
        if part % 7 == 0 {
            drain(&queue, 5, &mut seen).await;
        }
    }
    fs::write(out.join(format!("done-{id}")), "").unwrap();
    let deadline = Instant::now() + 2 * patience();
    let all_done = || (0..WORKERS).all(|worker| out.join(format!("done-{worker}")).exists());
    while !(all_done() && queue.count().await == 0) {
        drain(&queue, usize::MAX, &mut seen).await;
        assert!(Instant::now() < deadline, "the other processes hang");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fs::write(out.join(format!("seen-{id}")), seen.concat()).unwrap();
}

/// One kind uses the methods, the other the stream.
async fn drain(queue: &Any, most: usize, seen: &mut Vec<String>) {
    match queue {
        Any::Simple(queue) => {
            let mut locks = queue.locked();
            for _ in 0..most {
                let Some(lock) = locks.next().await.transpose().unwrap() else { return };
                let body = String::from_utf8(lock.value().to_vec()).unwrap();
                lock.ack().await.unwrap();
                seen.push(format!("{body}\n"));
            }
        }
        Any::Normal(_) => {
            let before = seen.len();
            for name in queue.names().await {
                if seen.len() - before >= most {
                    return;
                }
                if let Some(body) = queue.dequeue(&name).await {
                    seen.push(format!("{body}\n"));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_purges_by_python_lose_no_element() {
    for kind in ["simple", "normal"] {
        let dir = tempdir().unwrap();
        let [path, stop, enough] = ["queue", "stop", "enough"].map(|name| dir.path().join(name));
        let queue = match kind {
            "simple" => {
                let builder = QueueSimple::builder(&path).granularity(Duration::ZERO);
                Any::Simple(builder.open().await.unwrap())
            }
            _ => {
                let builder =
                    Queue::builder(&path).schema(SCHEMA.parse().unwrap()).max_elements(20);
                Any::Normal(builder.open().await.unwrap())
            }
        };
        let purger = r#"
q = queue(sys.argv[1], sys.argv[2])
failed, purges = [], 0
while not os.path.exists(sys.argv[3]):
    try:
        q.purge()
    except OSError as error:
        failed.append(str(error))
    purges += 1
    if purges == 11:
        open(sys.argv[4], "w").close()
print(json.dumps([purges, failed[:3]]))
"#;
        let args = [kind, path.to_str().unwrap(), stop.to_str().unwrap(), enough.to_str().unwrap()];
        let mut purger = python_command(&format!("{PRELUDE}{purger}"), &args);
        let purger = purger.stdout(Stdio::piped()).spawn().unwrap();
        let adder = queue.clone();
        let added = tokio::spawn(async move {
            let deadline = Instant::now() + 2 * patience();
            let mut count = 0;
            while count < 1_500 || !enough.exists() {
                assert!(Instant::now() < deadline, "the purging process makes no progress");
                adder.add(&count.to_string()).await.unwrap();
                count += 1;
            }
            count
        });
        let mut seen = Vec::new();
        let mut done = false;
        while !done {
            done = added.is_finished();
            for name in queue.names().await {
                seen.extend(queue.dequeue(&name).await);
            }
        }
        let added = added.await.unwrap();
        assert_eq!(seen.len(), added, "elements were lost or duplicated");
        fs::write(&stop, "").unwrap();
        let output = purger.wait_with_output().unwrap();
        let output_text = String::from_utf8(output.stdout).unwrap();
        println!("{kind}: purges and errors of Python: {output_text}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), added, "elements were duplicated");
        assert_eq!(queue.count().await, 0);
    }
}
