//! Each add is executed exactly once, regardless of its leader, of cancelled callers, and of runtimes that shut down.

use std::{future::Future, pin::Pin, sync::mpsc};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::dirq::{
    QueueSimple,
    fs::faults::{Fault, with_plan},
};

type AddFuture = Pin<Box<dyn Future<Output = Result<Name, Error>> + Send>>;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap()
}

/// Opens a queue in a temporary directory, with a maximum size of nine bytes.
fn open() -> (QueueSimple, TempDir) {
    let temp_dir = tempfile::tempdir().unwrap();
    let open = QueueSimple::builder(temp_dir.path()).sync(true).max_size(9).open();
    (runtime().block_on(open).unwrap(), temp_dir)
}

/// Returns a future that adds in a group, regardless of the queue's storage.
fn add_to(queue: &QueueSimple, body: &str) -> AddFuture {
    let (queue, body) = (queue.protocol.clone(), Bytes::from(body.to_owned()));
    Box::pin(async move { add(&queue, body, None).await })
}

/// Same as [`add_to`], after the add was queued.
fn queued_add(queue: &QueueSimple, body: &str) -> AddFuture {
    let mut adding = add_to(queue, body);
    assert!((&mut adding).now_or_never().is_none());
    adding
}

/// Returns a leader that does not execute adds until it is spawned.
fn with_leader(queue: &QueueSimple) -> GroupLeader<impl Add> {
    queue.protocol.group().lock().state.has_leader = true;
    GroupLeader { queue: queue.protocol.clone(), has_resigned: false }
}

async fn read(queue: &QueueSimple, name: Name) -> String {
    let body = queue.peek(&name).await.unwrap().expect("the element exists");
    String::from_utf8(body.to_vec()).unwrap()
}

fn count(queue: &QueueSimple) -> u64 {
    runtime().block_on(queue.count()).unwrap()
}

#[test]
fn queued_adds_are_executed_together_in_order() {
    let (queue, _temp_dir) = open();
    let leader = with_leader(&queue);
    runtime().block_on(async {
        let adds = ["a", "b", "c"].map(|body| queued_add(&queue, body));
        leader.spawn();
        let names = join_all(adds).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
        assert!(names.is_sorted(), "{names:?}");
        let found = join_all(names.iter().map(|&name| read(&queue, name))).await;
        assert_eq!(found, ["a", "b", "c"]);
    });
    assert_eq!(count(&queue), 3);
}

#[test]
fn cancelled_queued_add_adds_nothing_and_blocks_no_other_add() {
    let (queue, _temp_dir) = open();
    let leader = with_leader(&queue);
    runtime().block_on(async {
        let first = queued_add(&queue, "first");
        let second = queued_add(&queue, "second");
        drop(first);
        leader.spawn();
        assert_eq!(read(&queue, second.await.unwrap()).await, "second");
    });
    assert_eq!(count(&queue), 1);
    assert_eq!(queue.protocol.group().lock().len(), 0);
}

#[test]
fn failing_add_does_not_affect_other_adds_of_its_group() {
    let (queue, _temp_dir) = open();
    let leader = with_leader(&queue);
    runtime().block_on(async {
        let adds = ["a", "much too long", "c"].map(|body| queued_add(&queue, body));
        leader.spawn();
        let added = join_all(adds).await;
        let [Ok(a), Err(Error::TooLarge { limit: 9, .. }), Ok(c)] = added[..] else {
            panic!("{added:?}");
        };
        assert_eq!(join_all([a, c].map(|name| read(&queue, name))).await, ["a", "c"]);
    });
}

