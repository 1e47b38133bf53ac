//! One call fails, whichever, and the process goes on. What it is lost_answer is so: what failed did nothing, and what
//! did not is done.

use super::*;

/// A call on a queue that has an element, and what of it is true after the outcome: whether the element is there, or
/// the new one.
enum Outcome {
    /// The new element is there, or not.
    Added(bool),
    /// The element is there, and free; or removed.
    Free,
    Locked,
    Removed,
    /// Nobody can tell what became of the element, but that it is not there twice.
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
async fn what_an_answer_says_is_so_whatever_call_fails() {
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
    assert!(failures > 2_500, "{failures} failures are too few to be all");
}

/// Over NFS, a request may be done and its outcome lost; sent again, it finds itself done.
#[tokio::test]
async fn what_is_done_and_told_as_done_before_is_not_done_twice() {
    for config in Config::all() {
        for &(call, run) in CALLS {
            let lost_answer = |what: &'static str| match what {
                "link" | "mkdir" => Fault::FailAfter(Errno::EXIST),
                "unlink" | "rmdir" | "rename" => Fault::FailAfter(Errno::NOENT),
                // What was open is no longer known there.
                "read" | "write" | "stat" | "list" => Fault::Fail(Errno::STALE),
                _ => Fault::None,
            };
            let fails = |fault_at: &usize| {
                let run = |process: &Process, name: &Name| match run(process, name) {
                    // A lock that is not known to be had stays until a purge finds it.
                    Outcome::Free | Outcome::Locked => Outcome::Unknown,
                    outcome => outcome,
                };
                run_with_fault(config, call, run, *fault_at, lost_answer)
            };
            assert!((1..).take_while(fails).count() > 3);
        }
    }
}

/// Makes a call, of whose own calls one, by its number, is another than it should be; false where there are less.
fn run_with_fault(
    config: Config,
    call: &str,
    run: impl Fn(&Process, &Name) -> Outcome,
    fault_at: usize,
    fault: impl Fn(&'static str) -> Fault + 'static,
) -> bool {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), config);
    let name = process.add("old").expect("nothing fails");
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
        assert_eq!(files.count(), own, "{context}: something is left behind");
    }
    if locked {
        assert!(!other.lock(&name).expect(&context), "{context}: it is not locked");
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
