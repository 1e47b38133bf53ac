//! Sets of queues, and the null queue.

use std::{fs, pin::pin, time::Duration};

use fleeting::dirq::{Element, Error, Lock, Purge, Queue, QueueNull, QueueSet, QueueSimple};
use futures::FutureExt;
use tempfile::{TempDir, tempdir};
use tokio::time::timeout;

use crate::{
    WATCHES,
    directory::{all, kind, name},
    patience::patience,
};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// Opens three queues, on disk or in memory.
async fn open_three_queues(dir: &TempDir) -> Vec<QueueSimple> {
    let mut queues = Vec::new();
    for i in 0..3 {
        queues.push(QueueSimple::open(dir.path().join(i.to_string())).await.unwrap());
    }
    queues
}

fn temp_dirs() -> Vec<TempDir> {
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    [on_disk].into_iter().chain(tempfile::tempdir_in("/dev/shm").ok()).collect()
}

#[tokio::test]
async fn set_merges_names_by_time_and_not_by_directory() {
    let dir = tempdir().unwrap();
    let mut queues = Vec::new();
    for (queue, elements) in [
        (
            "a",
            vec!["00000001/00000000000005", "00000001/00000000000009", "00000002/00000000000001"],
        ),
        (
            "b",
            vec!["00000000/00000000000007", "00000003/00000000000002", "00000003/00000000000008"],
        ),
        ("c", vec![]),
    ] {
        let queue = Queue::open(dir.path().join(queue)).await.unwrap();
        for element in elements {
            fs::create_dir_all(queue.path().join(element)).unwrap();
        }
        queues.push(queue);
    }
    let set = QueueSet::new(queues.clone()).unwrap();
    let found: Vec<_> = all(set.names())
        .await
        .into_iter()
        .map(|(queue, name)| (queue.path().file_name().unwrap().to_owned(), name))
        .collect();
    // Each queue in its own order, directory by directory; across queues by time.
    let expected = [
        ("a", "00000001/00000000000005"),
        ("b", "00000000/00000000000007"),
        ("b", "00000003/00000000000002"),
        ("b", "00000003/00000000000008"),
        ("a", "00000001/00000000000009"),
        ("a", "00000002/00000000000001"),
    ];
    assert_eq!(found, expected.map(|(queue, element)| (queue.into(), name(element))));
    assert_eq!(set.count().await.unwrap(), 6);
}

