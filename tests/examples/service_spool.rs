//! The example `service` with `--spool`: what expires is in a queue, which a program in Python takes.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use axum::http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    directory::{elements, python, scratch},
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
