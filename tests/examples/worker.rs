//! Tests of the example `worker`: retries, dead letters with reasons, and a shutdown during the work.

use std::process::Command;

use crate::example::example;

#[test]
fn failed_mails_are_retried_until_they_are_dead_letters_with_a_reason() {
    let output = Command::new(example("worker")).output().expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    // Between two attempts there is a random backoff, so only the order of the lines of one mail is fixed.
    let of = |to: &str| {
        let lines = stdout.lines().filter_map(|line| line.strip_prefix(&format!("{to}: ")));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("ada"), ["sent at attempt 1"]);
    let busy = "failed, 421 try again later";
    let expected =
        [&format!("attempt 1 {busy}"), &format!("attempt 2 {busy}"), "sent at attempt 3"];
    assert_eq!(of("bob"), expected);
    assert_eq!(of("eve"), [1, 2, 3].map(|n| format!("attempt {n} failed, 550 no such user")));
    assert_eq!(of("slow"), ["given back"]);
    let end: Vec<_> = stdout.lines().skip(8).collect();
    let dead = "dead: eve after 3 attempts, 550 no such user";
    assert_eq!(end, [dead, r#"due: ["slow", "eve"]"#]);
}
