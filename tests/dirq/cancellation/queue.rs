//! Calls of one kind of queue, of sets of such queues, and of their locks.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fleeting::dirq::{Lock, Name, Purge, QueueSet};
use futures::lock::Mutex;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{
    super::{HOUR, checked, next_loses_no_item, tempdir, until},
    Queue, bounded, builder, element, text,
};
use crate::{
    WATCHES,
    cancel::{Effect, Parts, at_each_poll, calls, has_effect_at_polls},
    directory::{all, make_old},
    patience::patience,
};

pub(in super::super) struct State {
    // Read by the tests of one kind.
    #[allow(dead_code)]
    pub(in super::super) dir: TempDir,
    pub(in super::super) queue: Queue,
    pub(in super::super) names: Vec<Name>,
    dead: Name,
}

/// Returns a queue with a dead letter and three elements. The first of these has a stale lock.
pub(in super::super) async fn state() -> State {
    let dir = tempdir().unwrap();
    let path = dir.path().join("queue");
    let once = builder(&path).max_attempts(1).open().await.unwrap();
    let dead = once.add(element("dead")).await.unwrap();
    once.locked().next().await.unwrap().unwrap().fail("no reason").await.unwrap();
    assert_eq!(once.dead_len().await.unwrap(), 1);
    let queue = builder(&path).backoff(HOUR, HOUR).open().await.unwrap();
    let names = queue.add_many(["a", "b", "c"].map(element)).await.unwrap();
    assert!(queue.lock(&names[0]).await.unwrap());
    make_old(&queue.path().join(names[0].to_string()), HOUR);
    State { dir, queue, names, dead }
}

/// Returns the elements, whether each is locked, and for how long; and the dead letters.
pub(in super::super) async fn observe(State { queue, .. }: &State) -> Parts {
    let mut parts = Parts::new();
    for name in all(queue.names()).await {
        let is_locked = !queue.lock(&name).await.unwrap();
        if !is_locked {
            queue.unlock(&name).await.unwrap();
        }
        let lock =
            format!("locked: {is_locked}, old: {}", is_old(&queue.path().join(name.to_string())));
        match queue.peek(&name).await {
            Ok(Some(content)) => drop(parts.insert(text(&content), lock)),
            Ok(None) => {}
            // It is being removed, or else this is neither before nor after a call.
            Err(error) => drop(parts.insert("error".into(), error.to_string())),
        }
    }
    let dead = queue.dead().await.unwrap().into_iter();
    let dead = dead.map(|dead| (dead.attempts, dead.reason)).collect::<Vec<_>>();
    parts.insert("dead letters".into(), format!("{dead:?}"));
    parts
}

fn is_old(element: &Path) -> bool {
    let modified = fs::metadata(element).and_then(|data| data.modified());
    modified.is_ok_and(|modified| modified < SystemTime::now() - HOUR / 2)
}

#[tokio::test]
async fn cancelled_call_of_a_queue_has_its_whole_effect_or_none() {
    let whole = calls! { state: State;
        state.queue.add(element("d")), state.queue.unlock(&state.names[0]), state.queue.remove(&state.names[0]),
        state.queue.touch(&state.names[0]), state.queue.purge(Purge::default()), state.queue.revive(&state.dead, HOUR),
        state.queue.dequeue(&state.names[1]),
    };
    // A cancelled lock is given back.
    let nothing = calls! { state: State;
        state.queue.get(&state.names[0]), state.queue.peek(&state.names[1]), state.queue.count(), state.queue.dead(),
        state.queue.dead_len(), state.queue.revive(&state.names[1], HOUR), state.queue.lock(&state.names[1]),
        state.queue.get_element(&state.names[1]), state.queue.take_dead(9),
    };
    let parts = calls! { state: State; state.queue.add_many(["d", "e", "f"].map(element)) };
    for (effect, calls) in
        [(Effect::Whole, whole), (Effect::Nothing, nothing), (Effect::SomeParts, parts)]
    {
        for (name, call) in calls {
            let call = async |state: &State| match effect {
                // A repeated change has nothing left to change.
                Effect::Whole => drop(call(state).await),
                _ => checked(call(state).await),
            };
            has_effect_at_polls(effect, name, state, call, observe).await;
        }
    }
}

