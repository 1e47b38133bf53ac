//! Queues that may have so many elements: what is more is refused, or waits.

use std::{fs, time::Duration};

use fleeting::dirq::{Element, Error, Queue, QueueSimple};
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::{
    locked::{HOUR, SOON},
    tempdir,
};
use crate::directory::{all, tree};

fn is_full<T>(added: Result<T, Error>) -> bool {
    matches!(added, Err(Error::Full { max_elements: 5, .. }))
}

#[tokio::test]
async fn a_queue_that_is_full_refuses_what_is_more() {
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
    // Whoever opens it with such a bound finds it full, and who does not is not bound.
    assert!(is_full(builder().open().await.unwrap().add("x").await));
    QueueSimple::open(queue.path()).await.unwrap().add("x").await.unwrap();
    let names = all(queue.names()).await;
    assert_eq!(names.len(), 6);
    for name in &names[..3] {
        assert!(queue.lock(name).await.unwrap());
        queue.remove(name).await.unwrap();
    }
    assert!(is_full(queue.add_many(["a", "b", "c"]).await), "all or none");
    assert_eq!(queue.add_many(["a", "b"]).await.unwrap().len(), 2);
    assert!(is_full(queue.add("x").await));
    // What could not be added takes no room.
    let missing = queue.dequeue(&names[3]).await;
    assert!(missing.unwrap().is_some());
    assert!(queue.add_path(dir.path().join("nowhere")).await.is_err());
    queue.add("x").await.unwrap();
    assert!(is_full(queue.add("x").await));
}

#[tokio::test]
async fn a_queue_that_is_full_lets_who_wants_wait() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path().join("queue")).max_elements(5);
    let queue = queue.wait_for_room(Duration::from_millis(5)).open().await.unwrap();
    assert!(is_full(queue.add_many(["x"; 6]).await), "it never has room");
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
    timeout(SOON, join_all(producers)).await.expect("all had room");
    assert_eq!((taken, queue.count().await.unwrap()), (45, 0));
}

#[tokio::test]
async fn a_queue_for_nothing_refuses_all() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_elements(0).wait_for_room(HOUR);
    let queue = queue.open().await.unwrap();
    assert!(matches!(queue.add("x").await, Err(Error::Full { max_elements: 0, .. })));
}

/// An element is an element, in whichever directory it is.
#[tokio::test]
async fn a_queue_of_elements_with_fields_is_full_too() {
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
    assert!(tree(&dir.path().join("temporary")).is_empty(), "what is refused leaves nothing");
    assert!(is_full(builder().open().await.unwrap().add(element()).await));
    // What is not as it should be takes no room.
    let names = all(queue.names()).await;
    assert!(queue.dequeue(&names[0]).await.unwrap().is_some());
    assert!(queue.add(Element::new()).await.is_err());
    queue.add(element()).await.unwrap();

    let waits = builder().wait_for_room(Duration::from_millis(1)).open().await.unwrap();
    assert!(is_full(waits.add_many(vec![element(); 6]).await), "it never has room");
    assert!(timeout(Duration::from_millis(30), waits.add(element())).await.is_err());
    let add = tokio::spawn(async move { waits.add_many([element(), element()]).await });
    for name in &names[1..3] {
        sleep(Duration::from_millis(5)).await;
        assert!(!add.is_finished(), "there is no room for both");
        assert!(queue.dequeue(name).await.unwrap().is_some());
    }
    timeout(SOON, add).await.expect("there is room").unwrap().unwrap();
    assert_eq!(queue.count().await.unwrap(), 5);
}

/// Else who looks at a bad moment each time never has room.
#[tokio::test]
async fn who_waits_for_room_has_it_in_the_order_of_asking() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path()).max_elements(1);
    let queue = queue.wait_for_room(Duration::from_millis(3)).open().await.unwrap();
    let mut last = queue.add("first").await.unwrap();
    let mut adds = Vec::new();
    for i in 0..10 {
        let queue = queue.clone();
        adds.push(tokio::spawn(async move { queue.add(i.to_string()).await }));
        // Each would look at another moment.
        sleep(Duration::from_millis(1)).await;
    }
    // Who gives up is in nobody's way, the first neither.
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
        last = timeout(SOON, next).await.expect("somebody has room");
        order.push(String::from_utf8(queue.peek(&last).await.unwrap().unwrap().into()).unwrap());
    }
    assert_eq!(order, ["1", "2", "3", "4", "6", "7", "8", "9"]);
    for add in adds {
        add.await.unwrap().unwrap();
    }
}
