//! Memory use of directory queues.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fleeting::dirq::QueueSimple;

use super::{MEMORY, allocated_since, wait_for_turn};

/// The caller's bytes are borrowed, and so cannot be lent to the thread that writes them.
#[test]
fn add_of_a_large_element_does_not_copy_it() {
    const LEN: usize = 64 << 20;
    wait_for_turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let queue = runtime.block_on(QueueSimple::open(dir.path())).unwrap();
    let body = vec![b'x'; LEN];
    let before = MEMORY.allocated();
    let (most, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let name = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                most.fetch_max(allocated_since(before), Relaxed);
                thread::sleep(Duration::from_micros(50));
            }
        });
        let name = runtime.block_on(queue.add(&body));
        done.store(true, Relaxed);
        name
    })
    .unwrap();
    let most = most.into_inner();
    assert!(most < LEN / 8, "adding {LEN} bytes took {most} more");
    assert_eq!(std::fs::metadata(dir.path().join(name.to_string())).unwrap().len(), LEN as u64);
    assert!(runtime.block_on(queue.dequeue(&name)).unwrap().unwrap() == body[..]);
}
