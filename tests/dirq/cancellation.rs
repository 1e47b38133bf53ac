//! Calls of directory queues, cancelled after each poll: no element is lost, locks are released, and no later call fails.

use std::{collections::BTreeSet, time::Duration};

use fleeting::dirq::{Name, Purge, QueueSimple};
use futures::{StreamExt, lock::Mutex};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::tempdir;
use crate::{
    cancel::{Parts, at_each_poll, calls},
    directory::all,
    patience::patience,
};

const HOUR: Duration = Duration::from_secs(3_600);

struct State {
    _dir: TempDir,
    queue: QueueSimple,
    names: Vec<Name>,
}

/// Returns a queue with three elements, the first of them locked.
async fn state() -> State {
    let dir = tempdir().unwrap();
    let builder = QueueSimple::builder(dir.path().join("queue")).backoff(HOUR, HOUR);
    let queue = builder.open().await.unwrap();
    let names = queue.add_many(["a", "b", "c"]).await.unwrap();
    assert!(queue.lock(&names[0]).await.unwrap());
    State { _dir: dir, queue, names }
}

/// Returns the elements, and whether each is locked.
async fn observe(state: &State) -> Parts {
    let mut parts = Parts::new();
    for name in all(state.queue.names()).await {
        let is_locked = !state.queue.lock(&name).await.unwrap();
        if !is_locked {
            state.queue.unlock(&name).await.unwrap();
        }
        let content = state.queue.peek(&name).await.unwrap();
        let content = String::from_utf8(content.expect("no other caller removes it").to_vec());
        parts.insert(content.unwrap(), is_locked.to_string());
    }
    parts
}

/// Waits until the queue is as in one of `allowed`: work that has begun continues on its thread.
async fn becomes(state: &State, allowed: &[&Parts], promise: &str) {
    let begin = Instant::now();
    loop {
        let parts = observe(state).await;
        if allowed.contains(&&parts) {
            return;
        }
        assert!(begin.elapsed() < patience(), "{promise}: found {parts:?}, allowed {allowed:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn cancelled_call_of_a_queue_has_its_whole_effect_or_none() {
    let calls = calls! { state: State;
        state.queue.add("d"), state.queue.unlock(&state.names[0]), state.queue.remove(&state.names[0]),
        state.queue.touch(&state.names[0]), state.queue.get(&state.names[0]), state.queue.peek(&state.names[1]),
        state.queue.count(), state.queue.purge(Purge::default()), state.queue.dead(), state.queue.dead_len(),
        state.queue.revive(&state.names[1], HOUR), state.queue.dequeue(&state.names[1]),
    };
    for (name, call) in calls {
        let before = observe(&state().await).await;
        let after = {
            let state = state().await;
            call(&state).await;
            observe(&state).await
        };
        at_each_poll(
            state,
            async |state| call(state).await,
            async |state, reply, schedule| {
                let promise = format!("{name}, {schedule:?}");
                match reply {
                    Some(reply) => {
                        assert!(!reply.starts_with("Err"), "{promise}: {reply}");
                        becomes(&state, &[&after], &promise).await;
                    }
                    None => becomes(&state, &[&before, &after], &promise).await,
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_add_many_has_added_some_of_the_elements() {
    at_each_poll(
        state,
        async |state| state.queue.add_many(["d", "e", "f"]).await.unwrap().len(),
        async |state, reply, schedule| {
            let mut found: BTreeSet<_> = observe(&state).await.into_keys().collect();
            for content in ["a", "b", "c"] {
                assert!(found.remove(content), "{schedule:?}: {content} is lost");
            }
            assert!(
                found.iter().all(|content| ["d", "e", "f"].contains(&&content[..])),
                "{found:?}"
            );
            assert!(reply.is_none_or(|added| added == 3 && found.len() == 3), "{schedule:?}");
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_lock_releases_its_lock() {
    let calls = calls! { state: State;
        state.queue.lock(&state.names[1]), state.queue.get_element(&state.names[1]),
    };
    let before = observe(&state().await).await;
    for (name, call) in calls {
        at_each_poll(
            state,
            async |state| call(state).await,
            async |state, reply, schedule| {
                if reply.is_none() {
                    becomes(&state, &[&before], &format!("{name}, {schedule:?}")).await;
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_next_of_a_stream_loses_no_element() {
    let new = async || {
        let state = state().await;
        let streams = (state.queue.names(), state.queue.locked(), state.queue.watch(HOUR));
        (state, Mutex::new(streams))
    };
    for stream in 0..3 {
        at_each_poll(
            new,
            async |(_, streams)| {
                let (names, locked, watch) = &mut *streams.lock().await;
                match stream {
                    0 => drop(names.next().await.unwrap().unwrap()),
                    1 => locked.next().await.unwrap().unwrap().ack().await.unwrap(),
                    _ => watch.next().await.unwrap().unwrap().ack().await.unwrap(),
                }
            },
            async |(state, streams), reply, schedule| {
                let (names, locked, watch) = streams.into_inner();
                let found = match stream {
                    0 => names.count().await + usize::from(reply.is_some()),
                    1 => all(locked).await.len(),
                    _ => {
                        let left = state.queue.count().await.unwrap() as usize - 1;
                        watch.take(left).count().await
                    }
                };
                let acked = 3 - state.queue.count().await.unwrap() as usize;
                match stream {
                    0 => assert_eq!(found, 3, "{schedule:?}"),
                    // The first element is locked by another caller.
                    _ => assert_eq!(found + acked, 2, "stream {stream}, {schedule:?}"),
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_end_of_a_lock_releases_it() {
    for end in ["ack", "unlock", "retry_in", "fail", "release", "touch"] {
        let new = async || {
            let state = state().await;
            let lock = state.queue.locked().next().await.unwrap().unwrap();
            (state, Mutex::new(Some(lock)))
        };
        let call = async |(_, lock): &(State, Mutex<Option<_>>)| {
            let lock: fleeting::dirq::Lock<_> = lock.lock().await.take().expect("called once");
            match end {
                "ack" => lock.ack().await,
                "unlock" => lock.unlock().await,
                "retry_in" => lock.retry_in(Duration::ZERO).await,
                "fail" => lock.fail("no reason").await,
                "release" => lock.release().await,
                _ => lock.touch().await,
            }
        };
        at_each_poll(new, call, async |(state, lock), reply, schedule| {
            drop(lock);
            assert!(reply.is_none_or(|reply| reply.is_ok()), "{end}, {schedule:?}");
            let begin = Instant::now();
            let is_released = async || match state.queue.lock(&state.names[1]).await {
                Ok(is_locked) => is_locked,
                Err(error) => panic!("{end}, {schedule:?}: {error}"),
            };
            let exists = async || observe(&state).await.contains_key("b");
            while exists().await && !is_released().await {
                assert!(
                    begin.elapsed() < patience(),
                    "{end}, {schedule:?}: the element stays locked"
                );
                sleep(Duration::from_millis(2)).await;
            }
            assert!(end == "ack" || exists().await, "{end}, {schedule:?}: the element is lost");
        })
        .await;
    }
}
