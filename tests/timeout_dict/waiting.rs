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

use crate::patience::patience;

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

/// Keeps waiters that were polled once: `before` ahead of a live one, and one behind it.
async fn serve_behind_kept_waiters(before: usize) {
    let dict: TimeoutDict<u32, ()> = TimeoutDict::new();
    let kept = |count| -> Vec<_> {
        let waiter = |_| {
            let dict = dict.clone();
            let mut next = spawn(async move { dict.next_claim(SECOND).await });
            assert_pending!(next.poll());
            next
        };
        (0..count).map(waiter).collect()
    };
    let ahead = kept(before);
    let live = tokio::spawn({
        let dict = dict.clone();
        async move {
            let mut times = Vec::new();
            for _ in 0..3 {
                times.push((dict.next_expired().await.0, Instant::now()));
            }
            times
        }
    });
    yield_now().await;
    let behind = kept(1);
    let start = Instant::now();
    // Due immediately, and due later.
    dict.set(1, (), Duration::ZERO).await;
    dict.set(2, (), 10 * SECOND).await;
    dict.set(3, (), 20 * SECOND).await;
    let served = timeout(patience(), live).await.expect("the live waiter starves").unwrap();
    for (index, (key, at)) in (0..).zip(served) {
        let late = at - (start + index * 10 * SECOND);
        assert!(key == index + 1 && late < SECOND, "{key} is {late:?} late");
    }
    // Waiters that are polled again are served, too, and in the end one at a time.
    let mut again: Vec<_> = ahead.into_iter().chain(behind).collect();
    for key in 10..10 + again.len() as u32 {
        dict.set(key, (), Duration::ZERO).await;
    }
    for next in again.drain(..) {
        let claim = timeout(patience(), next).await.expect("a waiter that is polled again starves");
        assert!(claim.ack().await);
    }
    assert!(dict.is_empty().await);
    let mut waiters: Vec<_> = (0..3).map(|_| spawn(dict.next_expired())).collect();
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    dict.set(7, (), Duration::ZERO).await;
    assert!(waiters[0].is_woken());
    assert_eq!(timeout(NANO, waiters.remove(0)).await, Ok((7, ())));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_is_kept_unpolled_does_not_starve_the_others() {
    for before in 0..4 {
        serve_behind_kept_waiters(before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_dictionary_leaves_no_task() {
    let dict: TimeoutDict<u32, ()> = TimeoutDict::new();
    let mut waiters: Vec<_> = (0..3).map(|_| spawn(dict.next_expired())).collect();
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    yield_now().await;
    drop(waiters);
    drop(dict);
    for _ in 0..9 {
        yield_now().await;
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
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
