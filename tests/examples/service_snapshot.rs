//! Tests of the example `service --snapshot`: sessions are kept over a restart, and a damaged file prevents the start.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use axum::http::Method;
use serde_json::Value;

use crate::{
    directory::scratch,
    example::{Service, example},
    http::Client,
    patience::patience,
};

#[tokio::test]
async fn sessions_and_their_ttls_are_kept_over_a_restart() {
    let dir = scratch();
    let file = dir.path().join("sessions");
    let args = ["--snapshot", file.to_str().unwrap()];
    let client = Client::new();
    let mut service = Service::start_with(&args);
    let put = async |service: &Service, path: &str, body: &'static [u8]| {
        let url = format!("{}/sessions/{path}", service.url);
        let answer = client.request(Method::PUT, url).body(body).send().await;
        assert_eq!(answer.status(), 201, "PUT {path}");
    };
    put(&service, "forever", b"\x00\xff").await;
    put(&service, "ada?ttl=100.5", b"text").await;
    put(&service, "short?ttl=0.5", b"").await;
    service.signal("TERM");
    assert_eq!(service.wait(patience()).code(), Some(0));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "other users can read the sessions");
    }
    tokio::time::sleep(Duration::from_millis(600)).await;

    let mut service = Service::start_with(&args);
    let get = async |service: &Service, path: &str| {
        client.get(format!("{}/sessions/{path}", service.url)).send().await
    };
    assert_eq!(get(&service, "forever").await.bytes().await, &b"\x00\xff"[..]);
    assert_eq!(get(&service, "short").await.status(), 404);
    let ttl: Value = get(&service, "ada/ttl").await.json().await;
    let ttl = ttl["ttl"].as_i64().unwrap();
    assert!((10..=100).contains(&ttl), "{ttl}");
    let read = Instant::now();
    assert_eq!(get(&service, "ada").await.text().await, "text");
    // The read has restarted the TTL, which is rounded up.
    let ttl: Value = get(&service, "ada/ttl").await.json().await;
    let least = (100.5 - read.elapsed().as_secs_f64()).ceil() as i64;
    assert!((least..=101).contains(&ttl["ttl"].as_i64().unwrap()), "{ttl}, expected {least}");

    // The same with the other signal.
    service.signal("INT");
    assert_eq!(service.wait(patience()).code(), Some(0));
    let service = Service::start_with(&args);
    assert_eq!(get(&service, "ada").await.text().await, "text");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file is left");
}

#[tokio::test]
async fn damaged_snapshot_prevents_the_start_and_is_not_changed() {
    let dir = scratch();
    let file = dir.path().join("sessions");
    for (bytes, reason) in [
        (&b"{\"foreign\": true}"[..], "the data is not a snapshot of a cache"),
        (b"fleeting", "the snapshot is truncated"),
    ] {
        fs::write(&file, bytes).unwrap();
        let error = failed_start(&file);
        assert!(error.contains("cannot restore") && error.contains(reason), "{error}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[tokio::test]
async fn unwritable_snapshot_path_prevents_the_start() {
    let dir = scratch();
    let error = failed_start(&dir.path().join("missing").join("sessions"));
    assert!(error.contains("cannot write") && error.contains("sessions"), "{error}");
}

/// Returns the stderr of a service that does not start.
fn failed_start(file: &Path) -> String {
    let Output { status, stdout, stderr } = Command::new(example("service"))
        .args(["--listen", "127.0.0.1:0", "--snapshot"])
        .arg(file)
        .output()
        .expect("the service runs");
    assert_eq!((status.code(), stdout), (Some(1), Vec::new()));
    String::from_utf8_lossy(&stderr).into_owned()
}
