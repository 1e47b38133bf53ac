//! The end of a delivery: failures with reasons, elements that are released, and locks that were lost to another
//! process.

use std::{fs, os::unix::fs::symlink, time::Duration};

use fleeting::dirq::{Element, Error, Lock, Name, Purge, Queue, QueueSimple};

use super::{
    locked::HOUR,
    retries::{
        next, open_counted, open_other_process, record, record_files, record_text, write_record,
    },
    tempdir,
};
use crate::{
    directory::{make_old, python, tree},
    patience::patience,
};

/// Returns the reasons of all dead letters.
async fn reasons(queue: &QueueSimple) -> Vec<Option<String>> {
    queue.dead().await.unwrap().into_iter().map(|letter| letter.reason).collect()
}

fn reason_file(queue: &QueueSimple, name: &Name) -> std::path::PathBuf {
    let record = record(queue, name).into_os_string().into_string().unwrap();
    format!("{record}.reason").into()
}

#[tokio::test]
async fn fail_records_its_reason_and_dead_returns_it() {
    let (_dir, queue) = open_counted(2).await;
    let name = queue.add("x").await.unwrap();
    next(&queue).await.unwrap().fail("first").await.unwrap();
    assert_eq!(record_text(&queue, &name).unwrap().split(' ').next(), Some("1"));
    assert!(next(&queue).await.is_none(), "the element waits for its backoff");
    assert!(queue.dead().await.unwrap().is_empty());

    write_record(&queue, &name, "1 1");
    next(&queue).await.unwrap().fail(String::from("second")).await.unwrap();
    // Other processes see it, and releases without reasons see the record.
    let other = QueueSimple::open(queue.path()).await.unwrap();
    let dead = other.dead().await.unwrap();
    assert_eq!((dead.len(), dead[0].name, dead[0].attempts), (1, name, 2));
    assert_eq!(dead[0].reason.as_deref(), Some("second"));
    assert_eq!(record_text(&queue, &name).as_deref(), Some("2 dead"));
    assert_eq!(other.dead_len().await.unwrap(), 1);

    // A dead letter that fails again stays one.
    other.take_dead(9).await.unwrap().remove(0).fail("third").await.unwrap();
    assert_eq!(reasons(&queue).await, [Some("third".to_owned())]);
    assert_eq!(record_text(&queue, &name).as_deref(), Some("2 dead"));
    Lock::ack_all(queue.take_dead(9).await.unwrap()).await.unwrap();
    assert!(record_files(queue.path()).is_empty());
}

#[tokio::test]
async fn attempt_without_a_reason_keeps_that_of_an_earlier_attempt() {
    let (_dir, queue) = open_counted(3).await;
    let name = queue.add("x").await.unwrap();
    next(&queue).await.unwrap().fail("the reason").await.unwrap();
    write_record(&queue, &name, "1 1");
    drop(next(&queue).await.unwrap());
    // A later call sees the element unlocked.
    assert_eq!(queue.count().await.unwrap(), 1);
    write_record(&queue, &name, "2 1");
    next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    assert_eq!(reasons(&queue).await, [Some("the reason".to_owned())]);

    assert!(queue.revive(&name, Duration::ZERO).await.unwrap());
    for attempt in 1..=3 {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), attempt);
        job.retry_in(Duration::ZERO).await.unwrap();
    }
    assert_eq!(reasons(&queue).await, [None], "`revive` clears the reason");
}

#[tokio::test]
async fn reason_is_cut_to_1024_bytes_at_the_boundary_of_a_character() {
    for (reason, kept) in [
        ("x".repeat(1_024), 1_024),
        ("x".repeat(1_025), 1_024),
        (format!("x{}", "ä".repeat(600)), 1_023),
        (format!("xx{}", "€".repeat(400)), 1_022),
        (String::new(), 0),
        ("line\nline\0NUL".to_owned(), 13),
    ] {
        let (_dir, queue) = open_counted(1).await;
        queue.add("x").await.unwrap();
        next(&queue).await.unwrap().fail(reason.clone()).await.unwrap();
        assert_eq!(reasons(&queue).await, [Some(reason[..kept].to_owned())]);
    }
}

