//! What fails: it comes again after a while, and not for ever; other implementations don't notice.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    mem::forget,
    os::unix::fs::symlink,
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fleeting::dirq::{Element, Error, Lock, Name, Purge, Queue, QueueSimple};
use futures::FutureExt;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{
    locked::{HOUR, SOON},
    tempdir,
};
use crate::{
    clock::until_enough,
    directory::{all, make_old, python, tree},
};

async fn counted(max_attempts: u32) -> (TempDir, QueueSimple) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("queue");
    (dir, again(path, max_attempts).await)
}

/// Another process' view of the same queue.
async fn again(path: impl Into<PathBuf>, max_attempts: u32) -> QueueSimple {
    let queue = QueueSimple::builder(path.into()).max_attempts(max_attempts);
    queue.backoff(HOUR, HOUR).open().await.unwrap()
}

fn record(queue: &QueueSimple, name: &Name) -> PathBuf {
    queue.path().join("retries").join(name.to_string().replace('/', "-"))
}

/// What is known of an element, in the words of the disk.
fn known(queue: &QueueSimple, name: &Name) -> Option<String> {
    let text = fs::read_link(record(queue, name)).ok()?;
    Some(text.to_str().unwrap().to_owned())
}

fn know(queue: &QueueSimple, name: &Name, text: &str) {
    let record = record(queue, name);
    fs::remove_file(&record).unwrap();
    symlink(text, record).unwrap();
}

async fn next(queue: &QueueSimple) -> Option<Lock<bytes::Bytes>> {
    queue.locked().next().await.transpose().unwrap()
}

fn seconds_from_now(micros: &str) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    micros.parse::<f64>().unwrap() / 1e6 - now
}

#[tokio::test]
async fn what_fails_rests_and_the_others_come() {
    let (_dir, queue) = counted(9).await;
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
    let (attempts, due) = known(&queue, &bad).unwrap().split_once(' ').map(own).unwrap();
    assert_eq!(attempts, "1");
    let rest = seconds_from_now(&due);
    assert!((1_700.0..5_400.0).contains(&rest), "it rests for {rest} s");
    assert_eq!(known(&queue, &good), None);

    // As if the time had come.
    know(&queue, &bad, "1 1");
    let job = next(&queue).await.unwrap();
    assert_eq!((job.name(), job.attempts()), (&bad, 2));
    assert_eq!(known(&queue, &bad).as_deref(), Some("2 0"), "it is known before it is done");
    job.ack().await.unwrap();
    assert_eq!(fs::read_dir(queue.path().join("retries")).unwrap().count(), 0);
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

#[tokio::test]
async fn the_backoff_is_a_second_unless_it_is_set() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_attempts(3).open().await.unwrap();
    let name = queue.add("x").await.unwrap();
    for (attempt, least, most) in [(1, 0.5, 1.5), (2, 1.0, 3.0)] {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        let before = Instant::now();
        job.unlock().await.unwrap();
        let (_, due) = known(&queue, &name).unwrap().split_once(' ').map(own).unwrap();
        let rest = seconds_from_now(&due);
        let took = before.elapsed().as_secs_f64() + 0.01;
        assert!((least - took..most + 0.01).contains(&rest), "{attempt}: it rests for {rest} s");
        know(&queue, &name, &format!("{attempt} 1"));
    }
}

#[tokio::test]
async fn what_failed_too_often_is_dead_until_it_is_revived() {
    let (_dir, queue) = counted(2).await;
    let name = queue.add("x").await.unwrap();
    for _ in 0..2 {
        next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    }
    assert_eq!(known(&queue, &name).as_deref(), Some("2 dead"));
    // All of them pass it over, whatever they were opened with.
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
        assert!(other.take_dead(9).await.unwrap().is_empty(), "it is locked");
        assert_eq!(other.dead_len().await.unwrap(), 1);
        let dead = dead.pop().unwrap();
        match end {
            0 => drop(dead),
            1 => dead.unlock().await.unwrap(),
            _ => dead.retry_in(Duration::ZERO).await.unwrap(),
        }
        assert_eq!(known(&queue, &name).as_deref(), Some("2 dead"), "{end}");
    }
    assert!(queue.revive(&name, HOUR).await.unwrap());
    assert!(!queue.revive(&name, HOUR).await.unwrap(), "it lives");
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    assert!(next(&queue).await.is_none(), "it rests");
    know(&queue, &name, "0 1");
    for attempt in 1..=2 {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        job.retry_in(Duration::ZERO).await.unwrap();
    }
    assert!(queue.revive(&name, Duration::ZERO).await.unwrap());
    assert_eq!((known(&queue, &name), next(&queue).await.unwrap().attempts()), (None, 1));

    know_dead(&queue, &name);
    Lock::ack_all(queue.take_dead(9).await.unwrap()).await.unwrap();
    assert_eq!((queue.count().await.unwrap(), known(&queue, &name)), (0, None));
    assert!(!queue.revive(&name, HOUR).await.unwrap(), "it is gone");
    let null = "NULL".parse().unwrap();
    assert!(matches!(queue.revive(&null, HOUR).await, Err(Error::InvalidName { .. })));
}

