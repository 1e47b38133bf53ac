//! The example `server_stats`, on this machine's own figures.

use std::process::{Command, Stdio};

use crate::example::example;

#[test]
fn it_tells_the_load_and_the_page_faults_of_this_machine() {
    let mut example = Command::new(example("server_stats"));
    let example = example.arg("2").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut example = example.spawn().expect("it runs");
    let before = page_faults();
    while example.try_wait().expect("it is ours").is_none() {
        Command::new("true").status().expect("a program that faults some pages in");
    }
    // Some sandboxes' kernels have the count, and leave it as it is.
    let counted = page_faults() > before;
    let output = example.wait_with_output().expect("it has run");
    let said = String::from_utf8(output.stdout).expect("it says words");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it ended with {}: {complaint}", output.status);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "3 samples of the last two minutes");
    let [mean, max] = numbers(lines[1]);
    assert!(lines[1].starts_with("load: ") && 0.0 <= mean && mean <= max + 0.01, "{said}");
    let [faults] = numbers(lines[2]);
    assert!(lines[2].starts_with("page faults: ") && (faults > 0.0) == counted, "{said}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn it_says_what_it_does_not_understand() {
    let output = Command::new(example("server_stats")).arg("soon").output().expect("it runs");
    assert!(
        !output.status.success()
            && String::from_utf8_lossy(&output.stderr).contains("InvalidDigit")
    );
}

fn page_faults() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").expect("Linux has it");
    let line = counts.lines().find_map(|line| line.strip_prefix("pgfault "));
    line.expect("it counts page faults").parse().expect("a number")
}

fn numbers<const N: usize>(line: &str) -> [f64; N] {
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|numbers| panic!("{line:?} has the numbers {numbers:?}"))
}
