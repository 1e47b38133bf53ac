//! The example `login_timeout`: one of its two workers is killed, and each login is handled once.

use std::process::Command;

use crate::example::example;

#[test]
fn each_login_is_handled_once_though_a_worker_is_killed() {
    let output = Command::new(example("login_timeout")).output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("it says text");
    let at = |what: &str| {
        let lines = said.lines().enumerate().filter(|(_, line)| line.ends_with(what));
        lines.map(|(at, _)| at).collect::<Vec<_>>()
    };

    for user in ["ada", "alan", "edsger", "barbara"] {
        assert_eq!(at(&format!(" has handled {user}")).len(), 1, "{user} in {said}");
    }
    assert_eq!(said.lines().filter(|line| line.contains(" has handled ")).count(), 4, "{said}");
    assert_eq!(at("grace").len(), 0, "who has logged in is not handled: {said}");

    let [killed] = at("worker 1 is killed")[..] else { panic!("it is not killed once: {said}") };
    let [begun] = at("worker 1 begins with edsger")[..] else {
        panic!("it is not at work: {said}")
    };
    let [again] = at("worker 2 begins with edsger")[..] else { panic!("it is lost: {said}") };
    assert!(begun < killed && killed < again, "it was not killed in mid-work: {said}");
    assert!(at("worker 2 has handled edsger")[0] > again);
}
