//! Streams that wait for new elements: woken by the system, woken by the timer, and shared.

use std::{
    collections::BTreeSet,
    env, fs,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use fleeting::dirq::{Element, QueueSimple};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use super::{
    locked::{HOUR, normal, queue},
    tempdir,
};
use crate::{
    WATCHES,
    directory::{name, test_name, tree},
    patience::patience,
};

#[tokio::test]
async fn watch_wakes_when_an_element_is_added() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = queue().await;
    // The interval is long, so only the system can wake it.
    let mut locks = queue.watch(HOUR);
    for i in 0..3 {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        // From another handle, possibly into a new directory.
        let other =
            QueueSimple::builder(queue.path()).granularity(Duration::ZERO).open().await.unwrap();
        let added = other.add(i.to_string()).await.unwrap();
        let lock =
            timeout(patience(), locks.next()).await.expect("the stream wakes").unwrap().unwrap();
        assert_eq!((lock.name(), &lock.value()[..]), (&added, i.to_string().as_bytes()));
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn watch_of_a_normal_queue_wakes() {
    let _has_watches = WATCHES.read().await;
    let (_dir, queue) = normal().await;
    let mut locks = queue.watch(HOUR);
    for body in ["a", "b"] {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        let added = queue.add(Element::new().with("body", body)).await.unwrap();
        let lock =
            timeout(patience(), locks.next()).await.expect("the stream wakes").unwrap().unwrap();
        assert_eq!(lock.name(), &added);
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn watch_scans_at_its_interval() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    assert!(queue.lock(&added).await.unwrap());
    let mut locks = queue.watch(Duration::from_millis(20));
    assert!(
        timeout(Duration::from_millis(100), locks.next()).await.is_err(),
        "the element is locked"
    );
    // Unlocking an element does not wake the stream.
    queue.unlock(&added).await.unwrap();
    let lock = timeout(patience(), locks.next())
        .await
        .expect("the stream scans the queue")
        .unwrap()
        .unwrap();
    assert_eq!(lock.name(), &added);
}

/// Runs the test `without_watches` of this binary on a system without free watches: in a user namespace or, if that is
/// not available, after taking all of them.
#[test]
fn watch_falls_back_to_polling_without_system_watches() {
    let limit = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$@""#;
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "sh", "-c", limit, "sh"]);
        command
    };
    let is_limited = namespace().arg("true").output().is_ok_and(|output| output.status.success());
    let exe = env::current_exe().unwrap();
    let _takes_all = (!is_limited).then(|| WATCHES.blocking_write());
    let mut command = if is_limited { namespace() } else { Command::new("env") };
    let test = test_name(module_path!(), "without_watches");
    let output = command.arg(exe).args(["--exact", &test, "--ignored"]).output().unwrap();
    let output_text =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
}

#[tokio::test]
#[ignore = "it is started by the test of a system without watches"]
async fn without_watches() {
    // The limit per user is usually a few hundred. If there is no limit, nothing can fail here, and the timer suffices
    // anyway.
    let mut taken = Vec::new();
    while taken.len() < 300
        && let Ok(watcher) = notify::recommended_watcher(|_| ())
    {
        taken.push(watcher);
    }
    let (_dir, queue) = queue().await;
    let mut locks = queue.watch(Duration::from_millis(20));
    for i in 0..3 {
        assert!(
            timeout(Duration::from_millis(50), locks.next()).await.is_err(),
            "nothing is there"
        );
        let added = queue.add(i.to_string()).await.unwrap();
        let lock = timeout(patience(), locks.next())
            .await
            .expect("the stream scans the queue")
            .unwrap()
            .unwrap();
        assert_eq!(lock.name(), &added);
        lock.ack().await.unwrap();
    }
}

#[tokio::test]
async fn unlocked_element_is_delivered_again_after_the_interval() {
    let (_dir, queue) = queue().await;
    queue.add("fails").await.unwrap();
    let mut locks = queue.watch(Duration::from_millis(100));
    drop(locks.next().await.unwrap().unwrap());
    let start = Instant::now();
    for _ in 0..3 {
        drop(
            timeout(patience(), locks.next())
                .await
                .expect("the element is delivered again")
                .unwrap()
                .unwrap(),
        );
    }
    assert!(start.elapsed() >= Duration::from_millis(200), "the element is retried in a busy loop");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_watchers_share_the_elements() {
    let dir = tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut workers = Vec::new();
    for _ in 0..4 {
        // Each opens the queue separately, like another process.
        let queue = QueueSimple::open(dir.path()).await.unwrap();
        let seen = seen.clone();
        workers.push(tokio::spawn(async move {
            let mut locks = queue.watch(Duration::from_millis(100));
            loop {
                let lock = locks.next().await.unwrap().unwrap();
                seen.lock().await.push(lock.value().clone());
                lock.ack().await.unwrap();
            }
        }));
    }
    let queue = QueueSimple::builder(dir.path()).granularity(Duration::ZERO).open().await.unwrap();
    for i in 0..50 {
        queue.add_many((0..20).map(|j| format!("{}", i * 20 + j))).await.unwrap();
    }
    let deadline = Instant::now() + patience();
    while queue.count().await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "the watchers make no progress");
        sleep(Duration::from_millis(5)).await;
    }
    for worker in workers {
        worker.abort();
        let _ = worker.await;
    }
    let seen = seen.lock().await;
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!((distinct.len(), seen.len()), (1_000, 1_000), "elements were lost or duplicated");
    assert!(tree(dir.path()).iter().all(|path| path.ends_with('/')));
}

#[tokio::test]
async fn watch_continues_after_an_error() {
    let (_dir, queue) = queue().await;
    // A file in the place of the queue.
    fs::remove_dir(queue.path()).unwrap();
    fs::write(queue.path(), "").unwrap();
    let mut locks = queue.watch(Duration::from_millis(20));
    for _ in 0..2 {
        timeout(patience(), locks.next()).await.unwrap().unwrap().unwrap_err();
    }
    fs::remove_file(queue.path()).unwrap();
    let added = queue.add("x").await.unwrap();
    loop {
        match timeout(patience(), locks.next()).await.unwrap().unwrap() {
            Ok(lock) => break assert_eq!(lock.name(), &added),
            Err(_) => continue,
        }
    }
    assert!(name("00000000/00000000000000") < added);
}
