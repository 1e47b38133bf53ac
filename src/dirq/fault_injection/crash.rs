//! A process crashes at each of its system calls. Acknowledged operations took effect, the others may have. Nothing
//! takes effect twice, and a purge removes all leftovers.

use std::collections::BTreeSet;

use super::*;

/// The operations that were acknowledged to a process before it crashed.
#[derive(Default)]
struct Acknowledged {
    added: BTreeSet<String>,
    removed: BTreeSet<String>,
}

type Log = Rc<RefCell<Acknowledged>>;

/// Receives the existing elements, and a file of its own.
type Scenario = fn(&Process, &[Name; 2], &Path, &Log);

/// The operations that crash at each of their system calls. There is one unlocked element, one that a crashed process
/// has locked, and the leftovers of other processes.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("add", |process, _, _, log| {
        if process.add("new").is_ok() {
            log.borrow_mut().added.insert("new".into());
        }
    }),
    ("add many", |process, _, _, log| {
        let names = match process.add_many(&["first", "second", "third"]) {
            Ok(names) => names.len(),
            Err(Error::Partial { names, .. }) => names.len(),
            Err(_) => 0,
        };
        let added = ["first", "second", "third"].map(str::to_owned).into_iter().take(names);
        log.borrow_mut().added.extend(added);
    }),
    ("add together", |process, _, _, log| {
        let bodies = ["first", "second", "third"];
        for (body, added) in bodies.into_iter().zip(process.add_each(&bodies)) {
            if matches!(added, Ok(_) | Err(Error::Partial { .. })) {
                log.borrow_mut().added.insert(body.to_owned());
            }
        }
    }),
    ("add a path", |process, _, file, log| {
        if let Process::Simple(queue) = process
            && in_place(queue.add_path(file)).is_ok()
        {
            log.borrow_mut().added.insert("file".into());
        }
    }),
    ("lock", |process, [free, _], _, _| drop(process.lock(free))),
    ("lock and unlock", |process, [free, _], _, _| {
        if let Ok(true) = process.lock(free) {
            let _ = either!(process, queue => in_place(queue.touch(free)));
            let _ = process.unlock(free);
        }
    }),
    ("lock and remove", |process, [free, _], _, log| {
        if let Ok(true) = process.lock(free)
            && process.remove(free).is_ok()
        {
            log.borrow_mut().removed.insert("free".into());
        }
    }),
    ("dequeue", |process, [free, _], _, log| {
        if let Ok(Some(body)) = process.dequeue(free) {
            log.borrow_mut().removed.insert(body);
        }
    }),
    ("ack all", |process, _, _, log| match process {
        Process::Simple(queue) => ack_all(queue, |body| text(body), log),
        Process::Normal(queue) => ack_all(queue, body_of, log),
    }),
    ("fail", |process, _, _, _| {
        either!(process, queue => {
            while let Some(Ok(job)) = in_place(queue.locked().next())
                && job.attempts() < 3
            {
                let _ = match job.attempts() {
                    1 => in_place(job.retry_in(Duration::ZERO)),
                    _ => in_place(job.fail("it does not work")),
                };
            }
        })
    }),
    ("fail for good, revive, and fail, and ack", |process, _, _, log| {
        let _ = match process {
            Process::Simple(queue) => {
                let queue = QueueSimple::builder(queue.path()).max_attempts(1).in_place();
                in_place(queue.open()).map(|queue| fail_and_revive(&queue, |body| text(body), log))
            }
            Process::Normal(queue) => {
                let schema = queue.schema().expect("the queue has a schema").clone();
                let queue = Queue::builder(queue.path()).schema(schema).max_attempts(1).in_place();
                in_place(queue.open()).map(|queue| fail_and_revive(&queue, body_of, log))
            }
        };
    }),
    ("purge", |process, _, _, _| drop(process.purge())),
    ("purge what is old, and dequeue", |process, [_, dead], _, log| {
        make_stale(process.path());
        let _ = process.purge();
        if let Ok(Some(body)) = process.dequeue(dead) {
            log.borrow_mut().removed.insert(body);
        }
    }),
];

fn ack_all<P: Protocol>(queue: &DirQueue<P>, body: fn(&P::Payload) -> String, log: &Log) {
    let mut jobs = queue.locked();
    // A prefetched lock would be released by the test's runtime. Here all elements are requested.
    while let Some(job) = in_place(jobs.next()) {
        let Ok(job) = job else { return };
        let body = body(job.value());
        if in_place(job.ack()).is_ok() {
            log.borrow_mut().removed.insert(body);
        }
    }
}

