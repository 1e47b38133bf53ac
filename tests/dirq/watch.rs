//! Streams that wait for new elements: woken by the system, woken by the timer, and shared.

use std::{
    collections::BTreeSet,
    env, fs,
    future::poll_fn,
    os::unix::fs::{PermissionsExt, chown},
    pin::pin,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::dirq::{Element, Purge, QueueSimple};
use rustix::fs::inotify;
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use super::{
    locked::{HOUR, normal, queue},
    tempdir,
};
use crate::{
    WATCHES,
    clock::{in_time, ms},
    directory::{add_two_at_once, make_old, name, run_alone, test_name, tree},
    patience::patience,
    skipped::skipped,
};

#[tokio::test]
async fn watch_wakes_when_an_element_is_added() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    // The interval is long, so only the system can wake it.
    let mut locks = queue.watch(HOUR);
    for i in 0..3 {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        // From another handle, possibly into a new directory.
        let other =
            QueueSimple::builder(queue.path()).granularity(Duration::ZERO).open().await.unwrap();
        let added = other.add(i.to_string()).await.unwrap();
        let lock =
            timeout(patience(), locks.next()).await.expect("the stream wakes").unwrap().unwrap();
        assert_eq!((lock.name(), &lock.value()[..]), (&added, i.to_string().as_bytes()));
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn watch_of_a_normal_queue_wakes() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = normal().await;
    let mut locks = queue.watch(HOUR);
    for body in ["a", "b"] {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        let added = queue.add(Element::new().with("body", body)).await.unwrap();
        let lock =
            timeout(patience(), locks.next()).await.expect("the stream wakes").unwrap().unwrap();
        assert_eq!(lock.name(), &added);
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn watch_scans_at_its_interval() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    assert!(queue.lock(&added).await.unwrap());
    let mut locks = queue.watch(Duration::from_millis(20));
    assert!(
        timeout(Duration::from_millis(100), locks.next()).await.is_err(),
        "the element is locked"
    );
    // Unlocking an element does not wake the stream.
    queue.unlock(&added).await.unwrap();
    let lock = timeout(patience(), locks.next())
        .await
        .expect("the stream scans the queue")
        .unwrap()
        .unwrap();
    assert_eq!(lock.name(), &added);
}

/// Runs the test `without_watches` of this binary on a system without free watches: in a user namespace or, if that is
/// not available, after taking all of them.
#[test]
fn watch_falls_back_to_polling_without_system_watches() {
    let limit = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$@""#;
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "sh", "-c", limit, "sh"]);
        command
    };
    let is_limited = namespace().arg("true").output().is_ok_and(|output| output.status.success());
    let _takes_all = (!is_limited).then(|| WATCHES.blocking_write());
    let command = if is_limited { namespace() } else { Command::new("env") };
    run_alone(command, &test_name(module_path!(), "without_watches"));
}

#[tokio::test]
#[ignore = "it is started by the test of a system without watches"]
async fn without_watches() {
    // The limit per user is usually a few hundred. If there is no limit, nothing can fail here, and the timer suffices
    // anyway.
    let mut taken = Vec::new();
    while taken.len() < 300
        && let Ok(instance) = inotify::init(inotify::CreateFlags::CLOEXEC)
    {
        taken.push(instance);
    }
    // The second interval is longer than the pause before the system is tried again.
    for (every, adds) in [(Duration::from_millis(20), 3), (Duration::from_secs(3), 1)] {
        let (_dir, queue) = queue().await;
        let mut locks = queue.watch(every);
        for i in 0..adds {
            assert!(
                timeout(Duration::from_millis(50), locks.next()).await.is_err(),
                "nothing is there"
            );
            let added = queue.add(i.to_string()).await.unwrap();
            let lock = timeout(patience(), locks.next())
                .await
                .expect("the stream scans the queue")
                .unwrap()
                .unwrap();
            assert_eq!(lock.name(), &added);
            lock.ack().await.unwrap();
        }
    }
}

