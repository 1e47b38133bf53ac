//! Each add is made once, whoever leads, gives up, or loses the runtime that it leads in.

use std::{future::Future, pin::Pin, sync::mpsc};

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

/// A queue, in a temp_dir, whose elements have at most nine bytes.
fn open() -> (QueueSimple, TempDir) {
    let temp_dir = tempfile::tempdir().unwrap();
    let open = QueueSimple::builder(temp_dir.path()).sync(true).max_size(9).open();
    (runtime().block_on(open).unwrap(), temp_dir)
}

/// An add, whatever the queue is on.
fn add_to(queue: &QueueSimple, body: &str) -> AddFuture {
    let (queue, body) = (queue.protocol.clone(), body.as_bytes().to_vec());
    Box::pin(async move { add(&queue, body, None).await })
}

/// The same, in line.
fn queued_add(queue: &QueueSimple, body: &str) -> AddFuture {
    let mut adding = add_to(queue, body);
    assert!((&mut adding).now_or_never().is_none());
    adding
}

/// Somebody leads, as long as this is kept, and does not come to what is added.
fn with_leader(queue: &QueueSimple) -> GroupLeader<impl AddInGroups> {
    queue.protocol.group().state().has_leader = true;
    GroupLeader { queue: queue.protocol.clone(), has_resigned: false }
}

async fn read(queue: &QueueSimple, name: Name) -> String {
    let body = queue.peek(&name).await.unwrap().expect("it is there");
    String::from_utf8(body.to_vec()).unwrap()
}

fn count(queue: &QueueSimple) -> u64 {
    runtime().block_on(queue.count()).unwrap()
}

#[test]
fn those_who_wait_are_added_together_in_their_order() {
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
fn who_gives_up_before_it_is_begun_adds_nothing_and_holds_up_nobody() {
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
    assert!(queue.protocol.group().state().waiting.is_empty());
}

#[test]
fn a_bad_one_harms_no_other() {
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

/// The names are there, and nobody knows whether they survive: each is added its own.
#[test]
fn where_the_directory_is_not_synced_each_is_told_so() {
    let (queue, _temp_dir) = open();
    let fault = |what| match what {
        "sync a directory" => Fault::Fail(rustix::io::Errno::IO),
        _ => Fault::None,
    };
    let added = with_plan(fault, || queue.protocol.add_each(vec![b"a".to_vec(), b"b".to_vec()]));
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
fn where_there_is_no_thread_all_are_told_and_the_next_one_is_added() {
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
fn a_runtime_that_ends_takes_no_other_along() {
    let (queue, _temp_dir) = open();
    let ends = runtime();
    let leader = with_leader(&queue);
    let (sender, receiver) = mpsc::channel();
    let first = queued_add(&queue, "first");
    ends.spawn(async move { sender.send(first.await) });
    let second = queued_add(&queue, "second");
    ends.shutdown_background();
    assert!(receiver.recv().is_err(), "it is dropped with its runtime");
    leader.spawn();
    runtime().block_on(async {
        assert_eq!(read(&queue, second.await.unwrap()).await, "second");
    });
    assert_eq!(count(&queue), 1);
}

/// All come and go in four runtimes, and each that is added of an add has one.
#[test]
fn many_at_once_are_each_added_once() {
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
    // Who gave up while it was made was added too.
    assert!((480..=720).contains(&count(&queue)), "{}", count(&queue));
    let state = queue.protocol.group().state();
    assert!(state.waiting.is_empty());
}

/// What is let in is counted until it is there or given up, wherever that is.
#[test]
fn a_bound_holds_and_leaks_nothing_where_adds_are_dropped_anywhere() {
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
            // What was dropped may be added still, and is let in already.
            while queue.protocol.group().state().has_leader {
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
