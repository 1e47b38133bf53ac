//! `kill -9` of writers and readers of directory queues, the example `dirq`, at random moments.
//!
//! `FLEETING_SEED` chooses the moments, `FLEETING_CRASH_ROUNDS` how many rounds there are of each kind (100 by
//! default).

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

/// Older than both ages of a purge.
const LONG_AGO: Duration = Duration::from_secs(1_000);

/// How long a process is waited for before it is killed without having said anything.
const START: Duration = Duration::from_millis(150);

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

const SCHEMA: &str = "body:string,header:table";

#[test]
fn simple_queues_survive_kills() {
    survive("simple", &[], |body| json!(body), |element| element.as_str());
}

#[test]
fn normal_queues_survive_kills() {
    let element = |body: &str| json!({ "body": body, "header": { "a": "b", "c": "d" } });
    survive("normal", &["--schema", SCHEMA], element, |element| element["body"].as_str());
}

fn survive(
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
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("a folder for the test can't be made");
    let queue = folder.path();
    let start = Instant::now();

    // How often each body was printed, and how many of these may come again.
    let mut seen: HashMap<String, (u32, u32)> = HashMap::new();
    let mut added = 0_u64;
    let mut unsure: Vec<String> = Vec::new();
    let mut excused = 0;
    for round in 0.. {
        // A busy machine lets a writer add little before it is killed.
        if round >= rounds && added > 3 * rounds {
            break;
        }
        assert!(round < 20 * rounds, "{added} elements in {round} rounds are too few for a test");
        let mut writer = Process::start(queue, options, "add");
        let mut readers = ["drain", "watch"].map(|command| Process::start(queue, options, command));
        let name = |n: u64| format!("{round}-{n}");
        let lines = (0..).map(|n| json!({ "element": element(&name(n)) }));
        writer.feed(lines.map(|line| line.to_string()));
        // It has a line to say, and a reader may have none.
        writer.kill_soon(PATIENCE, &mut random);
        readers.iter_mut().for_each(|reader| reader.kill_soon(START, &mut random));

        let acked = writer.finish().len() as u64;
        added += acked;
        seen.extend((0..acked).map(|n| (name(n), (0, 0))));
        // It may have been killed between the element and its line.
        unsure.push(name(acked));
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
            let first_unsure = unsure[round.parse::<usize>().expect("a round is a number")]
                .split_once('-')
                .map(|(_, n)| n.parse::<u64>().expect("a number"));
            n.parse::<u64>().ok() > first_unsure
        })
        .collect();
    assert!(surprises.is_empty(), "nobody added {surprises:?}, seed {seed}");
    let lost: Vec<_> = seen.iter().filter(|(_, times)| times.0 == 0).collect();
    assert!(lost.is_empty(), "lost, seed {seed}: {lost:?}");
    // An element that was printed by a reader which was killed then, before it removed it, comes again.
    let doubled: Vec<_> = seen.iter().filter(|(_, times)| times.0 > 1 + times.1).collect();
    assert!(doubled.is_empty(), "doubled, seed {seed}: {doubled:?}");
    let again = seen.values().filter(|times| times.0 > 1).count();
    println!(
        "{kind}: {} rounds, {added} elements, {again} came again ({excused} might), {} at the end, in {:?}",
        unsure.len(),
        rest.len(),
        start.elapsed()
    );
    purge(queue, options);
    let left = files(queue);
    let allowed = if options.is_empty() { 1 } else { 3 };
    assert!(left.len() <= allowed, "junk is left, seed {seed}: {left:?}");
    assert!(
        left.iter().all(|path| Path::new(path).parent() == Some(queue)),
        "junk, seed {seed}: {left:?}"
    );
}

/// An example `dirq`, and the lines that it has printed to their ends.
struct Process {
    child: Child,
    heard: mpsc::Receiver<()>,
    /// Dropped with it, which closes its stdin.
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
            .expect("dirq can't be run");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, heard) = mpsc::channel();
        let lines = thread::spawn(move || {
            let mut lines = Vec::new();
            let mut line = String::new();
            while stdout.read_line(&mut line).expect("the output can't be read") > 0
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

    /// Writes lines to it, more than it can take in its life, and leaves its stdin open.
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

    /// Kills it some time after its first line, for which it has so long.
    fn kill_soon(&mut self, patience: Duration, random: &mut StdRng) {
        let _ = self.heard.recv_timeout(patience);
        thread::sleep(Duration::from_micros(random.random_range(0..15_000)));
        self.child.kill().expect("dirq can't be killed");
    }

    /// Whether it came to no end of its own.
    fn was_killed(&mut self) -> bool {
        self.child.wait().expect("dirq can't be waited for").code().is_none()
    }

    fn wait(&mut self) {
        let status = self.child.wait().expect("dirq can't be waited for");
        assert!(status.success(), "dirq ended with {status}");
    }

    fn finish(&mut self) -> Vec<Value> {
        let lines = self.lines.take().expect("it is finished once");
        lines.join().expect("the reader found an error")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes all look old, and lets the example purge.
fn purge(queue: &Path, options: &[&str]) {
    let past = SystemTime::now() - LONG_AGO;
    // The deepest first, as a change in a directory is one of it. No process is in the way now.
    for path in files(queue).iter().rev() {
        let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        file.set_modified(past).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let mut purge = Process::start(queue, options, "purge");
    purge.wait();
    purge.finish();
    let junk = |path: &&String| {
        [".tmp", ".lck", "/locked"].iter().any(|end| path.ends_with(end))
            || path.contains("/temporary/")
            || path.contains("/obsolete/")
    };
    let left = files(queue);
    let junk: Vec<_> = left.iter().filter(junk).collect();
    assert!(junk.is_empty(), "a purge leaves {junk:?}");
}

/// All paths below `folder`, each behind the directory it is in.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("a directory can be read").path();
        found.push(path.to_str().expect("paths are ASCII").to_owned());
        if path.is_dir() {
            found.extend(files(&path));
        }
    }
    found
}
