//! The example `tower_sessions`: sessions live as long as somebody comes, and their end is told.

use std::process::Command;

use crate::example::example;

#[test]
fn sessions_slide_and_end() {
    let output = Command::new(example("tower_sessions")).output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("it says text");
    let lines: Vec<_> = said.lines().collect();
    let expected = [
        "visit 1",
        "visit 2",
        "visit 3",
        "a session ends after 3 visits",
        "visit 1",
        "1 session is here",
    ];
    assert_eq!(lines, expected);
}
