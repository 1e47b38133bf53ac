//! Retries: failed elements are delivered again after a backoff, a limited number of times. Other implementations are
//! not affected.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    mem::forget,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fleeting::dirq::{Element, Error, Lock, Name, Purge, Queue, QueueSimple};
use futures::FutureExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{locked::HOUR, tempdir};
use crate::{
    clock::until_enough,
    directory::{all, make_old, python, tree},
    patience::patience,
};

pub(super) async fn open_counted(max_attempts: u32) -> (TempDir, QueueSimple) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("queue");
    (dir, open_other_process(path, max_attempts).await)
}

/// Opens the same queue like another process.
pub(super) async fn open_other_process(path: impl Into<PathBuf>, max_attempts: u32) -> QueueSimple {
    let queue = QueueSimple::builder(path.into()).max_attempts(max_attempts);
    queue.backoff(HOUR, HOUR).open().await.unwrap()
}

pub(super) fn record(queue: &QueueSimple, name: &Name) -> PathBuf {
    queue.path().join("retries").join(name.to_string().replace('/', "-"))
}

/// Returns the path of a dead letter's record.
fn dead_record(queue: &QueueSimple, name: &Name) -> PathBuf {
    queue.path().join("retries/dead").join(name.to_string().replace('/', "-"))
}

/// Returns the text of an element's record.
pub(super) fn record_text(queue: &QueueSimple, name: &Name) -> Option<String> {
    let text =
        fs::read_link(record(queue, name)).or_else(|_| fs::read_link(dead_record(queue, name)));
    Some(text.ok()?.to_str().unwrap().to_owned())
}

/// Returns the paths of all records and reasons, relative to their directory.
pub(super) fn record_files(queue: &Path) -> Vec<String> {
    tree(&queue.join("retries")).into_iter().filter(|path| !path.ends_with('/')).collect()
}

pub(super) fn write_record(queue: &QueueSimple, name: &Name, text: &str) {
    let record = record(queue, name);
    fs::remove_file(&record).unwrap();
    symlink(text, record).unwrap();
}

pub(super) async fn next(queue: &QueueSimple) -> Option<Lock<bytes::Bytes>> {
    queue.locked().next().await.transpose().unwrap()
}

fn seconds_from_now(micros: &str) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    micros.parse::<f64>().unwrap() / 1e6 - now
}

#[tokio::test]
async fn failed_element_waits_for_its_backoff_and_others_are_delivered() {
    let (_dir, queue) = open_counted(9).await;
    let bad = queue.add("bad").await.unwrap();
    let good = queue.add("good").await.unwrap();
    let mut tried = Vec::new();
    for _ in 0..3 {
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await.transpose().unwrap() {
            tried.push((*job.name(), job.attempts()));
            if job.value() == "good" {
                job.ack().await.unwrap();
            }
        }
    }
    assert_eq!(tried, [(bad, 1), (good, 1)]);
    let (attempts, due) =
        record_text(&queue, &bad).unwrap().split_once(' ').map(owned_pair).unwrap();
    assert_eq!(attempts, "1");
    let rest = seconds_from_now(&due);
    assert!((1_700.0..5_400.0).contains(&rest), "the backoff is {rest} s");
    assert_eq!(record_text(&queue, &good), None);

    // As if the backoff had ended.
    write_record(&queue, &bad, "1 1");
    let job = next(&queue).await.unwrap();
    assert_eq!((job.name(), job.attempts()), (&bad, 2));
    assert_eq!(
        record_text(&queue, &bad).as_deref(),
        Some("2 0"),
        "the delivery is recorded before the work is done"
    );
    job.ack().await.unwrap();
    assert!(record_files(queue.path()).is_empty());
}