#[tokio::test]
async fn foreign_reason_file_does_not_hide_a_dead_letter() {
    let (_dir, queue) = open_counted(1).await;
    let name = queue.add("x").await.unwrap();
    drop(next(&queue).await.unwrap());
    let file = reason_file(&queue, &name);
    fs::write(&file, "x".repeat(1_025)).unwrap();
    assert_eq!(reasons(&queue).await, [None], "too long");
    fs::write(&file, b"\xff!").unwrap();
    assert_eq!(reasons(&queue).await, [Some("\u{fffd}!".to_owned())]);
    fs::remove_file(&file).unwrap();
    symlink("/etc/hostname", &file).unwrap();
    assert_eq!(reasons(&queue).await, [None], "links are not followed");
    // A leftover of a process that crashed while it wrote a reason.
    fs::write(format!("{}.tmp", file.display()), "half").unwrap();
    queue.take_dead(1).await.unwrap().remove(0).fail("whole").await.unwrap();
    assert_eq!(reasons(&queue).await, [Some("whole".to_owned())]);
}

#[tokio::test]
async fn purge_removes_the_reason_of_an_element_that_another_implementation_removed() {
    let (_dir, queue) = open_counted(9).await;
    let names = queue.add_many(["a", "b"]).await.unwrap();
    for _ in 0..2 {
        next(&queue).await.unwrap().fail("why").await.unwrap();
    }
    fs::write(format!("{}.tmp", reason_file(&queue, &names[0]).display()), "half").unwrap();
    const PROGRAM: &str = "
import sys
from dirq.QueueSimple import QueueSimple
q = QueueSimple(sys.argv[1])
assert q.count() == 2
assert q.lock(sys.argv[2]) and q.get(sys.argv[2]) == b'a'
q.remove(sys.argv[2])
q.purge()";
    python(PROGRAM, &[queue.path().to_str().unwrap(), &names[0].to_string()]);
    assert!(reason_file(&queue, &names[0]).exists());
    assert_eq!(queue.purge(Purge::default()).await.unwrap().records, 1);
    let left = record_files(queue.path()).into_iter();
    let left: Vec<_> = left.map(|file| queue.path().join("retries").join(file)).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&record(&queue, &names[1])));
    assert!(left.contains(&reason_file(&queue, &names[1])));
}

#[tokio::test]
async fn release_does_not_count_as_a_failed_attempt_and_the_element_is_due_immediately() {
    let (_dir, queue) = open_counted(2).await;
    let name = queue.add("x").await.unwrap();
    for _ in 0..5 {
        let job = next(&queue).await.unwrap();
        assert_eq!((job.name(), job.attempts()), (&name, 1));
        job.release().await.unwrap();
        assert_eq!(record_text(&queue, &name), None);
    }
    next(&queue).await.unwrap().retry_in(Duration::ZERO).await.unwrap();
    for _ in 0..5 {
        let job = next(&queue).await.unwrap();
        assert_eq!(job.attempts(), 2);
        job.release().await.unwrap();
    }
    next(&queue).await.unwrap().fail("last").await.unwrap();
    queue.take_dead(9).await.unwrap().remove(0).release().await.unwrap();
    assert_eq!(reasons(&queue).await, [Some("last".to_owned())], "a dead letter stays one");
}

#[tokio::test]
async fn queue_without_retry_settings_counts_fail_and_not_release() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path()).await.unwrap();
    let name = queue.add("x").await.unwrap();
    next(&queue).await.unwrap().release().await.unwrap();
    assert!(!dir.path().join("retries").exists());
    next(&queue).await.unwrap().fail("why").await.unwrap();
    assert!(next(&queue).await.is_none(), "the element waits for the default backoff");
    write_record(&queue, &name, "1 1");
    let job = next(&queue).await.unwrap();
    assert_eq!(job.attempts(), 2);
    job.ack().await.unwrap();
    assert!(record_files(dir.path()).is_empty());
}

