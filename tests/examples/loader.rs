//! Tests of the example `loader`: few calls reach the server, and the numbers in its table are as expected.

use std::process::Command;

use crate::example::example;

#[test]
fn few_calls_reach_the_server() {
    let output = Command::new(example("loader")).output().expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let line = |what: &str| -> Vec<usize> {
        let lines = stdout.lines().filter_map(|line| line.strip_prefix(what));
        let numbers = lines.map(|line| line.split_whitespace().map_while(|word| word.parse().ok()));
        numbers.flatten().collect()
    };
    let [calls, requests, fresh, loaded, stale, failed] = line("cold cache")[..] else {
        panic!("{stdout}")
    };
    assert_eq!((calls, requests, fresh + loaded, stale, failed), (10_000, 100, 10_000, 0, 0));

    // Calls, requests, fresh, loaded, stale, failed. Callers that looked up the key just before the error was cached
    // may load, too: at most one per thread.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (what, numbers) in [
        ("missing page", [1_000, 1, 0, 0, 0, 1_000]),
        ("hanging server", [2_001, 2, 1_000, 1, 1_000, 0]),
        ("failing server", [1_001, 2, 0, 1, 1_000, 0]),
        ("stopped server", [1_001, 1, 0, 1, 500, 500]),
    ] {
        let mut line = line(what);
        assert!((numbers[1]..=numbers[1] + threads).contains(&line[1]), "{stdout}");
        line[1] = numbers[1];
        assert_eq!(line, numbers, "{stdout}");
    }

    let [calls, requests, fresh, loaded, stale, failed] = line("popular page")[..] else {
        panic!("{stdout}")
    };
    assert!(requests >= 5 && loaded >= 1 && calls > requests, "{stdout}");
    assert_eq!((fresh + loaded, stale, failed), (calls, 0, 0), "{stdout}");
    assert!(stdout.contains("/nowhere: 404 Not Found"), "{stdout}");
}