fn know_dead(queue: &QueueSimple, name: &Name) {
    symlink("2 dead", record(queue, name))
        .or_else(|_| {
            know(queue, name, "2 dead");
            std::io::Result::Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn the_dead_come_in_order_and_no_more_than_are_wanted() {
    let (_dir, queue) = counted(1).await;
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
    let listed: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
    assert_eq!(queue.dead().await.unwrap(), listed, "locked or not");
    drop((first, second));
    // One that can't be read is in nobody's way.
    fs::remove_file(queue.path().join(names[0].to_string())).unwrap();
    fs::create_dir(queue.path().join(names[0].to_string())).unwrap();
    assert_eq!(queue.take_dead(100).await.unwrap().len(), 9);
    assert_eq!(queue.dead().await.unwrap(), listed);
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert!(other.dequeue(&names[9]).await.unwrap().is_some());
    assert_eq!(queue.dead().await.unwrap(), listed[..9]);
}

#[tokio::test]
async fn who_dies_over_an_element_has_failed() {
    let (_dir, queue) = counted(2).await;
    let name = queue.add("x").await.unwrap();
    for (attempt, after) in [(1, "1 0"), (2, "2 0")] {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        // Neither acked nor given back.
        forget(job);
        make_old(&queue.path().join(name.to_string()), HOUR);
        assert_eq!(queue.purge(Purge::default()).await.unwrap().locks, 1);
        assert_eq!(known(&queue, &name).as_deref(), Some(after));
    }
    assert!(next(&queue).await.is_none());
    assert_eq!(known(&queue, &name).as_deref(), Some("2 dead"));
    assert_eq!(queue.take_dead(9).await.unwrap().len(), 1);
}

/// It may have its lock taken by a purge, but not change what became of the element since.
#[tokio::test]
async fn who_was_too_slow_changes_nothing() {
    let (_dir, queue) = counted(9).await;
    let name = queue.add("x").await.unwrap();
    let slow = next(&queue).await.unwrap();
    make_old(&queue.path().join(name.to_string()), HOUR);
    queue.purge(Purge::default()).await.unwrap();
    let other = next(&queue).await.unwrap();
    assert_eq!(other.attempts(), 2);
    slow.retry_in(HOUR).await.unwrap();
    assert_eq!(known(&queue, &name).as_deref(), Some("2 0"));
    forget(other);
}

#[tokio::test]
async fn what_nobody_got_was_not_tried() {
    until_enough(drop_what_was_not_handed_out).await;
}

/// Whether an element was locked for a call that was dropped.
async fn drop_what_was_not_handed_out() -> bool {
    let (_dir, queue) = counted(2).await;
    let names = queue.add_many((0..5).map(|i| i.to_string())).await.unwrap();
    let mut jobs = queue.locked();
    let first = jobs.next().await.unwrap().unwrap();
    let is_locked = |name: &Name| queue.path().join(format!("{name}.lck")).exists();
    assert_eq!(names.iter().filter(|name| is_locked(name)).count(), 1);
    let waited = jobs.next().now_or_never().is_none();
    drop(jobs);
    if !waited {
        // In memory, nothing waits.
        return super::IN_MEMORY;
    }
    let deadline = Instant::now() + SOON;
    while names[1..].iter().any(is_locked) {
        assert!(Instant::now() < deadline, "it stays locked");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for name in &names[1..] {
        assert_eq!(known(&queue, name), None);
    }
    drop(first);
    assert_eq!(known(&queue, &names[0]).unwrap().split(' ').next(), Some("1"));
    true
}

#[tokio::test]
async fn a_queue_without_retries_remembers_what_it_is_asked_to_and_nothing_else() {
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
    // Whatever is longer than time is never over, and that is not dead.
    know(&queue, &names[0], "4 1");
    next(&queue).await.unwrap().retry_in(Duration::MAX).await.unwrap();
    assert_eq!(queue.locked().next().await.unwrap().unwrap().name(), &names[1]);
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    // By its name, an element is there for all.
    assert_eq!(queue.dequeue(&names[0]).await.unwrap().unwrap(), "a");
    assert_eq!(queue.purge(Purge::default()).await.unwrap().records, 1);
    assert_eq!(known(&queue, &names[0]), None);
}

#[tokio::test]
async fn a_watch_wakes_when_what_rests_is_due() {
    let (_dir, queue) = counted(9).await;
    let name = queue.add("x").await.unwrap();
    // Nobody adds, so that only the clock can wake it.
    let mut jobs = queue.watch(HOUR);
    for attempt in 1..=3 {
        let job = timeout(SOON, jobs.next()).await.expect("it wakes").unwrap().unwrap();
        assert_eq!((job.name(), job.attempts()), (&name, attempt));
        job.retry_in(Duration::from_millis(30)).await.unwrap();
    }
    // What is locked and due wakes nobody again and again.
    let job = timeout(SOON, jobs.next()).await.expect("it wakes").unwrap().unwrap();
    assert!(timeout(Duration::from_millis(50), jobs.next()).await.is_err());
    job.ack().await.unwrap();
}

#[tokio::test]
async fn elements_with_fields_fail_too() {
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

/// Of several that work at once, each try is one.
#[tokio::test(flavor = "multi_thread")]
async fn each_element_is_tried_as_often_as_it_may_be() {
    const TRIES: u32 = 3;
    let dir = tempdir().unwrap();
    let open = || QueueSimple::builder(dir.path()).max_attempts(TRIES);
    let open = || open().backoff(Duration::ZERO, Duration::ZERO).open();
    let queue = open().await.unwrap();
    let names = queue.add_many((0..20).map(|i| i.to_string())).await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..4 {
        // As of another process.
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
        for (name, attempt) in timeout(SOON, worker).await.expect("it ends").unwrap() {
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
async fn what_is_no_record_is_none() {
    let (_dir, queue) = counted(9).await;
    let name = queue.add("x").await.unwrap();
    let retries = queue.path().join("retries");
    fs::create_dir(&retries).unwrap();
    fs::write(retries.join("README"), "not of ours").unwrap();
    for text in ["/etc/passwd", "1", "one 2", "4294967296 0", "1 -1"] {
        symlink(text, record(&queue, &name)).unwrap();
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), 1, "{text:?}");
        forget(job);
        assert_eq!(known(&queue, &name).as_deref(), Some("1 0"), "{text:?}");
        fs::remove_file(record(&queue, &name)).unwrap();
        queue.unlock(&name).await.unwrap();
    }
    // What stands where it should be keeps nobody from work.
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
async fn bad_settings_are_refused() {
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

/// A task that is aborted, and one that panics, have failed.
#[tokio::test]
async fn whatever_ends_work_is_a_failure() {
    let (_dir, queue) = counted(2).await;
    let name = queue.add("x").await.unwrap();
    let job = next(&queue).await.unwrap();
    let worker = tokio::spawn(async move {
        let _job = job;
        pending::<()>().await;
    });
    worker.abort();
    assert!(worker.await.unwrap_err().is_cancelled());
    know(&queue, &name, "1 1");
    let job = next(&queue).await.unwrap();
    let worker = tokio::spawn(async move {
        let _job = job;
        std::panic::resume_unwind(Box::new("the work is at fault"));
    });
    assert!(worker.await.unwrap_err().is_panic());
    assert_eq!(queue.dead_len().await.unwrap(), 1);
}

/// To Python's package, what rests and what is dead are elements as all others.
#[tokio::test]
async fn python_takes_what_rests_and_what_is_dead_and_purges_around_what_is_known() {
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
        // A file for each element, or a directory.
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
                // Locks that Python purges are of deliveries that failed.
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
                // It locks what is dead, and we see that.
                run(&["lock", &names[0].to_string()]);
                assert_eq!(queue.take_dead(9).await.unwrap().len(), 2);
                queue.unlock(&names[0]).await.unwrap();
                let taken = run(&["take"]);
                let expected: Vec<_> = names.iter().map(Name::to_string).collect();
                assert_eq!(taken.split_whitespace().collect::<Vec<_>>(), expected);
                assert_eq!(queue.dead_len().await.unwrap(), 0);
                run(&["purge"]);
                assert_eq!(queue.purge(Purge::default()).await.unwrap().records, 4);
                assert_eq!(fs::read_dir(dir.path().join("retries")).unwrap().count(), 0);
            }};
        }
        match kind {
            "simple" => with_queue!(simple, "x"),
            _ => with_queue!(normal, Element::new().with("body", "x")),
        }
    }
}

#[tokio::test]
async fn who_removes_what_is_known_has_it_forgotten() {
    let (_dir, queue) = counted(1).await;
    let names = queue.add_many(["a", "b"]).await.unwrap();
    next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    let job = next(&queue).await.unwrap();
    fs::remove_dir_all(queue.path().join("retries")).unwrap();
    job.retry_in(HOUR).await.unwrap();
    assert_eq!(queue.dead_len().await.unwrap(), 0);
    let found: Vec<_> = all(queue.locked()).await.iter().map(|job| *job.name()).collect();
    assert_eq!(found, names);
}
