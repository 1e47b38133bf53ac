//! Attacks on the example `service`, with the defaults that it has on the internet.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    directory::scratch,
    example::{Service, example},
    http::Client,
    patience::patience,
    skipped::skipped,
};

#[tokio::test]
async fn sessions_of_one_client_take_no_more_than_max_bytes() {
    let service = Service::start_with(&["--max-bytes", "3000000"]);
    let client = Client::new();
    for id in 0..20 {
        let url = format!("{}/sessions/{id}", service.url);
        let answer = client.request(Method::PUT, url).body(vec![b'x'; 1 << 20]).send().await;
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    let stats: Value = client.get(format!("{}/stats", service.url)).send().await.json().await;
    assert_eq!((&stats["entries"], &stats["evicted"]), (&2.into(), &18.into()));
    let last = client.get(format!("{}/sessions/19", service.url)).send().await;
    assert_eq!(last.status(), StatusCode::OK);
}

#[tokio::test]
async fn max_ttl_limits_every_session() {
    let service = Service::start_with(&["--max-ttl", "60"]);
    let client = Client::new();
    let put = async |path: &str| {
        client.request(Method::PUT, format!("{}/sessions/{path}", service.url)).send().await
    };
    assert_eq!(put("ada").await.status(), StatusCode::CREATED);
    let answer = client.get(format!("{}/sessions/ada/ttl", service.url)).send().await;
    let ttl = answer.json::<Value>().await["ttl"].as_i64().unwrap();
    assert!((1..=60).contains(&ttl), "{ttl}");
    assert_eq!(put("eve?ttl=60").await.status(), StatusCode::CREATED);
    let refused = put("eve?ttl=61").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(refused.text().await.contains("0.001 to 60 seconds"));
}

#[test]
fn token_that_is_not_utf_8_prevents_the_start() {
    let output = Command::new(example("service"))
        .args(["--listen", "127.0.0.1:0"])
        .env("FLEETING_ADMIN_TOKEN", OsStr::from_bytes(b"s3cret\xff"))
        .output()
        .expect("the service runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("FLEETING_ADMIN_TOKEN is not UTF-8"), "{stderr}");
    assert!(!stderr.contains("s3cret"), "{stderr}");
}

/// Without a token: a page of another origin whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name.
#[tokio::test]
async fn pages_for_operators_are_only_for_requests_that_name_this_machine() {
    let service = Service::start();
    let client = Client::new();
    let port = service.address().rsplit_once(':').unwrap().1.to_owned();
    let get = async |path: &str, host: String| {
        client.get(format!("{}{path}", service.url)).header("host", host).send().await.status()
    };
    for path in ["/", "/stats", "/metrics", "/events", "/fleeting", "/fleeting/metrics"] {
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "[2001:db8::1]", ""] {
            let status = get(path, format!("{host}:{port}")).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} of {host}");
        }
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert_eq!(
                get(path, format!("{host}:{port}")).await,
                StatusCode::OK,
                "{path} of {host}"
            );
            assert_eq!(get(path, host.to_owned()).await, StatusCode::OK, "{path} of {host}");
        }
    }
    assert_eq!(get("/healthz", "evil.example".into()).await, StatusCode::OK);
    assert_eq!(get("/sessions/ada", "evil.example".into()).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn pages_for_operators_are_closed_on_other_addresses_without_a_token() {
    for (args, expected) in
        [(&[][..], StatusCode::FORBIDDEN), (&["--admin-token", "s3cret"], StatusCode::OK)]
    {
        let mut child = Command::new(example("service"))
            .args(["--listen", "0.0.0.0:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service runs");
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let url = line.trim().replace("0.0.0.0", "127.0.0.1");
        let client = Client::new();
        for path in ["/", "/stats", "/metrics", "/events", "/fleeting"] {
            let request = client.get(format!("{url}{path}"));
            let answer = request.header("authorization", "Bearer s3cret").send().await;
            assert_eq!(answer.status(), expected, "{path}");
        }
        let health = client.get(format!("{url}/healthz")).send().await;
        assert_eq!(health.status(), StatusCode::OK);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn planted_links_and_files_receive_no_session() {
    let dir = scratch();
    let (file, queue) = (dir.path().join("sessions"), dir.path().join("queue"));
    fs::create_dir(&queue).unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    // The names that an earlier version opened.
    symlink(&precious, dir.path().join("sessions.new")).unwrap();
    let args = ["--snapshot", file.to_str().unwrap(), "--spool", queue.to_str().unwrap()];
    let mut service = Service::start_with(&args);
    let client = Client::new();
    client.request(Method::PUT, format!("{}/sessions/ada", service.url)).send().await;
    service.signal("TERM");
    assert_eq!(service.wait(patience()).code(), Some(0));
    assert_eq!(fs::read(&precious).unwrap(), b"precious");

    // A link at the path itself is replaced and not followed.
    let snapshot = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&precious, &snapshot).unwrap();
    symlink(&precious, &file).unwrap();
    let mut service = Service::start_with(&args);
    client.request(Method::PUT, format!("{}/sessions/eve", service.url)).send().await;
    service.signal("TERM");
    assert_eq!(service.wait(patience()).code(), Some(0));
    assert_eq!(fs::read(&precious).unwrap(), snapshot);
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    assert_ne!(fs::read(&file).unwrap(), snapshot);
}

/// Another user plants files that it may read and write, under the names that an earlier version opened, and then tries
/// to read what the service has written.
#[tokio::test]
async fn another_user_of_the_machine_receives_no_session() {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !is_root {
        return skipped("an attack by another user on the service's snapshot: it needs root");
    }
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let as_another_user = |script: &str| {
        let status = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script])
            .current_dir(dir.path())
            .status()
            .expect("setpriv runs");
        status.success()
    };
    assert!(as_another_user("umask 0; : > sessions.new; : > .1.probe; chmod 666 sessions.new"));
    let file = dir.path().join("sessions");
    let mut service = Service::start_with(&["--snapshot", file.to_str().unwrap()]);
    let client = Client::new();
    client.request(Method::PUT, format!("{}/sessions/ada", service.url)).send().await;
    assert!(!as_another_user("cat sessions"), "readable while the service runs");
    service.signal("TERM");
    assert_eq!(service.wait(patience()).code(), Some(0));
    assert!(!as_another_user("cat sessions"));
    assert!(!as_another_user("echo forged > sessions"));
    assert!(!as_another_user("rm -f sessions && ! test -e sessions"));
    assert_eq!(fs::read(dir.path().join("sessions.new")).unwrap(), b"");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn half_open_requests_do_not_keep_others_out() {
    let service = Service::start_with(&["--connections-per-client", "20"]);
    let mut half_open = Vec::new();
    for _ in 0..60 {
        half_open.push(half_open_request(&service).await);
    }
    let client = Client::new();
    let answer = client.get(format!("{}/healthz", service.url)).send().await;
    assert_eq!(answer.status(), StatusCode::OK);
    // The oldest ones have been replaced.
    for stream in &mut half_open[..40] {
        assert_eq!(until_closed(stream).await, Vec::<u8>::new());
    }
}

#[tokio::test]
async fn connection_with_a_request_in_progress_is_not_replaced() {
    let service = Service::start_with(&["--max-connections", "2"]);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(service.address()).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        streams.push(stream);
    }
    let mut refused = half_open_request(&service).await;
    assert_eq!(until_closed(&mut refused).await, Vec::<u8>::new());
    drop(streams.pop());
    // As soon as the service has noticed that.
    let begin = Instant::now();
    loop {
        let mut stream = TcpStream::connect(service.address()).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let _ = stream.write_all(request).await;
        if until_closed(&mut stream).await.starts_with(b"HTTP/1.1 200") {
            break;
        }
        assert!(begin.elapsed() < patience(), "no connection is accepted any more");
    }
    // The other stream continues: the rest of its head follows.
    let mut rest = [0; 4];
    streams[0].read_exact(&mut rest).await.unwrap();
}

/// In real time, as the clients are.
#[tokio::test]
async fn slow_requests_end_in_time() {
    let service = Service::start();
    let begin = Instant::now();
    let mut head = half_open_request(&service).await;
    let mut body = TcpStream::connect(service.address()).await.unwrap();
    let request = b"PUT /sessions/ada HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx";
    body.write_all(request).await.unwrap();
    let mut idle = TcpStream::connect(service.address()).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();

    assert_eq!(until_closed(&mut head).await, Vec::<u8>::new());
    assert!(begin.elapsed() >= Duration::from_secs(9), "{:?}", begin.elapsed());
    assert!(until_closed(&mut idle).await.starts_with(b"HTTP/1.1 200"));
    let answer = until_closed(&mut body).await;
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    assert!(begin.elapsed() >= Duration::from_secs(29), "{:?}", begin.elapsed());
}

async fn half_open_request(service: &Service) -> TcpStream {
    let mut stream = TcpStream::connect(service.address()).await.unwrap();
    // It fails if the service has closed the connection already.
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ").await;
    stream
}

/// Returns the bytes up to the end of the connection.
async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(patience(), stream.read_to_end(&mut bytes)).await;
    // An error: the connection was reset.
    let _ = read.expect("the service closes the connection");
    bytes
}