#[tokio::test]
async fn normal_queue_has_reasons_and_releases() {
    let dir = tempdir().unwrap();
    let queue = Queue::builder(dir.path()).schema("body:string".parse().unwrap());
    let queue = queue.backoff(HOUR, HOUR).max_attempts(1).open().await.unwrap();
    queue.add(Element::new().with("body", "x")).await.unwrap();
    queue.locked().next().await.unwrap().unwrap().release().await.unwrap();
    queue.locked().next().await.unwrap().unwrap().fail("why").await.unwrap();
    assert_eq!(queue.dead().await.unwrap()[0].reason.as_deref(), Some("why"));
    Lock::ack_all(queue.take_dead(1).await.unwrap()).await.unwrap();
    let left: Vec<_> = tree(dir.path()).into_iter().filter(|path| !path.ends_with('/')).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Locks the only element, and loses the lock to another process after a purge. Returns both locks.
async fn lose_lock(queue: &QueueSimple) -> (Lock<bytes::Bytes>, Lock<bytes::Bytes>) {
    let slow = next(queue).await.unwrap();
    make_old(&queue.path().join(slow.name().to_string()), HOUR);
    let other = open_other_process(queue.path(), 9).await;
    assert_eq!(other.purge(Purge::default()).await.unwrap().locks, 1);
    let successor = next(&other).await.unwrap();
    assert_eq!(successor.attempts(), slow.attempts() + 1);
    (slow, successor)
}

#[tokio::test]
async fn lost_lock_of_a_counted_queue_returns_not_locked_and_changes_nothing() {
    for end in ["ack", "ack_all", "unlock", "retry_in", "fail", "release", "drop"] {
        let (_dir, queue) = open_counted(9).await;
        let name = queue.add("x").await.unwrap();
        let (slow, successor) = lose_lock(&queue).await;
        assert!(matches!(slow.touch().await, Err(Error::NotLocked { .. })));
        let ended = match end {
            "ack" => slow.ack().await,
            "ack_all" => Lock::ack_all([slow]).await,
            "unlock" => slow.unlock().await,
            "retry_in" => slow.retry_in(Duration::ZERO).await,
            "fail" => slow.fail("too slow").await,
            "release" => slow.release().await,
            _ => {
                drop(slow);
                queue.lock(&name).await.map(|locked| assert!(!locked, "the lock was released"))
            }
        };
        if end != "drop" {
            assert!(matches!(ended, Err(Error::NotLocked { .. })), "{end}: {ended:?}");
        }
        assert_eq!(record_text(&queue, &name).as_deref(), Some("2 0"), "{end}");
        successor.touch().await.unwrap();
        successor.ack().await.unwrap_or_else(|error| panic!("{end}: {error}"));
        assert_eq!(queue.count().await.unwrap(), 0, "{end}");
        assert!(!reason_file(&queue, &name).exists(), "{end}");
    }
}

#[tokio::test]
async fn lock_whose_element_another_worker_acked_is_not_locked() {
    let (_dir, queue) = open_counted(9).await;
    queue.add("x").await.unwrap();
    let (slow, successor) = lose_lock(&queue).await;
    successor.ack().await.unwrap();
    assert!(matches!(slow.touch().await, Err(Error::NotLocked { .. })));
    let work = slow.keep_alive(Duration::from_millis(1), std::future::pending::<()>());
    let ended = tokio::time::timeout(patience(), work).await.expect("the work is dropped");
    assert!(matches!(ended, Err(Error::NotLocked { .. })), "{ended:?}");
}

#[tokio::test]
async fn lost_lock_does_not_end_the_wait_of_an_element_that_failed_since() {
    let (_dir, queue) = open_counted(9).await;
    let name = queue.add("x").await.unwrap();
    let (slow, successor) = lose_lock(&queue).await;
    successor.retry_in(HOUR).await.unwrap();
    let rests = record_text(&queue, &name);
    assert!(matches!(slow.ack().await, Err(Error::NotLocked { .. })));
    assert_eq!((record_text(&queue, &name), queue.count().await.unwrap()), (rests, 1));
}

/// An operator may delete all records while work is done.
#[tokio::test]
async fn lock_is_not_lost_because_the_records_were_deleted() {
    let (_dir, queue) = open_counted(9).await;
    queue.add("x").await.unwrap();
    let job = next(&queue).await.unwrap();
    fs::remove_dir_all(queue.path().join("retries")).unwrap();
    job.touch().await.unwrap();
    job.ack().await.unwrap();
    let name = queue.add("y").await.unwrap();
    let job = next(&queue).await.unwrap();
    fs::remove_dir_all(queue.path().join("retries")).unwrap();
    job.unlock().await.unwrap();
    assert!(queue.lock(&name).await.unwrap());
}

#[tokio::test]
async fn unreadable_element_of_a_counted_queue_waits_for_its_backoff_and_becomes_dead() {
    let (dir, queue) = open_counted(2).await;
    let bad = queue.add("longer than the limit").await.unwrap();
    let good = queue.add("good").await.unwrap();
    let queue = QueueSimple::builder(dir.path().join("queue")).max_size(4).max_attempts(2);
    let queue = queue.backoff(HOUR, HOUR).open().await.unwrap();
    let (mut errors, mut delivered) = (0, Vec::new());
    for _ in 0..3 {
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await {
            match job {
                Ok(job) => {
                    delivered.push(*job.name());
                    job.release().await.unwrap();
                }
                Err(Error::TooLarge { .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!((errors, delivered), (1, vec![good; 3]));
    assert_eq!(record_text(&queue, &bad).unwrap().split(' ').next(), Some("1"));

    write_record(&queue, &bad, "1 1");
    assert!(matches!(queue.locked().next().await, Some(Err(Error::TooLarge { .. }))));
    let dead = queue.dead().await.unwrap();
    assert_eq!((dead.len(), dead[0].name, dead[0].attempts), (1, bad, 2));
    let reason = dead[0].reason.as_deref().unwrap();
    assert!(reason.contains("larger than the queue's max_size of 4 bytes"), "{reason}");
    assert_eq!(queue.locked().next().await.unwrap().unwrap().name(), &good);
    assert!(queue.lock(&bad).await.unwrap(), "it is not locked");
}

#[tokio::test]
async fn element_of_a_normal_queue_without_its_field_becomes_dead() {
    let dir = tempdir().unwrap();
    let queue = Queue::builder(dir.path()).schema("body:string".parse().unwrap());
    let queue = queue.max_attempts(1).open().await.unwrap();
    let elements = [(); 2].map(|()| Element::new().with("body", "x"));
    let names = queue.add_many(elements).await.unwrap();
    let [bad, good] = names.try_into().unwrap();
    let element = dir.path().join(bad.to_string());
    fs::rename(element.join("body"), element.join("other")).unwrap();
    let mut jobs = queue.locked();
    assert!(matches!(jobs.next().await, Some(Err(Error::MissingFile { .. }))));
    assert_eq!(jobs.next().await.unwrap().unwrap().name(), &good);
    assert_eq!(queue.dead().await.unwrap()[0].name, bad);
    assert!(!element.join("locked").exists());
}

/// Without counting, there is no record of the failure, so each iteration finds the element again.
#[tokio::test]
async fn unreadable_element_is_yielded_by_each_iteration_of_a_queue_that_does_not_count() {
    let dir = tempdir().unwrap();
    QueueSimple::open(dir.path()).await.unwrap().add("too long").await.unwrap();
    let queue = QueueSimple::builder(dir.path()).max_size(4).open().await.unwrap();
    for _ in 0..3 {
        let mut jobs = queue.locked();
        assert!(matches!(jobs.next().await, Some(Err(Error::TooLarge { .. }))));
        assert!(jobs.next().await.is_none());
    }
    assert!(!dir.path().join("retries").exists());
}

/// Each handle keeps the records that it has read.
#[tokio::test]
async fn element_that_another_process_revives_is_delivered_at_once() {
    let (_dir, queue) = open_counted(1).await;
    let other = open_other_process(queue.path(), 1).await;
    let names = queue.add_many((0..20).map(|i| i.to_string())).await.unwrap();
    for name in &names {
        drop(next(&queue).await.unwrap());
        assert_eq!(queue.dead().await.unwrap().last().unwrap().name, *name);
    }
    for name in &names {
        assert!(next(&queue).await.is_none());
        assert!(next(&other).await.is_none());
        // Before and after the change, all records are the same in number.
        assert!(other.revive(name, Duration::from_micros(1)).await.unwrap());
        let job = next(&queue).await.expect("the element is revived");
        assert_eq!((job.name(), job.attempts()), (name, 1));
        assert!(next(&other).await.is_none());
        drop(job);
        assert!(other.revive(name, Duration::ZERO).await.unwrap());
        next(&queue).await.expect("the element is revived").ack().await.unwrap();
        assert!(next(&other).await.is_none());
    }
    assert_eq!(queue.count().await.unwrap(), 0);
}

/// Processes in other languages remove elements and leave their records.
#[tokio::test]
async fn records_of_removed_elements_do_not_accumulate_without_a_purge() {
    let (_dir, queue) = open_counted(1).await;
    let other = QueueSimple::open(queue.path()).await.unwrap();
    let kept = queue.add("kept").await.unwrap();
    next(&queue).await.unwrap().fail("why").await.unwrap();
    for _ in 0..8 {
        let names = queue.add_many((0..50).map(|i| i.to_string())).await.unwrap();
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await {
            job.unwrap().fail("why").await.unwrap();
        }
        for name in names {
            assert!(other.dequeue(&name).await.unwrap().is_some());
        }
    }
    assert!(next(&queue).await.is_none());
    // Two files for each of 401 failed elements. A purge that finds 51 elements is followed by one at 166 records,
    // which may be exceeded by those of one more round.
    let left = record_files(queue.path()).len();
    assert!(left < 2 * (166 + 50), "{left} files are left");
    assert_eq!(queue.dead().await.unwrap()[0].name, kept);
}

#[tokio::test]
async fn dead_letter_that_is_revived_while_it_is_locked_is_still_its_owners() {
    for delay in [Duration::ZERO, HOUR] {
        for end in ["ack", "unlock", "fail", "drop"] {
            let (_dir, queue) = open_counted(1).await;
            let name = queue.add("x").await.unwrap();
            next(&queue).await.unwrap().fail("why").await.unwrap();
            let dead = queue.take_dead(1).await.unwrap().remove(0);
            assert!(queue.revive(&name, delay).await.unwrap());
            dead.touch().await.unwrap();
            let revived = record_text(&queue, &name);
            let ended = match end {
                "ack" => dead.ack().await,
                "unlock" => dead.unlock().await,
                "fail" => dead.fail("again").await,
                _ => {
                    drop(dead);
                    Ok(())
                }
            };
            ended.unwrap_or_else(|error| panic!("{delay:?}, {end}: {error}"));
            let is_removed = end == "ack";
            assert_eq!(queue.lock(&name).await.unwrap(), !is_removed, "{delay:?}, {end}");
            let left = revived.filter(|_| !is_removed);
            assert_eq!(record_text(&queue, &name), left, "{delay:?}, {end}");
        }
    }
}

#[tokio::test]
async fn dead_letter_that_cannot_be_read_keeps_its_reason() {
    let (_dir, queue) = open_counted(1).await;
    queue.add("longer than the limit").await.unwrap();
    next(&queue).await.unwrap().fail("why").await.unwrap();
    let other = QueueSimple::builder(queue.path()).max_size(4).max_attempts(1);
    let other = other.open().await.unwrap();
    assert!(matches!(other.take_dead(1).await, Err(Error::TooLarge { .. })));
    assert_eq!(reasons(&queue).await, [Some("why".to_owned())]);
}