#[tokio::test]
async fn set_returns_elements_in_the_order_of_their_adds() {
    let dir = tempdir().unwrap();
    let mut queues = Vec::new();
    for i in 0..3 {
        queues.push(QueueSimple::open(dir.path().join(i.to_string())).await.unwrap());
    }
    let set = QueueSet::new(queues.clone()).unwrap();
    for i in 0..30_usize {
        queues[i * 7 % 3].add(i.to_string()).await.unwrap();
        // Each queue has its own clock: wait, so that their times differ.
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    let mut names = set.names();
    let mut next = 0;
    while let Some((queue, name)) = names.next().await.transpose().unwrap() {
        let body = queue.dequeue(&name).await.unwrap().unwrap();
        assert_eq!(body, next.to_string());
        next += 1;
    }
    assert_eq!((next, set.count().await.unwrap()), (30, 0));
}

#[tokio::test]
async fn set_locks_all_unlocked_elements_in_the_order_of_time() {
    for dir in temp_dirs() {
        let queues = open_three_queues(&dir).await;
        let set = QueueSet::new(queues.clone()).unwrap();
        let mut added = Vec::new();
        for i in 0..60_usize {
            added.push(queues[i * 7 % 3].add(i.to_string()).await.unwrap());
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(queues[7 % 3].lock(&added[1]).await.unwrap());
        // An element that cannot be read is an error, and does not block the others.
        let bad = queues[2].path().join(added[2].to_string());
        fs::remove_file(&bad).unwrap();
        std::os::unix::fs::symlink("nowhere", &bad).unwrap();
        let (mut jobs, mut found) = (set.locked(), Vec::new());
        while let Some((queue, job)) = jobs.next().await.transpose().unwrap() {
            let i: usize = str::from_utf8(job.value()).unwrap().parse().unwrap();
            assert_eq!((queue.path(), job.name()), (queues[i * 7 % 3].path(), &added[i]));
            found.push(i);
            match i % 2 {
                0 => job.ack().await.unwrap(),
                _ => drop(job),
            }
        }
        assert_eq!(found, (0..60).filter(|i| ![1, 2].contains(i)).collect::<Vec<_>>());
        assert!(jobs.next().await.is_none(), "the stream stays at its end");
        drop(jobs);
        for (i, name) in added.iter().enumerate().filter(|(i, _)| i % 2 > 0) {
            assert_eq!(queues[i * 7 % 3].lock(name).await.unwrap(), i != 1);
        }
    }
}

/// The polling thread must not block on the disk, even if the first queue is in memory.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn ack_all_of_several_queues_blocks_only_for_queues_on_disk() {
    // The worker may be so fast that the first poll finds the result.
    for _ in 0..1_000 {
        if ack_of_two_queues_is_pending().await {
            return;
        }
    }
    panic!("elements on a disk are removed in place");
}

#[cfg(target_os = "linux")]
async fn ack_of_two_queues_is_pending() -> bool {
    let dirs =
        [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))];
    let mut queues = Vec::new();
    for dir in &dirs {
        let queue = QueueSimple::open(dir.as_ref().unwrap().path()).await.unwrap();
        queue.add_many(["a", "b"]).await.unwrap();
        queues.push(queue);
    }
    let mut jobs = QueueSet::new(queues.clone()).unwrap().locked();
    let mut locks = Vec::new();
    while let Some((_, lock)) = jobs.next().await.transpose().unwrap() {
        locks.push(lock);
    }
    assert_eq!(locks.len(), 4);
    let in_memory = |lock: &Lock<_>| queues[0].path().join(lock.name().to_string()).exists();
    locks.sort_by_key(|lock| !in_memory(lock));
    let mut ack = pin!(Lock::ack_all(locks));
    let waits = match ack.as_mut().now_or_never() {
        None => {
            ack.await.unwrap();
            true
        }
        Some(done) => {
            done.unwrap();
            false
        }
    };
    for queue in &queues {
        assert_eq!(queue.count().await.unwrap(), 0);
    }
    waits
}

