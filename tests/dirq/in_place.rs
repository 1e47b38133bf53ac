//! Queues in memory: calls run in place, and changes that invalidate the cache are detected.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use fleeting::dirq::{Element, Error, Name, Purge, Queue, QueueSimple};
use tempfile::TempDir;
use tokio::{runtime::Builder, task::spawn_blocking, time::sleep};
use tokio_test::{assert_ready_ok, task::spawn};

use crate::clock::until_enough;

/// Time after which a change of the queue's directory is certain to alter its change time.
const SETTLED: Duration = Duration::from_millis(150);

fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("/dev/shm is a tmpfs on Linux")
}

async fn simple(path: &Path) -> QueueSimple {
    QueueSimple::open(path).await.unwrap()
}

async fn normal(path: &Path) -> Queue {
    Queue::builder(path).schema("body:string,more:string?".parse().unwrap()).open().await.unwrap()
}

fn body(text: &str) -> Element {
    Element::new().with("body", text)
}

fn lock_of(queue: &QueueSimple, name: &Name) -> PathBuf {
    queue.path().join(format!("{name}.lck"))
}

fn expect_ready<T>(call: impl Future<Output = Result<T, Error>>) -> T {
    assert_ready_ok!(spawn(call).poll(), "the call waits for another thread")
}

fn is_pending<T>(call: impl Future<Output = T>) -> bool {
    spawn(call).poll().is_pending()
}

#[test]
fn calls_on_single_elements_run_in_place() {
    let dir = memory();
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let queue = simple(&dir.path().join("simple")).await;
        let fields = normal(&dir.path().join("normal")).await;
        // Creates the directory of new elements.
        let old = fields.add(body("old")).await.unwrap();
        let long = queue.add(vec![b'x'; 64 * 1024 + 1]).await.unwrap();
        let longer = queue.add(vec![b'x'; 1 << 20]).await.unwrap();
        let wide = fields.add(body(&"x".repeat(64 * 1024 + 1))).await.unwrap();
        let half = "x".repeat(40_000);
        let many = fields.add(body(&half).with("more", half.as_str())).await.unwrap();
        assert!(queue.lock(&long).await.unwrap());
        let mut names = queue.names();
        let mut locked = queue.locked();
        let (release, taken) = mpsc::channel::<()>();
        let taker = spawn_blocking(move || taken.recv());

        let name = expect_ready(queue.add(vec![b'x'; 64 * 1024]));
        assert!(expect_ready(queue.lock(&name)));
        assert_eq!(expect_ready(queue.get(&name)).len(), 64 * 1024);
        expect_ready(queue.get_path(&name));
        expect_ready(queue.touch(&name));
        assert!(expect_ready(queue.peek(&name)).is_some());
        expect_ready(queue.unlock(&name));
        assert!(expect_ready(queue.dequeue(&name)).is_some());
        let kept = expect_ready(queue.add("x"));
        assert!(expect_ready(queue.lock(&kept)));
        expect_ready(queue.remove(&kept));

        let name = expect_ready(fields.add(body("x")));
        assert!(expect_ready(fields.lock(&name)));
        assert_eq!(expect_ready(fields.get(&name)), body("x"));
        expect_ready(fields.touch(&name));
        expect_ready(fields.unlock(&name));
        assert!(expect_ready(fields.get_element(&name)).is_some());
        assert!(expect_ready(fields.peek(&name)).is_some());
        assert!(expect_ready(fields.dequeue(&name)).is_some());
        assert!(expect_ready(fields.lock(&old)));
        expect_ready(fields.remove(&old));

        // Calls that may take long do not run in place.
        assert!(is_pending(queue.add(vec![b'x'; 64 * 1024 + 1])));
        assert!(
            is_pending(queue.get(&long))
                && is_pending(queue.peek(&long))
                && is_pending(fields.peek(&wide))
        );
        assert!(is_pending(fields.peek(&many)), "the fields are short, but not their sum");
        assert!(is_pending(queue.dequeue(&longer)));
        assert!(!lock_of(&queue, &longer).exists(), "the lock of the aborted attempt is released");
        assert!(is_pending(fields.add(body(&"x".repeat(64 * 1024 + 1)))));
        assert!(is_pending(queue.add_many(["x"])));
        assert!(is_pending(fields.add_many([body("x")])));
        assert!(is_pending(queue.count()) && is_pending(fields.count()));
        assert!(is_pending(names.next()) && is_pending(locked.next()));
        assert!(is_pending(queue.purge(Purge::default())));
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(is_pending(queue.add_path(&file)));

        drop(release);
        assert!(taker.await.unwrap().is_err());
        assert_eq!(queue.get(&long).await.unwrap().len(), 64 * 1024 + 1);
        queue.remove(&long).await.unwrap();
        let job = locked.next().await.unwrap().unwrap();
        let (release, taken) = mpsc::channel::<()>();
        let taker = spawn_blocking(move || taken.recv());
        expect_ready(job.touch());
        expect_ready(job.ack());
        // The names are already listed.
        let job = expect_ready(async { locked.next().await.unwrap() });
        expect_ready(job.unlock());
        drop(release);
        assert!(taker.await.unwrap().is_err());
    });
}

