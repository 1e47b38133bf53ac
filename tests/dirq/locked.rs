//! Streams of locked elements, and operations on locks: ack, drop, keep_alive.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use fleeting::dirq::{Element, Error, Name, Purge, Queue, QueueSimple};
use futures::{FutureExt, StreamExt};
use tempfile::TempDir;
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

use super::{IN_MEMORY, tempdir};
use crate::{
    clock::until_enough,
    directory::{age, all, make_old},
    patience::patience,
};

/// Longer than any test.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) async fn queue() -> (TempDir, QueueSimple) {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path().join("queue")).await.unwrap();
    (dir, queue)
}

pub(super) async fn normal() -> (TempDir, Queue) {
    let dir = tempdir().unwrap();
    let builder = Queue::builder(dir.path().join("queue"));
    let queue = builder.schema("body:string".parse().unwrap()).open().await.unwrap();
    (dir, queue)
}

fn is_locked(queue: &QueueSimple, name: &Name) -> bool {
    lock_of(queue, name).exists()
}

fn lock_of(queue: &QueueSimple, name: &Name) -> PathBuf {
    queue.path().join(format!("{name}.lck"))
}

/// Waits until `done` returns true, because of another thread.
async fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !done() {
        assert!(Instant::now() < deadline, "the condition did not become true in time");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn locked_returns_all_unlocked_elements_in_order_and_ends() {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..300).map(|i| i.to_string())).await.unwrap();
    for i in [0, 7, 299] {
        assert!(queue.lock(&names[i]).await.unwrap());
    }
    // As after a crash of its writer between two steps: the element is in the queue.
    fs::write(queue.path().join(format!("{}.tmp", names[5])), "5").unwrap();
    let mut locks = queue.locked();
    let mut found = Vec::new();
    while let Some(lock) = locks.next().await.transpose().unwrap() {
        let index = names.iter().position(|name| name == lock.name()).unwrap();
        assert_eq!(lock.value(), index.to_string().as_bytes());
        assert!(is_locked(&queue, lock.name()));
        found.push(*lock.name());
        if index % 2 == 0 {
            lock.ack().await.unwrap();
        } else {
            lock.unlock().await.unwrap();
        }
    }
    let free: Vec<_> = (0..300).filter(|i| ![0, 7, 299].contains(i)).map(|i| names[i]).collect();
    assert_eq!(found, free);
    let left: Vec<_> = (0..300).filter(|i| *i == 0 || i % 2 == 1).map(|i| names[i]).collect();
    assert_eq!(all(queue.names()).await, left);
    let locked: Vec<_> = left.iter().filter(|name| is_locked(&queue, name)).collect();
    assert_eq!(locked, [&names[0], &names[7], &names[299]]);
    assert!(locks.next().await.is_none(), "the stream stays at its end");
}

#[tokio::test]
async fn locked_returns_elements_with_fields() {
    let (_dir, queue) = normal().await;
    let bodies: Vec<_> = (0..50).map(|i| i.to_string()).collect();
    let elements = bodies.iter().map(|body| Element::new().with("body", body.as_str()));
    let names = queue.add_many(elements).await.unwrap();
    let mut locks = queue.locked().enumerate();
    while let Some((i, lock)) = locks.next().await {
        let lock = lock.unwrap();
        assert_eq!((lock.name(), lock.value().string("body")), (&names[i], Some(&*bodies[i])));
        assert!(!queue.lock(lock.name()).await.unwrap());
        match i {
            10 => drop(lock),
            _ => lock.ack().await.unwrap(),
        }
    }
    assert_eq!(all(queue.names()).await, [names[10]]);
    assert!(queue.lock(&names[10]).await.unwrap(), "dropping the lock unlocked the element");
}

#[tokio::test]
async fn dropped_stream_unlocks_prefetched_elements() {
    until_enough(drop_stream_with_prefetched_locks).await;
}

