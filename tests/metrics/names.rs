//! Several objects with the same name are reported once, because their metrics are summed.

use std::{env, process::Command};

use fleeting::{Cache, ExpiringSet, Limit, RateLimiter, TimeoutDict};
use tracing::Level;

use crate::{SECOND, log::Log};

const MESSAGE: &str = "several objects have the same name, their metrics are summed";

#[tokio::test(start_paused = true)]
async fn second_cache_of_a_name_is_reported_once() {
    let (log, _guard) = Log::start(Level::WARN);
    let cache = || Cache::<u32, u32>::builder().name("reported twin").build();
    let first = cache();
    let _other = Cache::<u32, u32>::builder().name("reported twin 2").build();
    assert_eq!(log.lines(MESSAGE), [""; 0]);
    let second = cache();
    let lines = log.lines(MESSAGE);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN", "kind=\"cache\"", "name=\"reported twin\""] {
        assert!(lines[0].contains(part), "{part} is not in {lines:?}");
    }
    let third = cache();
    drop((first, second, third));
    let _again = [cache(), cache()];
    assert_eq!(log.lines(MESSAGE).len(), 1);
}

/// Any test of this process may have reported the default name already, so the caches are built in another one.
#[test]
fn default_name_is_reported_once_too() {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "names::two_caches_of_the_default_name", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let lines: Vec<_> = output.lines().filter(|line| line.contains(MESSAGE)).collect();
    assert!(child.status.success() && lines.len() == 1, "{output}");
    for part in ["WARN", "kind=\"cache\"", "name=\"cache\""] {
        assert!(lines[0].contains(part), "{part} is not in {lines:?}");
    }
}

#[tokio::test]
#[ignore = "it is started by the test above, in a process of its own"]
async fn two_caches_of_the_default_name() {
    let (log, _guard) = Log::start(Level::WARN);
    let _three = [(); 3].map(|()| Cache::<u32, u32>::new());
    for line in log.lines("") {
        println!("{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn second_limiter_set_and_dict_of_a_name_are_reported() {
    let (log, _guard) = Log::start(Level::WARN);
    // The same name for different kinds is fine.
    let limiter = || RateLimiter::<u32>::builder().name("same").limit(Limit::per_second(1)).build();
    let set = || ExpiringSet::<u32>::builder(SECOND).name("same").build();
    let dict = || TimeoutDict::<u32, u32>::builder().name("same").build();
    let _first = (limiter(), set(), dict());
    assert_eq!(log.lines(MESSAGE), [""; 0]);
    let _second = (limiter(), set(), dict());
    let lines = log.lines(MESSAGE);
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (kind, line) in ["limiter", "set", "timeout dict"].iter().zip(&lines) {
        assert!(line.contains(&format!("kind=\"{kind}\"")), "{line}");
    }
}
