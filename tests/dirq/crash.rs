//! `kill -9` of writers and readers of directory queues (the example `dirq`) at random moments.
//!
//! `FLEETING_SEED` determines the moments, `FLEETING_CRASH_ROUNDS` the number of rounds per kind (100 by default).

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::example::example;
use crate::patience::patience;

/// Older than both limits of a purge.
const LONG_AGO: Duration = Duration::from_secs(1_000);

/// Maximum time to wait for the first line of a process before it is killed.
const START: Duration = Duration::from_millis(150);

const SCHEMA: &str = "body:string,header:table";

#[test]
fn simple_queue_survives_killed_processes() {
    run_crash_rounds("simple", &[], |body| json!(body), |element| element.as_str());
}

#[test]
fn normal_queue_survives_killed_processes() {
    let element = |body: &str| json!({ "body": body, "header": { "a": "b", "c": "d" } });
    run_crash_rounds("normal", &["--schema", SCHEMA], element, |element| element["body"].as_str());
}

fn run_crash_rounds(
    kind: &str,
    options: &[&str],
    element: impl Fn(&str) -> Value,
    body: impl Fn(&Value) -> Option<&str>,
) {
    let number = |name: &str, default: u64| {
        let given = std::env::var(name).ok();
        given
            .map_or(default, |given| given.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seed = number("FLEETING_SEED", 7);
    let rounds = number("FLEETING_CRASH_ROUNDS", 100);
    println!("FLEETING_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let temp_dir = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    };
    let temp_dir = temp_dir.expect("a directory can be created");
    let queue = temp_dir.path();
    let start = Instant::now();

    // The number of times that each body was printed, and the bodies that may be delivered again.
    let mut seen: HashMap<String, (u32, u32)> = HashMap::new();
    let mut added = 0_u64;
    let mut uncertain: Vec<String> = Vec::new();
    let mut excused = 0;
    for round in 0.. {
        // On a busy machine, a writer may add little before it is killed.
        if round >= rounds && added > 3 * rounds {
            break;
        }
        assert!(round < 20 * rounds, "only {added} elements were added in {round} rounds");
        let mut writer = Process::start(queue, options, "add");
        let mut readers = ["drain", "watch"].map(|command| Process::start(queue, options, command));
        let name = |n: u64| format!("{round}-{n}");
        let lines = (0..).map(|n| json!({ "element": element(&name(n)) }));
        writer.feed(lines.map(|line| line.to_string()));
        // A writer always prints a line; a reader may have none.
        writer.kill_soon(patience(), &mut random);
        readers.iter_mut().for_each(|reader| reader.kill_soon(START, &mut random));

        let acked = writer.finish().len() as u64;
        added += acked;
        seen.extend((0..acked).map(|n| (name(n), (0, 0))));
        // The writer may have been killed between the add and the output.
        uncertain.push(name(acked));
        for mut reader in readers {
            let was_killed = reader.was_killed();
            let lines = reader.finish();
            for (index, line) in lines.iter().enumerate() {
                let body = body(&line["element"]).expect("an element has its body").to_owned();
                let times = seen.entry(body).or_default();
                times.0 += 1;
                if was_killed && index + 1 == lines.len() {
                    times.1 += 1;
                    excused += 1;
                }
            }
        }
        if round % 10 == 9 {
            purge(queue, options);
        }
    }
    purge(queue, options);
    let mut last = Process::start(queue, options, "drain");
    last.wait();
    let rest = last.finish();
    for line in &rest {
        seen.entry(body(&line["element"]).expect("an element has its body").to_owned())
            .or_default()
            .0 += 1;
    }

    let surprises: Vec<_> = seen
        .keys()
        .filter(|&body| {
            let (round, n) = body.split_once('-').expect("a body is a round and a number");
            let first_uncertain = uncertain[round.parse::<usize>().expect("a round is a number")]
                .split_once('-')
                .map(|(_, n)| n.parse::<u64>().expect("a number"));
            n.parse::<u64>().ok() > first_uncertain
        })
        .collect();
    assert!(surprises.is_empty(), "no process added {surprises:?}, seed {seed}");
    let lost: Vec<_> = seen.iter().filter(|(_, times)| times.0 == 0).collect();
    assert!(lost.is_empty(), "lost, seed {seed}: {lost:?}");
    // If a reader was killed after printing an element and before removing it, the element is delivered again.
    let duplicated: Vec<_> = seen.iter().filter(|(_, times)| times.0 > 1 + times.1).collect();
    assert!(duplicated.is_empty(), "duplicated, seed {seed}: {duplicated:?}");
    let again = seen.values().filter(|times| times.0 > 1).count();
    println!(
        "{kind}: {} rounds, {added} elements, {again} delivered again ({excused} permitted), {} left at the end, in {:?}",
        uncertain.len(),
        rest.len(),
        start.elapsed()
    );
    purge(queue, options);
    let left = files(queue);
    let allowed = if options.is_empty() { 1 } else { 3 };
    assert!(left.len() <= allowed, "leftovers exist, seed {seed}: {left:?}");
    assert!(
        left.iter().all(|path| Path::new(path).parent() == Some(queue)),
        "leftovers, seed {seed}: {left:?}"
    );
}

/// A running example `dirq`, and the lines that it has printed.
struct Process {
    child: Child,
    heard: mpsc::Receiver<()>,
    /// Closed when this is dropped.
    fed: Option<mpsc::Sender<()>>,
    lines: Option<JoinHandle<Vec<Value>>>,
}

impl Process {
    fn start(queue: &Path, options: &[&str], command: &str) -> Self {
        let mut child = Command::new(example("dirq"))
            .args(options)
            .arg(command)
            .arg(queue)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example dirq starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, heard) = mpsc::channel();
        let lines = thread::spawn(move || {
            let mut lines = Vec::new();
            let mut line = String::new();
            while stdout.read_line(&mut line).expect("the output is readable") > 0
                && line.ends_with('\n')
            {
                lines.push(serde_json::from_str(&line).expect("a line is JSON"));
                line.clear();
                let _ = sender.send(());
            }
            lines
        });
        Self { child, heard, fed: None, lines: Some(lines) }
    }

    /// Writes more lines than the process can read before it is killed, and leaves its stdin open.
    fn feed(&mut self, lines: impl Iterator<Item = String>) {
        let mut stdin = self.child.stdin.take().expect("stdin is piped");
        let lines: Vec<_> = lines.take(2_000).collect();
        let (alive, ended) = mpsc::channel::<()>();
        self.fed = Some(alive);
        thread::spawn(move || {
            let _ = lines.iter().try_for_each(|line| writeln!(stdin, "{line}"));
            let _ = ended.recv();
        });
    }

    /// Kills the process some time after its first line, or after `patience`.
    fn kill_soon(&mut self, patience: Duration, random: &mut StdRng) {
        let _ = self.heard.recv_timeout(patience);
        thread::sleep(Duration::from_micros(random.random_range(0..15_000)));
        self.child.kill().expect("the process can be killed");
    }

    /// Returns whether the process was killed by a signal.
    fn was_killed(&mut self) -> bool {
        self.child.wait().expect("the process can be waited for").code().is_none()
    }

    fn wait(&mut self) {
        let status = self.child.wait().expect("the process can be waited for");
        assert!(status.success(), "dirq ended with {status}");
    }

    fn finish(&mut self) -> Vec<Value> {
        let lines = self.lines.take().expect("finish is called once");
        lines.join().expect("the reading thread succeeds")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes all files stale, and runs a purge by the example.
fn purge(queue: &Path, options: &[&str]) {
    let past = SystemTime::now() - LONG_AGO;
    // Deepest first, because changing an entry also changes its directory. No other process is running.
    for path in files(queue).iter().rev() {
        let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        file.set_modified(past).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let mut purge = Process::start(queue, options, "purge");
    purge.wait();
    purge.finish();
    let leftovers = |path: &&String| {
        [".tmp", ".lck", "/locked"].iter().any(|end| path.ends_with(end))
            || path.contains("/temporary/")
            || path.contains("/obsolete/")
    };
    let left = files(queue);
    let leftovers: Vec<_> = left.iter().filter(leftovers).collect();
    assert!(leftovers.is_empty(), "the purge left {leftovers:?}");
}

/// Returns all paths below `top`, each after its directory.
fn files(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).unwrap_or_else(|error| panic!("{}: {error}", top.display())) {
        let path = entry.expect("the directory can be listed").path();
        found.push(path.to_str().expect("paths are ASCII").to_owned());
        if path.is_dir() {
            found.extend(files(&path));
        }
    }
    found
}
