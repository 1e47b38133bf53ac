//! Tests of the examples that only print: their output.

use std::process::Command;

use crate::example::example;

/// Runs an example until it exits, and returns the lines that it printed.
pub(crate) fn lines_of(name: &str) -> Vec<String> {
    let output = Command::new(example(name)).output().expect("the example runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    stdout.lines().map(str::to_owned).collect()
}

#[test]
fn first_steps_read_extend_and_expire_a_value() {
    let expected = [
        r#"session: Some("Ada"), TTL Remaining(30s)"#,
        r#"motto:   Some("nothing lasts"), TTL Persistent"#,
        "",
        "after 15 s: the session is read, and its TTL is set to 30 s again",
        "after 45 s: None, Missing",
        r#"motto:   Some("nothing lasts")"#,
    ];
    assert_eq!(lines_of("first_steps"), expected);
}

#[test]
fn events_reach_a_lossless_stream_a_lagging_one_and_a_callback() {
    let lines = lines_of("events");
    let of = |subscriber: &str| {
        let lines = lines.iter().filter_map(|line| line.strip_prefix(subscriber));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    // "replaced" was written again with a TTL of one second.
    let expired = [("replaced", 2), ("first", 0), ("second", 0), ("third", 0)];
    assert_eq!(of("callback:"), expired.map(|(key, _)| format!("{key} has expired")));
    let mut lossless = vec!["replaced Replaced of 1".into(), "removed Removed of 3".into()];
    lossless.extend(expired.map(|(key, value)| format!("{key} Expired of {value}")));
    assert_eq!(of("lossless:"), lossless);
    let stream = of("stream:");
    assert!(stream[0].contains('3'), "three events are missed: {stream:?}");
    assert_eq!(stream.len(), 4);
    for (line, (key, _)) in stream[1..].iter().zip(&expired[1..]) {
        assert!(line.starts_with(&format!("{key} expired, lag ")), "{line}");
    }
}

#[test]
fn sweeps_with_custom_settings_remove_all_expired_entries() {
    let lines = lines_of("custom_sweep");
    assert_eq!(lines[4], "after 5 s  9000 in memory, 9000 live");
    let expired_in = |of: &str| -> u32 {
        let begin = lines.iter().position(|line| line.starts_with(of));
        let sweeps = &lines[begin.expect("the headline is printed") + 1..];
        let counts = sweeps.iter().take(4).map(|line| {
            let (_, count) = line.rsplit_once("expired ").expect("a line per sweep");
            count.trim().parse::<u32>().expect("a number")
        });
        counts.sum()
    };
    assert_eq!(expired_in("1000 of 10000 have expired"), 1_000);
    assert_eq!(expired_in("9000 of 10000 have expired"), 9_000);
}

/// An example that no test runs breaks unnoticed.
#[test]
fn every_example_has_a_test() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples");
    let tests: String = std::fs::read_dir(tests)
        .expect("the tests can be read")
        .map(|file| std::fs::read_to_string(file.expect("it exists").path()).expect("text"))
        .collect();
    let manifests =
        [include_str!("../../examples/Cargo.toml"), include_str!("../../benches/peers/Cargo.toml")];
    let mut count = 0;
    for manifest in manifests {
        for example in manifest.split("[[example]]\nname = \"").skip(1) {
            let (name, _) = example.split_once('"').expect("the name ends");
            assert!(tests.contains(&format!("\"{name}\"")), "no test runs the example {name}");
            count += 1;
        }
    }
    assert!(count >= 20, "{count} examples");
}
