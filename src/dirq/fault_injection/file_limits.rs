//! A process with a low limit of open files can add the same elements, with fewer files open at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use super::*;
use crate::dirq::Schema;

const SYNCED: [Config; 2] = [Config { sync: true, ..SIMPLE }, Config { sync: true, ..NORMAL }];

/// Runs `work` with at most `limit` new files open at once. Returns the maximum that was open.
fn with_file_limit<T>(limit: usize, work: impl FnOnce() -> T) -> (T, usize) {
    let (open, max_open) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
    let plan = {
        let (open, max_open) = (open.clone(), max_open.clone());
        move |what: &'static str| {
            let mut open = open.borrow_mut();
            match what {
                "create" if *open == limit => return Fault::Fail(Errno::MFILE),
                "create" => *open += 1,
                "close" => *open -= 1,
                _ => {}
            }
            let mut max_open = max_open.borrow_mut();
            *max_open = (*max_open).max(*open);
            Fault::None
        }
    };
    let done = with_plan(plan, work);
    assert_eq!(*open.borrow(), 0, "all files are closed");
    let max_open = *max_open.borrow();
    (done, max_open)
}

#[tokio::test]
async fn group_of_adds_stays_within_the_limit_of_open_files() {
    let bodies: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
    let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
    for config in SYNCED {
        for limit in [2, 7, 40] {
            let temp_dir = temp_dir();
            let process = Process::start(&temp_dir.path().join("queue"), config);
            let (added, _) = with_file_limit(limit, || process.add_each(&bodies));
            let names: Vec<_> =
                added.into_iter().map(|added| added.expect("the limit permits the add")).collect();
            assert!(names.is_sorted(), "{names:?}");
            let (many, _) = with_file_limit(limit, || process.add_many(&bodies));
            assert_eq!(many.expect("the limit permits the add").len(), 100);
            let found = process.drain();
            assert!(found.len() == 100 && found.values().all(|&count| count == 2), "{found:?}");
        }
    }
}

/// Without a single free descriptor, the error states the reason.
#[tokio::test]
async fn add_without_a_free_descriptor_fails_with_emfile() {
    for config in SYNCED {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let (added, _) = with_file_limit(0, || process.add_each(&["a", "b"]));
        for added in added {
            let Err(Error::Io { source, .. }) = added else { panic!("{added:?}") };
            assert_eq!(source.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        }
        let left = tree(process.path()).len();
        assert_eq!(left, if config.normal { 2 } else { 1 }, "{:?}", tree(process.path()));
    }
}

/// An element's directory that cannot be opened, and therefore not listed, is removed nevertheless.
#[tokio::test]
async fn add_that_cannot_open_a_directory_leaves_nothing_behind() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), SYNCED[1]);
    process.add("x").expect("no fault is injected");
    let mut made = false;
    let plan = move |what: &'static str| {
        made |= what == "mkdir";
        match what {
            "open" if made => Fault::Fail(Errno::MFILE),
            _ => Fault::None,
        }
    };
    let added = with_plan(plan, || process.add("y"));
    assert!(matches!(added, Err(Error::Io { .. })), "{added:?}");
    assert_eq!(
        fs::read_dir(process.path().join("temporary")).expect("the directory exists").count(),
        0
    );
}

#[tokio::test]
async fn element_with_many_fields_opens_at_most_64_files() {
    let fields = (0..200).map(|number| (format!("f{number}"), "string"));
    let schema = Schema::new(fields).expect("the schema is valid");
    let temp_dir = temp_dir();
    let queue = Queue::builder(temp_dir.path()).schema(schema).sync(true).in_place();
    let queue = in_place(queue.open()).expect("no fault is injected");
    let mut element = Element::new();
    for number in 0..200 {
        element = element.with(format!("f{number}"), format!("value {number}"));
    }
    for limit in [1, 40, 1_000] {
        let (added, max_open) = with_file_limit(limit, || in_place(queue.add(element.clone())));
        let name = added.expect("the limit permits the add");
        assert!(max_open <= 64, "{max_open} files were open");
        let found = in_place(queue.dequeue(&name))
            .expect("no fault is injected")
            .expect("the element exists");
        assert_eq!(found.string("f199"), Some("value 199"));
    }
    let schema = queue.schema().expect("the queue has a schema");
    let files = schema.encode(element).expect("the element matches the schema");
    let (added, max_open) = with_file_limit(1_000, || queue.protocol.add_each(&[files]));
    assert!(added[0].is_ok() && max_open <= 64, "{added:?}");
}

/// Waits until `count` threads have arrived, with a time limit: one of them may have failed.
fn rendezvous(arrived: &AtomicUsize, count: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    arrived.fetch_add(1, Relaxed);
    while arrived.load(Relaxed) < count && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// All queues have written their files, and none has synced them yet.
#[test]
fn concurrent_adds_to_many_queues_respect_the_process_wide_limit_of_open_files() {
    const QUEUES: usize = 16;
    let (temp_dir, open, arrived) = (temp_dir(), AtomicUsize::new(0), AtomicUsize::new(0));
    let (open, arrived) = (Arc::new(open), Arc::new(arrived));
    let max_open: Vec<_> = std::thread::scope(|scope| {
        let add = |number: usize| {
            let path = temp_dir.path().join(number.to_string());
            let (open, arrived) = (open.clone(), arrived.clone());
            move || {
                let process = Process::start(&path, SYNCED[number % 2]);
                let max_open = Rc::new(RefCell::new(None));
                let plan = {
                    let max_open = max_open.clone();
                    move |what: &'static str| {
                        match what {
                            "create" => _ = open.fetch_add(1, Relaxed),
                            "close" => _ = open.fetch_sub(1, Relaxed),
                            "sync a file" if max_open.borrow().is_none() => {
                                rendezvous(&arrived, QUEUES);
                                *max_open.borrow_mut() = Some(open.load(Relaxed));
                                rendezvous(&arrived, 2 * QUEUES);
                            }
                            _ => {}
                        }
                        Fault::None
                    }
                };
                let added = with_plan(plan, || process.add_each(&["body"; 64]));
                assert!(added.iter().all(Result::is_ok), "{added:?}");
                max_open.take().expect("a file was synced")
            }
        };
        let adding: Vec<_> = (0..QUEUES).map(|number| scope.spawn(add(number))).collect();
        adding.into_iter().map(|adding| adding.join().expect("no fault is injected")).collect()
    });
    // Each has at least the files of one element, regardless of the others.
    assert!(max_open.iter().all(|&open| open <= 256 + QUEUES * 3), "{max_open:?}");
    assert_eq!(open.load(Relaxed), 0);
}