/// Returns true if elements were prefetched, as on a disk with a fast consumer.
async fn drop_stream_with_prefetched_locks() -> bool {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..200).map(|i| i.to_string())).await.unwrap();
    let locked = || names.iter().filter(|name| is_locked(&queue, name)).count();
    let mut locks = queue.locked();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(locks.next().await.unwrap().unwrap());
    }
    let ahead = locked() - 20;
    assert!(ahead == 0 || !IN_MEMORY, "{ahead} elements are prefetched");
    drop(locks);
    until(|| locked() == 20).await;
    held.truncate(5);
    until(|| locked() == 5).await;
    drop(held);
    until(|| locked() == 0).await;
    assert_eq!(queue.count().await.unwrap(), 200);
    ahead > 0 || IN_MEMORY
}

#[tokio::test]
async fn slow_consumer_locks_one_element_at_a_time() {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..10).map(|i| i.to_string())).await.unwrap();
    let locked = || names.iter().filter(|name| is_locked(&queue, name)).count();
    let mut locks = queue.locked();
    for name in &names[..3] {
        let lock = locks.next().await.unwrap().unwrap();
        assert_eq!((lock.name(), locked()), (name, 1));
        sleep(Duration::from_millis(15)).await;
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn stale_prefetched_locks_are_released() {
    until_enough(wait_until_prefetched_locks_are_stale).await;
}

/// Returns true if elements were prefetched, as on a disk with a fast consumer.
async fn wait_until_prefetched_locks_are_stale() -> bool {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..40).map(|i| i.to_string())).await.unwrap();
    let locked =
        |names: &[Name]| names.iter().filter(|name| is_locked(&queue, name)).copied().collect();
    let mut locks = queue.locked();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(locks.next().await.unwrap().unwrap());
    }
    let ahead: Vec<Name> = locked(&names[10..]);
    if IN_MEMORY {
        assert!(ahead.is_empty(), "elements in memory are locked on request");
        return true;
    }
    if ahead.len() < 3 {
        return false;
    }
    // A long job, during which no element is requested.
    until(|| locked(&names[10..]).is_empty()).await;
    assert_eq!(locked(&names[..10]), names[..10], "delivered elements stay locked");
    // Another process takes two of them.
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert!(other.lock(&names[10]).await.unwrap());
    assert!(other.dequeue(&names[12]).await.unwrap().is_some());
    let mut rest = Vec::new();
    while let Some(lock) = locks.next().await {
        rest.push(*lock.unwrap().name());
    }
    let free: Vec<_> = [11].into_iter().chain(13..40).map(|i| names[i]).collect();
    assert_eq!(rest, free, "each element once, in order");
    true
}

#[tokio::test]
async fn elements_locked_for_a_dropped_next_are_released() {
    until_enough(drop_next_while_it_locks).await;
}

