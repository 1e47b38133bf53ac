//! Check of a metrics page by Prometheus' own tool.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Panics if `promtool check metrics` reports any problem.
pub(crate) fn ask_promtool(page: &str) {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/promtool/promtool");
    let promtool = if Path::new(own).exists() { own } else { "promtool" };
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not installed: run scripts/prometheus.sh");
    child
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(page.as_bytes())
        .expect("promtool reads its stdin");
    let output = child.wait_with_output().expect("promtool exits");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.is_empty(),
        "promtool reports:\n{stderr}\nabout:\n{page}"
    );
}
