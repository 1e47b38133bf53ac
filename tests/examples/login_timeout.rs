//! Tests of the example `login_timeout`: one of its two workers is killed, and each login is handled once.

use std::process::Command;

use crate::example::example;

#[test]
fn each_login_is_handled_once_if_a_worker_is_killed() {
    let output = Command::new(example("login_timeout")).output().expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let at = |what: &str| {
        let lines = stdout.lines().enumerate().filter(|(_, line)| line.ends_with(what));
        lines.map(|(at, _)| at).collect::<Vec<_>>()
    };

    for user in ["ada", "alan", "edsger", "barbara"] {
        assert_eq!(at(&format!(" finishes {user}")).len(), 1, "{user} in {stdout}");
    }
    assert_eq!(stdout.lines().filter(|line| line.contains(" finishes ")).count(), 4, "{stdout}");
    assert_eq!(at("grace").len(), 0, "a completed login is not handled: {stdout}");

    let [killed] = at("worker 1 is killed")[..] else {
        panic!("worker 1 is not killed once: {stdout}")
    };
    let [begun] = at("worker 1 starts edsger")[..] else {
        panic!("worker 1 has not started: {stdout}")
    };
    let [again] = at("worker 2 starts edsger")[..] else { panic!("the login is lost: {stdout}") };
    assert!(begun < killed && killed < again, "worker 1 was not killed during its work: {stdout}");
    assert!(at("worker 2 finishes edsger")[0] > again);
}