/// Drops the future of a `next` that was polled once, as `select!` and `timeout` do. Returns true if the call had
/// begun.
async fn drop_next_while_it_locks() -> bool {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..60).map(|i| i.to_string())).await.unwrap();
    let locked = || names.iter().filter(|name| is_locked(&queue, name)).count();
    let mut jobs = queue.locked();
    // Batches of 1, 2, 4 and 8 elements if they are requested quickly; the next call locks another batch.
    let seconds = if IN_MEMORY { 0 } else { 15 };
    for _ in 0..seconds {
        jobs.next().await.unwrap().unwrap().ack().await.unwrap();
    }
    if locked() > 0 || jobs.next().now_or_never().is_some() {
        return false;
    }
    if IN_MEMORY {
        sleep(Duration::from_millis(50)).await;
        assert_eq!(locked(), 0, "elements in memory are locked on request");
        return true;
    }
    // On the thread that was asked to lock them. A late machine locks fewer, or sees them when they are released.
    let begin = Instant::now();
    while locked() <= 1 {
        if begin.elapsed() > Duration::from_secs(1) {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
    // The stream is not polled again.
    until(|| locked() == 0).await;
    // Another process takes one of them. The stream continues with the others.
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert!(other.lock(&names[16]).await.unwrap());
    let mut rest = Vec::new();
    while let Some(job) = jobs.next().await {
        rest.push(*job.unwrap().name());
    }
    let free: Vec<_> = [15].into_iter().chain(17..60).map(|i| names[i]).collect();
    assert_eq!(rest, free, "each element once, in order");
    true
}

#[tokio::test]
async fn prefetched_elements_are_bounded_in_bytes() {
    const LONG: usize = 300_000;
    let (_dir, queue) = queue().await;
    // Three of them fit into a mebibyte.
    let bodies: Vec<_> = (0..40).map(|i| vec![i; LONG]).collect();
    let names = queue.add_many(&bodies).await.unwrap();
    let mut locks = queue.locked();
    let mut found = Vec::new();
    while let Some(lock) = locks.next().await {
        let lock = lock.unwrap();
        assert_eq!(lock.value(), &bodies[found.len()]);
        let held = names.iter().filter(|name| is_locked(&queue, name)).count();
        assert!(held <= 3, "{held} elements are locked");
        found.push(*lock.name());
        lock.ack().await.unwrap();
    }
    assert_eq!(found, names);
}

#[tokio::test]
async fn lock_is_released_exactly_once() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    for end in ["ack", "unlock", "touch"] {
        let lock = queue.locked().next().await.unwrap().unwrap();
        // A purge by another process.
        fs::remove_file(lock_of(&queue, &added)).unwrap();
        let error = match end {
            "ack" => lock.ack().await.unwrap_err(),
            "unlock" => lock.unlock().await.unwrap_err(),
            _ => lock.touch().await.unwrap_err(),
        };
        assert!(matches!(error, Error::NotLocked { .. }), "{end}: {error:?}");
    }
    assert_eq!(queue.peek(&added).await.unwrap().unwrap(), "x");
    let lock = queue.locked().next().await.unwrap().unwrap();
    lock.unlock().await.unwrap();
    assert!(queue.lock(&added).await.unwrap());
}

#[test]
fn lock_can_be_dropped_after_its_runtime() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (_dir, queue, lock) = runtime.block_on(async {
        let (dir, queue) = queue().await;
        queue.add("x").await.unwrap();
        let lock = queue.locked().next().await.unwrap().unwrap();
        (dir, queue, lock)
    });
    drop(runtime);
    assert!(is_locked(&queue, lock.name()));
    let name = *lock.name();
    drop(lock);
    assert!(!is_locked(&queue, &name));
}

/// As in a program that enters its runtime only for single calls.
#[test]
fn dropped_lock_is_released_while_its_runtime_is_not_driven() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (_dir, queue, name) = runtime.block_on(async {
        let (dir, queue) = queue().await;
        let name = queue.add("x").await.unwrap();
        drop(queue.locked().next().await.unwrap().unwrap());
        (dir, queue, name)
    });
    let begin = Instant::now();
    while is_locked(&queue, &name) {
        assert!(begin.elapsed() < patience(), "the lock is not released");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn prefetching_needs_a_time_driver() {
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (_dir, queue) = queue().await;
        queue.add("x").await.unwrap();
        let mut jobs = queue.locked();
        let next = std::panic::AssertUnwindSafe(jobs.next()).catch_unwind().await;
        assert_eq!(next.is_err(), !IN_MEMORY, "the stream panics only on a disk, as documented");
        drop(next);
        drop(jobs);
        assert!(all(queue.names()).await.iter().all(|name| !is_locked(&queue, name)));
    });
}

#[test]
fn stream_continues_on_another_runtime() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (_dir, queue, names, mut jobs) = first.block_on(async {
        let (dir, queue) = queue().await;
        let names = queue.add_many((0..200).map(|i| i.to_string())).await.unwrap();
        let mut jobs = queue.locked();
        for _ in 0..10 {
            jobs.next().await.unwrap().unwrap().ack().await.unwrap();
        }
        (dir, queue, names, jobs)
    });
    drop(first);
    runtime().block_on(async {
        let mut found = Vec::new();
        for _ in 0..50 {
            let job = jobs.next().await.unwrap().unwrap();
            found.push(*job.name());
            job.ack().await.unwrap();
        }
        assert_eq!(found, names[10..60]);
        until(|| !names.iter().any(|name| is_locked(&queue, name))).await;
        assert_eq!(jobs.next().await.unwrap().unwrap().name(), &names[60]);
    });
}