fn owned_pair((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

#[tokio::test]
async fn default_backoff_is_one_second() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_attempts(3).open().await.unwrap();
    let name = queue.add("x").await.unwrap();
    for (attempt, least, most) in [(1, 0.5, 1.5), (2, 1.0, 3.0)] {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        let before = Instant::now();
        job.unlock().await.unwrap();
        let (_, due) = record_text(&queue, &name).unwrap().split_once(' ').map(owned_pair).unwrap();
        let rest = seconds_from_now(&due);
        let took = before.elapsed().as_secs_f64() + 0.01;
        assert!((least - took..most + 0.01).contains(&rest), "{attempt}: the backoff is {rest} s");
        write_record(&queue, &name, &format!("{attempt} 1"));
    }
}

#[tokio::test]
async fn dead_letter_is_skipped_until_revive() {
    let (_dir, queue) = open_counted(2).await;
    let name = queue.add("x").await.unwrap();
    for _ in 0..2 {
        next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    }
    assert_eq!(record_text(&queue, &name).as_deref(), Some("2 dead"));
    // All handles skip it, regardless of their settings.
    let other = QueueSimple::open(queue.path()).await.unwrap();
    for queue in [&queue, &other] {
        assert!(next(queue).await.is_none());
        assert_eq!((queue.dead_len().await.unwrap(), queue.count().await.unwrap()), (1, 1));
        assert_eq!(all(queue.names()).await, [name]);
        assert_eq!(queue.peek(&name).await.unwrap().unwrap(), "x");
    }
    for end in 0..3 {
        let mut dead = other.take_dead(9).await.unwrap();
        assert_eq!((dead.len(), dead[0].attempts(), &dead[0].value()[..]), (1, 2, &b"x"[..]));
        assert!(other.take_dead(9).await.unwrap().is_empty(), "the dead letter is locked");
        assert_eq!(other.dead_len().await.unwrap(), 1);
        let dead = dead.pop().unwrap();
        match end {
            0 => drop(dead),
            1 => dead.unlock().await.unwrap(),
            _ => dead.retry_in(Duration::ZERO).await.unwrap(),
        }
        assert_eq!(record_text(&queue, &name).as_deref(), Some("2 dead"), "{end}");
    }
    assert!(queue.revive(&name, HOUR).await.unwrap());
    assert!(!queue.revive(&name, HOUR).await.unwrap(), "the element is not dead");
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    assert!(next(&queue).await.is_none(), "the element waits for its delay");
    write_record(&queue, &name, "0 1");
    for attempt in 1..=2 {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        job.retry_in(Duration::ZERO).await.unwrap();
    }
    assert!(queue.revive(&name, Duration::ZERO).await.unwrap());
    assert_eq!((record_text(&queue, &name), next(&queue).await.unwrap().attempts()), (None, 1));

    // A later call sees the element unlocked.
    assert_eq!(queue.count().await.unwrap(), 1);
    write_dead_record(&queue, &name);
    Lock::ack_all(queue.take_dead(9).await.unwrap()).await.unwrap();
    assert_eq!((queue.count().await.unwrap(), record_text(&queue, &name)), (0, None));
    assert!(!queue.revive(&name, HOUR).await.unwrap(), "the element was removed");
    let null = "NULL".parse().unwrap();
    assert!(matches!(queue.revive(&null, HOUR).await, Err(Error::InvalidName { .. })));
}

fn write_dead_record(queue: &QueueSimple, name: &Name) {
    symlink("2 dead", record(queue, name))
        .or_else(|_| {
            write_record(queue, name, "2 dead");
            std::io::Result::Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn record_of_a_dead_letter_is_moved_and_one_that_was_not_moved_counts() {
    let (_dir, queue) = open_counted(1).await;
    queue.add("x").await.unwrap();
    next(&queue).await.unwrap().fail("why").await.unwrap();
    assert_eq!(record_files(queue.path()).len(), 2, "the record and the reason");
    assert!(record_files(queue.path()).iter().all(|path| path.starts_with("dead/")));
    Lock::ack_all(queue.take_dead(1).await.unwrap()).await.unwrap();
    assert!(record_files(queue.path()).is_empty());

    let name = queue.add("x").await.unwrap();
    next(&queue).await.unwrap().unlock().await.unwrap();
    assert_eq!(fs::read_link(dead_record(&queue, &name)).unwrap().to_str(), Some("1 dead"));
    // A process crashed while it revived the dead letter, between its two steps.
    symlink("0 1", record(&queue, &name)).unwrap();
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    let job = next(&queue).await.unwrap();
    assert_eq!(job.attempts(), 1);
    job.retry_in(Duration::ZERO).await.unwrap();
    assert_eq!(dead(&queue).await.len(), 1);

    // As earlier builds left it.
    fs::rename(dead_record(&queue, &name), record(&queue, &name)).unwrap();
    assert_eq!(dead(&queue).await.len(), 1);
    assert!(next(&queue).await.is_none());
    // An operator may remove the directory, also while this process has it open.
    fs::remove_dir_all(queue.path().join("retries/dead")).unwrap();
    assert_eq!(dead(&queue).await, [name]);
    let other = queue.add("y").await.unwrap();
    next(&queue).await.unwrap().unlock().await.unwrap();
    assert_eq!(dead(&queue).await, [name, other]);
    Lock::ack_all(queue.take_dead(9).await.unwrap()).await.unwrap();
    assert!(record_files(queue.path()).is_empty());
}

/// Returns the names of the dead letters, which have failed once.
async fn dead(queue: &QueueSimple) -> Vec<Name> {
    let dead = queue.dead().await.unwrap();
    assert!(dead.iter().all(|letter| letter.attempts == 1 && letter.reason.is_none()));
    dead.into_iter().map(|letter| letter.name).collect()
}

#[tokio::test]
async fn take_dead_returns_at_most_max_in_order() {
    let (_dir, queue) = open_counted(1).await;
    let names = queue.add_many((0..10).map(|i| i.to_string())).await.unwrap();
    let mut jobs = queue.locked();
    while let Some(job) = jobs.next().await.transpose().unwrap() {
        drop(job);
    }
    let first = queue.take_dead(4).await.unwrap();
    let second = queue.take_dead(100).await.unwrap();
    let found: Vec<_> = first.iter().chain(&second).map(|lock| *lock.name()).collect();
    assert_eq!(found, names);
    assert!(queue.take_dead(0).await.unwrap().is_empty());
    assert_eq!(dead(&queue).await, names, "dead letters are listed whether locked or not");
    drop((first, second));
    // A dead letter that cannot be read does not block the others.
    fs::remove_file(queue.path().join(names[0].to_string())).unwrap();
    fs::create_dir(queue.path().join(names[0].to_string())).unwrap();
    assert_eq!(queue.take_dead(100).await.unwrap().len(), 9);
    assert_eq!(dead(&queue).await, names);
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert!(other.dequeue(&names[9]).await.unwrap().is_some());
    assert_eq!(dead(&queue).await, names[..9]);
}

#[tokio::test]
async fn crashed_delivery_counts_as_a_failed_attempt() {
    let (_dir, queue) = open_counted(2).await;
    let name = queue.add("x").await.unwrap();
    for (attempt, after) in [(1, "1 0"), (2, "2 0")] {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        // The delivery is neither acked nor unlocked.
        forget(job);
        make_old(&queue.path().join(name.to_string()), HOUR);
        assert_eq!(queue.purge(Purge::default()).await.unwrap().locks, 1);
        assert_eq!(record_text(&queue, &name).as_deref(), Some(after));
    }
    assert!(next(&queue).await.is_none());
    assert_eq!(record_text(&queue, &name).as_deref(), Some("2 dead"));
    assert_eq!(queue.take_dead(9).await.unwrap().len(), 1);
}

/// If a purge removed its lock, it must not change the newer record of the element.
#[tokio::test]
async fn lost_lock_does_not_change_the_record() {
    let (_dir, queue) = open_counted(9).await;
    let name = queue.add("x").await.unwrap();
    let slow = next(&queue).await.unwrap();
    make_old(&queue.path().join(name.to_string()), HOUR);
    queue.purge(Purge::default()).await.unwrap();
    let other = next(&queue).await.unwrap();
    assert_eq!(other.attempts(), 2);
    assert!(matches!(slow.retry_in(HOUR).await, Err(Error::NotLocked { .. })));
    assert_eq!(record_text(&queue, &name).as_deref(), Some("2 0"));
    forget(other);
}

#[tokio::test]
async fn undelivered_prefetched_element_counts_no_attempt() {
    until_enough(drop_undelivered_elements).await;
}

/// Returns true if an element was locked for a dropped call.
async fn drop_undelivered_elements() -> bool {
    let (_dir, queue) = open_counted(2).await;
    let names = queue.add_many((0..5).map(|i| i.to_string())).await.unwrap();
    let mut jobs = queue.locked();
    let first = jobs.next().await.unwrap().unwrap();
    let is_locked = |name: &Name| queue.path().join(format!("{name}.lck")).exists();
    assert_eq!(names.iter().filter(|name| is_locked(name)).count(), 1);
    let waited = jobs.next().now_or_never().is_none();
    drop(jobs);
    if !waited {
        // In memory, nothing is pending.
        return super::IN_MEMORY;
    }
    let deadline = Instant::now() + patience();
    while names[1..].iter().any(is_locked) {
        assert!(Instant::now() < deadline, "the element stays locked");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for name in &names[1..] {
        assert_eq!(record_text(&queue, name), None);
    }
    drop(first);
    // A later call sees the element unlocked.
    queue.count().await.unwrap();
    assert_eq!(record_text(&queue, &names[0]).unwrap().split(' ').next(), Some("1"));
    true
}

#[tokio::test]
async fn queue_without_retry_settings_records_only_retry_in() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path()).await.unwrap();
    let names = queue.add_many(["a", "b", "c"]).await.unwrap();
    for _ in 0..2 {
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await.transpose().unwrap() {
            assert_eq!(job.attempts(), 1);
        }
    }
    assert!(!dir.path().join("retries").exists());
    for attempt in 1..=3 {
        let job = next(&queue).await.unwrap();
        assert_eq!((job.name(), job.attempts()), (&names[0], attempt));
        job.retry_in(Duration::ZERO).await.unwrap();
    }
    next(&queue).await.unwrap().retry_in(HOUR).await.unwrap();
    let left: Vec<_> = all(queue.locked()).await.iter().map(|job| *job.name()).collect();
    assert_eq!(left, names[1..]);
    // A delay that overflows never ends. That does not make the element a dead letter.
    write_record(&queue, &names[0], "4 1");
    next(&queue).await.unwrap().retry_in(Duration::MAX).await.unwrap();
    assert_eq!(queue.locked().next().await.unwrap().unwrap().name(), &names[1]);
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    // Methods that take a name ignore the backoff.
    assert_eq!(queue.dequeue(&names[0]).await.unwrap().unwrap(), "a");
    assert_eq!(queue.purge(Purge::default()).await.unwrap().records, 1);
    assert_eq!(record_text(&queue, &names[0]), None);
}

#[tokio::test]
async fn watch_wakes_when_a_backoff_ends() {
    let (_dir, queue) = open_counted(9).await;
    let name = queue.add("x").await.unwrap();
    // No element is added, so only the timer can wake it.
    let mut jobs = queue.watch(HOUR);
    for attempt in 1..=3 {
        let job =
            timeout(patience(), jobs.next()).await.expect("the stream wakes").unwrap().unwrap();
        assert_eq!((job.name(), job.attempts()), (&name, attempt));
        job.retry_in(Duration::from_millis(30)).await.unwrap();
    }
    // A locked element whose backoff has ended must not wake the stream repeatedly.
    let job = timeout(patience(), jobs.next()).await.expect("the stream wakes").unwrap().unwrap();
    assert!(timeout(Duration::from_millis(50), jobs.next()).await.is_err());
    job.ack().await.unwrap();
}

#[tokio::test]
async fn normal_queue_counts_attempts() {
    let dir = tempdir().unwrap();
    let queue = Queue::builder(dir.path()).schema("body:string".parse().unwrap());
    let queue = queue.backoff(HOUR, HOUR).max_attempts(2).open().await.unwrap();
    let name = queue.add(Element::new().with("body", "x")).await.unwrap();
    for attempt in 1..=2 {
        let job = queue.locked().next().await.unwrap().unwrap();
        assert_eq!((job.name(), job.attempts()), (&name, attempt));
        job.retry_in(Duration::ZERO).await.unwrap();
    }
    assert!(queue.locked().next().await.is_none());
    let dead = queue.take_dead(1).await.unwrap();
    assert_eq!(dead[0].value().string("body"), Some("x"));
    Lock::ack_all(dead).await.unwrap();
    let left: Vec<_> = tree(dir.path()).into_iter().filter(|path| !path.ends_with('/')).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Among several concurrent workers, each delivery counts once.
#[tokio::test(flavor = "multi_thread")]
async fn each_element_is_attempted_max_attempts_times() {
    const TRIES: u32 = 3;
    let dir = tempdir().unwrap();
    let open = || QueueSimple::builder(dir.path()).max_attempts(TRIES);
    let open = || open().backoff(Duration::ZERO, Duration::ZERO).open();
    let queue = open().await.unwrap();
    let names = queue.add_many((0..20).map(|i| i.to_string())).await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..4 {
        // As in another process.
        let queue = open().await.unwrap();
        workers.push(tokio::spawn(async move {
            let mut tried = Vec::new();
            while queue.dead_len().await.unwrap() < 20 {
                let mut jobs = queue.locked();
                while let Some(job) = jobs.next().await.transpose().unwrap() {
                    tried.push((*job.name(), job.attempts()));
                }
            }
            tried
        }));
    }
    let mut tries: BTreeMap<Name, Vec<u32>> = BTreeMap::new();
    for worker in workers {
        for (name, attempt) in timeout(patience(), worker).await.expect("the worker ends").unwrap()
        {
            tries.entry(name).or_default().push(attempt);
        }
    }
    for name in names {
        let tries = tries.get_mut(&name).unwrap();
        tries.sort_unstable();
        assert_eq!(*tries, Vec::from_iter(1..=TRIES));
    }
}

#[tokio::test]
async fn invalid_record_is_ignored() {
    let (_dir, queue) = open_counted(9).await;
    let name = queue.add("x").await.unwrap();
    let retries = queue.path().join("retries");
    fs::create_dir(&retries).unwrap();
    fs::write(retries.join("README"), "not of ours").unwrap();
    for text in ["/etc/passwd", "1", "one 2", "4294967296 0", "1 -1"] {
        symlink(text, record(&queue, &name)).unwrap();
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), 1, "{text:?}");
        forget(job);
        assert_eq!(record_text(&queue, &name).as_deref(), Some("1 0"), "{text:?}");
        fs::remove_file(record(&queue, &name)).unwrap();
        queue.unlock(&name).await.unwrap();
    }
    // A file in the place of the record does not prevent delivery.
    fs::create_dir(record(&queue, &name)).unwrap();
    let job = next(&queue).await.unwrap();
    assert_eq!(job.attempts(), 1);
    job.unlock().await.unwrap_err();
    next(&queue).await.unwrap().ack().await.unwrap();
    assert!(retries.join("README").exists());
    fs::remove_dir_all(&retries).unwrap();
    fs::write(&retries, "no directory").unwrap();
    let name = queue.add("y").await.unwrap();
    let mut jobs = queue.locked();
    assert!(matches!(jobs.next().await, Some(Err(Error::Foreign { .. }))));
    let job = jobs.next().await.unwrap().unwrap();
    assert_eq!(job.name(), &name);
    job.ack().await.unwrap();
}

#[tokio::test]
async fn invalid_retry_settings_are_rejected() {
    let dir = tempdir().unwrap();
    let simple = || QueueSimple::builder(dir.path());
    let normal = || Queue::builder(dir.path());
    let second = Duration::from_secs(1);
    for (error, expected) in [
        (simple().max_attempts(0).open().await.unwrap_err(), "max_attempts"),
        (normal().max_attempts(0).open().await.unwrap_err(), "max_attempts"),
        (simple().backoff(2 * second, second).open().await.unwrap_err(), "backoff"),
        (normal().backoff(2 * second, second).open().await.unwrap_err(), "backoff"),
    ] {
        assert!(matches!(error, Error::InvalidOption { option, .. } if option == expected));
    }
}

/// A task that is aborted and a task that panics both count as failures.
#[tokio::test]
async fn aborted_and_panicked_tasks_are_failed_attempts() {
    let (_dir, queue) = open_counted(2).await;
    let name = queue.add("x").await.unwrap();
    let job = next(&queue).await.unwrap();
    let worker = tokio::spawn(async move {
        let _job = job;
        pending::<()>().await;
    });
    worker.abort();
    assert!(worker.await.unwrap_err().is_cancelled());
    // A later call sees the element unlocked.
    assert_eq!(queue.count().await.unwrap(), 1);
    write_record(&queue, &name, "1 1");
    let job = next(&queue).await.unwrap();
    let worker = tokio::spawn(async move {
        let _job = job;
        std::panic::resume_unwind(Box::new("the work is at fault"));
    });
    assert!(worker.await.unwrap_err().is_panic());
    assert_eq!(queue.dead_len().await.unwrap(), 1);
}

/// To Python's package, waiting and dead elements are like any other.
#[tokio::test]
async fn python_delivers_waiting_and_dead_elements_and_its_purge_keeps_records() {
    const PROGRAM: &str = r#"
import os, sys, time
from dirq.queue import Queue
from dirq.QueueSimple import QueueSimple
kind, path, what = sys.argv[1:4]
q = QueueSimple(path) if kind == "simple" else Queue(path, schema={"body": "string"})
if what == "purge":
    q.purge()
elif what == "count":
    print(q.count())
elif what == "lock":
    assert q.lock(sys.argv[4])
else:
    taken = []
    for name in q:
        if q.lock(name):
            q.get(name)
            q.remove(name)
            taken.append(name)
    print(" ".join(taken))
"#;
    for kind in ["simple", "normal"] {
        let dir = tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let run = |args: &[&str]| python(PROGRAM, &[&[kind, path], args].concat());
        // An element is a file, or a directory.
        let simple = QueueSimple::builder(path).max_attempts(1).backoff(HOUR, HOUR);
        let normal = Queue::builder(path).schema("body:string".parse().unwrap());
        let normal = normal.max_attempts(1).backoff(HOUR, HOUR);
        let mut names = Vec::new();
        macro_rules! with_queue {
            ($open:expr, $new:expr) => {{
                let queue = $open.open().await.unwrap();
                for _ in 0..4 {
                    names.push(queue.add($new).await.unwrap());
                }
                let mut jobs = queue.locked();
                drop(jobs.next().await); // dead
                let two = [jobs.next().await, jobs.next().await];
                let [dies, python_unlocks] = two.map(|job| job.unwrap().unwrap());
                drop(jobs);
                for _ in 0..2 {
                    assert_eq!(queue.dead_len().await.unwrap(), 1);
                    assert!(run(&["count"]).trim().parse::<u64>().unwrap() >= 4);
                    run(&["purge"]);
                }
                // The locks that Python purges belong to failed deliveries.
                forget((dies, python_unlocks));
                for name in &names[1..3] {
                    make_old(&dir.path().join(name.to_string()), HOUR);
                }
                run(&["purge"]);
                let mut jobs = queue.locked();
                assert_eq!(jobs.next().await.unwrap().unwrap().name(), &names[3]);
                assert!(jobs.next().await.is_none());
                assert_eq!(queue.dead_len().await.unwrap(), 4);
                assert!(queue.revive(&names[1], HOUR).await.unwrap());
                // Python locks dead elements, and this process respects those locks.
                run(&["lock", &names[0].to_string()]);
                assert_eq!(queue.take_dead(9).await.unwrap().len(), 2);
                queue.unlock(&names[0]).await.unwrap();
                let taken = run(&["take"]);
                let expected: Vec<_> = names.iter().map(Name::to_string).collect();
                assert_eq!(taken.split_whitespace().collect::<Vec<_>>(), expected);
                assert_eq!(queue.dead_len().await.unwrap(), 0);
                run(&["purge"]);
                assert_eq!(queue.purge(Purge::default()).await.unwrap().records, 4);
                assert!(record_files(dir.path()).is_empty());
            }};
        }
        match kind {
            "simple" => with_queue!(simple, "x"),
            _ => with_queue!(normal, Element::new().with("body", "x")),
        }
    }
}

#[tokio::test]
async fn deleting_the_retries_directory_forgets_all_records() {
    let (_dir, queue) = open_counted(1).await;
    let names = queue.add_many(["a", "b"]).await.unwrap();
    next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    let job = next(&queue).await.unwrap();
    fs::remove_dir_all(queue.path().join("retries")).unwrap();
    job.retry_in(HOUR).await.unwrap();
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    let found: Vec<_> = all(queue.locked()).await.iter().map(|job| *job.name()).collect();
    assert_eq!(found, names);
}

#[tokio::test]
async fn first_failure_of_a_queue_counts_in_an_iteration_that_began_before_it() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path()).await.unwrap();
    let other = QueueSimple::open(dir.path()).await.unwrap();
    let names = queue.add_many(["a", "b"]).await.unwrap();
    let mut jobs = queue.locked();
    let first = jobs.next().await.unwrap().unwrap();
    let failed = next(&other).await.unwrap();
    assert_eq!((first.name(), failed.name()), (&names[0], &names[1]));
    failed.retry_in(HOUR).await.unwrap();
    assert!(jobs.next().await.is_none(), "the element waits for its delay");
    assert!(queue.lock(&names[1]).await.unwrap(), "it is not locked");
}
