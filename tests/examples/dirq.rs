//! The example `dirq`, as a process.

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

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

const SCHEMA: [&str; 2] = ["--schema", "body:string,header:table?,raw:binary?"];

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test can't be made")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(example("dirq"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end with `input` on stdin.
fn output(args: &[&str], input: &str) -> Output {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("dirq can't be run");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("dirq can't be waited for");
    // Who needs no input may have closed it.
    let _ = writer.join().expect("the writer does not panic");
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = str::from_utf8(&output.stdout).expect("the output is UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}")))
        .collect()
}

/// What it printed, where it must succeed without a word on stderr.
fn run_with(args: &[&str], input: &str) -> Vec<Value> {
    let output = output(args, input);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} ended with {}: {complaint}", output.status);
    assert_eq!(complaint, "", "{args:?}");
    lines(&output)
}

fn run(args: &[&str]) -> Vec<Value> {
    run_with(args, "")
}

/// Its complaint, where it must fail.
fn fails(args: &[&str], input: &str) -> String {
    let output = output(args, input);
    assert_eq!(output.status.code(), Some(1), "{args:?} printed {:?}", lines(&output));
    String::from_utf8(output.stderr).expect("the complaint is UTF-8")
}

fn name(line: &Value) -> &str {
    line["name"].as_str().unwrap_or_else(|| panic!("no name in {line}"))
}