/// Runs the test on a runtime with one blocking thread, which executes calls one after another.
fn on_one_blocking_thread(test: impl Future<Output = ()>) {
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(test);
}

#[test]
fn dropped_call_leaves_no_lock() {
    on_one_blocking_thread(async {
        let (_dir, queue) = queue().await;
        let names = queue.add_many(["x", "y"]).await.unwrap();
        let mut dropped = 0;
        for _ in 0..100 {
            match queue.lock(&names[0]).now_or_never() {
                Some(locked) => {
                    // The worker was faster than the drop.
                    assert!(locked.unwrap());
                    queue.unlock(&names[0]).await.unwrap();
                }
                None => dropped += 1,
            }
            let mut locks = queue.locked();
            drop(locks.next().now_or_never());
            drop(locks);
            assert_eq!(queue.count().await.unwrap(), 2);
            assert!(!names.iter().any(|name| is_locked(&queue, name)), "the locks are released");
        }
        assert_eq!(dropped > 0, !IN_MEMORY, "only calls on a disk are pending");
        // Dropping only the wait loses no element that arrived in the meantime.
        let mut locks = queue.locked();
        let first = match locks.next().now_or_never() {
            Some(first) => first,
            None => locks.next().await,
        };
        assert_eq!(first.unwrap().unwrap().name(), &names[0]);
    });
}

#[test]
fn dropped_call_on_a_normal_queue_leaves_no_lock() {
    on_one_blocking_thread(async {
        let (_dir, queue) = normal().await;
        let name = queue.add(Element::new().with("body", "x")).await.unwrap();
        for _ in 0..100 {
            if queue.lock(&name).now_or_never().is_some() {
                queue.unlock(&name).await.unwrap();
            }
            assert_eq!(queue.count().await.unwrap(), 1);
            assert!(!queue.path().join(name.to_string()).join("locked").exists());
        }
        assert!(queue.lock(&name).await.unwrap());
    });
}

#[tokio::test]
async fn unreadable_element_is_an_error_and_is_unlocked() {
    let (_dir, queue) = normal().await;
    let names = queue
        .add_many(["a", "b", "c"].map(|body| Element::new().with("body", body)))
        .await
        .unwrap();
    let body = queue.path().join(names[1].to_string()).join("body");
    fs::remove_file(&body).unwrap();
    let mut locks = queue.locked();
    locks.next().await.unwrap().unwrap().ack().await.unwrap();
    let error = locks.next().await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::MissingFile { path } if *path == body), "{error:?}");
    locks.next().await.unwrap().unwrap().ack().await.unwrap();
    assert!(locks.next().await.is_none());
    assert!(queue.lock(&names[1]).await.unwrap(), "the lock was released");
}

#[tokio::test]
async fn keep_alive_protects_the_lock_from_a_purge() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let path = lock_of(&queue, &added);
    let purge = Purge::default().max_lock(Duration::from_secs(60));
    let done = lock.keep_alive(Duration::from_millis(5), async {
        for _ in 0..3 {
            make_old(&path, HOUR);
            until(|| age(&path) < HOUR / 2).await;
            assert_eq!(queue.purge(purge).await.unwrap().locks, 0);
        }
        "done"
    });
    assert_eq!(done.await.unwrap(), "done");
    lock.ack().await.unwrap();
    assert_eq!(queue.count().await.unwrap(), 0);
}

