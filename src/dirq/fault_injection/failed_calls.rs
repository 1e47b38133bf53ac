//! One system call fails, and the process continues. The result of the operation is true: failed operations had no
//! effect, and successful operations took effect.

use super::*;

/// The expected state after an operation on a queue with one old element.
enum Outcome {
    /// True if the new element is in the queue.
    Added(bool),
    /// The old element is in the queue, and not locked.
    Free,
    Locked,
    Removed,
    /// The state of the element is unknown, but it does not occur twice.
    Unknown,
}

type Call = fn(&Process, &Name) -> Outcome;

const CALLS: &[(&str, Call)] = &[
    ("add", |process, _| match process.add("new") {
        Ok(_) => Outcome::Added(true),
        Err(Error::Partial { names, .. }) => Outcome::Added(names.len() == 1),
        Err(_) => Outcome::Added(false),
    }),
    ("add many", |process, _| match process.add_many(&["new"]) {
        Ok(names) => Outcome::Added(names.len() == 1),
        Err(Error::Partial { names, .. }) => Outcome::Added(names.len() == 1),
        Err(_) => Outcome::Added(false),
    }),
    ("add together", |process, _| match process.add_each(&["new"]).remove(0) {
        Ok(_) => Outcome::Added(true),
        Err(Error::Partial { names, .. }) => Outcome::Added(names.len() == 1),
        Err(_) => Outcome::Added(false),
    }),
    ("lock", |process, name| match process.lock(name) {
        Ok(true) => Outcome::Locked,
        _ => Outcome::Free,
    }),
    ("dequeue", |process, name| match process.dequeue(name) {
        Ok(Some(_)) => Outcome::Removed,
        _ => Outcome::Free,
    }),
    ("lock and remove", |process, name| match process.lock(name) {
        Ok(true) => match process.remove(name) {
            Ok(()) => Outcome::Removed,
            Err(_) => Outcome::Locked,
        },
        _ => Outcome::Free,
    }),
    ("lock and unlock", |process, name| match process.lock(name) {
        Ok(true) => match process.unlock(name) {
            Ok(()) => Outcome::Free,
            Err(_) => Outcome::Unknown,
        },
        _ => Outcome::Free,
    }),
    ("fail", |process, _| {
        either!(process, queue => match in_place(queue.locked().next()) {
            Some(Ok(job)) => match in_place(job.retry_in(Duration::ZERO)) {
                Ok(()) => Outcome::Free,
                Err(_) => Outcome::Unknown,
            },
            _ => Outcome::Free,
        })
    }),
    ("locked", |process, _| match process {
        Process::Simple(queue) => ack_first(queue),
        Process::Normal(queue) => ack_first(queue),
    }),
];

fn ack_first<P: Protocol>(queue: &DirQueue<P>) -> Outcome {
    let mut jobs = queue.locked();
    while let Some(job) = in_place(jobs.next()) {
        if let Ok(job) = job {
            return match in_place(job.ack()) {
                Ok(()) => Outcome::Removed,
                Err(_) => Outcome::Free,
            };
        }
    }
    Outcome::Free
}

#[tokio::test]
async fn result_of_an_operation_is_true_whichever_system_call_fails() {
    let mut failures = 0;
    for config in Config::all() {
        for error in [Errno::IO, Errno::DQUOT, Errno::ACCESS] {
            for &(call, run) in CALLS {
                let fails = |fault_at: &usize| {
                    run_with_fault(config, call, run, *fault_at, move |_| Fault::Fail(error))
                };
                failures += (1..).take_while(fails).count();
            }
        }
    }
    assert!(failures > 2_500, "only {failures} failures, some system calls were not reached");
}

/// Over NFS, the answer to a request may be lost. The repeated request finds that it is already done.
#[tokio::test]
async fn operation_with_a_lost_nfs_answer_takes_effect_once() {
    for config in Config::all() {
        for &(call, run) in CALLS {
            let lost_answer = |what: &'static str| match what {
                "link" | "mkdir" => Fault::FailAfter(Errno::EXIST),
                "unlink" | "rmdir" | "rename" => Fault::FailAfter(Errno::NOENT),
                // An open file that the server no longer has.
                "read" | "write" | "stat" | "list" => Fault::Fail(Errno::STALE),
                _ => Fault::None,
            };
            let fails = |fault_at: &usize| {
                let run = |process: &Process, name: &Name| match run(process, name) {
                    // A lock that was acquired without an answer stays until a purge.
                    Outcome::Free | Outcome::Locked => Outcome::Unknown,
                    outcome => outcome,
                };
                run_with_fault(config, call, run, *fault_at, lost_answer)
            };
            assert!((1..).take_while(fails).count() > 3);
        }
    }
}

