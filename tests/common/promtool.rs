//! Checks of a metrics page and of alert rules by Prometheus' own tool.

// Each test binary compiles its own copy of this module and uses a part of it.
#![allow(dead_code)]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Panics if `promtool check metrics` reports any problem.
pub(crate) fn ask_promtool(page: &str) {
    promtool(&["metrics"], page);
}

/// Panics if `promtool check rules` reports any problem.
pub(crate) fn check_rules(rules: &str) {
    // Older versions read rules only from files.
    promtool(&["rules", "/dev/stdin"], rules);
}

fn promtool(check: &[&str], text: &str) {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/promtool/promtool");
    let promtool = if Path::new(own).exists() { own } else { "promtool" };
    let mut child = Command::new(promtool)
        .arg("check")
        .args(check)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not installed: run scripts/prometheus.sh");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(text.as_bytes()).expect("promtool reads its stdin");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool exits");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.is_empty(),
        "promtool reports:\n{stderr}{}\nabout:\n{text}",
        String::from_utf8_lossy(&output.stdout)
    );
}