#[tokio::test]
async fn set_can_be_watched() {
    let _has_watches = WATCHES.read().await;
    for dir in temp_dirs() {
        let queues = open_three_queues(&dir).await;
        let set = QueueSet::new(queues.clone()).unwrap();
        let mut jobs = set.watch(HOUR);
        for i in [2, 0, 1, 1] {
            let nothing = timeout(Duration::from_millis(30), jobs.next()).await;
            assert!(nothing.is_err(), "the queues are empty");
            let added = queues[i].add("x").await.unwrap();
            let (queue, job) = timeout(patience(), jobs.next()).await.unwrap().unwrap().unwrap();
            assert_eq!((queue.path(), job.name()), (queues[i].path(), &added));
            job.ack().await.unwrap();
        }
        // The end of a backoff wakes the stream, in any of the queues.
        queues[2].add("x").await.unwrap();
        for attempt in 1..=3 {
            let (_, job) = timeout(patience(), jobs.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(job.attempts(), attempt);
            job.retry_in(Duration::from_millis(20)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn empty_set_has_no_elements() {
    let set = QueueSet::<Queue>::new([]).unwrap();
    assert!(set.locked().next().await.is_none());
    let mut jobs = set.watch(Duration::from_millis(1));
    assert!(
        timeout(Duration::from_millis(20), jobs.next()).await.is_err(),
        "the stream does not end"
    );
}

#[tokio::test]
async fn set_rejects_a_duplicate_queue() {
    let dir = tempdir().unwrap();
    let a = QueueSimple::open(dir.path().join("a")).await.unwrap();
    let b = QueueSimple::open(dir.path().join("b")).await.unwrap();
    std::os::unix::fs::symlink(a.path(), dir.path().join("link")).unwrap();
    let again = QueueSimple::open(dir.path().join("link")).await.unwrap();

    let error = QueueSet::new([a.clone(), a.clone()]).unwrap_err();
    assert!(matches!(&error, Error::Duplicate { path } if path == a.path()), "{error:?}");
    let mut set = QueueSet::new([a.clone()]).unwrap();
    let error = set.add(again.clone()).unwrap_err();
    assert!(matches!(&error, Error::Duplicate { path } if path == again.path()), "{error:?}");
    set.add(b.clone()).unwrap();
    a.add("a").await.unwrap();
    b.add("b").await.unwrap();
    assert_eq!(set.count().await.unwrap(), 2);

    let mut begun = set.names();
    assert!(set.remove(&again), "both handles are the same queue");
    assert!(!set.remove(&a));
    assert_eq!((set.count().await.unwrap(), all(set.names()).await.len()), (1, 1));
    assert_eq!(begun.next().await.unwrap().unwrap().0.path(), a.path());
    assert!(set.remove(&b));
    assert_eq!(set.count().await.unwrap(), 0);
    assert!(set.names().next().await.is_none(), "the iteration over an empty set ends");
}

#[tokio::test]
async fn error_of_one_queue_does_not_end_the_iteration() {
    let dir = tempdir().unwrap();
    let a = QueueSimple::open(dir.path().join("a")).await.unwrap();
    let b = QueueSimple::open(dir.path().join("b")).await.unwrap();
    let set = QueueSet::new([a.clone(), b.clone()]).unwrap();
    let added = b.add("b").await.unwrap();
    fs::remove_dir(a.path()).unwrap();
    fs::write(a.path(), "a file in the place of a queue").unwrap();
    let mut names = set.names();
    let error = names.next().await.unwrap().unwrap_err();
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotADirectory));
    assert!(error.to_string().contains(a.path().to_str().unwrap()), "{error}");
    assert_eq!(names.next().await.unwrap().unwrap().1, added);
    assert!(names.next().await.is_none());
    assert!(set.count().await.is_err());
}

#[tokio::test]
async fn null_queue_discards_elements() {
    let dir = tempdir().unwrap();
    let null = QueueNull::new();
    let added = null.add("x").await.unwrap();
    assert_eq!(added, name("NULL"));
    assert_eq!(null.add_many(["x", "y"]).await.unwrap(), [added, added]);
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();
    assert_eq!(null.add_path(&path).await.unwrap(), added);
    assert!(!path.exists());
    let error = null.add_path(&path).await.unwrap_err();
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotFound));

    assert_eq!(null.count().await.unwrap(), 0);
    assert!(null.names().next().await.is_none());
    assert_eq!(null.purge(Purge::default()).await.unwrap(), Default::default());
    for (operation, error) in [
        ("lock", null.lock(&added).await.unwrap_err()),
        ("unlock", null.unlock(&added).await.unwrap_err()),
        ("get", null.get(&added).await.unwrap_err()),
        ("get_path", null.get_path(&added).await.unwrap_err()),
        ("remove", null.remove(&added).await.unwrap_err()),
        ("touch", null.touch(&added).await.unwrap_err()),
    ] {
        assert!(
            matches!(&error, Error::Unsupported { operation: said } if *said == operation),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn other_queues_reject_the_name_of_the_null_queue() {
    let dir = tempdir().unwrap();
    let null = name("NULL");
    let simple = QueueSimple::open(dir.path().join("simple")).await.unwrap();
    let normal = Queue::builder(dir.path().join("normal"))
        .schema("body:string".parse().unwrap())
        .open()
        .await
        .unwrap();
    normal.add(Element::new().with("body", "x")).await.unwrap();
    for error in [
        simple.lock(&null).await.unwrap_err(),
        simple.unlock(&null).await.unwrap_err(),
        simple.get(&null).await.unwrap_err(),
        simple.get_path(&null).await.unwrap_err(),
        simple.peek(&null).await.unwrap_err(),
        simple.dequeue(&null).await.unwrap_err(),
        simple.remove(&null).await.unwrap_err(),
        simple.touch(&null).await.unwrap_err(),
        normal.lock(&null).await.unwrap_err(),
        normal.unlock(&null).await.unwrap_err(),
        normal.get(&null).await.unwrap_err(),
        normal.peek(&null).await.unwrap_err(),
        normal.get_element(&null).await.unwrap_err(),
        normal.dequeue(&null).await.unwrap_err(),
        normal.remove(&null).await.unwrap_err(),
        normal.touch(&null).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::InvalidName { name } if name == "NULL"), "{error:?}");
    }
}