#[tokio::test]
async fn touch_of_a_removed_element_of_a_normal_queue_is_not_locked() {
    let (_dir, queue) = normal().await;
    let name = queue.add(Element::new().with("body", "x")).await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    fs::remove_dir_all(queue.path().join(name.to_string())).unwrap();
    let touched = lock.touch().await;
    assert!(matches!(touched, Err(Error::NotLocked { .. })), "{touched:?}");
}

#[tokio::test]
async fn keep_alive_drops_the_work_if_the_lock_is_lost() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    fs::remove_file(lock_of(&queue, &added)).unwrap();
    let work = std::future::pending::<()>();
    let error = timeout(patience(), lock.keep_alive(Duration::from_millis(5), work))
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::NotLocked { .. }), "{error:?}");
}

/// Such as a file system that is unmounted for a moment: the locks are on it.
#[tokio::test(start_paused = true)]
async fn keep_alive_continues_while_the_directory_of_the_queue_is_away() {
    let (_dir, queue) = queue().await;
    queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let away = queue.path().with_extension("away");
    let work = async {
        sleep(Duration::from_secs(90)).await;
        fs::rename(queue.path(), &away).unwrap();
        let error = lock.touch().await.unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path == queue.path()), "{error:?}");
        sleep(Duration::from_secs(400)).await;
        fs::rename(&away, queue.path()).unwrap();
        make_old(&lock_of(&queue, lock.name()), HOUR);
        sleep(Duration::from_secs(400)).await;
        "done"
    };
    assert_eq!(lock.keep_alive(Duration::from_secs(60), work).await.unwrap(), "done");
    assert!(age(&lock_of(&queue, lock.name())) < HOUR / 2, "the lock is renewed again");
    lock.ack().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keep_alive_continues_after_failed_renewals() {
    let (_dir, queue) = queue().await;
    queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let directory = lock_of(&queue, lock.name()).parent().unwrap().to_owned();
    let moved = queue.path().join("moved");
    let work = async {
        // A failure that passes, such as that of a server which restarts.
        sleep(Duration::from_secs(90)).await;
        fs::rename(&directory, &moved).unwrap();
        fs::write(&directory, "").unwrap();
        sleep(Duration::from_secs(400)).await;
        fs::remove_file(&directory).unwrap();
        fs::rename(&moved, &directory).unwrap();
        make_old(&lock_of(&queue, lock.name()), HOUR);
        sleep(Duration::from_secs(400)).await;
        "done"
    };
    assert_eq!(lock.keep_alive(Duration::from_secs(60), work).await.unwrap(), "done");
    assert!(age(&lock_of(&queue, lock.name())) < HOUR / 2, "the lock is renewed again");

    // A failure that lasts for as long as a lock.
    fs::rename(&directory, &moved).unwrap();
    fs::write(&directory, "").unwrap();
    let begin = tokio::time::Instant::now();
    let work = std::future::pending::<()>();
    let error = lock.keep_alive(Duration::from_secs(60), work).await.unwrap_err();
    assert!(!matches!(error, Error::NotLocked { .. }), "{error:?}");
    let (least, most) = (Duration::from_secs(660), Duration::from_secs(662));
    assert!((least..most).contains(&begin.elapsed()), "after {:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn keep_alive_touches_the_lock_at_its_interval() {
    let (_dir, queue) = queue().await;
    queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let path = lock_of(&queue, lock.name());
    make_old(&path, HOUR);
    let quick = lock.keep_alive(Duration::from_secs(60), sleep(Duration::from_secs(59)));
    quick.await.unwrap();
    assert!(age(&path) > HOUR / 2, "short work needs no touch");
    let long = lock.keep_alive(Duration::from_secs(60), sleep(Duration::from_secs(61)));
    long.await.unwrap();
    assert!(age(&path) < HOUR / 2);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_accepts_any_interval() {
    let (_dir, queue) = queue().await;
    queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let path = lock_of(&queue, lock.name());
    for every in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        make_old(&path, HOUR);
        lock.keep_alive(every, sleep(Duration::from_secs(1))).await.unwrap();
        assert_eq!(age(&path) < HOUR / 2, every < HOUR, "{every:?}");
    }
}
