//! The example `service` with `--spool`: what expires is in a queue, which a program in Python takes.

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
};

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_service_spools_and_a_python_program_takes_it() {
    let folder = scratch();
    let queue = folder.path().join("expired");
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
        assert!(start.elapsed() < PATIENCE, "nothing comes to the queue");
        sleep(Duration::from_millis(10)).await;
    }
    // They are in the queue a moment before the spool counts them.
    let stats = loop {
        let stats: Value = client.get(format!("{}/stats", service.url)).send().await.json().await;
        if stats["spooled"] != json!(0) && stats["spooled"] != json!(1) {
            break stats;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is counted: {stats}");
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

    // At the end it delivers what is due.
    put("last?ttl=0.001", b"").await;
    service.signal("TERM");
    assert_eq!(service.wait(PATIENCE).code(), Some(0));
    assert_eq!(work(), [r#"expired last """#]);
}

/// What is no event stays, and nobody stops at it; two that want the same are not in each other's way.
#[tokio::test]
async fn several_workers_take_what_is_an_event_and_pass_over_what_is_not() {
    let folder = scratch();
    let queue = QueueSimple::builder(folder.path()).granularity(Duration::from_secs(1 << 31));
    let queue = queue.open().await.unwrap();
    let event = |n: usize| json!({ "key": n, "value": n, "meta": { "cause": "expired" } });
    let bad = ["no JSON", "{}", "[1]", "\"text\""];
    queue.add_many(bad).await.unwrap();
    let names = queue.add_many((0..300).map(|n| event(n).to_string())).await.unwrap();
    let worker = include_str!("../../examples/spool_worker.py");
    let args = [folder.path().to_str().unwrap(), "--once"];
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let mut command = python_command(worker, &args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut printed = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.lines().count() <= bad.len() && said.contains("is no event"), "{said}");
        printed.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned));
    }
    printed.sort();
    let mut expected: Vec<_> = (0..names.len()).map(|n| format!("expired {n} {n}")).collect();
    expected.sort();
    assert_eq!(printed, expected, "each once");
    assert_eq!(elements(folder.path()).len(), bad.len());
    let mut locked = queue.locked();
    for body in bad {
        assert_eq!(locked.next().await.unwrap().unwrap().value(), body, "unlocked");
    }
}

/// It would only be found out when the first session expires.
#[test]
fn a_folder_that_is_read_only_is_a_sentence() {
    let folder = scratch();
    let mount = r#"mount -t tmpfs none "$0" && mount -o remount,ro "$0" && exec "$@""#;
    let can_mount = |program: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", mount]).arg(folder.path()).arg(program).args(args);
        command.output().expect("unshare of util-linux runs")
    };
    if !can_mount("true", &[]).status.success() {
        println!("no mounts here: it is not tried");
        return;
    }
    let path = folder.path().to_str().unwrap();
    let program = example("service");
    let service =
        can_mount(program.to_str().unwrap(), &["--listen", "127.0.0.1:0", "--spool", path]);
    assert_eq!((service.status.code(), service.stdout), (Some(1), Vec::new()));
    let complaint = String::from_utf8_lossy(&service.stderr);
    assert!(complaint.contains("cannot write to") && complaint.contains(path), "{complaint}");
}

#[test]
fn a_folder_that_can_be_no_queue_is_a_sentence() {
    let folder = scratch();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let service = Command::new(example("service"))
        .args(["--listen", "127.0.0.1:0", "--spool"])
        .arg(&file)
        .output()
        .expect("the service can't be run");
    assert_eq!((service.status.code(), service.stdout), (Some(1), Vec::new()));
    let complaint = String::from_utf8_lossy(&service.stderr);
    assert!(
        complaint.contains("cannot open") && complaint.contains("not a directory"),
        "{complaint}"
    );
}
