//! Waiters for due entries: served in order, woken in time, and cancelled without loss.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::due::dict_with_due;
use fleeting::TimeoutDict;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

#[tokio::test(start_paused = true)]
async fn next_expired_waits_for_the_first_deadline() {
    let dict = TimeoutDict::new();
    dict.set("b", 2, 2 * SECOND).await;
    dict.set("a", 1, SECOND).await;
    dict.set("never", 0, Duration::MAX).await;
    let start = Instant::now();
    assert_eq!(dict.next_expired().await, ("a", 1));
    assert_eq!(start.elapsed(), SECOND);
    let claim = dict.next_claim(SECOND).await;
    assert_eq!((start.elapsed(), *claim.key()), (2 * SECOND, "b"));
    assert!(claim.ack().await);
    assert!(timeout(1_000 * SECOND, dict.next_expired()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn next_expired_is_woken_by_an_earlier_deadline() {
    let start = Instant::now();
    let dict: TimeoutDict<&str, u32> = TimeoutDict::new();
    let wait = |dict: &TimeoutDict<&'static str, u32>| {
        let dict = dict.clone();
        tokio::spawn(async move { (dict.next_expired().await, Instant::now()) })
    };
    // A first entry, then an earlier one.
    let waits = wait(&dict);
    sleep(SECOND).await;
    dict.set("late", 1, 100 * SECOND).await;
    yield_now().await;
    dict.set("soon", 2, SECOND).await;
    assert_eq!(waits.await.unwrap(), (("soon", 2), start + 2 * SECOND));

    // A new deadline.
    let waits = wait(&dict);
    sleep(SECOND).await;
    dict.set_timeout("late", Duration::ZERO).await;
    assert_eq!(waits.await.unwrap(), (("late", 1), start + 3 * SECOND));

    // A claim that is given back, and one whose lease ends.
    for gives_back in [true, false] {
        dict.set("a", 3, Duration::ZERO).await;
        let mut claim = Some(dict.next_claim(5 * SECOND).await);
        let begin = Instant::now();
        let waits = wait(&dict);
        sleep(SECOND).await;
        if gives_back {
            assert!(claim.take().unwrap().retry_in(Duration::ZERO).await);
        }
        let end = if gives_back { begin + SECOND } else { begin + 5 * SECOND };
        assert_eq!(waits.await.unwrap(), (("a", 3), end));
        drop(claim);
    }

    // A lease whose end is moved to an earlier or a later time.
    for (lease, end) in [(SECOND, 2 * SECOND), (9 * SECOND, 10 * SECOND)] {
        dict.set("a", 4, Duration::ZERO).await;
        let claim = dict.next_claim(5 * SECOND).await;
        let begin = Instant::now();
        let waits = wait(&dict);
        sleep(SECOND).await;
        assert!(claim.extend(lease).await);
        assert_eq!(waits.await.unwrap(), (("a", 4), begin + end));
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_of_their_calls() {
    let dict: TimeoutDict<usize, ()> = TimeoutDict::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..10)
        .map(|id| {
            let (dict, served) = (dict.clone(), served.clone());
            tokio::spawn(async move {
                let key = match id % 2 {
                    0 => dict.next_expired().await.0,
                    _ => {
                        let claim = dict.next_claim(SECOND).await;
                        let key = *claim.key();
                        claim.ack().await;
                        key
                    }
                };
                served.lock().unwrap().push((id, key));
            })
        })
        .collect();
    yield_now().await;
    // Cancels some of the waiters, including the first.
    for id in [0, 3, 4] {
        tasks[id].abort();
    }
    for key in 0..7 {
        dict.set(key, (), key as u32 * SECOND).await;
    }
    sleep(10 * SECOND).await;
    assert!(tasks.iter().all(|task| task.is_finished()));
    let order = [1, 2, 5, 6, 7, 8, 9];
    assert_eq!(*served.lock().unwrap(), order.into_iter().zip(0..7).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_takes_nothing() {
    let dict: TimeoutDict<&str, u32> = TimeoutDict::new();
    dict.set("a", 1, SECOND).await;
    let mut next = spawn(dict.next_expired());
    assert_pending!(next.poll());
    let mut behind = spawn(dict.next_claim(SECOND));
    assert_pending!(behind.poll());
    // Woken, and dropped before it is polled.
    dict.set("b", 2, Duration::ZERO).await;
    assert!(next.is_woken());
    drop(next);
    let claim = timeout(NANO, behind).await.expect("the next waiter is served");
    assert_eq!(*claim.key(), "b");
    assert!(claim.retry_in(Duration::ZERO).await);
    assert_eq!(dict.len().await, 2);
    // Cancels the wait repeatedly, also at the moment of the deadline.
    let mut taken = Vec::new();
    while taken.len() < 2 {
        tokio::select! {
            biased;
            () = sleep(SECOND / 7) => {}
            (key, _) = dict.next_expired() => taken.push(key),
        }
    }
    assert_eq!((taken, dict.is_empty().await), (vec!["b", "a"], true));
}

#[tokio::test]
async fn calls_take_part_in_the_cooperative_budget() {
    let dict = dict_with_due(["a"]).await;
    let other = tokio::spawn(async {});
    for calls in 0.. {
        assert!(calls < 1_000_000, "the other task starves");
        if other.is_finished() {
            break;
        }
        dict.get("a").await;
    }
    let other = tokio::spawn(async {});
    for calls in 0.. {
        assert!(calls < 1_000_000, "the other task starves");
        if other.is_finished() {
            break;
        }
        assert!(dict.next_claim(SECOND).await.retry_in(Duration::ZERO).await);
    }
}
