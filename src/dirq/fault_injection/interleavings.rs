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
    for config in Config::all() {
        for call_number in 1.. {
            let temp_dir = temp_dir();
            let path = temp_dir.path().join("queue");
            let name = Process::start(&path, config).add("old").expect("no fault is injected");
            make_stale(&path);
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