/// Runs the test `with_watches_after_a_failure` of this binary on a system whose watches are all taken, until the test
/// frees them.
#[test]
fn watch_uses_the_system_again_after_a_failure() {
    let limit = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$@""#;
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "sh", "-c", limit, "sh"]);
        command
    };
    if !namespace().arg("true").output().is_ok_and(|output| output.status.success()) {
        skipped("tests with a limited number of watches: they need user namespaces");
        return;
    }
    run_alone(namespace(), &test_name(module_path!(), "with_watches_after_a_failure"));
}

#[tokio::test]
#[ignore = "it is started by the test of a system whose watches fail at first"]
async fn with_watches_after_a_failure() {
    let (_dir, queue) = queue().await;
    let mut locks = queue.watch(HOUR);
    assert!(timeout(Duration::from_millis(50), locks.next()).await.is_err(), "nothing is there");
    fs::write("/proc/sys/user/max_inotify_instances", "128").unwrap();
    let added = queue.add("x").await.unwrap();
    let lock = timeout(patience(), locks.next()).await.expect("the stream wakes").unwrap().unwrap();
    assert_eq!(lock.name(), &added);
}

#[tokio::test]
async fn watch_wakes_in_a_directory_that_replaced_the_queue() {
    let _has_watches = WATCHES.read().await;
    let (dir, queue) = queue().await;
    let mut locks = queue.watch(HOUR);
    for i in 0..2 {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        // As a backup that is restored.
        fs::rename(queue.path(), dir.path().join(format!("old {i}"))).unwrap();
        fs::create_dir(queue.path()).unwrap();
        for body in ["a", "b"] {
            let added = queue.add(body).await.unwrap();
            let lock = timeout(patience(), locks.next())
                .await
                .expect("the stream wakes")
                .unwrap()
                .unwrap();
            assert_eq!(lock.name(), &added);
            lock.ack().await.unwrap();
        }
    }
}

/// As a program that deletes all: some file systems give the new directory the inode of the deleted one.
#[tokio::test]
async fn watch_wakes_in_a_directory_that_was_deleted_and_created_again() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    let mut locks = queue.watch(HOUR);
    for body in ["a", "b", "c"] {
        let next = timeout(Duration::from_millis(50), locks.next());
        assert!(next.await.is_err(), "nothing is there");
        fs::remove_dir_all(queue.path()).unwrap();
        fs::create_dir(queue.path()).unwrap();
        let next = timeout(Duration::from_millis(50), locks.next());
        assert!(next.await.is_err(), "nothing is there");
        let added = queue.add(body).await.unwrap();
        let lock = timeout(patience(), locks.next()).await.expect("the stream wakes");
        let lock = lock.unwrap().unwrap();
        assert_eq!(lock.name(), &added);
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn failed_job_of_another_task_is_delivered_again_after_its_backoff() {
    let dir = tempdir().unwrap();
    let backoff = Duration::from_millis(100);
    let queue = QueueSimple::builder(dir.path()).backoff(backoff, backoff).open().await.unwrap();
    queue.add("x").await.unwrap();
    let mut jobs = queue.watch(HOUR);
    for attempt in 1..=3 {
        let job = timeout(patience(), jobs.next())
            .await
            .expect("the stream wakes at the end of the backoff")
            .unwrap()
            .unwrap();
        assert_eq!(job.attempts(), attempt);
        // It fails while the stream waits.
        tokio::spawn(async move {
            sleep(Duration::from_millis(50)).await;
            drop(job);
        });
    }
}

#[tokio::test]
async fn turn_of_a_stream_that_is_not_polled_goes_to_another() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    let mut first = queue.watch(HOUR);
    let mut second = queue.watch(HOUR);
    for stream in [&mut first, &mut second] {
        assert!(timeout(Duration::from_millis(100), stream.next()).await.is_err());
    }
    // The stream that waits for longest is not polled any more, but not dropped either.
    for body in ["a", "b"] {
        let added = queue.add(body).await.unwrap();
        let job = timeout(patience(), second.next()).await.expect("it is woken").unwrap().unwrap();
        assert_eq!(job.name(), &added);
        job.ack().await.unwrap();
    }
    drop(second);
    let added = queue.add("c").await.unwrap();
    let job = timeout(patience(), first.next()).await.expect("it is woken").unwrap().unwrap();
    assert_eq!(job.name(), &added);
}