/// The elements are in the queue but may not be durable: each caller gets the name of its own.
#[test]
fn failed_directory_sync_is_reported_to_each_caller_with_its_name() {
    let (queue, _temp_dir) = open();
    let fault = |what| match what {
        "sync a directory" => Fault::Fail(rustix::io::Errno::IO),
        _ => Fault::None,
    };
    let added = with_plan(fault, || queue.protocol.add_each(&["a", "b"].map(Bytes::from)));
    let bodies = added.into_iter().map(|added| match added {
        Err(Error::Partial { names, source }) => {
            assert!(source.to_string().contains("sync"), "{source}");
            runtime().block_on(read(&queue, names[0]))
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(bodies.collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn missing_leader_thread_fails_queued_adds_and_the_next_add_succeeds() {
    let (queue, _temp_dir) = open();
    let leader = with_leader(&queue);
    runtime().block_on(async {
        let adds = ["a", "b"].map(|body| queued_add(&queue, body));
        drop(leader);
        for added in join_all(adds).await {
            let reason = format!("{:?}", added.unwrap_err());
            assert!(reason.contains("did not start"), "{reason}");
        }
        let name = add_to(&queue, "c").await.unwrap();
        assert_eq!(read(&queue, name).await, "c");
    });
    assert_eq!(count(&queue), 1);
}

#[test]
fn shutdown_of_one_runtime_does_not_affect_adds_of_another() {
    let (queue, _temp_dir) = open();
    let ends = runtime();
    let leader = with_leader(&queue);
    let (sender, receiver) = mpsc::channel();
    let first = queued_add(&queue, "first");
    ends.spawn(async move { sender.send(first.await) });
    let second = queued_add(&queue, "second");
    ends.shutdown_background();
    assert!(receiver.recv().is_err(), "the task is dropped with its runtime");
    leader.spawn();
    runtime().block_on(async {
        assert_eq!(read(&queue, second.await.unwrap()).await, "second");
    });
    assert_eq!(count(&queue), 1);
}

/// Callers on four runtimes add and cancel concurrently, and each successful add has one element.
#[test]
fn concurrent_adds_are_each_executed_once() {
    let (queue, _temp_dir) = open();
    let added: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let queue = &queue;
                scope.spawn(move || {
                    let runtime = runtime();
                    runtime.block_on(async {
                        let mut added = Vec::new();
                        for round in 0..60 {
                            let body = format!("{thread} {round}");
                            let mut given_up = add_to(queue, "given up");
                            let _ = (&mut given_up).now_or_never();
                            let both = [add_to(queue, &body), add_to(queue, &body)];
                            drop(given_up);
                            for name in join_all(both).await {
                                added.push((name.unwrap(), body.clone()));
                            }
                        }
                        added
                    })
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut names: Vec<_> = added.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 4 * 60 * 2);
    for (name, body) in &added {
        assert_eq!(&runtime().block_on(read(&queue, *name)), body);
    }
    // Adds that were cancelled after their group had begun are in the queue too.
    assert!((480..=720).contains(&count(&queue)), "{}", count(&queue));
    assert_eq!(queue.protocol.group().lock().len(), 0);
}

/// A permit counts until its element is in the queue, or the add is dropped, wherever that happens.
#[test]
fn bound_holds_and_leaks_no_permits_when_adds_are_dropped_at_any_poll() {
    let temp_dir = tempfile::tempdir().unwrap();
    let open = QueueSimple::builder(temp_dir.path()).sync(true).max_elements(8).open();
    let runtime = runtime();
    let queue = runtime.block_on(open).unwrap();
    runtime.block_on(async {
        for round in 0..30 {
            for polls in 0..10 {
                let mut adding = Box::pin(queue.add("dropped"));
                for _ in 0..polls {
                    if (&mut adding).now_or_never().is_some() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            let mut is_full = false;
            while !is_full {
                let adds = join_all((0..3).map(|_| queue.add("stays"))).await;
                is_full = adds.iter().any(|add| matches!(add, Err(Error::Full { .. })));
            }
            // Dropped adds may still be executed, and have permits.
            while queue.protocol.group().lock().state.has_leader {
                tokio::task::yield_now().await;
            }
            let count = queue.count().await.unwrap();
            assert!((6..=8).contains(&count), "{count} in round {round}");
            let mut names = queue.names();
            while let Some(name) = names.next().await {
                queue.dequeue(&name.unwrap()).await.unwrap();
            }
        }
        for _ in 0..8 {
            queue.add("fits").await.unwrap();
        }
        assert!(matches!(queue.add("more").await, Err(Error::Full { .. })));
    });
}
