//! Tests of the example `tower_sessions`: requests extend a session, and its expiry is an event.

use std::process::Command;

use crate::example::example;

#[test]
fn requests_extend_a_session_until_it_expires() {
    let output = Command::new(example("tower_sessions")).output().expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let lines: Vec<_> = stdout.lines().collect();
    let expected = [
        "visit 1",
        "visit 2",
        "visit 3",
        "session expired after 3 visits",
        "visit 1",
        "live sessions: 1",
    ];
    assert_eq!(lines, expected);
}