#[tokio::test]
async fn waiting_streams_share_a_burst_of_elements() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..8 {
        let (mut jobs, sender) = (queue.watch(HOUR), sender.clone());
        tokio::spawn(async move {
            // Works on its first job forever.
            let job = jobs.next().await.unwrap().unwrap();
            sender.send(*job.name()).unwrap();
            std::future::pending::<()>().await;
            drop((job, jobs));
        });
    }
    sleep(Duration::from_millis(200)).await;
    let mut names = queue.add_many((0..8).map(|i| i.to_string())).await.unwrap();
    let mut found = Vec::new();
    while found.len() < 8 {
        let next = timeout(patience(), received.recv()).await;
        found.push(next.expect("each stream has one of the elements").unwrap());
    }
    found.sort();
    names.sort();
    assert_eq!(found, names);
}

#[tokio::test]
async fn waiting_stream_finds_a_revived_element() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_attempts(1).open().await.unwrap();
    for delay in [Duration::ZERO, Duration::from_millis(50)] {
        let added = queue.add("x").await.unwrap();
        let mut jobs = queue.watch(HOUR);
        drop(jobs.next().await.unwrap().unwrap());
        assert!(timeout(Duration::from_millis(100), jobs.next()).await.is_err(), "it is dead");
        assert!(queue.revive(&added, delay).await.unwrap());
        let job = timeout(patience(), jobs.next()).await.expect("the stream wakes");
        job.unwrap().unwrap().ack().await.unwrap();
    }
}

#[tokio::test]
async fn waiting_stream_finds_an_element_whose_lock_was_purged() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    assert!(queue.lock(&added).await.unwrap());
    let mut jobs = queue.watch(HOUR);
    assert!(timeout(Duration::from_millis(100), jobs.next()).await.is_err(), "it is locked");
    make_old(&queue.path().join(format!("{added}.lck")), HOUR);
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert_eq!(other.purge(Purge::default()).await.unwrap().locks, 1);
    let job = timeout(patience(), jobs.next()).await.expect("the stream wakes").unwrap().unwrap();
    assert_eq!(job.name(), &added);
}

/// The path of the queue in the processes that have a directory that they cannot read.
const UNREADABLE: &str = "FLEETING_TEST_UNREADABLE";

/// Runs the test `with_an_unreadable_directory` of this binary as a user who may not read one of the directories.
#[tokio::test]
async fn unreadable_directory_does_not_end_the_watch_of_the_others() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    let unreadable = queue.path().join("00000000");
    fs::create_dir(&unreadable).unwrap();
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    // A root user may read everything, except in a namespace that does not contain the owner.
    let mut command = Command::new("env");
    if chown(&unreadable, Some(1), Some(1)).is_ok() {
        command = Command::new("unshare");
        command.arg("-r");
        if !Command::new("unshare")
            .args(["-r", "true"])
            .status()
            .is_ok_and(|status| status.success())
        {
            skipped("tests of directories without permissions: as root, they need user namespaces");
            return;
        }
    }
    command.env(UNREADABLE, queue.path());
    let run =
        move || run_alone(command, &test_name(module_path!(), "with_an_unreadable_directory"));
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test]
#[ignore = "it is started by the test of an unreadable directory"]
async fn with_an_unreadable_directory() {
    let queue = QueueSimple::open(env::var(UNREADABLE).unwrap()).await.unwrap();
    let mut jobs = queue.watch(HOUR);
    let mut errors = 0;
    while let Ok(next) = timeout(Duration::from_millis(100), jobs.next()).await {
        next.unwrap().unwrap_err();
        errors += 1;
    }
    assert!(errors > 0, "the directory can be read");
    let added = queue.add("x").await.unwrap();
    loop {
        let next = timeout(patience(), jobs.next()).await.expect("the stream wakes");
        if let Ok(job) = next.unwrap() {
            break assert_eq!(job.name(), &added);
        }
    }
}

