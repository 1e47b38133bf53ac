//! The example `server_stats`, on this machine's own figures.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;

#[test]
fn it_tells_the_load_and_the_page_faults_of_this_machine() {
    let output = Command::new(common::example("server_stats")).arg("2").output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("it says words");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it ended with {}: {complaint}", output.status);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "3 samples of the last two minutes");
    let [mean, max] = numbers(lines[1]);
    assert!(lines[1].starts_with("load: ") && 0.0 <= mean && mean <= max + 0.01, "{said}");
    let [faults] = numbers(lines[2]);
    assert!(lines[2].starts_with("page faults: ") && faults > 0.0, "{said}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn it_says_what_it_does_not_understand() {
    let output =
        Command::new(common::example("server_stats")).arg("soon").output().expect("it runs");
    assert!(
        !output.status.success()
            && String::from_utf8_lossy(&output.stderr).contains("InvalidDigit")
    );
}

fn numbers<const N: usize>(line: &str) -> [f64; N] {
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|numbers| panic!("{line:?} has the numbers {numbers:?}"))
}
