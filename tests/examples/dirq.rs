//! Tests of the example `dirq`, run as a process.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::example::example;
use crate::patience::patience;

const SCHEMA: [&str; 2] = ["--schema", "body:string,header:table?,raw:binary?"];

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(example("dirq"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `dirq` until it exits, with `input` on stdin.
fn output(args: &[&str], input: &str) -> Output {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("dirq starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("dirq can be waited for");
    // The write may fail: a command that needs no input may exit before.
    let _ = writer.join().expect("the writer does not panic");
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = str::from_utf8(&output.stdout).expect("the output is UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}")))
        .collect()
}

/// Returns the printed lines. Panics if the command fails or prints anything to stderr.
fn run_with(args: &[&str], input: &str) -> Vec<Value> {
    let output = output(args, input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} ended with {}: {stderr}", output.status);
    assert_eq!(stderr, "", "{args:?}");
    lines(&output)
}

fn run(args: &[&str]) -> Vec<Value> {
    run_with(args, "")
}

/// Returns stderr. Panics unless the command fails.
fn fails(args: &[&str], input: &str) -> String {
    let output = output(args, input);
    assert_eq!(output.status.code(), Some(1), "{args:?} printed {:?}", lines(&output));
    String::from_utf8(output.stderr).expect("stderr is UTF-8")
}

fn name(line: &Value) -> &str {
    line["name"].as_str().unwrap_or_else(|| panic!("no name in {line}"))
}

fn elements(lines: &[Value]) -> Vec<&Value> {
    lines.iter().map(|line| &line["element"]).collect()
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn simple_queue_commands_add_list_get_lock_remove_and_drain() {
    let dir = dir();
    let queue = &path(&dir, "a/b/queue");
    let added = run(&["add", queue, "one", "", "thrée\n"]);
    let names: Vec<_> = added.iter().map(name).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(run(&["count", queue]), [json!({ "count": 3 })]);
    let listed = run(&["list", queue]);
    assert_eq!(listed, added);

    let got = run(&["get", queue, names[2], names[0]]);
    assert_eq!(got[0], json!({ "name": names[2], "element": "thrée\n" }));
    assert_eq!(got[1], json!({ "name": names[0], "element": "one" }));

    assert_eq!(run(&["lock", queue, names[0]]), [json!({ "name": names[0], "locked": true })]);
    let again = output(&["lock", queue, names[0], names[1]], "");
    assert_eq!(again.status.code(), Some(1), "one element was locked already");
    assert_eq!(
        lines(&again),
        [json!({ "name": names[0], "locked": false }), json!({ "name": names[1], "locked": true })]
    );
    for command in ["get", "remove"] {
        let stderr = fails(&[command, queue, names[0]], "");
        assert!(stderr.contains("is locked or does not exist"), "{stderr}");
    }
    let got = run(&["get", "--locked", queue, names[0]]);
    assert_eq!(elements(&got), ["one"]);
    run(&["remove", "--locked", queue, names[0]]);
    run(&["unlock", queue, names[1]]);
    assert!(fails(&["unlock", queue, names[1]], "").contains("is not locked"));
    run(&["remove", queue, names[1]]);
    assert!(fails(&["get", queue, names[1]], "").contains("does not exist"));

    let drained = run(&["drain", queue]);
    assert_eq!(drained, [json!({ "name": names[2], "element": "thrée\n" })]);
    assert_eq!(run(&["count", queue]), [json!({ "count": 0 })]);
    assert!(run(&["drain", queue]).is_empty());
}

#[test]
fn normal_queue_commands_add_get_and_drain_with_a_schema() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let with = |args: &[&str]| -> Vec<String> {
        SCHEMA.iter().chain(args).map(|&arg| arg.to_owned()).collect()
    };
    let run_with = |args: &[&str], input: &str| {
        run_with(&with(args).iter().map(String::as_str).collect::<Vec<_>>(), input)
    };
    let all = json!({ "body": "hello", "header": { "a\t": "b\n", "hex": "00" }, "raw": { "hex": "00ff" } });
    let input = format!(
        "{}\n{}\n",
        json!({ "element": all }),
        json!({ "element": { "body": "", "raw": "text" } })
    );
    let added = run_with(&["add", queue], &input);
    assert_eq!(added.len(), 2);
    assert!(
        Path::new(queue).join("temporary").is_dir(),
        "a new queue is normal if a schema is given"
    );

    let got = run_with(&["get", queue, name(&added[0])], "");
    assert_eq!(elements(&got), [&all]);
    // These commands need no schema.
    assert_eq!(run(&["count", queue]), [json!({ "count": 2 })]);
    assert_eq!(run(&["list", queue]), added);
    run(&["lock", queue, name(&added[0])]);
    run(&["unlock", queue, name(&added[0])]);
    assert!(fails(&["drain", queue], "").contains("has no schema"));

    let drained = run_with(&["drain", queue, "--limit", "1"], "");
    assert_eq!(elements(&drained), [&all]);
    let drained = run_with(&["drain", queue], "");
    assert_eq!(elements(&drained), [&json!({ "body": "", "raw": "text" })]);
}

#[test]
fn drained_lines_can_be_added_to_another_queue() {
    let dir = dir();
    let (from, to) = (path(&dir, "from"), path(&dir, "to"));
    let odd = json!({ "element": { "hex": "fffe00" } });
    let quoted = json!({ "element": "\"quoted\"\n" });
    run_with(&["add", &from], &format!("{odd}\n{quoted}\n"));
    let stored = fs::read_dir(&from).unwrap().next().unwrap().unwrap().path();
    let mut files: Vec<_> =
        fs::read_dir(stored).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(fs::read(&files[0]).unwrap(), b"\xff\xfe\0");
    assert_eq!(fs::read(&files[1]).unwrap(), b"\"quoted\"\n");

    let drained = output(&["drain", &from], "");
    run_with(&["add", &to], str::from_utf8(&drained.stdout).unwrap());
    let again = run(&["drain", &to]);
    assert_eq!(elements(&again), elements(&lines(&drained)));
}

#[test]
fn invalid_input_is_refused_with_a_message() {
    let dir = dir();
    let (simple, normal) = (path(&dir, "simple"), path(&dir, "normal"));
    for (line, expected) in [
        ("{", "EOF"),
        ("{}", "has no \"element\""),
        (r#"{"element":1}"#, "neither a text nor"),
        (r#"{"element":{"hex":"0"}}"#, "not an even number of hex digits"),
        (r#"{"element":{"hex":"0g"}}"#, "not an even number of hex digits"),
        (r#"{"element":{"hex":"+1"}}"#, "not an even number of hex digits"),
    ] {
        let stderr = fails(&["add", &simple], line);
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
    for (line, expected) in [
        (r#"{"element":"text"}"#, "not an object of fields"),
        (r#"{"element":{}}"#, "missing mandatory field \"body\""),
        (r#"{"element":{"body":"","more":""}}"#, "unexpected field \"more\""),
        (r#"{"element":{"body":"","header":{"a":1}}}"#, "table \"header\""),
        (r#"{"element":{"body":{"hex":"ff"}}}"#, "utf-8"),
    ] {
        let stderr = fails(&[SCHEMA[0], SCHEMA[1], "add", &normal], line);
        assert!(stderr.contains(expected), "{line}: {stderr}");
    }
    assert!(fails(&["add", &normal, "text"], "").contains("texts are for simple queues"));
    let bad = output(&["get", &simple, "../../etc/passwd"], "");
    assert_eq!(bad.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("invalid element name"));
    let file = path(&dir, "file");
    fs::write(&file, "not a directory").unwrap();
    let stderr = fails(&["count", &file], "");
    assert!(stderr.contains(&file) && stderr.contains("not a directory"), "{stderr}");
    for (args, expected) in [
        (&["--schema", "body:text", "count", &normal][..], "invalid type \"text\""),
        (&["watch", &simple, "--exec", "true", "--max-attempts", "0"], "--max-attempts"),
    ] {
        let bad = output(args, "");
        assert_eq!(bad.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&bad.stderr).contains(expected), "{args:?}: {bad:?}");
    }
}

#[test]
fn commands_other_than_add_change_no_directory_that_is_not_a_queue_of_their_kind() {
    let dir = dir();
    let (missing, simple) = (&path(&dir, "missing"), &path(&dir, "simple"));
    let name = "00000000/00000000000000";
    for args in [
        &["list", missing][..],
        &["count", missing],
        &["get", missing, name],
        &["peek", missing, name],
        &["lock", missing, name],
        &["unlock", missing, name],
        &["touch", missing, name],
        &["remove", missing, name],
        &["drain", missing],
        &["watch", missing],
        &["watch", missing, "--exec", "true"],
        &["dead", missing],
        &["revive", missing],
        &["purge", missing],
        &[SCHEMA[0], SCHEMA[1], "convert", missing, simple],
    ] {
        assert!(fails(args, "").contains("does not exist"), "{args:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    run(&["add", simple, "x"]);
    let stderr = fails(&["--kind", "normal", "list", simple], "");
    assert!(stderr.contains("is a simple queue"), "{stderr}");
    assert_eq!(run(&["list", simple]).len(), 1);
}

#[test]
fn purge_releases_locks_of_crashed_processes() {
    for schema in [&[][..], &SCHEMA] {
        let dir = dir();
        let queue = &path(&dir, "queue");
        let args = |rest: &[&str]| -> Vec<String> {
            schema.iter().chain(rest).map(|&arg| arg.to_owned()).collect()
        };
        let run_with = |rest: &[&str], input: &str| {
            run_with(&args(rest).iter().map(String::as_str).collect::<Vec<_>>(), input)
        };
        let element = if schema.is_empty() { json!("x") } else { json!({ "body": "x" }) };
        let added = run_with(&["add", queue], &json!({ "element": element }).to_string());
        run_with(&["lock", queue, name(&added[0])], "");
        let none = json!({ "temporary": 0, "locks": 0, "future_locks": 0, "directories": 0, "records": 0, "failed": 0 });
        assert_eq!(run_with(&["purge", queue], ""), std::slice::from_ref(&none));
        assert_eq!(run_with(&["purge", queue, "--max-lock", "0"], ""), [none]);
        thread::sleep(Duration::from_millis(1_100));
        assert_eq!(run_with(&["purge", queue, "--max-lock", "1"], "")[0]["locks"], 1);
        assert_eq!(run_with(&["drain", queue], "").len(), 1);
    }
}

/// The unreadable elements are a directory in place of a field, and a text field that is not UTF-8.
#[test]
fn unreadable_elements_are_skipped_and_reported_once() {
    let dir = dir();
    let [queue, moved] = ["queue", "moved"].map(|name| path(&dir, name));
    let [option, schema] = SCHEMA;
    let input: String = ["a", "b", "c", "d"]
        .map(|body| json!({ "element": { "body": body } }).to_string() + "\n")
        .concat();
    let added = run_with(&[option, schema, "add", &queue], &input);
    let body = |index: usize| Path::new(&queue).join(name(&added[index])).join("body");
    fs::write(body(0), b"\xff").unwrap();
    fs::remove_file(body(2)).unwrap();
    fs::create_dir(body(2)).unwrap();
    let drained = output(&[option, schema, "drain", &queue], "");
    assert_eq!(drained.status.code(), Some(1));
    let bodies: Vec<_> =
        lines(&drained).iter().map(|line| line["element"]["body"].clone()).collect();
    assert_eq!(bodies, ["b", "d"]);
    let stderr = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert!(
        stderr.contains("is not valid UTF-8") && stderr.contains("of the queue's format"),
        "{stderr}"
    );
    assert!([0, 2].iter().all(|&index| stderr.contains(name(&added[index]))), "{stderr}");
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    let converted = output(&[option, schema, "convert", &queue, &moved], "");
    assert_eq!((converted.status.code(), lines(&converted).len()), (Some(1), 0));
    for command in ["drain", "dead"] {
        let passed = output(&[option, schema, "--skip-bad", command, &queue], "");
        assert!(passed.status.success(), "{command}");
        assert_eq!(
            passed.stderr.is_empty(),
            command == "dead",
            "{command}: only drain reports them"
        );
    }
    assert_eq!(run(&["count", &queue]), [json!({ "count": 2 })]);

    // `watch` polls the queue more than once in this time, and must report each unreadable element only once.
    run_with(&[option, schema, "add", &queue], &json!({ "element": { "body": "e" } }).to_string());
    let mut watch = Running::start(&[option, schema, "watch", "--limit", "2", &queue]);
    assert_eq!(watch.line()["element"]["body"], "e");
    thread::sleep(Duration::from_millis(1_500));
    run_with(&[option, schema, "add", &queue], &json!({ "element": { "body": "f" } }).to_string());
    assert_eq!(watch.line()["element"]["body"], "f");
    assert_eq!(watch.wait(), Some(1), "some elements are unreadable");
}

#[test]
fn convert_moves_all_elements_to_the_other_kind_and_back() {
    let dir = dir();
    let [simple, normal, back] = ["simple", "normal", "back"].map(|name| path(&dir, name));
    let element = |n: u32| json!({ "body": format!("{n}"), "header": { "n": n.to_string() } });
    let input: String =
        (0..50).map(|n| json!({ "element": element(n) }).to_string() + "\n").collect();
    let [option, schema] = SCHEMA;
    run_with(&[option, schema, "add", &normal], &input);

    let moved = run(&[option, schema, "convert", &normal, &simple]);
    assert_eq!(moved.len(), 50);
    assert_eq!(run(&["count", &normal]), [json!({ "count": 0 })]);
    assert_eq!(run(&["count", &simple]), [json!({ "count": 50 })]);
    let first: Value = serde_json::from_str(
        run(&["get", &simple, name(&moved[0])])[0]["element"].as_str().unwrap(),
    )
    .unwrap();
    assert_eq!(first, element(0));

    run(&[option, schema, "convert", &simple, &back]);
    let drained = run(&[option, schema, "drain", &back]);
    let expected: Vec<_> = (0..50).map(element).collect();
    assert_eq!(elements(&drained), expected.iter().collect::<Vec<_>>(), "the order is kept");

    assert!(fails(&["convert", &normal, &back], "").contains("is also a normal queue"));
}

#[test]
fn convert_by_field_skips_elements_with_other_fields() {
    let dir = dir();
    let [simple, normal, back] = ["simple", "normal", "back"].map(|name| path(&dir, name));
    run(&["add", &simple, "plain text", "more"]);
    run_with(&["add", &simple], &json!({ "element": { "hex": "ff" } }).to_string());
    let [option, schema] = SCHEMA;
    let output = output(&[option, schema, "convert", "--field", "body", &simple, &normal], "");
    assert_eq!(output.status.code(), Some(1), "the bytes are not UTF-8");
    assert_eq!(lines(&output).len(), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains(" not moved: "));
    assert_eq!(
        elements(&run(&["drain", &simple])),
        [&json!({ "hex": "ff" })],
        "the element is unlocked"
    );

    let full = json!({ "element": { "body": "x", "header": {} } });
    run_with(&[option, schema, "add", &normal], &full.to_string());
    let stderr = fails(&[option, schema, "convert", "--field", "body", &normal, &back], "");
    assert!(stderr.contains("element also has a field \"header\""), "{stderr}");
    assert_eq!(elements(&run(&["drain", &back])), ["plain text", "more"]);
    assert_eq!(run(&["count", &normal]), [json!({ "count": 1 })]);
}

/// A running `dirq`, and the lines that it prints.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut child = command(args).stdin(Stdio::piped()).spawn().expect("dirq starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { stdin: child.stdin.take(), child, lines }
    }

    fn line(&self) -> Value {
        let line = self.lines.recv_timeout(patience()).expect("dirq prints a line in time");
        serde_json::from_str(&line).expect("a line is JSON")
    }

    fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("dirq can be waited for") {
                return status.code();
            }
            assert!(start.elapsed() < patience(), "dirq does not exit");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_prints_and_removes_new_elements() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    run(&["add", queue, "before"]);
    let mut watch = Running::start(&["watch", queue, "--limit", "4"]);
    assert_eq!(watch.line()["element"], "before");
    run(&["add", queue, "one"]);
    assert_eq!(watch.line()["element"], "one");
    run(&["add", queue, "two", "three"]);
    assert_eq!(
        (watch.line()["element"].clone(), watch.line()["element"].clone()),
        ("two".into(), "three".into())
    );
    assert_eq!(watch.wait(), Some(0));
    assert_eq!(run(&["count", queue]), [json!({ "count": 0 })]);
}

#[test]
fn add_prints_a_name_per_line_without_waiting_for_more_input() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let mut add = Running::start(&["add", queue]);
    for n in 0..3 {
        let mut stdin = add.stdin.as_ref().expect("stdin is open");
        writeln!(stdin, "{}", json!({ "element": n.to_string() })).unwrap();
        let line = add.line();
        assert_eq!(elements(&run(&["get", queue, name(&line)])), [&json!(n.to_string())]);
    }
    add.stdin = None;
    assert_eq!(add.wait(), Some(0));
}

/// `drain` must not remove an element if it cannot write its line, and Ctrl-C must release all locks.
#[test]
fn interrupted_drain_loses_no_element_and_leaves_no_lock() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let input: String =
        (0..2_000).map(|n| json!({ "element": format!("{n:0>200}") }).to_string() + "\n").collect();
    run_with(&["add", queue], &input);

    let mut child = command(&["drain", queue]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("Broken pipe"));
    let left = run(&["count", queue])[0]["count"].as_u64().unwrap();
    assert!((1..=1_999).contains(&left), "{left}");

    // `watch` locks ahead: at Ctrl-C it holds locks of elements that it has not printed.
    let mut watch = Running::start(&["watch", queue]);
    for _ in 0..left {
        watch.line();
    }
    run(&["add", queue, "last"]);
    assert_eq!(watch.line()["element"], "last");
    let id = watch.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(watch.wait(), Some(130));

    run_with(&["add", queue], &input);
    let mut child = command(&["drain", queue]).spawn().unwrap();
    // Waits until `drain` has started and is blocked by the full pipe.
    let start = Instant::now();
    let mut before = 2_000;
    loop {
        thread::sleep(Duration::from_millis(300));
        let left = run(&["count", queue])[0]["count"].as_u64().unwrap();
        if left < 2_000 && left == before {
            break;
        }
        before = left;
        assert!(start.elapsed() < patience(), "drained {} of 2,000", 2_000 - left);
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let printed = printed.lines().count();
    let rest = run(&["drain", queue]).len();
    assert!((2_000..=2_001).contains(&(printed + rest)), "{printed} printed, {rest} left");
}

#[test]
fn long_commands_show_progress_on_a_terminal() {
    let dir = dir();
    let [from, to] = ["from", "to"].map(|name| path(&dir, name));
    let lines = "{\"element\":\"x\"}\n".repeat(300);
    let program = example("dirq");
    let on_terminal = |args: &str| {
        let command = format!("stty cols 80; {} {args} >/dev/null", program.display());
        // `script` of util-linux runs a program on a terminal, and prints the output of that terminal.
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output()
    };
    if on_terminal(&format!("count {from}")).is_err() {
        println!("skipped: util-linux's `script` is not installed");
        return;
    }
    run_with(&["add", &from], &lines);
    let convert = format!("convert --schema body:string --field body {from} {to}");
    for command in [convert, format!("drain --schema body:string {to}")] {
        let output = on_terminal(&command).expect("script runs");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains(" of 300, "), "{command}: {shown}");
    }
}

/// Makes `jobs` elements dead letters, as a worker that fails twice for each.
fn fail(queue: &str, jobs: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let queue = fleeting::dirq::QueueSimple::builder(queue).max_attempts(2);
        let queue =
            queue.backoff(Duration::ZERO, Duration::ZERO).open().await.expect("the queue opens");
        for _ in 0..2 {
            let mut work = queue.locked();
            for _ in 0..jobs {
                drop(work.next().await.expect("an element").expect("a readable element"));
            }
        }
    });
}

#[test]
fn dead_letters_can_be_listed_removed_and_revived() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let added = run(&["add", queue, "one", "two", "three", "four"]);
    let names: Vec<_> = added.iter().map(name).collect();
    fail(queue, 3);
    let dead: Vec<_> = ["one", "two", "three"]
        .iter()
        .zip(&names)
        .map(|(text, name)| json!({ "name": name, "attempts": 2, "element": text }))
        .collect();
    for _ in 0..2 {
        assert_eq!(run(&["dead", queue]), dead, "listing changes nothing");
    }
    assert_eq!(elements(&run(&["drain", queue])), ["four"]);

    let revived = run(&["revive", queue, names[1]]);
    assert_eq!(revived, [json!({ "name": names[1], "revived": true })]);
    let again = output(&["revive", queue, names[1]], "");
    assert_eq!(again.status.code(), Some(1), "it is not a dead letter any more");
    assert_eq!(elements(&run(&["drain", queue])), ["two"]);
    let both = run(&["revive", queue, "--in", "3600"]);
    assert_eq!(both.iter().map(name).collect::<Vec<_>>(), [names[0], names[2]]);
    assert!(run(&["drain", queue]).is_empty(), "revived elements wait for their delay");
    assert!(run(&["dead", queue]).is_empty() && run(&["revive", queue]).is_empty());

    let more = run(&["add", queue, "five"]);
    fail(queue, 1);
    assert_eq!(elements(&run(&["dead", "--remove", queue])), ["five"]);
    assert!(run(&["dead", queue]).is_empty());
    let listed = run(&["list", queue]);
    assert!(listed.iter().all(|line| name(line) != name(&more[0])) && listed.len() == 2);
}

#[test]
fn watch_runs_a_command_for_each_element_and_removes_those_that_succeed() {
    let dir = dir();
    let (queue, out) = (&path(&dir, "queue"), &path(&dir, "out"));
    let added = run(&["add", queue, "good", "bad", "good"]);
    let names: Vec<_> = added.iter().map(name).collect();
    let command = format!(
        "read -r text; echo \"$text $DIRQ_NAME $DIRQ_ATTEMPTS\" >> {out}; echo noise; \
         if [ \"$text\" = bad ]; then echo one >&2; echo \"cannot do it\" >&2; exit 3; fi"
    );
    let args = ["watch", queue, "--limit", "3", "--max-attempts", "1", "--exec", &command];
    let done = output(&args, "");
    assert_eq!(done.status.code(), Some(1), "one failed");
    let reason = "exit status: 3: cannot do it";
    let line = |index: usize| json!({ "name": names[index], "attempts": 1, "done": true });
    let failed = json!({ "name": names[1], "attempts": 1, "done": false, "reason": reason });
    assert_eq!(lines(&done), [line(0), failed, line(2)]);
    let expected: Vec<_> = ["good", "bad", "good"]
        .iter()
        .zip(&names)
        .map(|(text, name)| format!("{text} {name} 1\n"))
        .collect();
    assert_eq!(fs::read_to_string(out).expect("the command has written"), expected.concat());
    let dead = json!({ "name": names[1], "attempts": 1, "element": "bad", "reason": reason });
    assert_eq!(run(&["dead", queue]), [dead]);
    assert_eq!(run(&["count", queue]), [json!({ "count": 1 })]);
    assert_eq!(run(&["retry", queue]).len(), 1, "the old name of `revive`");
    let args = ["watch", queue, "--limit", "1", "--exec", "cat > /dev/null"];
    assert_eq!(run(&args), [json!({ "name": names[1], "attempts": 1, "done": true })]);
    assert_eq!(output(&["watch", queue, "--max-attempts", "1"], "").status.code(), Some(2));
}

#[test]
fn reason_is_the_last_line_of_a_long_stderr() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    run(&["add", queue, "x"]);
    let command = "yes noise | head -c 1000000 >&2; echo >&2; echo 'the reason' >&2; exit 1";
    let done = output(&["watch", queue, "--limit", "1", "--exec", command], "");
    assert_eq!(lines(&done)[0]["reason"], "exit status: 1: the reason");
}

#[test]
fn interrupted_command_is_no_failed_attempt() {
    for signal in ["-TERM", "-INT"] {
        let dir = dir();
        let (queue, started) = (&path(&dir, "queue"), path(&dir, "started"));
        run(&["add", queue, "job"]);
        let command = format!("touch {started}; exec sleep 1000");
        let args = ["watch", queue, "--max-attempts", "2", "--exec", &command];
        let mut watch = Running::start(&args);
        let start = Instant::now();
        while fs::metadata(&started).is_err() {
            assert!(start.elapsed() < patience(), "the command does not start");
            thread::sleep(Duration::from_millis(5));
        }
        let id = watch.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(watch.wait(), Some(130));
        let args = ["watch", queue, "--limit", "1", "--exec", "cat > /dev/null"];
        assert_eq!(run(&args)[0]["attempts"], 1, "after {signal}");
    }
}

#[test]
fn interrupted_command_ends_with_all_its_processes_before_its_element_is_released() {
    let dir = dir();
    let (queue, started) = (&path(&dir, "queue"), path(&dir, "started"));
    run(&["add", queue, "job"]);
    // The shell waits for another process, which a signal to the shell does not reach.
    let command =
        format!("sh -c 'echo $$ > {started}.new; mv {started}.new {started}; sleep 1000'; true");
    let mut watch = Running::start(&["watch", queue, "--exec", &command]);
    let start = Instant::now();
    while fs::metadata(&started).is_err() {
        assert!(start.elapsed() < patience(), "the command does not start");
        thread::sleep(Duration::from_millis(5));
    }
    let child = fs::read_to_string(&started).expect("the command has written");
    let id = watch.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(watch.wait(), Some(130));
    // Its parent is gone, and the system may not have collected it yet.
    let is_running = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    let start = Instant::now();
    while is_running() {
        assert!(start.elapsed() < patience(), "a process of the command continues");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(elements(&run(&["drain", queue])), ["job"]);
}

#[test]
fn command_that_leaves_a_process_in_the_background_ends() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    run(&["add", queue, "job", "bad"]);
    let pids = path(&dir, "pids");
    let command = format!(
        "sleep 1000 & echo $! >> {pids}; if [ $(cat) = bad ]; then echo why >&2; exit 3; fi"
    );
    let mut watch = Running::start(&["watch", queue, "--limit", "2", "--exec", &command]);
    let done = [watch.line(), watch.line()];
    let left = fs::read_to_string(&pids).expect("the command has written");
    assert!(Command::new("kill").args(left.lines()).status().unwrap().success(), "they run");
    assert_eq!(done[0]["done"], true);
    assert_eq!(done[1]["reason"], "exit status: 3: why");
    assert_eq!(watch.wait(), Some(1));
}

#[test]
fn element_that_cannot_be_removed_is_not_left_locked() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let line = json!({ "element": { "body": "x" } }).to_string();
    let added = run_with(&[SCHEMA[0], SCHEMA[1], "add", queue], &line);
    let name = name(&added[0]);
    let foreign = dir.path().join("queue").join(name).join("not-a-field");
    fs::write(foreign, "").expect("the element is a directory");
    assert!(fails(&["remove", queue, name], "").contains("not-a-field"));
    assert_eq!(run(&["lock", queue, name]), [json!({ "name": name, "locked": true })]);
    fails(&["remove", "--locked", queue, name], "");
    fails(&["lock", queue, name], "");
}

/// Unreadable elements are kept, since they may be repaired.
#[test]
fn unreadable_dead_letters_are_reported_and_can_be_revived() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let added = run(&["add", queue, "one", "two", "three", "four"]);
    let names: Vec<_> = added.iter().map(name).collect();
    fail(queue, 4);
    for name in [names[0], names[2]] {
        let file = dir.path().join("queue").join(name);
        fs::remove_file(&file).expect("the element is a file");
        fs::create_dir(&file).expect("its name is unused");
    }
    for command in [&["dead", queue][..], &["dead", "--remove", queue]] {
        let printed = output(command, "");
        assert_eq!(elements(&lines(&printed)), ["two", "four"], "{command:?}");
        assert_eq!(printed.status.code(), Some(1), "{command:?}");
        let stderr = String::from_utf8(printed.stderr).expect("stderr is UTF-8");
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
        assert!([names[0], names[2]].iter().all(|name| stderr.contains(name)), "{stderr}");
        assert!(output(&[&["--skip-bad"], command].concat(), "").status.success());
    }
    let revived = run(&["revive", queue]);
    assert_eq!(revived.iter().map(name).collect::<Vec<_>>(), [names[0], names[2]]);
    assert!(run(&["dead", queue]).is_empty());
}

#[test]
fn convert_prints_the_number_of_skipped_elements() {
    let dir = dir();
    let (from, to) = (&path(&dir, "from"), &path(&dir, "to"));
    let added = run(&["add", from, "dead", "locked", "moves"]);
    fail(from, 1);
    run(&["lock", from, name(&added[1])]);
    let converted =
        output(&["--schema", "body:string", "convert", "--field", "body", from, to], "");
    assert_eq!(converted.status.code(), Some(1));
    assert_eq!(lines(&converted).len(), 1);
    let stderr = String::from_utf8(converted.stderr).expect("stderr is UTF-8");
    assert!(stderr.contains("2 elements not moved") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(run(&["count", from]), [json!({ "count": 2 })]);
}

#[test]
fn peek_and_touch_work_on_locked_elements() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let added = run(&["add", queue, "one"]);
    let name = name(&added[0]);
    run(&["lock", queue, name]);
    let file = dir.path().join("queue").join(name);
    let old = std::time::SystemTime::now() - Duration::from_secs(1_000);
    let set = |file: &fs::File| file.set_modified(old);
    fs::File::open(&file).and_then(|file| set(&file)).expect("file times can be set");
    assert_eq!(run(&["peek", queue, name]), [json!({ "name": name, "element": "one" })]);
    assert_eq!(run(&["touch", queue, name]), [json!({ "name": name, "touched": true })]);
    assert_eq!(run(&["purge", queue])[0]["locks"], 0, "touch has reset the age of the lock");
    fs::File::open(&file).and_then(|file| set(&file)).expect("file times can be set");
    assert_eq!(run(&["purge", queue])[0]["locks"], 1);
    run(&["remove", queue, name]);
    assert!(fails(&["peek", queue, name], "").contains("does not exist"));
    assert!(fails(&["touch", queue, name], "").contains("touch"));
}

#[test]
fn bad_elements_stop_a_command_unless_skip_bad_is_given() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let lines = "{\"element\":\"one\"}\nno JSON\n{\"no\":\"element\"}\n{\"element\":\"two\"}\n";
    fails(&["add", queue], lines);
    assert_eq!(run(&["count", queue]), [json!({ "count": 1 })], "add stopped at the second line");
    let passed = output(&["add", "--skip-bad", queue], lines);
    assert!(passed.status.success());
    let added = self::lines(&passed);
    assert_eq!((added.len(), String::from_utf8_lossy(&passed.stderr).lines().count()), (2, 2));
    let missing = "00000000/00000000000000";
    let names = [missing, name(&added[0]), missing, name(&added[1])];
    for command in ["get", "peek", "unlock", "touch", "remove"] {
        let all = [&[command, "--skip-bad", queue][..], &names].concat();
        if command == "unlock" {
            run(&["lock", queue, names[1], names[3]]);
        }
        let passed = output(&all, "");
        assert!(passed.status.success(), "{command}");
        assert_eq!(self::lines(&passed).len(), 2, "{command}");
        assert_eq!(String::from_utf8_lossy(&passed.stderr).lines().count(), 2, "{command}");
        let strict = [&[command, queue][..], &names].concat();
        assert!(lines_of(&strict).is_empty(), "{command} stops at the first bad element");
    }
    assert_eq!(output(&["drain", "--no-such-option", queue], "").status.code(), Some(2));
}

#[test]
fn skip_bad_continues_after_any_bad_element_and_does_not_hide_lines_with_false() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    let mut child = command(&["add", "--skip-bad", queue]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(b"{\"element\":\"one\"}\n\xff\n{\"element\":\"two\"}\n").unwrap();
    drop(stdin);
    let added = child.wait_with_output().unwrap();
    let (code, stderr) = (added.status.code(), String::from_utf8_lossy(&added.stderr));
    let added = lines(&added);
    assert_eq!((code, added.len(), stderr.lines().count()), (Some(0), 2, 1), "{stderr}");

    let names = ["NULL", name(&added[0]), name(&added[1])];
    for (command, changed) in [("lock", "locked"), ("revive", "revived")] {
        if command == "lock" {
            run(&["lock", queue, names[1]]);
        } else {
            run(&["unlock", queue, names[1], names[2]]);
            fail(queue, 2);
            run(&["revive", queue, names[1]]);
        }
        let args = [&[command, "--skip-bad", queue][..], &names].concat();
        let printed = output(&args, "");
        let changed: Vec<_> = lines(&printed).iter().map(|line| line[changed].clone()).collect();
        assert_eq!(changed, [false, true], "{command}");
        assert_eq!(printed.status.code(), Some(1), "{command}");
        assert_eq!(String::from_utf8_lossy(&printed.stderr).lines().count(), 1, "{command}");
    }
}

#[test]
fn skip_bad_does_not_hide_failed_commands() {
    let dir = dir();
    let queue = &path(&dir, "queue");
    for (command, code) in [("false", 1), ("true", 0)] {
        run(&["add", queue, "x"]);
        let done = output(&["--skip-bad", "watch", queue, "--limit", "1", "--exec", command], "");
        assert_eq!(done.status.code(), Some(code), "{command}");
    }
}

#[test]
fn convert_leaves_no_element_in_both_queues_if_its_lines_cannot_be_printed() {
    let dir = dir();
    let (from, to) = (&path(&dir, "from"), &path(&dir, "to"));
    run(&["add", from, "a", "b", "c"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut convert = command(&[SCHEMA[0], SCHEMA[1], "convert", "--field", "body", from, to]);
    let status = convert.stdout(writer).status().expect("dirq starts");
    assert_eq!(status.code(), Some(1));
    let count = |queue| run(&["count", queue])[0]["count"].as_u64().expect("it is a number");
    assert_eq!((count(from), count(to)), (2, 1));
}

/// Returns the lines that the command printed before it failed.
fn lines_of(args: &[&str]) -> Vec<Value> {
    let output = output(args, "");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    lines(&output)
}

/// The help is the only documentation of a user without the source.
#[test]
fn help_describes_every_argument_and_its_examples_work() {
    let help = |args: &[&str]| {
        let output = output(args, "");
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).expect("the help is UTF-8")
    };
    let all = help(&["--help"]);
    let commands = all.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let commands = commands.expect("the help lists the commands").lines();
    let names = commands.filter_map(|line| line.split_whitespace().next());
    for command in names.filter(|name| *name != "help") {
        let text = help(&[command, "--help"]);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2) {
            let is_bare = pair[0].starts_with(['<', '[']) && !pair[0].contains(' ');
            assert!(!is_bare || !pair[1].is_empty(), "{command}: {} has no description", pair[0]);
        }
    }

    let dir = dir();
    let bin = example("dirq");
    let path = format!("{}:/usr/bin:/bin", bin.parent().expect("a directory").display());
    let examples: Vec<_> = all.lines().filter(|line| line.starts_with("  dirq ")).collect();
    assert!(examples.len() >= 5, "{all}");
    for line in examples {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-ec", line]).env("PATH", &path).current_dir(dir.path());
        let ended = shell.stdin(Stdio::null()).output().expect("sh runs");
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}
