//! What Prometheus itself says of a page of figures.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Panics where `promtool check metrics` finds anything to say.
pub(crate) fn ask_promtool(page: &str) {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/promtool/promtool");
    let promtool = if Path::new(own).exists() { own } else { "promtool" };
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is no promtool: run scripts/prometheus.sh");
    child.stdin.take().expect("it is piped").write_all(page.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "promtool says:\n{said}\nof:\n{page}");
}