fn fail_and_revive<P: Protocol>(queue: &DirQueue<P>, body: fn(&P::Payload) -> String, log: &Log) {
    drop(in_place(queue.locked().next()));
    for _ in 0..2 {
        let Ok(dead) = in_place(queue.take_dead(9)) else { return };
        for letter in dead {
            let name = *letter.name();
            drop(letter);
            let _ = in_place(queue.revive(&name, Duration::ZERO));
        }
        drop(in_place(queue.locked().next()));
    }
    for letter in in_place(queue.take_dead(9)).into_iter().flatten() {
        let body = body(letter.value());
        if in_place(letter.ack()).is_ok() {
            log.borrow_mut().removed.insert(body);
        }
    }
}

#[tokio::test]
async fn crash_at_any_system_call_neither_loses_nor_duplicates_an_element() {
    let mut crashes = 0;
    for config in Config::all() {
        for &(scenario, run) in SCENARIOS {
            // These take long.
            if scenario.starts_with("fail") && (!config.counted || config.sync) {
                continue;
            }
            crashes += (0..)
                .take_while(|&call_limit| crash_after(config, scenario, run, call_limit))
                .count();
        }
    }
    assert!(crashes > 2_000, "only {crashes} crashes, some system calls were not reached");
}

/// Lets a process make `call_limit` system calls. Returns false if it needed no more.
fn crash_after(config: Config, scenario: &str, run: Scenario, call_limit: usize) -> bool {
    let temp_dir = temp_dir();
    let path = temp_dir.path().join("queue");
    let before = Process::start(&path, config);
    let names = ["free", "dead"].map(|body| before.add(body).expect("no fault is injected"));
    assert!(before.lock(&names[1]).expect("no fault is injected"));
    let file = temp_dir.path().join("file");
    fs::write(&file, "file").expect("the file can be written");

    let (log, calls) = (Log::default(), Rc::new(RefCell::new(0)));
    let process = Process::start(&path, config);
    let plan = {
        let calls = calls.clone();
        move |what: &'static str| {
            *calls.borrow_mut() += 1;
            match *calls.borrow() > call_limit {
                true => Fault::Fail(Errno::IO),
                false => config.default_fault(what),
            }
        }
    };
    with_plan(plan, || {
        run(&process, &names, &file, &log);
        // Destructors of a crashed process must have no effect either.
        drop(process);
    });
    let crashed = *calls.borrow() > call_limit;

    let acknowledged = log.take();
    let context = format!("{scenario}, {config:?}, dead after {call_limit} calls");
    make_stale(&path);
    let after = Process::start(&path, config);
    assert_eq!(after.purge().expect(&context).failed, 0, "{context}");
    let found = after.drain();
    for body in ["free", "dead", "new", "first", "second", "third", "file"] {
        let count = found.get(body).copied().unwrap_or(0);
        let was_there = ["free", "dead"].contains(&body);
        let removes = ["remove", "dequeue", "ack"].iter().any(|word| scenario.contains(word));
        let may_be_removed = crashed && was_there && removes;
        let min = match acknowledged.added.contains(body) || was_there && !may_be_removed {
            true => u32::from(!acknowledged.removed.contains(body)),
            false => 0,
        };
        let max = u32::from(!acknowledged.removed.contains(body));
        assert!((min..=max).contains(&count), "{context}: {body} occurs {count} times");
    }
    make_stale(&path);
    after.purge().expect(&context);
    let left: Vec<_> = tree(&path).into_iter().filter(|path| path.is_file()).collect();
    assert!(left.is_empty(), "{context}: {left:?}");
    let depth = |path: &PathBuf| path.components().count();
    // The directory for the records of dead letters stays, as that of all records does.
    let is_leftover =
        |left: &PathBuf| depth(left) > depth(&path) + 1 && !left.ends_with("retries/dead");
    let deep: Vec<_> = tree(&path).into_iter().filter(is_leftover).collect();
    assert!(deep.is_empty(), "{context}: {deep:?}");
    // The file is in its place or in the queue, or in both if the process crashed between two steps.
    let moved = found.contains_key("file");
    assert!(file.exists() || moved, "{context}: the file is lost");
    crashed
}
