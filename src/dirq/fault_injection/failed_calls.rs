//! One call fails, whichever, and the process goes on. What it is told is so: what failed did nothing, and what did
//! not is done.

use super::*;

/// A call on a queue that has an element, and what of it is true after the answer: whether the element is there, or
/// the new one.
enum Answer {
    /// The new element is there, or not.
    Added(bool),
    /// The element is there, and free; or removed.
    Free,
    Locked,
    Removed,
    /// Nobody can tell what became of the element, but that it is not there twice.
    Unsure,
}

type Call = fn(&Process, &Name) -> Answer;

const CALLS: &[(&str, Call)] = &[
    ("add", |process, _| match process.add("new") {
        Ok(_) => Answer::Added(true),
        Err(Error::Partial { names, .. }) => Answer::Added(names.len() == 1),
        Err(_) => Answer::Added(false),
    }),
    ("add many", |process, _| match process.add_many(&["new"]) {
        Ok(names) => Answer::Added(names.len() == 1),
        Err(Error::Partial { names, .. }) => Answer::Added(names.len() == 1),
        Err(_) => Answer::Added(false),
    }),
    ("add together", |process, _| match process.add_each(&["new"]).remove(0) {
        Ok(_) => Answer::Added(true),
        Err(Error::Partial { names, .. }) => Answer::Added(names.len() == 1),
        Err(_) => Answer::Added(false),
    }),
    ("lock", |process, name| match process.lock(name) {
        Ok(true) => Answer::Locked,
        _ => Answer::Free,
    }),
    ("dequeue", |process, name| match process.dequeue(name) {
        Ok(Some(_)) => Answer::Removed,
        _ => Answer::Free,
    }),
    ("lock and remove", |process, name| match process.lock(name) {
        Ok(true) => match process.remove(name) {
            Ok(()) => Answer::Removed,
            Err(_) => Answer::Locked,
        },
        _ => Answer::Free,
    }),
    ("lock and unlock", |process, name| match process.lock(name) {
        Ok(true) => match process.unlock(name) {
            Ok(()) => Answer::Free,
            Err(_) => Answer::Unsure,
        },
        _ => Answer::Free,
    }),
    ("fail", |process, _| {
        either!(process, queue => match now(queue.locked().next()) {
            Some(Ok(job)) => match now(job.retry_in(Duration::ZERO)) {
                Ok(()) => Answer::Free,
                Err(_) => Answer::Unsure,
            },
            _ => Answer::Free,
        })
    }),
    ("locked", |process, _| match process {
        Process::Simple(queue) => walk(queue),
        Process::Normal(queue) => walk(queue),
    }),
];

fn walk<P: Protocol>(queue: &DirQueue<P>) -> Answer {
    let mut jobs = queue.locked();
    while let Some(job) = now(jobs.next()) {
        if let Ok(job) = job {
            return match now(job.ack()) {
                Ok(()) => Answer::Removed,
                Err(_) => Answer::Free,
            };
        }
    }
    Answer::Free
}

#[tokio::test]
async fn what_an_answer_says_is_so_whatever_call_fails() {
    let mut failures = 0;
    for setting in Setting::all() {
        for error in [Errno::IO, Errno::DQUOT, Errno::ACCESS] {
            for &(call, act) in CALLS {
                let fails =
                    |at: &usize| try_it(setting, call, act, *at, move |_| Fate::Refused(error));
                failures += (1..).take_while(fails).count();
            }
        }
    }
    assert!(failures > 2_500, "{failures} failures are too few to be all");
}

/// Over NFS, a request may be done and its answer lost; sent again, it finds itself done.
#[tokio::test]
async fn what_is_done_and_told_as_done_before_is_not_done_twice() {
    for setting in Setting::all() {
        for &(call, act) in CALLS {
            let told = |what: &'static str| match what {
                "link" | "mkdir" => Fate::MadeAndTold(Errno::EXIST),
                "unlink" | "rmdir" | "rename" => Fate::MadeAndTold(Errno::NOENT),
                // What was open is no longer known there.
                "read" | "write" | "stat" | "list" => Fate::Refused(Errno::STALE),
                _ => Fate::Made,
            };
            let fails = |at: &usize| {
                let act = |process: &Process, name: &Name| match act(process, name) {
                    // A lock that is not known to be had stays until a purge finds it.
                    Answer::Free | Answer::Locked => Answer::Unsure,
                    answer => answer,
                };
                try_it(setting, call, act, *at, told)
            };
            assert!((1..).take_while(fails).count() > 3);
        }
    }
}

/// Makes a call, of whose own calls one, by its number, is another than it should be; false where there are less.
fn try_it(
    setting: Setting,
    call: &str,
    act: impl Fn(&Process, &Name) -> Answer,
    at: usize,
    fate: impl Fn(&'static str) -> Fate + 'static,
) -> bool {
    let folder = folder();
    let process = Process::start(&folder.path().join("queue"), setting);
    let name = process.add("old").expect("nothing fails");
    let calls = Rc::new(RefCell::new((0, "")));
    let plan = {
        let calls = calls.clone();
        move |what: &'static str| {
            let mut calls = calls.borrow_mut();
            calls.0 += 1;
            if calls.0 != at {
                return setting.fate(what);
            }
            calls.1 = what;
            match setting.fate(what) {
                Fate::Made => fate(what),
                other => other,
            }
        }
    };
    let answer = with(plan, || act(&process, &name));
    let (made, what) = *calls.borrow();
    let context = format!("{call}, {setting:?}, the {at}. call is to {what}");

    let other = Process::start(process.path(), setting);
    let locked = match answer {
        Answer::Added(_) | Answer::Free | Answer::Removed => false,
        Answer::Locked => true,
        Answer::Unsure => {
            age(other.path());
            other.purge().expect(&context);
            false
        }
    };
    if let Answer::Added(false) = answer {
        let files = tree(other.path()).into_iter().filter(|path| path.is_file());
        let own = if setting.normal { 2 } else { 1 };
        assert_eq!(files.count(), own, "{context}: something is left behind");
    }
    if locked {
        assert!(!other.lock(&name).expect(&context), "{context}: it is not locked");
        other.unlock(&name).expect(&context);
    }
    let found = other.drain();
    let count = |body: &str| found.get(body).copied().unwrap_or(0);
    match answer {
        Answer::Added(is_there) => {
            assert_eq!((count("old"), count("new")), (1, u32::from(is_there)), "{context}");
        }
        Answer::Free | Answer::Locked => assert_eq!(count("old"), 1, "{context}"),
        Answer::Removed => assert_eq!(count("old"), 0, "{context}"),
        Answer::Unsure => assert!(count("old") <= 1, "{context}"),
    }
    made >= at
}
