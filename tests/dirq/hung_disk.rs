//! Queues on a disk that hangs instead of failing: a frozen ext4 file system on a loop device, on which each write
//! waits until it is thawed. That needs root and loop devices; without them, the tests report that they cannot run.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use fleeting::dirq::{Lock, Name, QueueSet, QueueSimple, Walk};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::unconstrained,
    time::{Instant, sleep, timeout},
};

use crate::{
    WATCHES,
    directory::{add_two_at_once, tree},
    disk::Disk,
    patience::patience,
};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn adds_to_a_hung_disk_leave_threads_for_other_queues() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let healthy_dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let healthy = QueueSimple::open(healthy_dir.path()).await.unwrap();
        let hung = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        hung.add("first").await.unwrap();
        let frozen = disk.freeze();
        let mut adds = Vec::new();
        for i in 0..600 {
            let queue = hung.clone();
            adds.push(tokio::spawn(async move { queue.add(i.to_string()).await }));
            // As a program that opens the queue for each call.
            let path = hung.path().to_owned();
            adds.push(tokio::spawn(async move { QueueSimple::open(path).await?.add("x").await }));
        }
        // Each task has been polled, and all threads have begun to wait for the disk.
        sleep(Duration::from_millis(200)).await;
        let metadata = timeout(patience(), tokio::fs::metadata(healthy_dir.path())).await;
        assert!(metadata.is_ok() && frozen.is_frozen(), "`tokio::fs` waits for another disk");
        let added = timeout(patience(), healthy.add("x")).await;
        assert!(added.is_ok() && frozen.is_frozen(), "a healthy queue waits for another disk");
        for add in &adds {
            add.abort();
        }
        for add in adds {
            let _ = add.await;
        }
        drop(frozen);
        // An add that has begun cannot be stopped. The others were cancelled in the queue's own line.
        sleep(Duration::from_millis(100)).await;
        let added = hung.count().await.unwrap() - 1;
        assert!(added <= 32, "{added} adds were executed although their callers were gone");
    });
}

#[test]
fn locks_dropped_on_a_hung_disk_do_not_block_the_runtime() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let queue = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let names = queue.add_many((0..8).map(|i| i.to_string())).await.unwrap();
        let mut jobs = queue.locked();
        let mut held = Vec::new();
        for _ in &names {
            held.push(jobs.next().await.unwrap().unwrap());
        }
        let frozen = disk.freeze();
        // More than the runtime has threads.
        let drops: Vec<_> = held.into_iter().map(|job| tokio::spawn(async { drop(job) })).collect();
        for dropped in drops {
            dropped.await.unwrap();
        }
        tokio::spawn(sleep(Duration::from_millis(1))).await.unwrap();
        assert!(frozen.is_frozen(), "the runtime waited for the disk");
        drop(frozen);
        // The elements are unlocked as soon as the disk answers.
        let mut jobs = queue.locked();
        for name in &names {
            let job = timeout(patience(), jobs.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(job.name(), name);
        }
    });
}

#[test]
fn set_continues_without_a_queue_on_a_hung_disk() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let healthy_dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let hung = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let healthy = QueueSimple::open(healthy_dir.path()).await.unwrap();
        let oldest = hung.add("on the hung disk").await.unwrap();
        let names = healthy.add_many((0..20).map(|i| i.to_string())).await.unwrap();
        let set = QueueSet::new([hung.clone(), healthy.clone()]).unwrap();
        let frozen = disk.freeze();
        // Listing works on a frozen disk, and locking does not.
        let mut jobs = set.watch(HOUR);
        let begin = Instant::now();
        for name in &names {
            let next = timeout(patience(), jobs.next()).await;
            let (queue, job) = next.expect("the set continues").unwrap().unwrap();
            assert!(frozen.is_frozen(), "the set waited for the disk");
            assert_eq!((queue.path(), job.name()), (healthy.path(), name));
            job.ack().await.unwrap();
        }
        println!("{} elements in {:?} next to a hung disk", names.len(), begin.elapsed());
        assert!(jobs.next().now_or_never().is_none());
        drop(frozen);
        let (queue, job) = timeout(patience(), jobs.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((queue.path(), job.name()), (hung.path(), &oldest), "the disk answers again");
        job.ack().await.unwrap();
    });
}

#[test]
fn streams_that_are_not_polled_do_not_keep_the_threads_of_their_queue() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let queue = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        queue.add("x").await.unwrap();
        let frozen = disk.freeze();
        // As by `select!` and `timeout`. The first ones take all threads, and the others wait for one.
        let mut streams: Vec<_> = (0..64).map(|_| queue.watch(HOUR)).collect();
        for stream in &mut streams {
            assert!(stream.next().now_or_never().is_none());
        }
        sleep(Duration::from_millis(200)).await;
        drop(frozen);
        let path = queue.path().to_owned();
        let calls = async {
            queue.count().await.unwrap();
            queue.add("y").await.unwrap();
            // As a program that opens the queue for each call.
            QueueSimple::open(path).await.unwrap();
        };
        timeout(patience(), calls).await.expect("the calls do not wait for streams");
    });
}

