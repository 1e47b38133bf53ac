//! Bounded queues: adds above the bound are rejected, or wait for capacity.

use std::{fs, pin::pin, time::Duration};

use fleeting::dirq::{Element, Error, Queue, QueueSimple};
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::{locked::HOUR, tempdir};
use crate::{
    clock::{in_time, ms},
    directory::{all, tree},
    patience::patience,
};

fn is_full<T>(added: Result<T, Error>) -> bool {
    matches!(added, Err(Error::Full { max_elements: 5, .. }))
}

#[tokio::test]
async fn full_queue_rejects_adds() {
    let dir = tempdir().unwrap();
    let builder = || QueueSimple::builder(dir.path().join("queue")).max_elements(5);
    let queue = builder().open().await.unwrap();
    let added = join_all((0..20).map(|i| queue.add(i.to_string()))).await;
    assert_eq!(added.iter().filter(|added| added.is_ok()).count(), 5);
    assert!(added.into_iter().all(|added| added.is_ok() || is_full(added)));
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(is_full(queue.add_path(&file).await) && file.exists());
    assert!(is_full(queue.add_many(["a"]).await));
    assert!(queue.add_many([""; 0]).await.unwrap().is_empty());
    // Another handle with this bound finds the queue full, and a handle without a bound is not limited.
    assert!(is_full(builder().open().await.unwrap().add("x").await));
    QueueSimple::open(queue.path()).await.unwrap().add("x").await.unwrap();
    let names = all(queue.names()).await;
    assert_eq!(names.len(), 6);
    for name in &names[..3] {
        assert!(queue.lock(name).await.unwrap());
        queue.remove(name).await.unwrap();
    }
    assert!(is_full(queue.add_many(["a", "b", "c"]).await), "add_many adds all or none");
    assert_eq!(queue.add_many(["a", "b"]).await.unwrap().len(), 2);
    assert!(is_full(queue.add("x").await));
    // Failed adds use no capacity.
    let missing = queue.dequeue(&names[3]).await;
    assert!(missing.unwrap().is_some());
    assert!(queue.add_path(dir.path().join("nowhere")).await.is_err());
    queue.add("x").await.unwrap();
    assert!(is_full(queue.add("x").await));
}

#[tokio::test]
async fn wait_for_room_makes_adds_wait_for_capacity() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path().join("queue")).max_elements(5);
    let queue = queue.wait_for_room(Duration::from_millis(5)).open().await.unwrap();
    assert!(is_full(queue.add_many(["x"; 6]).await), "an add above the bound fails immediately");
    queue.add_many(["x"; 5]).await.unwrap();
    assert!(timeout(Duration::from_millis(50), queue.add("x")).await.is_err());
    let producers = (0..4).map(|_| {
        let queue = queue.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                queue.add("x").await.unwrap();
            }
        })
    });
    let producers: Vec<_> = producers.collect();
    let mut taken = 0;
    while taken < 45 {
        assert!(queue.count().await.unwrap() <= 5);
        let mut jobs = queue.locked();
        while let Some(job) = jobs.next().await.transpose().unwrap() {
            job.ack().await.unwrap();
            taken += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    timeout(patience(), join_all(producers)).await.expect("all adds succeed");
    assert_eq!((taken, queue.count().await.unwrap()), (45, 0));
}

#[tokio::test]
async fn queue_with_a_bound_of_zero_rejects_all_adds() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_elements(0).wait_for_room(HOUR);
    let queue = queue.open().await.unwrap();
    assert!(matches!(queue.add("x").await, Err(Error::Full { max_elements: 0, .. })));
}

/// Elements in all directories count.
#[tokio::test]
async fn max_total_bounds_a_normal_queue() {
    let dir = tempdir().unwrap();
    let builder = || {
        let queue = Queue::builder(dir.path()).schema("body:string".parse().unwrap());
        queue.max_elements(2).max_total(5)
    };
    let queue = builder().open().await.unwrap();
    let element = || Element::new().with("body", "x");
    let added = join_all((0..20).map(|_| queue.add(element()))).await;
    assert_eq!(added.iter().filter(|added| added.is_ok()).count(), 5);
    assert!(added.into_iter().all(|added| added.is_ok() || is_full(added)));
    assert!(is_full(queue.add_many([element()]).await));
    assert!(tree(&dir.path().join("temporary")).is_empty(), "rejected adds leave nothing behind");
    assert!(is_full(builder().open().await.unwrap().add(element()).await));
    // Invalid elements use no capacity.
    let names = all(queue.names()).await;
    assert!(queue.dequeue(&names[0]).await.unwrap().is_some());
    assert!(queue.add(Element::new()).await.is_err());
    queue.add(element()).await.unwrap();

    let waits = builder().wait_for_room(Duration::from_millis(1)).open().await.unwrap();
    assert!(
        is_full(waits.add_many(vec![element(); 6]).await),
        "an add above the bound fails immediately"
    );
    assert!(timeout(Duration::from_millis(30), waits.add(element())).await.is_err());
    let add = tokio::spawn(async move { waits.add_many([element(), element()]).await });
    for name in &names[1..3] {
        sleep(Duration::from_millis(5)).await;
        assert!(!add.is_finished(), "the capacity suffices for one");
        assert!(queue.dequeue(name).await.unwrap().is_some());
    }
    timeout(patience(), add).await.expect("the capacity suffices").unwrap().unwrap();
    assert_eq!(queue.count().await.unwrap(), 5);
}

