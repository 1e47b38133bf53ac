//! Tests of the example `server_stats`, against the statistics of this machine.

use std::process::{Command, Stdio};

use crate::example::example;

#[test]
fn output_has_the_load_and_the_page_faults_of_this_machine() {
    let mut example = Command::new(example("server_stats"));
    let example = example.arg("2").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut example = example.spawn().expect("the example runs");
    let before = page_faults();
    while example.try_wait().expect("a child process").is_none() {
        Command::new("true").status().expect("a process that causes page faults");
    }
    // The kernels of some sandboxes have the counter, but never increment it.
    let counted = page_faults() > before;
    let output = example.wait_with_output().expect("the example exits");
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "exited with {}: {stderr}", output.status);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[0], "3 samples in the last two minutes");
    let [mean, max] = numbers(lines[1]);
    assert!(lines[1].starts_with("load: ") && 0.0 <= mean && mean <= max + 0.01, "{stdout}");
    let [faults] = numbers(lines[2]);
    assert!(lines[2].starts_with("page faults: ") && (faults > 0.0) == counted, "{stdout}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn invalid_argument_is_reported() {
    let output =
        Command::new(example("server_stats")).arg("soon").output().expect("the example runs");
    assert!(
        !output.status.success()
            && String::from_utf8_lossy(&output.stderr).contains("InvalidDigit")
    );
}

fn page_faults() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").expect("/proc/vmstat exists");
    let line = counts.lines().find_map(|line| line.strip_prefix("pgfault "));
    line.expect("/proc/vmstat has a line pgfault").parse().expect("a number")
}

fn numbers<const N: usize>(line: &str) -> [f64; N] {
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|numbers| panic!("{line:?} has the numbers {numbers:?}"))
}