/// Runs the test `with_two_watches` of this binary on a system with two watches.
#[test]
fn watch_uses_the_watches_that_are_left() {
    let limit = r#"echo 2 > /proc/sys/user/max_inotify_watches && exec "$@""#;
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "sh", "-c", limit, "sh"]);
        command
    };
    if !namespace().arg("true").output().is_ok_and(|output| output.status.success()) {
        skipped("tests with a limited number of watches: they need user namespaces");
        return;
    }
    run_alone(namespace(), &test_name(module_path!(), "with_two_watches"));
}

#[tokio::test]
#[ignore = "it is started by the test of a system with two watches"]
async fn with_two_watches() {
    let (dir, queue) = queue().await;
    // The watches suffice for the queue itself and one of the directories.
    for directory in ["00000001", "00000002", "00000003"] {
        fs::create_dir(queue.path().join(directory)).unwrap();
    }
    let mut jobs = queue.watch(HOUR);
    assert!(timeout(Duration::from_millis(100), jobs.next()).await.is_err(), "nothing is there");
    let mut names = add_two_at_once(&queue, dir.path()).await;
    names.reverse();
    while let Some(added) = names.pop() {
        let next = timeout(patience(), jobs.next()).await.expect("the stream wakes");
        let job = next.unwrap().unwrap();
        assert_eq!(job.name(), &added);
        job.ack().await.unwrap();
    }
}

#[tokio::test]
async fn elements_that_fail_do_not_circle_between_waiting_streams() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    let deliveries = Arc::new(AtomicU32::new(0));
    for _ in 0..4 {
        let (mut jobs, deliveries) = (queue.watch(HOUR), deliveries.clone());
        tokio::spawn(async move {
            while let Some(job) = jobs.next().await {
                deliveries.fetch_add(1, Relaxed);
                drop(job);
            }
        });
    }
    sleep(Duration::from_millis(100)).await;
    queue.add_many(["a", "b", "c"]).await.unwrap();
    let begin = Instant::now();
    while deliveries.load(Relaxed) < 3 {
        assert!(begin.elapsed() < patience(), "an element is not delivered");
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(500)).await;
    let deliveries = deliveries.load(Relaxed);
    assert!(deliveries < 100, "three elements were delivered {deliveries} times");
}

