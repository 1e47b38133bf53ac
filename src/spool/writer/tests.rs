//! An event is written exactly once, whichever system call of the queue fails, and wherever the process crashes.

use std::{cell::Cell, rc::Rc};

use futures_util::FutureExt;
use rustix::io::Errno;
use tokio::time::Instant;

use super::*;
use crate::{
    dirq::{
        Queue, QueueSimple,
        faults::{Fault, with_plan},
    },
    engine::event::Cause,
    spool::record,
};

/// After one failed system call, the next attempt writes only the remaining events.
#[tokio::test]
async fn spool_writes_each_event_once_whichever_system_call_fails() {
    let mut failures = 0;
    for (is_normal, sync) in [(false, false), (false, true), (true, false), (true, true)] {
        let (calls, mut call_limit) = (Rc::new(Cell::new(u32::MAX)), 0);
        // Until an attempt made fewer calls.
        while calls.get() > call_limit {
            call_limit += 1;
            failures += fail_at(is_normal, sync, call_limit, &calls).await;
        }
    }
    assert!(failures > 50, "only {failures} calls failed");
}

/// Fails the system call number `fault_at` and counts all calls. Returns the number of failed attempts to write.
async fn fail_at(is_normal: bool, sync: bool, fault_at: u32, calls: &Rc<Cell<u32>>) -> u64 {
    let SpoolFixture { _temp_dir, simple, normal, writer } =
        SpoolFixture::new(is_normal, sync).await;
    calls.set(0);
    let plan = {
        let calls = calls.clone();
        move |_: &'static str| {
            calls.set(calls.get() + 1);
            match calls.get() == fault_at {
                true => Fault::Fail(Errno::IO),
                false => Fault::None,
            }
        }
    };
    with_plan(plan, || {
        while !writer.backlog().is_empty() {
            writer
                .write_batch(false)
                .now_or_never()
                .expect("a call under a plan completes in place");
        }
    });
    let keys = keys(&simple, &normal).await;
    assert_eq!(keys, ["0", "1", "2"], "normal: {is_normal}, sync: {sync}, the {fault_at}. call");
    writer.stats().failures
}

/// A writer with three events in its backlog, for a queue of one kind.
struct SpoolFixture {
    _temp_dir: tempfile::TempDir,
    simple: QueueSimple,
    normal: Queue,
    writer: Writer,
}

impl SpoolFixture {
    async fn new(is_normal: bool, sync: bool) -> Self {
        let temp_dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let simple = QueueSimple::builder(temp_dir.path().join("simple")).sync(sync).in_place();
        let simple = simple.open().await.unwrap();
        let normal = Queue::builder(temp_dir.path().join("normal")).schema(record::schema());
        let normal = normal.sync(sync).in_place().open().await.unwrap();
        let writer = Writer::new(match is_normal {
            true => normal.clone().into(),
            false => simple.clone().into(),
        });
        for key in 0..3 {
            let (cause, at) = (Cause::Expired, Instant::now());
            let event = Event { key, value: (), cause, deadline: None, at };
            writer.push(&event, &WallClock::now());
        }
        Self { _temp_dir: temp_dir, simple, normal, writer }
    }
}

/// Empties both queues, and returns the keys of the events.
async fn keys(simple: &QueueSimple, normal: &Queue) -> Vec<String> {
    let mut keys = Vec::new();
    let mut jobs = simple.locked();
    while let Some(job) = jobs.next().await {
        let job = job.unwrap();
        let event: serde_json::Value = serde_json::from_slice(job.value()).unwrap();
        keys.push(event["key"].to_string());
        job.ack().await.unwrap();
    }
    let mut jobs = normal.locked();
    while let Some(job) = jobs.next().await {
        let job = job.unwrap();
        keys.push(job.value().string("key").unwrap().to_owned());
        job.ack().await.unwrap();
    }
    keys
}

/// Acknowledged events are in the queue, no event occurs twice, and a purge removes the leftovers.
#[tokio::test]
async fn crash_at_any_system_call_of_a_spool_neither_loses_nor_duplicates_an_event() {
    let mut crashes = 0;
    for (is_normal, sync) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut call_limit = 0;
        while crash_after(is_normal, sync, call_limit).await {
            (call_limit, crashes) = (call_limit + 1, crashes + 1);
        }
    }
    assert!(crashes > 50, "only {crashes} crashes, some system calls were not reached");
}

/// Lets a process make `call_limit` system calls. Returns false if it needed no more.
async fn crash_after(is_normal: bool, sync: bool, call_limit: u32) -> bool {
    let SpoolFixture { _temp_dir, simple, normal, writer } =
        SpoolFixture::new(is_normal, sync).await;
    let calls = Rc::new(Cell::new(0));
    let plan = {
        let calls = calls.clone();
        move |_: &'static str| {
            calls.set(calls.get() + 1);
            match calls.get() > call_limit {
                true => Fault::Fail(Errno::IO),
                false => Fault::None,
            }
        }
    };
    let often = (Duration::ZERO, Purge::default());
    let settings = WriterSettings { causes: 0, skip_too_large: false, purge: Some(often) };
    let written = with_plan(plan, || {
        // The simulated process continues after its crash.
        for _ in 0..3 {
            writer.purge(settings).now_or_never().expect("a call under a plan completes in place");
            writer
                .write_batch(false)
                .now_or_never()
                .expect("a call under a plan completes in place");
        }
        let written = writer.stats().written;
        drop(writer);
        written
    });
    let context = format!("normal: {is_normal}, sync: {sync}, dead after {call_limit} calls");
    let found = keys(&simple, &normal).await;
    let all: Vec<_> = (0..found.len()).map(|key| key.to_string()).collect();
    assert_eq!(found, all, "{context}: each event once, in order");
    assert!(written <= found.len() as u64, "{context}: {written} events were acknowledged");
    std::thread::sleep(Duration::from_millis(1));
    let purge = Purge::default().max_temp(Duration::from_nanos(1));
    simple.purge(purge).await.unwrap();
    normal.purge(purge).await.unwrap();
    let left = |path: &std::path::Path| -> usize {
        let list = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        list.filter_map(|path| std::fs::read_dir(path).ok()).map(Iterator::count).sum()
    };
    assert_eq!(left(simple.path()) + left(normal.path()), 0, "{context}: leftovers exist");
    calls.get() > call_limit
}

/// A disk that accepts writes but cannot sync must not receive the same events repeatedly.
#[tokio::test]
async fn unsynced_event_is_not_written_again() {
    let temp_dir = tempfile::tempdir().unwrap();
    let queue = QueueSimple::builder(temp_dir.path()).sync(true).in_place().open().await.unwrap();
    let writer = Writer::new(queue.clone().into());
    let write = |events: usize, syncs: bool| {
        for _ in 0..events {
            writer.backlog().push(SpoolRecord::sample());
        }
        let plan = move |what: &'static str| match what == "sync a directory" && !syncs {
            true => Fault::Fail(Errno::IO),
            false => Fault::None,
        };
        with_plan(plan, || {
            writer
                .write_batch(false)
                .now_or_never()
                .expect("a call under a plan completes in place")
        });
        writer.stats()
    };
    let stats = write(3, false);
    assert_eq!((stats.written, stats.unsynced, stats.failures), (3, 3, 1));
    assert_eq!((stats.in_hand, stats.stalled), (0, None), "the backlog is empty");
    let stats = write(2, true);
    assert_eq!((stats.written, stats.unsynced, stats.failures), (5, 3, 1));
    assert_eq!(queue.count().await.unwrap(), 5);
}