fn elements(lines: &[Value]) -> Vec<&Value> {
    lines.iter().map(|line| &line["element"]).collect()
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn a_simple_queue_from_beginning_to_end() {
    let folder = folder();
    let queue = &path(&folder, "a/b/queue");
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
    assert_eq!(again.status.code(), Some(1), "not all could be locked");
    assert_eq!(
        lines(&again),
        [json!({ "name": names[0], "locked": false }), json!({ "name": names[1], "locked": true })]
    );
    for command in ["get", "remove"] {
        let complaint = fails(&[command, queue, names[0]], "");
        assert!(complaint.contains("locked by somebody else"), "{complaint}");
    }
    let got = run(&["get", "--locked", queue, names[0]]);
    assert_eq!(elements(&got), ["one"]);
    run(&["remove", "--locked", queue, names[0]]);
    run(&["unlock", queue, names[1]]);
    assert!(fails(&["unlock", queue, names[1]], "").contains("is not locked"));
    run(&["remove", queue, names[1]]);
    assert!(fails(&["get", queue, names[1]], "").contains("gone"));

    let drained = run(&["drain", queue]);
    assert_eq!(drained, [json!({ "name": names[2], "element": "thrée\n" })]);
    assert_eq!(run(&["count", queue]), [json!({ "count": 0 })]);
    assert!(run(&["drain", queue]).is_empty());
}

#[test]
fn a_normal_queue_from_beginning_to_end() {
    let folder = folder();
    let queue = &path(&folder, "queue");
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
    assert!(Path::new(queue).join("temporary").is_dir(), "a schema makes a new queue a normal one");

    let got = run_with(&["get", queue, name(&added[0])], "");
    assert_eq!(elements(&got), [&all]);
    // What needs no schema.
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
fn what_drain_prints_add_takes() {
    let folder = folder();
    let (from, to) = (path(&folder, "from"), path(&folder, "to"));
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
fn bad_input_is_refused_with_a_sentence() {
    let folder = folder();
    let (simple, normal) = (path(&folder, "simple"), path(&folder, "normal"));
    for (line, wanted) in [
        ("{", "EOF"),
        ("{}", "has no \"element\""),
        (r#"{"element":1}"#, "neither a text nor"),
        (r#"{"element":{"hex":"0"}}"#, "pairs of hexadecimal digits"),
        (r#"{"element":{"hex":"0g"}}"#, "pairs of hexadecimal digits"),
        (r#"{"element":{"hex":"+1"}}"#, "pairs of hexadecimal digits"),
    ] {
        let complaint = fails(&["add", &simple], line);
        assert!(complaint.contains(wanted), "{line}: {complaint}");
    }
    for (line, wanted) in [
        (r#"{"element":"text"}"#, "no object of fields"),
        (r#"{"element":{}}"#, "missing mandatory field \"body\""),
        (r#"{"element":{"body":"","more":""}}"#, "unexpected field \"more\""),
        (r#"{"element":{"body":"","header":{"a":1}}}"#, "the table \"header\""),
        (r#"{"element":{"body":{"hex":"ff"}}}"#, "utf-8"),
    ] {
        let complaint = fails(&[SCHEMA[0], SCHEMA[1], "add", &normal], line);
        assert!(complaint.contains(wanted), "{line}: {complaint}");
    }
    assert!(fails(&["add", &normal, "text"], "").contains("texts are for simple queues"));
    let bad = output(&["get", &simple, "../../etc/passwd"], "");
    assert_eq!(bad.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("invalid element name"));
    let file = path(&folder, "file");
    fs::write(&file, "in the way").unwrap();
    let complaint = fails(&["count", &file], "");
    assert!(complaint.contains(&file) && complaint.contains("not a directory"), "{complaint}");
    assert!(
        fails(&["--schema", "body:text", "count", &normal], "").contains("invalid type \"text\"")
    );
}

#[test]
fn a_purge_gives_back_what_a_dead_process_locked() {
    for schema in [&[][..], &SCHEMA] {
        let folder = folder();
        let queue = &path(&folder, "queue");
        let args = |rest: &[&str]| -> Vec<String> {
            schema.iter().chain(rest).map(|&arg| arg.to_owned()).collect()
        };
        let run_with = |rest: &[&str], input: &str| {
            run_with(&args(rest).iter().map(String::as_str).collect::<Vec<_>>(), input)
        };
        let element = if schema.is_empty() { json!("x") } else { json!({ "body": "x" }) };
        let added = run_with(&["add", queue], &json!({ "element": element }).to_string());
        run_with(&["lock", queue, name(&added[0])], "");
        let none =
            json!({ "temporary": 0, "locks": 0, "directories": 0, "records": 0, "failed": 0 });
        assert_eq!(run_with(&["purge", queue], ""), std::slice::from_ref(&none));
        assert_eq!(run_with(&["purge", queue, "--max-lock", "0"], ""), [none]);
        thread::sleep(Duration::from_millis(1_100));
        assert_eq!(run_with(&["purge", queue, "--max-lock", "1"], "")[0]["locks"], 1);
        assert_eq!(run_with(&["drain", queue], "").len(), 1);
    }
}

/// A directory in the place of an element's field, and bytes that are no text: each alone must not stop a worker.
#[test]
fn what_can_not_be_read_is_passed_over_and_told_once() {
    let folder = folder();
    let [queue, moved] = ["queue", "moved"].map(|name| path(&folder, name));
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
    let said = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert!(
        said.contains("is not valid UTF-8") && said.contains("of the queue's format"),
        "{said}"
    );
    assert!([0, 2].iter().all(|&index| said.contains(name(&added[index]))), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    let converted = output(&[option, schema, "convert", &queue, &moved], "");
    assert_eq!((converted.status.code(), lines(&converted).len()), (Some(1), 0));
    for command in ["drain", "dead"] {
        let passed = output(&[option, schema, "--skip-bad", command, &queue], "");
        assert!(passed.status.success(), "{command}");
        assert_eq!(passed.stderr.is_empty(), command == "dead", "it is told of all the same");
    }
    assert_eq!(run(&["count", &queue]), [json!({ "count": 2 })]);

    // It looks again and again.
    run_with(&[option, schema, "add", &queue], &json!({ "element": { "body": "e" } }).to_string());
    let mut watch = Running::start(&[option, schema, "watch", "--limit", "2", &queue]);
    assert_eq!(watch.line()["element"]["body"], "e");
    thread::sleep(Duration::from_millis(1_500));
    run_with(&[option, schema, "add", &queue], &json!({ "element": { "body": "f" } }).to_string());
    assert_eq!(watch.line()["element"]["body"], "f");
    assert_eq!(watch.wait(), Some(1), "some can't be read");
}

#[test]
fn convert_moves_all_to_the_other_kind_and_back() {
    let folder = folder();
    let [simple, normal, back] = ["simple", "normal", "back"].map(|name| path(&folder, name));
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
    assert_eq!(elements(&drained), expected.iter().collect::<Vec<_>>(), "in their order");

    assert!(fails(&["convert", &normal, &back], "").contains("is Normal too"));
}

#[test]
fn convert_by_one_field_leaves_what_has_more() {
    let folder = folder();
    let [simple, normal, back] = ["simple", "normal", "back"].map(|name| path(&folder, name));
    run(&["add", &simple, "plain text", "more"]);
    run_with(&["add", &simple], &json!({ "element": { "hex": "ff" } }).to_string());
    let [option, schema] = SCHEMA;
    let output = output(&[option, schema, "convert", "--field", "body", &simple, &normal], "");
    assert_eq!(output.status.code(), Some(1), "bytes are no text");
    assert_eq!(lines(&output).len(), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains(" stays: "));
    assert_eq!(elements(&run(&["drain", &simple])), [&json!({ "hex": "ff" })], "unlocked");

    let full = json!({ "element": { "body": "x", "header": {} } });
    run_with(&[option, schema, "add", &normal], &full.to_string());
    let complaint = fails(&[option, schema, "convert", "--field", "body", &normal, &back], "");
    assert!(complaint.contains("it has the field \"header\" too"), "{complaint}");
    assert_eq!(elements(&run(&["drain", &back])), ["plain text", "more"]);
    assert_eq!(run(&["count", &normal]), [json!({ "count": 1 })]);
}

/// A process that runs on, with its lines as they come.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut child = command(args).stdin(Stdio::piped()).spawn().expect("dirq can't be run");
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
        let line = self.lines.recv_timeout(PATIENCE).expect("no line came for too long");
        serde_json::from_str(&line).expect("a line is JSON")
    }

    fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("dirq can't be waited for") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "dirq does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_prints_what_comes_and_removes_it() {
    let folder = folder();
    let queue = &path(&folder, "queue");
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
fn an_added_line_is_named_at_once() {
    let folder = folder();
    let queue = &path(&folder, "queue");
    let mut add = Running::start(&["add", queue]);
    for n in 0..3 {
        let mut stdin = add.stdin.as_ref().expect("it is open");
        writeln!(stdin, "{}", json!({ "element": n.to_string() })).unwrap();
        let line = add.line();
        assert_eq!(elements(&run(&["get", queue, name(&line)])), [&json!(n.to_string())]);
    }
    add.stdin = None;
    assert_eq!(add.wait(), Some(0));
}

/// Who can't write its line must not remove the element, and Ctrl-C unlocks what is locked.
#[test]
fn a_drain_that_stops_loses_nothing_and_leaves_no_lock() {
    let folder = folder();
    let queue = &path(&folder, "queue");
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

    // Behind those that are drained, it has locked more than it has printed.
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
    // It has begun, and stands at a full pipe.
    let start = Instant::now();
    let mut before = 2_000;
    loop {
        thread::sleep(Duration::from_millis(300));
        let left = run(&["count", queue])[0]["count"].as_u64().unwrap();
        if left < 2_000 && left == before {
            break;
        }
        before = left;
        assert!(start.elapsed() < PATIENCE, "it drains {} of 2,000", 2_000 - left);
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let printed = printed.lines().count();
    let rest = run(&["drain", queue]).len();
    assert!((2_000..=2_001).contains(&(printed + rest)), "{printed} and {rest}");
}

#[test]
fn long_commands_show_their_progress_on_a_terminal() {
    let folder = folder();
    let [from, to] = ["from", "to"].map(|name| path(&folder, name));
    let lines = "{\"element\":\"x\"}\n".repeat(300);
    let program = example("dirq");
    let on_terminal = |args: &str| {
        let command = format!("stty cols 80; {} {args} >/dev/null", program.display());
        // Of util-linux: it gives a program a terminal, and prints what that would show.
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output()
    };
    if on_terminal(&format!("count {from}")).is_err() {
        println!("no `script` here: it is not tried");
        return;
    }
    run_with(&["add", &from], &lines);
    let convert = format!("convert --schema body:string --field body {from} {to}");
    for command in [convert, format!("drain --schema body:string {to}")] {
        let output = on_terminal(&command).expect("it was there");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains(" of 300, "), "{command}: {shown}");
    }
}

/// What a library's worker leaves that fails twice at each of so many jobs.
fn fail(queue: &str, jobs: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let queue = fleeting::dirq::QueueSimple::builder(queue).max_attempts(2);
        let queue = queue.backoff(Duration::ZERO, Duration::ZERO).open().await.expect("it opens");
        for _ in 0..2 {
            let mut work = queue.locked();
            for _ in 0..jobs {
                drop(work.next().await.expect("a job").expect("it can be read"));
            }
        }
    });
}

#[test]
fn dead_letters_are_seen_removed_and_tried_again() {
    let folder = folder();
    let queue = &path(&folder, "queue");
    let added = run(&["add", queue, "one", "two", "three", "four"]);
    let names: Vec<_> = added.iter().map(name).collect();
    fail(queue, 3);
    let dead: Vec<_> = ["one", "two", "three"]
        .iter()
        .zip(&names)
        .map(|(text, name)| json!({ "name": name, "attempts": 2, "element": text }))
        .collect();
    for _ in 0..2 {
        assert_eq!(run(&["dead", queue]), dead, "to look changes nothing");
    }
    assert_eq!(elements(&run(&["drain", queue])), ["four"]);

    let revived = run(&["retry", queue, names[1]]);
    assert_eq!(revived, [json!({ "name": names[1], "revived": true })]);
    let again = output(&["retry", queue, names[1]], "");
    assert_eq!(again.status.code(), Some(1), "it lives");
    assert_eq!(elements(&run(&["drain", queue])), ["two"]);
    let both = run(&["retry", queue, "--in", "3600"]);
    assert_eq!(both.iter().map(name).collect::<Vec<_>>(), [names[0], names[2]]);
    assert!(run(&["drain", queue]).is_empty(), "they rest");
    assert!(run(&["dead", queue]).is_empty() && run(&["retry", queue]).is_empty());

    let more = run(&["add", queue, "five"]);
    fail(queue, 1);
    assert_eq!(elements(&run(&["dead", "--remove", queue])), ["five"]);
    assert!(run(&["dead", queue]).is_empty());
    let listed = run(&["list", queue]);
    assert!(listed.iter().all(|line| name(line) != name(&more[0])) && listed.len() == 2);
}

/// What can't be read may be made good.
#[test]
fn a_dead_letter_that_can_not_be_read_is_told_of_and_may_come_again() {
    let folder = folder();
    let queue = &path(&folder, "queue");
    let added = run(&["add", queue, "one", "two", "three", "four"]);
    let names: Vec<_> = added.iter().map(name).collect();
    fail(queue, 4);
    for name in [names[0], names[2]] {
        let file = folder.path().join("queue").join(name);
        fs::remove_file(&file).expect("it is there");
        fs::create_dir(&file).expect("its name is free");
    }
    for command in [&["dead", queue][..], &["dead", "--remove", queue]] {
        let printed = output(command, "");
        assert_eq!(elements(&lines(&printed)), ["two", "four"], "{command:?}");
        assert_eq!(printed.status.code(), Some(1), "{command:?}");
        let complaint = String::from_utf8(printed.stderr).expect("it is UTF-8");
        assert_eq!(complaint.lines().count(), 2, "{complaint}");
        assert!([names[0], names[2]].iter().all(|name| complaint.contains(name)), "{complaint}");
        assert!(output(&[&["--skip-bad"], command].concat(), "").status.success());
    }
    let revived = run(&["retry", queue]);
    assert_eq!(revived.iter().map(name).collect::<Vec<_>>(), [names[0], names[2]]);
    assert!(run(&["dead", queue]).is_empty());
}

#[test]
fn convert_tells_of_what_stays_where_it_is() {
    let folder = folder();
    let (from, to) = (&path(&folder, "from"), &path(&folder, "to"));
    let added = run(&["add", from, "dead", "locked", "moves"]);
    fail(from, 1);
    run(&["lock", from, name(&added[1])]);
    let converted =
        output(&["--schema", "body:string", "convert", "--field", "body", from, to], "");
    assert_eq!(converted.status.code(), Some(1));
    assert_eq!(lines(&converted).len(), 1);
    let complaint = String::from_utf8(converted.stderr).expect("it is UTF-8");
    assert!(complaint.contains("2 elements stay") && complaint.lines().count() == 1, "{complaint}");
    assert_eq!(run(&["count", from]), [json!({ "count": 2 })]);
}

#[test]
fn an_element_is_looked_at_and_touched_whoever_has_it() {
    let folder = folder();
    let queue = &path(&folder, "queue");
    let added = run(&["add", queue, "one"]);
    let name = name(&added[0]);
    run(&["lock", queue, name]);
    let file = folder.path().join("queue").join(name);
    let old = std::time::SystemTime::now() - Duration::from_secs(1_000);
    let set = |file: &fs::File| file.set_modified(old);
    fs::File::open(&file).and_then(|file| set(&file)).expect("its times can be set");
    assert_eq!(run(&["peek", queue, name]), [json!({ "name": name, "element": "one" })]);
    assert_eq!(run(&["touch", queue, name]), [json!({ "name": name, "touched": true })]);
    assert_eq!(run(&["purge", queue])[0]["locks"], 0, "its lock is young");
    fs::File::open(&file).and_then(|file| set(&file)).expect("its times can be set");
    assert_eq!(run(&["purge", queue])[0]["locks"], 1);
    run(&["remove", queue, name]);
    assert!(fails(&["peek", queue, name], "").contains("gone"));
    assert!(fails(&["touch", queue, name], "").contains("touch"));
}

#[test]
fn what_is_bad_ends_a_command_or_is_passed_over_by_choice() {
    let folder = folder();
    let queue = &path(&folder, "queue");
    let lines = "{\"element\":\"one\"}\nno JSON\n{\"no\":\"element\"}\n{\"element\":\"two\"}\n";
    fails(&["add", queue], lines);
    assert_eq!(run(&["count", queue]), [json!({ "count": 1 })], "it ended at the second line");
    let passed = output(&["add", "--skip-bad", queue], lines);
    assert!(passed.status.success());
    let added = self::lines(&passed);
    assert_eq!((added.len(), String::from_utf8_lossy(&passed.stderr).lines().count()), (2, 2));
    let gone = "00000000/00000000000000";
    let names = [gone, name(&added[0]), gone, name(&added[1])];
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
        assert!(lines_of(&strict).is_empty(), "{command} ends at the first");
    }
    assert_eq!(output(&["drain", "--no-such-option", queue], "").status.code(), Some(2));
}

/// What it printed before it failed.
fn lines_of(args: &[&str]) -> Vec<Value> {
    let output = output(args, "");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    lines(&output)
}