#[tokio::test]
async fn cancelled_open_may_be_repeated() {
    let calls = calls! { dir: TempDir;
        Queue::open(dir.path().join("queue")),
        {
            let builder = builder(&dir.path().join("queue"));
            builder.open()
        },
    };
    for (name, call) in calls {
        at_each_poll(
            async || tempdir().unwrap(),
            async |dir| checked(call(dir).await),
            async |dir, _, schedule| {
                let queue = builder(&dir.path().join("queue")).open().await.unwrap();
                let added = queue.add(element("a")).await.unwrap();
                assert_eq!(all(queue.names()).await, [added], "{name}, {schedule:?}");
            },
        )
        .await;
    }
}

#[tokio::test]
async fn cancelled_wait_for_room_blocks_no_later_add() {
    let calls = calls! { state: (TempDir, Queue);
        state.1.add(element("d")), state.1.add_many([element("d")]),
    };
    for (name, call) in calls {
        at_each_poll(
            async || {
                let dir = tempdir().unwrap();
                let builder = bounded(dir.path(), 1).wait_for_room(Duration::from_millis(1));
                let queue = builder.open().await.unwrap();
                queue.add(element("a")).await.unwrap();
                (dir, queue)
            },
            async |state| {
                let make_room = async {
                    sleep(Duration::from_millis(10)).await;
                    remove_all(&state.1).await;
                };
                checked(tokio::join!(call(state), make_room).0);
            },
            async |(_dir, queue), _, schedule| {
                let is_added = async || {
                    // The cancelled call may still add its element.
                    remove_all(&queue).await;
                    let add = timeout(patience() / 100, queue.add(element("e"))).await;
                    add.is_ok_and(|added| added.is_ok())
                };
                until(is_added, &format!("{name}, {schedule:?}: later adds are blocked")).await;
            },
        )
        .await;
    }
}

async fn remove_all(queue: &Queue) {
    for name in all(queue.names()).await {
        queue.dequeue(&name).await.unwrap();
    }
}

/// A set of two queues.
async fn set() -> (QueueSet<Queue>, [State; 2]) {
    let states = [state().await, state().await];
    (QueueSet::new(states.iter().map(|state| state.queue.clone())).unwrap(), states)
}

