//! Streams of locked elements, and the locks themselves: acked, dropped, kept alive.

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
};

/// Long enough for never.
pub(super) const HOUR: Duration = Duration::from_secs(3600);
/// In which what should happen at once happens on a machine that does much else.
pub(super) const SOON: Duration = Duration::from_secs(120);

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

/// Waits until `done`, which another thread makes true.
async fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < deadline, "it does not happen");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn all_that_is_free_comes_in_order_and_then_the_end() {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..300).map(|i| i.to_string())).await.unwrap();
    for i in [0, 7, 299] {
        assert!(queue.lock(&names[i]).await.unwrap());
    }
    // As its writer leaves it that dies between two steps: it is in the queue.
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
    assert!(locks.next().await.is_none(), "it stays at its end");
}

#[tokio::test]
async fn elements_with_fields_come_too() {
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
    assert!(queue.lock(&names[10]).await.unwrap(), "the drop unlocked it");
}

#[tokio::test]
async fn what_is_dropped_is_unlocked() {
    until_enough(drop_what_is_locked).await;
}

/// Whether some were locked ahead, as they are on a disk when they are asked for quickly.
async fn drop_what_is_locked() -> bool {
    let (_dir, queue) = queue().await;
    let names = queue.add_many((0..200).map(|i| i.to_string())).await.unwrap();
    let locked = || names.iter().filter(|name| is_locked(&queue, name)).count();
    let mut locks = queue.locked();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(locks.next().await.unwrap().unwrap());
    }
    let ahead = locked() - 20;
    assert!(ahead == 0 || !IN_MEMORY, "{ahead} are locked ahead");
    drop(locks);
    until(|| locked() == 20).await;
    held.truncate(5);
    assert_eq!(locked(), 5);
    drop(held);
    assert_eq!(locked(), 0);
    assert_eq!(queue.count().await.unwrap(), 200);
    ahead > 0 || IN_MEMORY
}

#[tokio::test]
async fn who_works_slowly_locks_one_at_a_time() {
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
async fn what_was_locked_ahead_and_waited_long_is_given_back() {
    until_enough(wait_for_what_was_locked_ahead).await;
}

/// Whether some were locked ahead, as they are on a disk when they are asked for quickly.
async fn wait_for_what_was_locked_ahead() -> bool {
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
        assert!(ahead.is_empty(), "each is locked when it is asked for");
        return true;
    }
    if ahead.len() < 3 {
        return false;
    }
    // A job that lasts, and does not ask for the next.
    until(|| locked(&names[10..]).is_empty()).await;
    assert_eq!(locked(&names[..10]), names[..10], "what was asked for is held");
    // Another process takes two of them.
    let other = QueueSimple::open(queue.path()).await.unwrap();
    assert!(other.lock(&names[10]).await.unwrap());
    assert!(other.dequeue(&names[12]).await.unwrap().is_some());
    let mut rest = Vec::new();
    while let Some(lock) = locks.next().await {
        rest.push(*lock.unwrap().name());
    }
    let free: Vec<_> = [11].into_iter().chain(13..40).map(|i| names[i]).collect();
    assert_eq!(rest, free, "in order, each once");
    true
}

#[tokio::test]
async fn what_is_locked_ahead_is_bound_in_bytes() {
    const LONG: usize = 300_000;
    let (_dir, queue) = queue().await;
    // Three of them, and no fourth, are within a mebibyte.
    let bodies: Vec<_> = (0..40).map(|i| vec![i; LONG]).collect();
    let names = queue.add_many(&bodies).await.unwrap();
    let mut locks = queue.locked();
    let mut found = Vec::new();
    while let Some(lock) = locks.next().await {
        let lock = lock.unwrap();
        assert_eq!(lock.value(), &bodies[found.len()]);
        let held = names.iter().filter(|name| is_locked(&queue, name)).count();
        assert!(held <= 3, "{held} are locked");
        found.push(*lock.name());
        lock.ack().await.unwrap();
    }
    assert_eq!(found, names);
}

#[tokio::test]
async fn a_lock_ends_once() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    for end in ["ack", "unlock", "touch"] {
        let lock = queue.locked().next().await.unwrap().unwrap();
        // A purge of another process.
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
fn a_lock_may_outlive_its_runtime() {
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

#[test]
fn what_is_locked_ahead_needs_a_clock() {
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (_dir, queue) = queue().await;
        queue.add("x").await.unwrap();
        let mut jobs = queue.locked();
        let next = std::panic::AssertUnwindSafe(jobs.next()).catch_unwind().await;
        assert_eq!(next.is_err(), !IN_MEMORY, "the docs say where it panics");
        drop(next);
        drop(jobs);
        assert!(all(queue.names()).await.iter().all(|name| !is_locked(&queue, name)));
    });
}

#[test]
fn a_stream_may_go_on_in_another_runtime() {
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

/// On a runtime with one thread for the disk, which so does one call after another.
fn one_by_one(test: impl Future<Output = ()>) {
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(test);
}

#[test]
fn a_call_that_is_dropped_leaves_no_lock() {
    one_by_one(async {
        let (_dir, queue) = queue().await;
        let names = queue.add_many(["x", "y"]).await.unwrap();
        let mut dropped = 0;
        for _ in 0..100 {
            match queue.lock(&names[0]).now_or_never() {
                Some(locked) => {
                    // The other thread was quicker.
                    assert!(locked.unwrap());
                    queue.unlock(&names[0]).await.unwrap();
                }
                None => dropped += 1,
            }
            let mut locks = queue.locked();
            drop(locks.next().now_or_never());
            drop(locks);
            assert_eq!(queue.count().await.unwrap(), 2);
            assert!(!names.iter().any(|name| is_locked(&queue, name)), "nobody came for the lock");
        }
        assert_eq!(dropped > 0, !IN_MEMORY, "calls that had to wait");
        // Whoever only drops the wait finds all that came meanwhile.
        let mut locks = queue.locked();
        let first = match locks.next().now_or_never() {
            Some(first) => first,
            None => locks.next().await,
        };
        assert_eq!(first.unwrap().unwrap().name(), &names[0]);
    });
}

#[test]
fn dropped_calls_of_elements_with_fields_leave_no_lock() {
    one_by_one(async {
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
async fn what_can_not_be_read_is_an_error_and_unlocked() {
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
    assert!(queue.lock(&names[1]).await.unwrap(), "the lock was given back");
}

#[tokio::test]
async fn keep_alive_keeps_a_purge_away() {
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
async fn work_stops_when_the_lock_is_lost() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    fs::remove_file(lock_of(&queue, &added)).unwrap();
    let work = std::future::pending::<()>();
    let error =
        timeout(SOON, lock.keep_alive(Duration::from_millis(5), work)).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NotLocked { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn keep_alive_touches_every_so_often() {
    let (_dir, queue) = queue().await;
    queue.add("x").await.unwrap();
    let lock = queue.locked().next().await.unwrap().unwrap();
    let path = lock_of(&queue, lock.name());
    make_old(&path, HOUR);
    let quick = lock.keep_alive(Duration::from_secs(60), sleep(Duration::from_secs(59)));
    quick.await.unwrap();
    assert!(age(&path) > HOUR / 2, "work that is done before needs no touch");
    let long = lock.keep_alive(Duration::from_secs(60), sleep(Duration::from_secs(61)));
    long.await.unwrap();
    assert!(age(&path) < HOUR / 2);
}

#[tokio::test(start_paused = true)]
async fn any_interval_keeps_a_lock_alive() {
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
