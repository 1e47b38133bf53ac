//! Another process acts between any two system calls of a process.

use super::*;

/// Runs `first`, and at its system call `call_number` runs `second` as another process. Returns false if there were
/// fewer calls.
fn interleave(
    config: Config,
    call_number: usize,
    path: &Path,
    first: impl FnOnce(&Process),
    second: impl FnOnce(&Process) + 'static,
) -> bool {
    let [process, other] = [(), ()].map(|()| Process::start(path, config));
    let calls = Rc::new(RefCell::new(0));
    let plan = {
        let (calls, mut second) = (calls.clone(), Some(second));
        move |what: &'static str| {
            *calls.borrow_mut() += 1;
            if *calls.borrow() == call_number
                && let Some(second) = second.take()
            {
                with_own_plan(config, || second(&other));
            }
            config.default_fault(what)
        }
    };
    with_plan(plan, || first(&process));
    *calls.borrow() >= call_number
}

/// Runs the other process, whose system calls succeed.
fn with_own_plan(config: Config, work: impl FnOnce()) {
    with_plan(move |what| config.default_fault(what), work);
}

/// Runs the interleaving at each call, with each config, on a new queue with one old element.
fn for_each_interleaving(
    first: impl Fn(&Process, &Name, &str),
    second: impl Fn(&Process, &Name) + Clone + 'static,
    after: impl Fn(&Process, &Name, &str),
) {
    for_each_interleaving_with(|_, _| {}, first, second, after);
}

/// Also prepares the queue before each run.
fn for_each_interleaving_with(
    prepare: impl Fn(&Process, &Name),
    first: impl Fn(&Process, &Name, &str),
    second: impl Fn(&Process, &Name) + Clone + 'static,
    after: impl Fn(&Process, &Name, &str),
) {
    for config in Config::all() {
        for call_number in 1.. {
            let temp_dir = temp_dir();
            let path = temp_dir.path().join("queue");
            let name = Process::start(&path, config).add("old").expect("no fault is injected");
            make_stale(&path);
            prepare(&Process::start(&path, config), &name);
            let context = format!("{config:?}, before the {call_number}. call");
            let second = second.clone();
            let has_more_calls = interleave(
                config,
                call_number,
                &path,
                |process| first(process, &name, &context),
                move |process| second(process, &name),
            );
            after(&Process::start(&path, config), &name, &context);
            if !has_more_calls {
                break;
            }
        }
    }
}

#[tokio::test]
async fn purge_never_removes_a_new_lock() {
    let is_locked = |process: &Process, name: &Name, context: &str| {
        assert!(!process.lock(name).expect(context), "{context}: the lock was removed");
    };
    for_each_interleaving(
        |process, name, context| assert!(process.lock(name).expect(context), "{context}"),
        |process, _| assert!(process.purge().is_ok()),
        is_locked,
    );
    let got = Rc::new(RefCell::new(false));
    for_each_interleaving(
        |process, _, context| assert!(process.purge().is_ok(), "{context}"),
        {
            let got = got.clone();
            move |process, name| {
                *got.borrow_mut() = process.lock(name).expect("no fault is injected")
            }
        },
        |process, name, context| {
            // At the last number, `second` did not run.
            if got.replace(false) {
                is_locked(process, name, context);
            }
        },
    );
}

#[tokio::test]
async fn purge_never_removes_a_new_lock_after_another_purge_removed_the_stale_one() {
    let got = Rc::new(RefCell::new(false));
    let found_stale = Rc::new(RefCell::new(0));
    for_each_interleaving_with(
        |process, name| {
            // Its owner has crashed.
            assert!(process.lock(name).expect("no fault is injected"));
            make_stale(process.path());
        },
        {
            let found_stale = found_stale.clone();
            move |process, _, context| {
                *found_stale.borrow_mut() += process.purge().expect(context).locks;
            }
        },
        {
            let (got, found_stale) = (got.clone(), found_stale.clone());
            move |process, name| {
                *found_stale.borrow_mut() += process.purge().expect("no fault is injected").locks;
                *got.borrow_mut() = process.lock(name).expect("no fault is injected");
            }
        },
        |process, name, context| {
            assert_eq!(found_stale.replace(0), 1, "{context}: stale locks");
            let is_new = got.replace(false);
            assert_eq!(process.lock(name).expect(context), !is_new, "{context}: locked again");
        },
    );
}