/// Polls a stream while all threads of its queue wait for the disk, so that it makes one step. Waits until it can make
/// the next one.
async fn make_step<T>(stream: &mut Walk<T>, disk: &Disk, queue: &QueueSimple, unlocked: &Name) {
    struct Woken(Notify);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.notify_one();
        }
    }

    let frozen = disk.freeze();
    let mut calls: Vec<_> =
        (0..16).map(|_| Box::pin(unconstrained(queue.unlock(unlocked)))).collect();
    for call in &mut calls {
        assert!(call.now_or_never().is_none());
    }
    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(woken.clone());
    assert!(pin!(stream.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(frozen);
    for call in calls {
        call.await.unwrap_err();
    }
    timeout(patience(), woken.0.notified()).await.expect("the stream can continue");
}

#[test]
fn stream_that_prepares_to_wait_continues_after_one_that_found_an_element() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    let _has_watches = WATCHES.blocking_read();
    runtime().block_on(async {
        let queue = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let removed = queue.add("x").await.unwrap();
        queue.dequeue(&removed).await.unwrap().unwrap();
        let (mut first, mut second) = (queue.watch(HOUR), queue.watch(HOUR));
        assert!(timeout(Duration::from_millis(100), first.next()).await.is_err());
        // It scans the queue, and lists the directories to be watched.
        for _ in 0..2 {
            make_step(&mut second, &disk, &queue, &removed).await;
        }
        let names = add_two_at_once(&queue, &disk.path()).await;
        let mut held = Vec::new();
        for stream in [&mut first, &mut second] {
            let job = timeout(patience(), stream.next()).await.expect("it finds an element");
            held.push(job.unwrap().unwrap());
        }
        assert_eq!(held.iter().map(|job| *job.name()).collect::<Vec<_>>(), names);
    });
}

#[test]
fn dropped_add_of_several_parts_does_not_block_the_runtime() {
    let Some(disk) = Disk::mount(64 << 20) else { return };
    runtime().block_on(async {
        let queue = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let data = vec![b'x'; 4 << 20];
        let temporary = || {
            let paths = tree(queue.path()).into_iter().filter(|path| path.ends_with(".tmp"));
            paths.map(|path| queue.path().join(path).metadata().map_or(0, |data| data.len()))
        };
        let new_add = || {
            let (queue, data) = (queue.clone(), data.clone());
            Box::pin(async move { queue.add(data).await })
        };
        // More than the runtime has threads. Each has written its first part.
        let mut adds: Vec<_> = (0..8).map(|_| new_add()).collect();
        adds.retain_mut(|add| add.now_or_never().is_none());
        let begin = Instant::now();
        while temporary().filter(|len| *len >= 1 << 20).count() < adds.len() {
            assert!(begin.elapsed() < patience(), "the first parts are not written");
            sleep(Duration::from_millis(2)).await;
        }
        sleep(Duration::from_millis(20)).await;
        let count = queue.count().await.unwrap();
        let frozen = disk.freeze();
        // All threads wait for the disk. Half of the adds wait for a thread, the others have not seen their results.
        let mut others: Vec<_> = (0..16).map(|_| Box::pin(queue.add("x"))).collect();
        for add in &mut others {
            assert!(add.now_or_never().is_none());
        }
        for add in adds.iter_mut().step_by(2) {
            assert!(add.now_or_never().is_none());
        }
        let drops: Vec<_> = adds.into_iter().map(|add| tokio::spawn(async { drop(add) })).collect();
        for dropped in drops {
            dropped.await.unwrap();
        }
        tokio::spawn(sleep(Duration::from_millis(1))).await.unwrap();
        assert!(frozen.is_frozen(), "the runtime waited for the disk");
        drop(frozen);
        for add in others {
            add.await.unwrap();
        }
        // Later calls find the files removed.
        assert_eq!(queue.count().await.unwrap(), count + 16);
        assert_eq!(temporary().count(), 0);
    });
}

#[test]
fn names_of_a_set_continue_without_a_queue_on_a_hung_disk() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let healthy_dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let hung = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let healthy = QueueSimple::open(healthy_dir.path()).await.unwrap();
        let oldest = hung.add("on the hung disk").await.unwrap();
        let names = healthy.add_many((0..20).map(|i| i.to_string())).await.unwrap();
        let set = QueueSet::new([hung.clone(), healthy.clone()]).unwrap();
        let frozen = disk.freeze();
        // A frozen disk can be listed, but these calls take all threads of the queue.
        let mut adds: Vec<_> = (0..16).map(|_| Box::pin(hung.add("later"))).collect();
        for add in &mut adds {
            assert!(add.now_or_never().is_none());
        }
        let mut found = set.names();
        for name in &names {
            let next = timeout(patience(), found.next()).await;
            let (queue, found) = next.expect("the set continues").unwrap().unwrap();
            assert!(frozen.is_frozen(), "the set waited for the disk");
            assert_eq!((queue.path(), &found), (healthy.path(), name));
        }
        assert!(found.next().now_or_never().is_none(), "the set waits at its end");
        drop(frozen);
        let (queue, first) = timeout(patience(), found.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((queue.path(), first), (hung.path(), oldest), "the disk answers again");
    });
}

#[test]
fn ack_all_does_not_hold_the_elements_of_other_queues_if_a_disk_hangs() {
    let Some(disk) = Disk::mount(16 << 20) else { return };
    runtime().block_on(async {
        let healthy_dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let hung = QueueSimple::open(disk.path().join("queue")).await.unwrap();
        let healthy = QueueSimple::open(healthy_dir.path()).await.unwrap();
        let mut held = Vec::new();
        for queue in [&hung, &healthy] {
            queue.add("x").await.unwrap();
            held.push(queue.locked().next().await.unwrap().unwrap());
        }
        let frozen = disk.freeze();
        let acks = tokio::spawn(Lock::ack_all(held));
        let is_acked = async {
            while healthy.count().await.unwrap() > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let acked = timeout(patience(), is_acked).await;
        assert!(acked.is_ok() && frozen.is_frozen(), "the ack waits for another disk");
        drop(frozen);
        acks.await.unwrap().unwrap();
        assert_eq!(hung.count().await.unwrap(), 0);
    });
}
