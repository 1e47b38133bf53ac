//! The cost of dead letters: system calls and names in listings, which grow with their number, for a job that has
//! nothing to do with them.

use super::*;
use crate::dirq::fs::faults::listed;

/// System calls, and names in listings.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    calls: usize,
    listed: usize,
}

/// Returns the cost of `work`.
fn cost_of(work: impl FnOnce()) -> Cost {
    let calls = Rc::new(RefCell::new(0));
    let count = calls.clone();
    let plan = move |_: &'static str| {
        *count.borrow_mut() += 1;
        Fault::None
    };
    let before = listed();
    with_plan(plan, work);
    Cost { calls: *calls.borrow(), listed: listed() - before }
}

/// Delivers all elements once, with a reason for the failure.
fn fail_all(queue: &QueueSimple) {
    let mut jobs = queue.locked();
    while let Some(job) = in_place(jobs.next()) {
        in_place(job.expect("it can be locked").fail("a reason")).expect("no fault is injected");
    }
}

/// Opens a queue whose new elements go to a new directory.
fn open(path: &Path) -> QueueSimple {
    let queue = QueueSimple::builder(path).max_attempts(1).granularity(Duration::ZERO).in_place();
    in_place(queue.open()).expect("no fault is injected")
}

/// Changes within a tick of the clock may have the same time. And the next element is added to a directory of its own.
fn settle() {
    std::thread::sleep(Duration::from_millis(1_200));
}

/// Returns the cost of a job in a queue whose dead letters are older.
fn cost_of_a_job(dead_letters: usize) -> Cost {
    let temp_dir = temp_dir();
    let path = temp_dir.path().join("queue");
    let day = Duration::from_secs(86_400);
    let old = QueueSimple::builder(&path).max_attempts(1).granularity(day).in_place();
    let old = in_place(old.open()).expect("no fault is injected");
    let bodies = (0..dead_letters).map(|i| i.to_string());
    in_place(old.add_many(bodies)).expect("no fault is injected");
    fail_all(&old);
    assert_eq!(in_place(old.dead_len()).expect("no fault is injected"), dead_letters as u64);

    let queue = open(&path);
    in_place(queue.add("a job")).expect("no fault is injected");
    let scan = || in_place(queue.locked().next());
    settle();
    let job = scan().expect("the job is due").expect("it can be locked");
    in_place(job.unlock()).expect("it is locked");
    assert!(in_place(queue.dead_len()).is_ok_and(|len| len == dead_letters as u64 + 1));
    settle();
    assert!(scan().is_none(), "all are dead");
    in_place(queue.add("the job")).expect("no fault is injected");
    settle();
    // Two scans, as by a stream that waits for new elements.
    cost_of(|| {
        let job = scan().expect("the job is due").expect("it can be locked");
        in_place(job.ack()).expect("it is locked");
        assert!(scan().is_none(), "all are dead");
    })
}

#[tokio::test]
async fn cost_of_a_job_does_not_grow_with_dead_letters() {
    let few = cost_of_a_job(10);
    assert_eq!(cost_of_a_job(5_000), few);
}
