//! Directory queues in memory: their calls are made in place, and what is cached for that is found out when it changes.

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

/// After which a queue may take it that a change of its directory will show in the time of the last.
const SETTLED: Duration = Duration::from_millis(150);

fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("/dev/shm is a file system in memory on Linux")
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

fn is_done<T>(call: impl Future<Output = Result<T, Error>>) -> T {
    assert_ready_ok!(spawn(call).poll(), "it waits for another thread")
}

fn waits<T>(call: impl Future<Output = T>) -> bool {
    spawn(call).poll().is_pending()
}

#[test]
fn calls_about_an_element_are_made_in_place() {
    let dir = memory();
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let queue = simple(&dir.path().join("simple")).await;
        let fields = normal(&dir.path().join("normal")).await;
        // It looks for the directory of new elements.
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

        let name = is_done(queue.add(vec![b'x'; 64 * 1024]));
        assert!(is_done(queue.lock(&name)));
        assert_eq!(is_done(queue.get(&name)).len(), 64 * 1024);
        is_done(queue.get_path(&name));
        is_done(queue.touch(&name));
        assert!(is_done(queue.peek(&name)).is_some());
        is_done(queue.unlock(&name));
        assert!(is_done(queue.dequeue(&name)).is_some());
        let kept = is_done(queue.add("x"));
        assert!(is_done(queue.lock(&kept)));
        is_done(queue.remove(&kept));

        let name = is_done(fields.add(body("x")));
        assert!(is_done(fields.lock(&name)));
        assert_eq!(is_done(fields.get(&name)), body("x"));
        is_done(fields.touch(&name));
        is_done(fields.unlock(&name));
        assert!(is_done(fields.get_element(&name)).is_some());
        assert!(is_done(fields.peek(&name)).is_some());
        assert!(is_done(fields.dequeue(&name)).is_some());
        assert!(is_done(fields.lock(&old)));
        is_done(fields.remove(&old));

        // What may be long is not.
        assert!(waits(queue.add(vec![b'x'; 64 * 1024 + 1])));
        assert!(waits(queue.get(&long)) && waits(queue.peek(&long)) && waits(fields.peek(&wide)));
        assert!(waits(fields.peek(&many)), "its fields are short, and together they are not");
        assert!(waits(queue.dequeue(&longer)));
        assert!(!lock_of(&queue, &longer).exists(), "what was not done in place is undone");
        assert!(waits(fields.add(body(&"x".repeat(64 * 1024 + 1)))));
        assert!(waits(queue.add_many(["x"])));
        assert!(waits(fields.add_many([body("x")])));
        assert!(waits(queue.count()) && waits(fields.count()));
        assert!(waits(names.next()) && waits(locked.next()));
        assert!(waits(queue.purge(Purge::default())));
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(waits(queue.add_path(&file)));

        drop(release);
        assert!(taker.await.unwrap().is_err());
        assert_eq!(queue.get(&long).await.unwrap().len(), 64 * 1024 + 1);
        queue.remove(&long).await.unwrap();
        let job = locked.next().await.unwrap().unwrap();
        let (release, taken) = mpsc::channel::<()>();
        let taker = spawn_blocking(move || taken.recv());
        is_done(job.touch());
        is_done(job.ack());
        // The list is there.
        let job = is_done(async { locked.next().await.unwrap() });
        is_done(job.unlock());
        drop(release);
        assert!(taker.await.unwrap().is_err());
    });
}

#[tokio::test]
async fn what_is_long_is_read_elsewhere_in_a_stream_too() {
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
async fn a_loop_of_calls_lets_others_run() {
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
    assert!(turns >= 10, "the other had {turns} turns");
    other.abort();
}

#[tokio::test]
async fn what_takes_the_place_of_a_directory_is_found() {
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

        // Another queue.
        let archive = dir.path().join("archive");
        fs::rename(&path, &archive).unwrap();
        assert!(matches!(queue.get(&before[0]).await, Err(Error::NotLocked { .. })));
        assert!(!queue.lock(&before[1]).await.unwrap());
        let after = queue.add("4").await.unwrap();
        assert_eq!(fs::read(path.join(after.to_string())).unwrap(), b"4");
        fs::remove_dir_all(archive).unwrap();

        // Another directory of elements.
        sleep(SETTLED).await;
        let before = queue.add("5").await.unwrap();
        fs::rename(path.join(&directory), path.join("away")).unwrap();
        assert!(!queue.lock(&before).await.unwrap());
        let after = queue.add("6").await.unwrap();
        assert!(path.join(after.to_string()).exists());
        fs::remove_dir_all(path.join("away")).unwrap();

        // A link.
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
async fn what_takes_the_place_of_a_directory_is_found_where_elements_have_fields() {
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

    // Somebody found the directory full.
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
        // And where there is none.
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
async fn a_thousand_queues_do_not_keep_thousands_of_directories_open() {
    let dir = memory();
    let mut queues = Vec::new();
    for i in 0..100 {
        queues.push(normal(&dir.path().join(i.to_string())).await);
        queues[i].add(body("x")).await.unwrap();
    }
    sleep(SETTLED).await;
    let open = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap();
        let paths = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        paths.filter(|path: &PathBuf| path.starts_with(dir.path())).count()
    };
    for _ in 0..2 {
        for queue in &queues {
            let name = queue.add(body("x")).await.unwrap();
            assert!(queue.dequeue(&name).await.unwrap().is_some());
        }
        assert!((1..=64).contains(&open()), "{} are open", open());
    }
    drop(queues);
    assert_eq!(open(), 0);
}
