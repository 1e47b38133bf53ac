//! Tests of the example `service --spool`: expired sessions are written to a queue, which a Python program processes.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use axum::http::Method;
use fleeting::dirq::QueueSimple;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    directory::{elements, python, python_command, scratch},
    example::{Service, example},
    http::Client,
    patience::patience,
};

#[tokio::test]
async fn expired_sessions_are_spooled_and_processed_by_a_python_program() {
    let dir = scratch();
    let queue = dir.path().join("expired");
    let mut service = Service::start_with(&["--spool", queue.to_str().unwrap()]);
    let client = Client::new();
    let put = async |path: &str, body: &'static [u8]| {
        let url = format!("{}/sessions/{path}", service.url);
        let answer = client.request(Method::PUT, url).body(body).send().await;
        assert_eq!(answer.status(), 201, "PUT {path}");
    };
    put("forever", b"stays").await;
    put("ada?ttl=0.05", b"\"text\"\t").await;
    put("bytes?ttl=0.05", b"\x00\xff").await;
    let start = Instant::now();
    while !queue.is_dir() || elements(&queue).len() < 2 {
        assert!(start.elapsed() < patience(), "the queue has too few elements");
        sleep(Duration::from_millis(10)).await;
    }
    // The spool counts elements shortly after it has added them.
    let stats = loop {
        let stats: Value = client.get(format!("{}/stats", service.url)).send().await.json().await;
        if stats["spooled"] != json!(0) && stats["spooled"] != json!(1) {
            break stats;
        }
        assert!(start.elapsed() < patience(), "the spool has counted too few elements: {stats}");
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((&stats["spooled"], &stats["subscribers"]), (&json!(2), &json!(0)));
    let spool = json!({ "in_hand": 0, "unwritable": 0, "failures": 0, "stalled_s": null });
    assert_eq!(stats["spool"], spool);

    let work = || {
        let worker = include_str!("../../examples/spool_worker.py");
        let text = python(worker, &[queue.to_str().unwrap(), "--once"]);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(work(), [r#"expired ada "\"text\"\t""#, "expired bytes [0, 255]"]);
    assert!(elements(&queue).is_empty());

    // The shutdown spools sessions that have expired by then.
    put("last?ttl=0.001", b"").await;
    service.signal("TERM");
    assert_eq!(service.wait(patience()).code(), Some(0));
    assert_eq!(work(), [r#"expired last """#]);
}

/// Elements that are not events are kept and do not stop a worker. Workers that compete for an element do not fail.
#[tokio::test]
async fn concurrent_workers_process_each_event_once_and_skip_other_elements() {
    let dir = scratch();
    let queue = QueueSimple::builder(dir.path()).granularity(Duration::from_secs(1 << 31));
    let queue = queue.open().await.unwrap();
    let event = |n: usize| json!({ "key": n, "value": n, "meta": { "cause": "expired" } });
    let bad = ["no JSON", "{}", "[1]", "\"text\""];
    queue.add_many(bad).await.unwrap();
    let names = queue.add_many((0..300).map(|n| event(n).to_string())).await.unwrap();
    let worker = include_str!("../../examples/spool_worker.py");
    let args = [dir.path().to_str().unwrap(), "--once"];
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let mut command = python_command(worker, &args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut printed = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert!(
            stderr.lines().count() <= bad.len() && stderr.contains("is not an event"),
            "{stderr}"
        );
        printed.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned));
    }
    printed.sort();
    let mut expected: Vec<_> = (0..names.len()).map(|n| format!("expired {n} {n}")).collect();
    expected.sort();
    assert_eq!(printed, expected, "each event is processed once");
    assert_eq!(elements(dir.path()).len(), bad.len());
    let mut locked = queue.locked();
    for body in bad {
        assert_eq!(locked.next().await.unwrap().unwrap().value(), body, "the element is unlocked");
    }
}

/// Without this check at the start, the failure would only appear when the first session expires.
#[test]
fn read_only_spool_directory_prevents_the_start() {
    let dir = scratch();
    let mount = r#"mount -t tmpfs none "$0" && mount -o remount,ro "$0" && exec "$@""#;
    let can_mount = |program: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", mount]).arg(dir.path()).arg(program).args(args);
        command.output().expect("util-linux's unshare runs")
    };
    if !can_mount("true", &[]).status.success() {
        println!("skipped: mounts are not permitted");
        return;
    }
    let path = dir.path().to_str().unwrap();
    let program = example("service");
    let service =
        can_mount(program.to_str().unwrap(), &["--listen", "127.0.0.1:0", "--spool", path]);
    assert_eq!((service.status.code(), service.stdout), (Some(1), Vec::new()));
    let error = String::from_utf8_lossy(&service.stderr);
    assert!(error.contains("cannot write to") && error.contains(path), "{error}");
}

#[test]
fn spool_path_that_is_a_file_prevents_the_start() {
    let dir = scratch();
    let file = dir.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    let service = Command::new(example("service"))
        .args(["--listen", "127.0.0.1:0", "--spool"])
        .arg(&file)
        .output()
        .expect("the service runs");
    assert_eq!((service.status.code(), service.stdout), (Some(1), Vec::new()));
    let error = String::from_utf8_lossy(&service.stderr);
    assert!(error.contains("cannot open") && error.contains("not a directory"), "{error}");
}