#[tokio::test]
async fn waiting_add_that_is_not_polled_blocks_no_other_add() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_elements(2);
    let queue = queue.wait_for_room(Duration::from_millis(1)).open().await.unwrap();
    let full = [queue.add("a").await.unwrap(), queue.add("b").await.unwrap()];
    let mut kept = pin!(queue.add("c"));
    assert!(timeout(Duration::from_millis(20), &mut kept).await.is_err(), "it waits");
    for name in &full {
        assert!(queue.dequeue(name).await.unwrap().is_some());
    }
    timeout(patience(), queue.add("d")).await.expect("there is capacity for both").unwrap();
    kept.await.unwrap();
}

/// Without an order, an unlucky waiter could starve.
#[tokio::test]
async fn wait_for_room_serves_waiters_in_fifo_order() {
    in_time(async || {
        let dir = tempdir().unwrap();
        let queue = QueueSimple::builder(dir.path()).max_elements(1);
        let queue = queue.wait_for_room(Duration::from_millis(3)).open().await.unwrap();
        let mut last = queue.add("first").await.unwrap();
        let mut adds = Vec::new();
        for i in 0..10 {
            let queue = queue.clone();
            adds.push(tokio::spawn(async move { queue.add(i.to_string()).await }));
            // Each would check the queue at a different moment.
            sleep(ms(1)).await;
        }
        // A cancelled waiter does not block the others, even if it was the first.
        for i in [5, 0] {
            adds.remove(i).abort();
        }
        let mut order = Vec::new();
        for _ in 0..adds.len() {
            assert!(queue.dequeue(&last).await.unwrap().is_some());
            let next = async {
                loop {
                    match queue.names().next().await {
                        Some(name) => break name.unwrap(),
                        None => sleep(Duration::from_millis(1)).await,
                    }
                }
            };
            last = timeout(patience(), next).await.expect("a waiter is served");
            order
                .push(String::from_utf8(queue.peek(&last).await.unwrap().unwrap().into()).unwrap());
        }
        assert_eq!(order, ["1", "2", "3", "4", "6", "7", "8", "9"]);
        for add in adds {
            add.await.unwrap().unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn large_add_that_waits_for_room_lets_small_adds_go_first_and_succeeds() {
    in_time(async || {
        let dir = tempdir().unwrap();
        let queue = QueueSimple::builder(dir.path()).max_elements(10);
        let queue = queue.wait_for_room(Duration::from_millis(1)).open().await.unwrap();
        let mut names = queue.add_many((0..8).map(|i| i.to_string())).await.unwrap();
        let large = {
            let queue = queue.clone();
            tokio::spawn(async move { queue.add_many((0..5).map(|i| i.to_string())).await })
        };
        sleep(ms(5)).await;
        for i in 0..2 {
            let small = timeout(patience(), queue.add(i.to_string())).await;
            names.push(small.expect("there is room for a small add").unwrap());
        }
        assert!(!large.is_finished());
        // Small adds that use each free place at once do not delay it forever.
        let mut large = std::pin::pin!(timeout(patience(), large));
        let mut small = 0;
        loop {
            for name in names.drain(..) {
                assert!(queue.dequeue(&name).await.unwrap().is_some());
                // Either of them gets the place. Long enough for an add on a busy machine.
                let add = timeout(ms(50), queue.add("small")).await;
                small += usize::from(add.is_ok());
            }
            if let Ok(added) = timeout(Duration::from_millis(1), &mut large).await {
                assert_eq!(added.expect("the large add succeeds").unwrap().unwrap().len(), 5);
                break;
            }
            names = all(queue.names()).await;
        }
        assert!(small > 0);
    })
    .await;
}

#[tokio::test]
async fn large_add_for_which_nothing_becomes_free_delays_small_adds_only_for_a_while() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_elements(10);
    let queue = queue.wait_for_room(Duration::from_millis(1)).open().await.unwrap();
    queue.add_many(["x"; 5]).await.unwrap();
    let large = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_many(["x"; 8]).await })
    };
    // Each small add finds the large one in another of its turns.
    for _ in 0..5 {
        sleep(Duration::from_millis(150)).await;
        let small = timeout(patience(), queue.add("small")).await;
        small.expect("the large add blocks a small one").unwrap();
    }
    assert!(!large.is_finished());
    large.abort();
}
