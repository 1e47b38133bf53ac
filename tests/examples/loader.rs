//! The example `loader`: what reaches the server is what its table says, and little of what was asked.

use std::process::Command;

use crate::example::example;

#[test]
fn little_of_what_is_asked_reaches_the_server() {
    let output = Command::new(example("loader")).output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("it says text");
    let line = |what: &str| -> Vec<usize> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(what));
        let figures = lines.map(|line| line.split_whitespace().map_while(|word| word.parse().ok()));
        figures.flatten().collect()
    };
    let [asked, requests, fresh, loaded, stale, failed] = line("a crowd")[..] else {
        panic!("{said}")
    };
    assert_eq!((asked, requests, fresh + loaded, stale, failed), (10_000, 100, 10_000, 0, 0));

    // asked, requests, fresh, loaded, stale, failed. Who looked for an error just before it was kept may load too: that
    // is one for each thread.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (what, figures) in [
        ("a page not there", [1_000, 1, 0, 0, 0, 1_000]),
        ("a server that hangs", [2_001, 2, 1_000, 1, 1_000, 0]),
        ("a server that fails", [1_001, 2, 0, 1, 1_000, 0]),
        ("a server that is gone", [1_001, 1, 0, 1, 500, 500]),
    ] {
        let mut line = line(what);
        assert!((figures[1]..=figures[1] + threads).contains(&line[1]), "{said}");
        line[1] = figures[1];
        assert_eq!(line, figures, "{said}");
    }

    let [asked, requests, fresh, loaded, stale, failed] = line("a page always asked")[..] else {
        panic!("{said}")
    };
    assert!(requests >= 5 && loaded >= 1 && asked > requests, "{said}");
    assert_eq!((fresh + loaded, stale, failed), (asked, 0, 0), "{said}");
    assert!(said.contains("/nowhere: 404 Not Found"), "{said}");
}