/// Runs an operation and injects a fault into its system call number `fault_at`. Returns false if it made fewer calls.
fn run_with_fault(
    config: Config,
    call: &str,
    run: impl Fn(&Process, &Name) -> Outcome,
    fault_at: usize,
    fault: impl Fn(&'static str) -> Fault + 'static,
) -> bool {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), config);
    let name = process.add("old").expect("no fault is injected");
    let calls = Rc::new(RefCell::new((0, "")));
    let plan = {
        let calls = calls.clone();
        move |what: &'static str| {
            let mut calls = calls.borrow_mut();
            calls.0 += 1;
            if calls.0 != fault_at {
                return config.default_fault(what);
            }
            calls.1 = what;
            match config.default_fault(what) {
                Fault::None => fault(what),
                other => other,
            }
        }
    };
    let outcome = with_plan(plan, || run(&process, &name));
    let (made, what) = *calls.borrow();
    let context = format!("{call}, {config:?}, the {fault_at}. call is to {what}");

    let other = Process::start(process.path(), config);
    let locked = match outcome {
        Outcome::Added(_) | Outcome::Free | Outcome::Removed => false,
        Outcome::Locked => true,
        Outcome::Unknown => {
            make_stale(other.path());
            other.purge().expect(&context);
            false
        }
    };
    if let Outcome::Added(false) = outcome {
        let files = tree(other.path()).into_iter().filter(|path| path.is_file());
        let own = if config.normal { 2 } else { 1 };
        assert_eq!(files.count(), own, "{context}: leftovers exist");
    }
    if locked {
        assert!(!other.lock(&name).expect(&context), "{context}: the element is not locked");
        other.unlock(&name).expect(&context);
    }
    let found = other.drain();
    let count = |body: &str| found.get(body).copied().unwrap_or(0);
    match outcome {
        Outcome::Added(is_there) => {
            assert_eq!((count("old"), count("new")), (1, u32::from(is_there)), "{context}");
        }
        Outcome::Free | Outcome::Locked => assert_eq!(count("old"), 1, "{context}"),
        Outcome::Removed => assert_eq!(count("old"), 0, "{context}"),
        Outcome::Unknown => assert!(count("old") <= 1, "{context}"),
    }
    made >= fault_at
}

#[tokio::test]
async fn record_that_cannot_be_read_neither_ends_a_backoff_nor_restarts_the_count() {
    let counted = BOTH_KINDS.map(|config| Config { counted: true, ..config });
    for config in BOTH_KINDS.into_iter().chain(counted) {
        for error in [Errno::IO, Errno::MFILE] {
            let fails = |fault_at: &usize| iterate_with_fault(config, *fault_at, error);
            assert!((1..).take_while(fails).count() > 8, "{config:?}");
        }
    }
}

/// Iterates over a queue with an element that waits for its backoff and one that is due again, and injects an error
/// into system call number `fault_at`. Returns false if the iteration made fewer calls.
fn iterate_with_fault(config: Config, fault_at: usize, error: Errno) -> bool {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), config);
    let [_waits, due] =
        [("waits", Duration::from_secs(3600)), ("due", Duration::ZERO)].map(|(body, delay)| {
            let name = process.add(body).expect("no fault is injected");
            either!(&process, queue => {
                let job = in_place(queue.locked().next()).expect("the element is due");
                let job = job.expect("no fault is injected");
                assert_eq!(job.name(), &name);
                in_place(job.retry_in(delay)).expect("no fault is injected");
            });
            name
        });
    let made = Rc::new(RefCell::new((0, "")));
    let plan = {
        let made = made.clone();
        move |what: &'static str| {
            let mut made = made.borrow_mut();
            made.0 += 1;
            match made.0 == fault_at {
                true => {
                    made.1 = what;
                    Fault::Fail(error)
                }
                false => Fault::None,
            }
        }
    };
    either!(&process, queue => {
        let found = with_plan(plan, || {
            let mut jobs = queue.locked();
            let found: Vec<_> = std::iter::from_fn(|| in_place(jobs.next())).collect();
            found
        });
        let context = format!("{config:?}, {made:?}");
        for job in found.into_iter().flatten() {
            assert_eq!((job.name(), job.attempts()), (&due, 2), "{context}");
            in_place(job.fail("a reason")).expect(&context);
        }
        assert!(in_place(queue.lock(&due)).expect(&context), "{context}: it is locked");
    });
    let made = made.borrow().0;
    made >= fault_at
}
