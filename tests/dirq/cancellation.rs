//! Calls of directory queues and the spool, cancelled after each poll: no element is lost, locks are released, and no
//! later call fails.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fleeting::{
    Cache, Spool,
    dirq::{Name, Purge, QueueNull, QueueSimple, Walk},
};
use futures::{StreamExt, lock::Mutex};
use tempfile::TempDir;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::tempdir;
use crate::{
    cancel::{Parts, at_each_poll, calls, has_effect_at_polls, with_effects},
    directory::{elements, name},
    patience::patience,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// The tests of any queue, for queues that store each element as one file.
#[path = "cancellation"]
mod simple {
    mod queue;

    use std::path::Path;

    use bytes::Bytes;
    use fleeting::dirq::{QueueSimple, QueueSimpleBuilder};

    pub(super) use self::queue::{State, observe, state};

    type Queue = QueueSimple;

    fn builder(path: &Path) -> QueueSimpleBuilder {
        QueueSimple::builder(path)
    }

    fn bounded(path: &Path, max: u64) -> QueueSimpleBuilder {
        builder(path).max_elements(max)
    }

    fn element(text: &str) -> String {
        text.to_owned()
    }

    fn text(element: &Bytes) -> String {
        String::from_utf8(element.to_vec()).expect("all elements are text")
    }
}

/// The same for queues that store each element as a directory.
#[path = "cancellation"]
mod normal {
    mod queue;

    use std::path::Path;

    use fleeting::dirq::{Element, Queue, QueueBuilder};

    fn builder(path: &Path) -> QueueBuilder {
        Queue::builder(path).schema("body:string".parse().expect("the schema is valid"))
    }

    fn bounded(path: &Path, max: u64) -> QueueBuilder {
        builder(path).max_total(max)
    }

    fn element(text: &str) -> Element {
        Element::new().with("body", text)
    }

    fn text(element: &Element) -> String {
        element.string("body").expect("all elements have a body").to_owned()
    }
}

/// Waits until `done` returns true: work that has begun continues on its thread.
async fn until(done: impl AsyncFn() -> bool, promise: &str) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < patience(), "{promise}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Fails if a call has failed, given the text of its reply.
fn checked(reply: String) {
    assert!(!reply.starts_with("Err"), "{reply}");
}

/// Cancels the first `next` of a stream, and checks that it returns `total` items nevertheless.
async fn next_loses_no_item<S, T>(
    name: &str,
    state: impl AsyncFn() -> S,
    walk: impl Fn(&S) -> Walk<T>,
    total: usize,
) {
    let new = async || {
        let state = state().await;
        let walk = Mutex::new(walk(&state));
        (state, walk)
    };
    at_each_poll(
        new,
        async |(_, walk)| {
            let mut walk = walk.lock().await;
            walk.next().await.expect("it has items").unwrap()
        },
        async |(_state, walk), reply, schedule| {
            let left = total - usize::from(reply.is_some());
            let items = walk.into_inner().take(left).collect::<Vec<_>>();
            let items = timeout(patience(), items).await.expect("the stream is not blocked");
            let items = items.iter().filter(|item| item.is_ok()).count();
            assert_eq!(items, left, "{name}, {schedule:?}");
        },
    )
    .await;
}

#[tokio::test]
async fn cancelled_call_with_a_path_has_its_whole_effect_or_none() {
    struct WithFile(simple::State, PathBuf);

    let new = async || {
        let state = simple::state().await;
        let file = state.dir.path().join("file");
        fs::write(&file, "d").unwrap();
        WithFile(state, file)
    };
    let observe = async |WithFile(state, file): &WithFile| {
        let mut parts = simple::observe(state).await;
        parts.insert("file".into(), file.exists().to_string());
        parts
    };
    let changes = calls! { with: WithFile; with.0.queue.add_path(&with.1) };
    let reads = calls! { with: WithFile; with.0.queue.get_path(&with.0.names[0]) };
    for (effect, name, call) in with_effects(changes, reads) {
        let call = async |state: &WithFile| call(state).await;
        has_effect_at_polls(effect, name, new, call, observe).await;
    }
}

#[tokio::test]
async fn cancelled_call_of_a_null_queue_has_its_whole_effect_or_none() {
    struct State {
        null: QueueNull,
        file: PathBuf,
        name: Name,
        _dir: TempDir,
    }

    let new = async || {
        let dir = tempdir().unwrap();
        let (file, name) = (dir.path().join("file"), name("00000000/00000000000000"));
        fs::write(&file, "d").unwrap();
        State { null: QueueNull::new(), file, name, _dir: dir }
    };
    let observe =
        async |state: &State| Parts::from([("file".to_owned(), state.file.exists().to_string())]);
    let changes = calls! { state: State; state.null.add_path(&state.file) };
    let reads = calls! { state: State;
        state.null.add("a"), state.null.add_many(["a"]), state.null.count(), state.null.purge(Purge::default()),
        // Unsupported, and not pending.
        state.null.lock(&state.name), state.null.unlock(&state.name), state.null.get(&state.name),
        state.null.get_path(&state.name), state.null.remove(&state.name), state.null.touch(&state.name),
    };
    for (effect, name, call) in with_effects(changes, reads) {
        has_effect_at_polls(effect, name, new, async |state| call(state).await, observe).await;
    }
}

#[tokio::test]
async fn cancelled_run_of_a_spool_neither_loses_nor_duplicates_an_event() {
    let new = async || {
        let dir = tempdir().unwrap();
        let spool = Spool::new(QueueSimple::open(dir.path()).await.unwrap());
        let cache: Cache<u64, u64> = Cache::new();
        let events = cache.events_lossless(9);
        for key in 0..4 {
            cache.set_ex(key, key, HOUR).await;
            cache.expire_now(&key).await;
        }
        cache.shutdown().await;
        // One batch for each event.
        let events = events.then(async |event| {
            yield_now().await;
            event
        });
        (dir, spool, Mutex::new(events.boxed()))
    };
    at_each_poll(
        new,
        async |(_, spool, events)| spool.run(&mut *events.lock().await).await.written,
        async |(dir, spool, events), reply, schedule| {
            let run = timeout(patience(), spool.run(events.into_inner())).await;
            let stats = run.expect("the next run is not blocked");
            assert!(reply.is_none_or(|written| written == 4), "{schedule:?}: {reply:?}");
            assert_eq!((stats.written, stats.in_hand), (4, 0), "{schedule:?}");
            assert_eq!(keys(dir.path()), [0, 1, 2, 3], "{schedule:?}");
        },
    )
    .await;
}

fn keys(queue: &Path) -> Vec<u64> {
    let read = |path: &PathBuf| -> serde_json::Value {
        serde_json::from_slice(&fs::read(path).unwrap()).expect("an element is JSON")
    };
    elements(queue).iter().map(|path| read(path)["key"].as_u64().unwrap()).collect()
}