#[tokio::test]
async fn cancelled_next_of_a_stream_loses_no_element() {
    let _watches = WATCHES.read().await;
    // The dead letter, and the element that another caller has locked, are only in `names`.
    next_loses_no_item("names", state, |state| state.queue.names(), 4).await;
    next_loses_no_item("locked", state, |state| state.queue.locked(), 2).await;
    next_loses_no_item("watch", state, |state| state.queue.watch(HOUR), 2).await;
    next_loses_no_item("names of a set", set, |(set, _)| set.names(), 8).await;
    next_loses_no_item("locked of a set", set, |(set, _)| set.locked(), 4).await;
    next_loses_no_item("watch of a set", set, |(set, _)| set.watch(HOUR), 4).await;
    at_each_poll(
        set,
        async |(set, _)| set.count().await.unwrap(),
        async |(set, _states), reply, schedule| {
            let count = set.count().await.unwrap();
            assert_eq!((count, reply.unwrap_or(8)), (8, 8), "{schedule:?}");
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_wait_of_a_watch_loses_no_element() {
    let _watches = WATCHES.read().await;
    let new = async || {
        let state = state().await;
        for name in &state.names[1..] {
            assert!(state.queue.lock(name).await.unwrap());
        }
        let watch = Mutex::new(state.queue.watch(HOUR));
        (state, watch)
    };
    at_each_poll(
        new,
        async |(state, watch)| {
            let add = async {
                sleep(Duration::from_millis(20)).await;
                state.queue.add(element("d")).await.unwrap();
            };
            let mut watch = watch.lock().await;
            tokio::join!(watch.next(), add).0.unwrap().unwrap()
        },
        async |(state, watch), reply, schedule| {
            state.queue.add(element("e")).await.unwrap();
            let mut left = BTreeSet::from(["e".to_owned()]);
            // A cancelled add may also add its element later.
            if reply.is_none() && observe(&state).await.contains_key("d") {
                left.insert("d".into());
            }
            let mut watch = watch.into_inner();
            while !left.is_empty() {
                let next = timeout(patience(), watch.next()).await;
                let lock = next.unwrap_or_else(|_| panic!("{schedule:?}: {left:?} are lost"));
                left.remove(&text(lock.unwrap().unwrap().value()));
            }
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_end_of_a_lock_releases_it() {
    for end in ["ack", "ack_all", "unlock", "retry_in", "fail", "release"] {
        let new = async || {
            let state = state().await;
            let locks = all(state.queue.locked()).await;
            assert_eq!(locks.len(), 2);
            (state, Mutex::new(locks))
        };
        let call = async |(_, locks): &(State, Mutex<Vec<Lock<_>>>)| {
            let mut locks = locks.lock().await;
            if end == "ack_all" {
                return Lock::ack_all(std::mem::take(&mut *locks)).await;
            }
            let lock = locks.remove(0);
            match end {
                "ack" => lock.ack().await,
                "unlock" => lock.unlock().await,
                "retry_in" => lock.retry_in(Duration::ZERO).await,
                "fail" => lock.fail("no reason").await,
                _ => lock.release().await,
            }
        };
        at_each_poll(new, call, async |(state, locks), reply, schedule| {
            drop(locks);
            let is_completed = reply.is_some();
            assert!(reply.is_none_or(|reply| reply.is_ok()), "{end}, {schedule:?}");
            for (name, may_be_removed) in
                [(&state.names[1], end.starts_with("ack")), (&state.names[2], end == "ack_all")]
            {
                let exists = async || state.queue.peek(name).await.unwrap().is_some();
                let is_released = async || state.queue.lock(name).await.unwrap() || !exists().await;
                until(is_released, &format!("{end}, {schedule:?}: it stays locked")).await;
                let (exists, promise) = (exists().await, format!("{end}, {schedule:?}"));
                assert!(may_be_removed || exists, "{promise}: the element is lost");
                assert!(!(is_completed && may_be_removed && exists), "{promise}: it was acked");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn cancelled_renewal_of_a_lock_keeps_it() {
    for renewal in ["touch", "keep_alive"] {
        let new = async || {
            let state = state().await;
            let lock = state.queue.locked().next().await.unwrap().unwrap();
            (state, lock, Arc::new(()))
        };
        let call = async |(_, lock, work): &(State, Lock<_>, Arc<()>)| {
            if renewal == "touch" {
                return lock.touch().await.unwrap();
            }
            let work = work.clone();
            let work = async move {
                sleep(Duration::from_millis(10)).await;
                drop(work);
            };
            lock.keep_alive(Duration::from_millis(1), work).await.unwrap()
        };
        at_each_poll(new, call, async |(state, lock, work), _, schedule| {
            assert_eq!(
                Arc::strong_count(&work),
                1,
                "{renewal}, {schedule:?}: the work is not dropped"
            );
            let name = *lock.name();
            assert!(!state.queue.lock(&name).await.unwrap(), "{renewal}, {schedule:?}");
            lock.ack().await.unwrap();
            assert!(state.queue.peek(&name).await.unwrap().is_none(), "{renewal}, {schedule:?}");
        })
        .await;
    }
}