#[tokio::test]
async fn stream_reads_long_elements_on_another_thread() {
    let dir = memory();
    let queue = simple(dir.path()).await;
    let bodies = [10, 100_000, 20, 200_000].map(|len| vec![b'x'; len]);
    queue.add_many(&bodies).await.unwrap();
    let mut jobs = queue.locked();
    for body in &bodies {
        assert_eq!(jobs.next().await.unwrap().unwrap().value(), body);
    }
    assert!(jobs.next().await.is_none());
}

#[tokio::test]
async fn calls_in_place_consume_cooperative_budget() {
    let dir = memory();
    let queue = simple(dir.path()).await;
    let (count, mut counted) = tokio::sync::watch::channel(0);
    let other = tokio::spawn(async move {
        loop {
            count.send_modify(|count| *count += 1);
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..2_000 {
        queue.add("x").await.unwrap();
    }
    let turns = *counted.borrow_and_update();
    assert!(turns >= 10, "the other task ran {turns} times");
    other.abort();
}

#[tokio::test]
async fn replaced_directory_of_a_simple_queue_is_detected() {
    let dir = memory();
    let (path, outside) = (dir.path().join("queue"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let queue = QueueSimple::builder(&path).granularity(Duration::from_secs(1 << 31)).open().await;
    let queue = queue.unwrap();
    let directory = queue.add("1").await.unwrap().to_string()[..8].to_owned();
    for _ in 0..3 {
        sleep(SETTLED).await;
        let before = [queue.add("2").await.unwrap(), queue.add("3").await.unwrap()];
        assert!(queue.lock(&before[0]).await.unwrap());

        // The queue is replaced.
        let archive = dir.path().join("archive");
        fs::rename(&path, &archive).unwrap();
        assert!(matches!(queue.get(&before[0]).await, Err(Error::Io { .. })), "it is away");
        assert!(!queue.lock(&before[1]).await.unwrap());
        let after = queue.add("4").await.unwrap();
        assert_eq!(fs::read(path.join(after.to_string())).unwrap(), b"4");
        fs::remove_dir_all(archive).unwrap();

        // The directory of elements is replaced.
        sleep(SETTLED).await;
        let before = queue.add("5").await.unwrap();
        fs::rename(path.join(&directory), path.join("away")).unwrap();
        assert!(!queue.lock(&before).await.unwrap());
        let after = queue.add("6").await.unwrap();
        assert!(path.join(after.to_string()).exists());
        fs::remove_dir_all(path.join("away")).unwrap();

        // The directory is replaced by a link.
        sleep(SETTLED).await;
        queue.add("7").await.unwrap();
        fs::rename(path.join(&directory), path.join("away")).unwrap();
        symlink(&outside, path.join(&directory)).unwrap();
        assert!(matches!(queue.add("8").await, Err(Error::Foreign { .. })));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        fs::remove_file(path.join(&directory)).unwrap();
        fs::rename(path.join("away"), path.join(&directory)).unwrap();
        queue.add("9").await.unwrap();
    }
}

#[tokio::test]
async fn replaced_directory_of_a_normal_queue_is_detected() {
    let dir = memory();
    let (path, outside) = (dir.path().join("queue"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let queue = normal(&path).await;
    let add = async |directory: &str| {
        let name = queue.add(body("x")).await.unwrap();
        assert_eq!(&name.to_string()[..8], directory);
        name
    };
    let take = async |name| assert!(queue.dequeue(&name).await.unwrap().is_some());
    add("00000000").await;
    sleep(SETTLED).await;
    take(add("00000000").await).await;
    take(add("00000000").await).await;

    // Another process found the directory full.
    fs::create_dir(path.join("00000001")).unwrap();
    let name = add("00000001").await;

    sleep(SETTLED).await;
    take(add("00000001").await).await;
    for side in ["temporary", "obsolete"] {
        fs::rename(path.join(side), path.join("away")).unwrap();
        symlink(&outside, path.join(side)).unwrap();
        let error = match side {
            "temporary" => queue.add(body("x")).await.map(drop),
            _ => queue.dequeue(&name).await.map(drop),
        };
        assert!(matches!(error, Err(Error::Foreign { .. })), "{error:?}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        // The directory is removed.
        fs::remove_file(path.join(side)).unwrap();
        take(add("00000001").await).await;
        fs::remove_dir(path.join("away")).unwrap();
        sleep(SETTLED).await;
        take(add("00000001").await).await;
    }
    fs::rename(&path, dir.path().join("archive")).unwrap();
    assert!(queue.dequeue(&name).await.unwrap().is_none());
    add("00000000").await;
}

#[tokio::test]
async fn open_directories_are_bounded_across_a_thousand_queues() {
    let dir = memory();
    let mut queues = Vec::new();
    for i in 0..100 {
        queues.push(normal(&dir.path().join(i.to_string())).await);
        queues[i].add(body("x")).await.unwrap();
    }
    let open = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap();
        let paths = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        paths.filter(|path: &PathBuf| path.starts_with(dir.path())).count()
    };
    // In one of several attempts: none stays open while other tests of this process keep 64 directories open.
    until_enough(async || {
        sleep(SETTLED).await;
        for queue in &queues {
            let name = queue.add(body("x")).await.unwrap();
            assert!(queue.dequeue(&name).await.unwrap().is_some());
        }
        let open = open();
        println!("{open} directories are open");
        (1..=64).contains(&open)
    })
    .await;
    drop(queues);
    assert_eq!(open(), 0);
}