/// Runs the test `many_idle_streams` of this binary in a process whose watches can be counted.
#[cfg(target_os = "linux")]
#[test]
fn idle_streams_share_one_watch_and_do_not_wake_for_each_element() {
    let _has_watches = WATCHES.blocking_read();
    run_alone(Command::new("env"), &test_name(module_path!(), "many_idle_streams"));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is started by the test of idle streams"]
async fn many_idle_streams() {
    in_time(async || {
        let (few, many) = (polls_of_jobs(2).await, polls_of_jobs(64).await);
        println!("{JOBS} jobs: {few} polls of 2 streams, {many} of 64");
        assert!(many < 2 * few + JOBS, "{many} polls of 64 streams, {few} of 2");
    })
    .await;
}

/// Number of jobs that wake a stream each.
#[cfg(target_os = "linux")]
const JOBS: u32 = 40;

/// Returns how often `streams` idle streams are polled while they do all jobs, one after another.
#[cfg(target_os = "linux")]
async fn polls_of_jobs(streams: usize) -> u32 {
    let (_dir, queue) = queue().await;
    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    let polls = Arc::new(AtomicU32::new(0));
    let mut workers = Vec::new();
    for _ in 0..streams {
        // Each opens the queue separately.
        let worker = QueueSimple::open(queue.path()).await.unwrap();
        let (sender, polls) = (sender.clone(), polls.clone());
        workers.push(tokio::spawn(async move {
            let mut jobs = worker.watch(HOUR);
            loop {
                let mut next = pin!(jobs.next());
                let job = poll_fn(|cx| {
                    polls.fetch_add(1, Relaxed);
                    next.as_mut().poll(cx)
                });
                let job = job.await.unwrap().unwrap();
                let name = *job.name();
                job.ack().await.unwrap();
                sender.send(name).unwrap();
            }
        }));
    }
    sleep(ms(500)).await;
    let watches = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let watches = watches.filter_map(|fd| fs::read_link(fd.path()).ok());
    let watches = watches.filter(|target| target.to_string_lossy().contains("inotify")).count();
    assert_eq!(watches, 1, "{streams} streams share one watch");
    let before = polls.load(Relaxed);
    for i in 0..JOBS {
        let added = queue.add(i.to_string()).await.unwrap();
        let next = timeout(patience(), done.recv()).await.expect("a stream wakes");
        assert_eq!(next, Some(added));
        // The other streams fall asleep again.
        sleep(ms(20)).await;
    }
    let polls = polls.load(Relaxed) - before;
    for worker in workers {
        worker.abort();
        let _ = worker.await;
    }
    polls
}

#[tokio::test]
async fn watch_purges_the_locks_of_killed_workers() {
    let dir = tempdir().unwrap();
    let purge = Purge::default().max_lock(Duration::from_secs(60));
    let builder = QueueSimple::builder(dir.path()).purge_every(Duration::from_millis(50), purge);
    let queue = builder.open().await.unwrap();
    let names = queue.add_many(["killed", "working"]).await.unwrap();
    for name in &names {
        assert!(queue.lock(name).await.unwrap());
    }
    let mut jobs = queue.watch(HOUR);
    assert!(timeout(Duration::from_millis(150), jobs.next()).await.is_err(), "both are locked");
    make_old(&dir.path().join(format!("{}.lck", names[0])), HOUR);
    let job =
        timeout(patience(), jobs.next()).await.expect("the queue is purged").unwrap().unwrap();
    assert_eq!(job.name(), &names[0]);
    job.ack().await.unwrap();
    assert!(timeout(Duration::from_millis(150), jobs.next()).await.is_err(), "its lock is young");
}

#[tokio::test]
async fn unlocked_element_is_delivered_again_after_the_interval() {
    let (_dir, queue) = queue().await;
    queue.add("fails").await.unwrap();
    let mut locks = queue.watch(Duration::from_millis(100));
    drop(locks.next().await.unwrap().unwrap());
    let start = Instant::now();
    for _ in 0..3 {
        drop(
            timeout(patience(), locks.next())
                .await
                .expect("the element is delivered again")
                .unwrap()
                .unwrap(),
        );
    }
    assert!(start.elapsed() >= Duration::from_millis(200), "the element is retried in a busy loop");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_watchers_share_the_elements() {
    let dir = tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut workers = Vec::new();
    for _ in 0..4 {
        // Each opens the queue separately, like another process.
        let queue = QueueSimple::open(dir.path()).await.unwrap();
        let seen = seen.clone();
        workers.push(tokio::spawn(async move {
            let mut locks = queue.watch(Duration::from_millis(100));
            loop {
                let lock = locks.next().await.unwrap().unwrap();
                seen.lock().await.push(lock.value().clone());
                lock.ack().await.unwrap();
            }
        }));
    }
    let queue = QueueSimple::builder(dir.path()).granularity(Duration::ZERO).open().await.unwrap();
    for i in 0..50 {
        queue.add_many((0..20).map(|j| format!("{}", i * 20 + j))).await.unwrap();
    }
    let deadline = Instant::now() + patience();
    while queue.count().await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "the watchers make no progress");
        sleep(Duration::from_millis(5)).await;
    }
    for worker in workers {
        worker.abort();
        let _ = worker.await;
    }
    let seen = seen.lock().await;
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!((distinct.len(), seen.len()), (1_000, 1_000), "elements were lost or duplicated");
    assert!(tree(dir.path()).iter().all(|path| path.ends_with('/')));
}

#[tokio::test]
async fn watch_continues_after_an_error() {
    let (_dir, queue) = queue().await;
    // A file in the place of the queue.
    fs::remove_dir(queue.path()).unwrap();
    fs::write(queue.path(), "").unwrap();
    let mut locks = queue.watch(Duration::from_millis(20));
    for _ in 0..2 {
        timeout(patience(), locks.next()).await.unwrap().unwrap().unwrap_err();
    }
    fs::remove_file(queue.path()).unwrap();
    let added = queue.add("x").await.unwrap();
    loop {
        match timeout(patience(), locks.next()).await.unwrap().unwrap() {
            Ok(lock) => break assert_eq!(lock.name(), &added),
            Err(_) => continue,
        }
    }
    assert!(name("00000000/00000000000000") < added);
}
