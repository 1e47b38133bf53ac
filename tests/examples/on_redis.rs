//! Tests of the example `on_redis`: two processes share a value, a limit and a job.

use std::process::Command;

use crate::{example::example, servers::Server};

fn run(url: &str) -> Vec<String> {
    let output = Command::new(example("on_redis")).arg(url).output().expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    stdout.lines().map(str::to_owned).collect()
}

#[test]
fn second_process_continues_where_the_first_has_ended() {
    let server = Server::start();
    let first = run(&server.url());
    assert!(first[0].starts_with("rate: 1.08, loaded by process "), "{first:?}");
    assert_eq!(first[1..], ["admitted, 2 left", "admitted, 1 left", "job mail, attempt 1"]);

    let second = run(&server.url());
    assert_eq!(second[0], first[0], "the value of the first process");
    assert_eq!(second[1], "admitted, 0 left");
    assert!(second[2].starts_with("denied: over the limit of "), "{second:?}");
    assert_eq!(second[3..], ["job mail, attempt 2"]);

    let third = run(&server.url());
    assert_eq!(third[3..], ["job mail, attempt 1"], "the second process has done the job");
}

#[test]
fn unreachable_server_is_an_error() {
    let output = Command::new(example("on_redis")).arg("redis://127.0.0.1:1").output();
    let output = output.expect("the example runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("Connect"), "{stderr}");
}