#[tokio::test]
async fn element_is_removed_by_one_of_two_workers() {
    let removed = Rc::new(RefCell::new(0));
    let remove = {
        let removed = removed.clone();
        move |process: &Process, name: &Name| match process.remove(name) {
            Ok(()) => *removed.borrow_mut() += 1,
            Err(Error::NotLocked { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    for_each_interleaving_with(
        |process, name| assert!(process.lock(name).expect("no fault is injected")),
        {
            let remove = remove.clone();
            move |process, name, _| remove(process, name)
        },
        move |process, name| {
            // The first worker is slow, and a purge has removed its lock.
            make_stale(process.path());
            process.purge().expect("no fault is injected");
            if process.lock(name).expect("no fault is injected") {
                remove(process, name);
            }
        },
        |process, _, context| {
            let removed = removed.replace(0);
            // A network file system may repeat a call, so that a missing element may be its own work.
            assert!(removed == 1 || removed == 2 && context.contains("cached: false"), "{context}");
            assert!(process.names().is_empty(), "{context}");
        },
    );
}

#[tokio::test]
async fn exactly_one_of_two_processes_dequeues_an_element() {
    let got = Rc::new(RefCell::new(0));
    let take = {
        let got = got.clone();
        move |process: &Process, name: &Name| {
            let taken = process.dequeue(name).expect("losing the race is not an error");
            *got.borrow_mut() += u32::from(taken.is_some());
        }
    };
    for_each_interleaving(
        {
            let take = take.clone();
            move |process, name, _| take(process, name)
        },
        take,
        |process, _, context| {
            assert_eq!(got.replace(0), 1, "{context}");
            assert!(process.names().is_empty(), "{context}");
        },
    );
}

#[tokio::test]
async fn add_succeeds_whatever_a_concurrent_purge_removes() {
    for_each_interleaving(
        |process, _, context| assert!(process.add("new").is_ok(), "{context}"),
        |process, name| {
            // All incomplete entries look stale, and the directory of new elements is empty and not the last.
            process.dequeue(name).expect("no fault is injected");
            fs::create_dir(process.path().join("ffffffff")).expect("the directory can be created");
            make_stale(process.path());
            process.purge().expect("no fault is injected");
            fs::remove_dir(process.path().join("ffffffff")).expect("the directory is empty");
        },
        |process, name, context| {
            process.dequeue(name).expect(context);
            let found = process.drain();
            assert_eq!(found, BTreeMap::from([("new".to_owned(), 1)]), "{context}");
        },
    );
}

/// The writer is only slow: its element is older than `max_temp` when it is published.
#[tokio::test]
async fn purge_changes_no_element_that_its_writer_publishes_concurrently() {
    for config in Config::all().filter(|config| config.normal) {
        let (mut published, mut lost) = (0, 0);
        for call_number in 1.. {
            let temp_dir = temp_dir();
            let process = Process::start(&temp_dir.path().join("queue"), config);
            let name = process.add("old").expect("no fault is injected");
            let element = process.path().join(name.to_string());
            let unpublished = process.path().join("temporary/00000000000001");
            fs::rename(&element, &unpublished).expect("the directory exists");
            make_stale(process.path());
            let files = || fs::read_dir(&element).map(|files| files.count());
            let mut calls = 0;
            let has_more_calls = Rc::new(RefCell::new(false));
            let plan = {
                let has_more_calls = has_more_calls.clone();
                let (unpublished, element) = (unpublished.clone(), element.clone());
                move |what: &'static str| {
                    calls += 1;
                    if calls == call_number {
                        has_more_calls.replace(true);
                        let _ = fs::rename(&unpublished, &element);
                    }
                    config.default_fault(what)
                }
            };
            let report = with_plan(plan, || process.purge()).expect("no fault is injected");
            let context = format!("{config:?}, before the {call_number}. call");
            assert_eq!(report.failed, 0, "{context}");
            match files() {
                Ok(files) => {
                    assert_eq!(files, 2, "{context}: files of the element");
                    published += 1;
                }
                Err(_) => lost += 1,
            }
            if !has_more_calls.take() {
                break;
            }
        }
        assert!(published > 0 && lost > 0, "{config:?}: {published} published, {lost} not");
    }
}

/// As while a file system is unmounted lazily.
#[tokio::test]
async fn nothing_is_created_if_the_queue_is_moved_away_concurrently() {
    type Step = fn(&Process);
    let steps: [(&str, Step); 8] = [
        ("lock", |process| either!(process, queue => drop(in_place(queue.locked().next())))),
        ("ack", |process| end_of_next(process, "ack")),
        ("unlock", |process| end_of_next(process, "unlock")),
        ("fail", |process| end_of_next(process, "fail")),
        ("release", |process| end_of_next(process, "release")),
        ("retry_in", |process| end_of_next(process, "retry_in")),
        ("dequeue", |process| {
            process.names().first().map(|name| process.dequeue(name).ok());
        }),
        ("purge", |process| drop(process.purge())),
    ];
    for (what, step) in steps {
        for config in Config::all().filter(|config| !config.sync && config.renames) {
            for call_number in 1.. {
                let temp_dir = temp_dir();
                let (path, moved) =
                    (temp_dir.path().join("mount/queue"), temp_dir.path().join("moved"));
                let process = Process::start(&path, config);
                process.add("x").expect("no fault is injected");
                if config.normal {
                    // The remains of a writer that crashed, which a purge moves to `obsolete`.
                    fs::create_dir(path.join("temporary/00000000000001")).expect("it is free");
                    make_stale(&path);
                }
                let parent = temp_dir.path().join("mount");
                let mut calls = 0;
                let plan = {
                    let (parent, moved) = (parent.clone(), moved.clone());
                    move |what: &'static str| {
                        calls += 1;
                        if calls == call_number {
                            fs::rename(&parent, &moved).expect("the queue exists");
                        }
                        config.default_fault(what)
                    }
                };
                with_plan(plan, || step(&process));
                if !moved.exists() {
                    break;
                }
                let context = format!("{what}, {config:?}, moved before the {call_number}. call");
                assert!(!parent.exists(), "{context}: created {:?}", tree(&parent));
            }
        }
    }
}

/// Locks the next element and ends the lock, if it can be locked.
fn end_of_next(process: &Process, how: &str) {
    either!(process, queue => {
        let Some(Ok(job)) = in_place(queue.locked().next()) else { return };
        let _ = match how {
            "ack" => in_place(job.ack()),
            "unlock" => in_place(job.unlock()),
            "fail" => in_place(job.fail("x")),
            "release" => in_place(job.release()),
            _ => in_place(job.retry_in(Duration::ZERO)),
        };
    });
}

/// A purge has removed the lock of a slow worker, which removes the element while another worker locks and reads it.
#[tokio::test]
async fn element_that_is_removed_while_it_is_locked_is_skipped() {
    let read_whole = Rc::new(RefCell::new(0));
    for what in ["locked", "take_dead", "get_element", "dequeue", "get"] {
        let read_whole = read_whole.clone();
        for_each_interleaving_with(
            |process, name| {
                if what == "take_dead" {
                    let retries = process.path().join("retries");
                    let record = name.to_string().replace('/', "-");
                    // A counting queue has created the directory already.
                    fs::create_dir_all(&retries).expect("the queue exists");
                    std::os::unix::fs::symlink("3 dead", retries.join(record)).expect("it is free");
                }
                if what == "get" {
                    assert!(process.lock(name).expect("no fault is injected"));
                }
            },
            |process, name, context| {
                let context = format!("{what}, {context}");
                let len = if matches!(process, Process::Normal(_)) { 4 } else { 3 };
                either!(process, queue => {
                    let taken = match what {
                        "locked" => in_place(queue.locked().next()).transpose(),
                        "take_dead" => in_place(queue.take_dead(1)).map(|mut jobs| jobs.pop()),
                        _ => Ok(None),
                    };
                    let job = taken.unwrap_or_else(|error| panic!("{context}: {error:?}"));
                    if let Some(job) = job {
                        *read_whole.borrow_mut() += 1;
                        assert_eq!(queue.protocol.len_of(job.value()), len, "{context}");
                        // If it fails, it changes nothing.
                        let _ = in_place(job.ack());
                    } else if what == "locked" {
                        let records = tree(&process.path().join("retries"));
                        let mut records = records.iter().filter(|path| path.is_symlink());
                        assert_eq!(records.next(), None, "{context}: a failure was counted");
                    }
                    let read = match what {
                        "get_element" => in_place(queue.get_element(name)),
                        "dequeue" => in_place(queue.dequeue(name)),
                        "get" => in_place(queue.get(name)).map(Some),
                        _ => Ok(None),
                    };
                    match read {
                        Ok(Some(read)) => {
                            *read_whole.borrow_mut() += 1;
                            assert_eq!(queue.protocol.len_of(&read), len, "{context}");
                        }
                        Ok(None) => {}
                        // The element was read, and its lock was lost before it could be released.
                        Err(Error::NotLocked { .. }) if what.starts_with("get") => {}
                        Err(error) => panic!("{context}: {error:?}"),
                    }
                });
            },
            |process, name| match process.remove(name) {
                // The other worker has not locked it yet, or has removed it.
                Err(Error::NotLocked { .. }) => drop(process.dequeue(name)),
                removed => removed.expect("no fault is injected"),
            },
            |process, _, context| {
                if what != "get_element" && what != "get" {
                    assert_eq!(process.names(), [], "{what}, {context}");
                }
            },
        );
    }
    assert!(*read_whole.borrow() > 0);
}
