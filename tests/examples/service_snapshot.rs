//! The example `service` with `--snapshot`: sessions outlive a restart, and a damaged file stops it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use axum::http::Method;
use serde_json::Value;

use crate::{
    directory::scratch,
    example::{Service, example},
    http::Client,
};

/// For what must come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn sessions_outlive_a_restart_and_go_on_to_die() {
    let folder = scratch();
    let file = folder.path().join("sessions");
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
    assert_eq!(service.wait(PATIENCE).code(), Some(0));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "others may read the sessions");
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
    assert_eq!(get(&service, "ada").await.text().await, "text");
    // Read, it may live as long as it was put for.
    let ttl: Value = get(&service, "ada/ttl").await.json().await;
    assert_eq!(ttl["ttl"], 101);

    // Once more, by the other signal.
    service.signal("INT");
    assert_eq!(service.wait(PATIENCE).code(), Some(0));
    let service = Service::start_with(&args);
    assert_eq!(get(&service, "ada").await.text().await, "text");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something is left beside it");
}

#[tokio::test]
async fn a_damaged_file_stops_the_start_and_is_left_as_it_is() {
    let folder = scratch();
    let file = folder.path().join("sessions");
    for (bytes, reason) in [
        (&b"{\"foreign\": true}"[..], "the data is not a snapshot of a cache"),
        (b"fleeting", "the snapshot is truncated"),
    ] {
        fs::write(&file, bytes).unwrap();
        let complaint = refused(&file);
        assert!(complaint.contains("can't restore") && complaint.contains(reason), "{complaint}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[tokio::test]
async fn what_can_t_be_written_stops_the_start() {
    let folder = scratch();
    let complaint = refused(&folder.path().join("missing").join("sessions"));
    assert!(complaint.contains("can't write") && complaint.contains("sessions.new"), "{complaint}");
}

/// What it says.
fn refused(file: &Path) -> String {
    let Output { status, stdout, stderr } = Command::new(example("service"))
        .args(["--listen", "127.0.0.1:0", "--snapshot"])
        .arg(file)
        .output()
        .expect("the service can't be run");
    assert_eq!((status.code(), stdout), (Some(1), Vec::new()));
    String::from_utf8_lossy(&stderr).into_owned()
}
