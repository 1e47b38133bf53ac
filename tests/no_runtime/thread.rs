//! The thread itself: one for all, started by the first cache, ended after the last one.

use std::{fs, process::Command, time::Duration};

use fleeting::{Cache, Limit, RateLimiter};

use crate::wait_until::wait_until;

/// Name of the environment variable by which this test runs itself in a process of its own.
const ALONE: &str = "FLEETING_TEST_ALONE";

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists the threads");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "fleeting").count()
}

/// In a process of its own, because all tests of a process share the thread.
#[test]
fn thread_is_shared_and_ends_after_its_last_user() {
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["--exact", "thread::thread_is_shared_and_ends_after_its_last_user"]);
        let output = command.env(ALONE, "1").output().expect("this program starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    assert_eq!(threads(), 0);
    for _ in 0..2 {
        let caches: Vec<Cache<u64, u64>> =
            (0..100).map(|_| Cache::builder().background_thread().build()).collect();
        let limiter =
            RateLimiter::<u64>::builder().limit(Limit::per_second(1)).background_thread().build();
        wait_until("there is a thread", || threads() == 1);
        drop(caches);
        // Longer than the thread lingers: the limiter keeps it.
        std::thread::sleep(Duration::from_secs(11));
        assert_eq!(threads(), 1);
        // It still works.
        let cache = Cache::builder().background_thread().build();
        cache.sync().set_ex(1, 1, Duration::from_millis(1));
        wait_until("the entry is swept", || cache.is_empty());
        drop((cache, limiter));
        wait_until("the thread has ended", || threads() == 0);
    }
}
