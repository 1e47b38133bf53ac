//! Directory queues under adverse conditions: files outside the format, links, concurrently removed elements, full and
//! read-only file systems.

use std::{
    env, fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fleeting::dirq::{Element, Error, Lock, Purge, Queue, QueueSimple, Walk};
use tempfile::TempDir;
use tokio::time::timeout;

use super::{IN_MEMORY, tempdir};
use crate::{
    directory::{age, all, kind, make_old, name, test_name, tree},
    patience::patience,
    skipped::skipped,
};

const OLD: Duration = Duration::from_secs(9_999);

async fn simple(dir: &TempDir) -> QueueSimple {
    QueueSimple::open(dir.path().join("queue")).await.unwrap()
}

async fn normal(dir: &TempDir) -> Queue {
    let builder = Queue::builder(dir.path().join("queue"));
    builder.schema("body:string".parse().unwrap()).open().await.unwrap()
}

fn body(text: &str) -> Element {
    Element::new().with("body", text)
}

/// Files outside of the queue, which must stay unchanged.
struct Outside {
    files: Vec<String>,
}

impl Outside {
    fn new(dir: &TempDir) -> Self {
        let outside = dir.path().join("outside");
        for directory in ["empty", "5f3c1aa1d3e4f7", "full", "00000000000001/locked"] {
            fs::create_dir_all(outside.join(directory)).unwrap();
        }
        for file in [
            "secret",
            "body",
            "full/body",
            "00000000000003",
            "00000000000001/body",
            "00000000000002.lck",
        ] {
            fs::write(outside.join(file), "secret").unwrap();
            make_old(&outside.join(file), OLD);
        }
        make_old(&outside.join("00000000000001"), OLD);
        Self { files: tree(&outside) }
    }

    fn check(self, dir: &TempDir) {
        let outside = dir.path().join("outside");
        assert_eq!(tree(&outside), self.files);
        for file in self.files.iter().filter(|file| !file.ends_with('/')) {
            assert_eq!(fs::read(outside.join(file)).unwrap(), b"secret");
            assert!(age(&outside.join(file)) > OLD / 2, "{file} was changed");
        }
    }
}

#[tokio::test]
async fn symbolic_links_in_a_simple_queue_are_not_followed() {
    let dir = tempdir().unwrap();
    let outside = Outside::new(&dir);
    let queue = simple(&dir).await;
    let out = dir.path().join("outside");
    // Links with the names of a directory of elements, an element, a lock and a temporary file.
    symlink(&out, queue.path().join("00000001")).unwrap();
    fs::create_dir(queue.path().join("00000002")).unwrap();
    let at = |file: &str| queue.path().join("00000002").join(file);
    symlink(out.join("secret"), at("00000000000001")).unwrap();
    symlink(out.join("secret"), at("00000000000002.lck")).unwrap();
    symlink(out.join("secret"), at("00000000000003.tmp")).unwrap();
    fs::write(at("00000000000002"), "element").unwrap();
    let added = queue.add("x").await.unwrap();

    let real = name("00000002/00000000000002");
    assert_eq!(all(queue.names()).await, [real, added]);
    assert_eq!(queue.count().await.unwrap(), 2);

    let in_link = name("00000001/00000000000003");
    for error in [
        queue.lock(&in_link).await.unwrap_err(),
        queue.unlock(&in_link).await.unwrap_err(),
        queue.get(&in_link).await.unwrap_err(),
        queue.peek(&in_link).await.unwrap_err(),
        queue.touch(&in_link).await.unwrap_err(),
        queue.remove(&in_link).await.unwrap_err(),
        queue.dequeue(&in_link).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Foreign { path } if path.ends_with("00000001")),
            "{error:?}"
        );
    }
    let link = name("00000002/00000000000001");
    for error in [
        queue.lock(&link).await.unwrap_err(),
        queue.peek(&link).await.unwrap_err(),
        queue.dequeue(&link).await.unwrap_err(),
        queue.get(&real).await.unwrap_err(),
        queue.get_path(&real).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Foreign { .. }), "{error:?}");
    }
    assert!(!at("00000000000001.lck").exists() && !at("00000000000001.lck").is_symlink());
    queue.touch(&link).await.unwrap();

    let all_old =
        Purge::default().max_lock(Duration::from_nanos(1)).max_temp(Duration::from_nanos(1));
    thread::sleep(Duration::from_millis(20));
    let report = queue.purge(all_old).await.unwrap();
    assert_eq!(
        (report.locks, report.temporary),
        (1, 1),
        "the purge removes the links and not their targets"
    );
    assert!(queue.path().join("00000001").is_symlink());
    let locked = all(queue.locked()).await;
    assert_eq!(locked.iter().map(|lock| *lock.name()).collect::<Vec<_>>(), [real, added]);
    outside.check(&dir);
}

#[tokio::test]
async fn symbolic_links_in_a_normal_queue_are_not_followed() {
    let dir = tempdir().unwrap();
    let outside = Outside::new(&dir);
    let queue = normal(&dir).await;
    let out = dir.path().join("outside");
    let added = queue.add(body("x")).await.unwrap();
    symlink(&out, queue.path().join("00000001")).unwrap();
    symlink(out.join("00000000000001"), queue.path().join("00000000/00000000000009")).unwrap();
    symlink(out.join("full"), queue.path().join("temporary/00000000000001")).unwrap();
    symlink(out.join("full"), queue.path().join("obsolete/00000000000001")).unwrap();

    assert_eq!(all(queue.names()).await, [added]);
    assert_eq!(queue.count().await.unwrap(), 1);
    for foreign in [name("00000001/00000000000001"), name("00000000/00000000000009")] {
        for error in [
            queue.lock(&foreign).await.unwrap_err(),
            queue.unlock(&foreign).await.unwrap_err(),
            queue.get(&foreign).await.unwrap_err(),
            queue.peek(&foreign).await.unwrap_err(),
            queue.remove(&foreign).await.unwrap_err(),
            queue.dequeue(&foreign).await.unwrap_err(),
        ] {
            assert!(matches!(&error, Error::Foreign { .. }), "{error:?}");
        }
    }
    // A link with the name of a field's file is neither read nor, when it is removed, followed.
    let file = queue.path().join(added.to_string()).join("body");
    fs::remove_file(&file).unwrap();
    symlink(out.join("secret"), &file).unwrap();
    let error = queue.get_element(&added).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { path } if *path == file), "{error:?}");
    assert!(queue.lock(&added).await.unwrap());
    queue.remove(&added).await.unwrap();
    assert_eq!(queue.count().await.unwrap(), 0);

    let all_old =
        Purge::default().max_lock(Duration::from_nanos(1)).max_temp(Duration::from_nanos(1));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(queue.purge(all_old).await.unwrap(), Default::default());

    // A link with the name `temporary`.
    fs::remove_file(queue.path().join("temporary/00000000000001")).unwrap();
    fs::remove_dir(queue.path().join("temporary")).unwrap();
    symlink(&out, queue.path().join("temporary")).unwrap();
    let error = queue.add(body("x")).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { path } if path.ends_with("temporary")), "{error:?}");
    outside.check(&dir);
}

#[tokio::test]
async fn files_outside_the_format_are_ignored_and_kept() {
    let dir = tempdir().unwrap();
    let queue = simple(&dir).await;
    for (i, junk) in [
        "README",
        "00000001",
        "0000000A/00000000000001",
        "000000000/x",
        ".hidden",
        "a b/c\n",
        "00000003/junk",
    ]
    .iter()
    .enumerate()
    {
        let path = queue.path().join(junk);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("junk {i}")).unwrap();
        make_old(&path, OLD);
    }
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(queue.path().join("00000003").join(odd), "").unwrap();
    // A directory with the name of an element, and directories with the names of a lock and a temporary file.
    for directory in
        ["00000003/00000000000001", "00000003/00000000000002.lck", "00000003/00000000000003.tmp"]
    {
        fs::create_dir(queue.path().join(directory)).unwrap();
        make_old(&queue.path().join(directory), OLD);
    }
    let before = tree(queue.path());
    assert_eq!(queue.count().await.unwrap(), 0);
    assert_eq!(all(queue.names()).await, []);
    assert!(all(queue.locked()).await.is_empty());
    let report = queue.purge(Purge::default()).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (0, 0, 0));
    assert_eq!(tree(queue.path()), before);
    let added = queue.add("x").await.unwrap();
    assert_eq!(all(queue.names()).await, [added]);
    assert_eq!(queue.dequeue(&added).await.unwrap().unwrap(), "x");
}

#[tokio::test]
async fn file_with_the_name_of_a_directory_is_skipped() {
    let dir = tempdir().unwrap();
    let queue = normal(&dir).await;
    for junk in ["00000000", "00000001"] {
        fs::write(queue.path().join(junk), "junk").unwrap();
    }
    let added = queue.add(body("x")).await.unwrap();
    assert_eq!(&added.to_string()[..8], "00000002");
    assert_eq!(queue.dequeue(&added).await.unwrap(), Some(body("x")));
    // Opening a pipe would block forever.
    let added = queue.add(body("x")).await.unwrap();
    let file = queue.path().join(added.to_string()).join("body");
    fs::remove_file(&file).unwrap();
    let made = Command::new("mkfifo").arg(&file).status().expect("mkfifo runs");
    assert!(made.success());
    let error = queue.get_element(&added).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { path } if *path == file), "{error:?}");
}

/// Opening a pipe waits for its other end, and the queue has a few threads only.
#[tokio::test(flavor = "multi_thread")]
async fn pipes_in_place_of_temporary_files_do_not_block_the_queue() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path().join("queue")).await.unwrap();
    let pipes: Vec<_> = (0..100).map(|pipe| dir.path().join(format!("pipe{pipe}"))).collect();
    let made = Command::new("mkfifo").args(&pipes).status().expect("mkfifo runs");
    assert!(made.success());
    let (root, replaced) = (queue.path().to_owned(), Arc::new(AtomicUsize::new(0)));
    let (count, left) = (replaced.clone(), pipes.len());
    let attack = std::thread::spawn(move || {
        let mut pipes = pipes.into_iter().peekable();
        while pipes.peek().is_some() {
            let directories = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
            for file in directories.filter_map(|path| fs::read_dir(path).ok()).flatten().flatten() {
                let is_temporary = file.path().extension().is_some_and(|kind| kind == "tmp");
                let Some(pipe) = pipes.next_if(|_| is_temporary) else { continue };
                if fs::rename(pipe, file.path()).is_ok() {
                    count.fetch_add(1, Relaxed);
                }
            }
        }
    });
    let body = vec![b'x'; 8 << 20];
    let deadline = Instant::now() + patience();
    // Each add has several parts, between which its file may be replaced.
    while replaced.load(Relaxed) < left / 2 {
        assert!(Instant::now() < deadline, "no temporary file was replaced");
        let adds = (0..20).map(|_| queue.add(&body[..]));
        let ended = timeout(patience(), futures::future::join_all(adds)).await;
        ended.expect("no add waits for the other end of a pipe");
    }
    timeout(patience(), queue.add("small")).await.unwrap().unwrap();
    timeout(patience(), queue.count()).await.unwrap().unwrap();
    while !attack.is_finished() {
        let _ = queue.add(&body[..]).await;
        queue.purge(Purge::default()).await.unwrap();
    }
    attack.join().unwrap();
}

/// Any process with write access can create sparse files of any size.
#[tokio::test]
async fn file_larger_than_memory_is_an_error() {
    let dir = tempdir().unwrap();
    let (path, fields) = (dir.path().join("simple"), dir.path().join("normal"));
    let queue = QueueSimple::open(&path).await.unwrap();
    let schema = || "body:string".parse().unwrap();
    let normal = Queue::builder(&fields).schema(schema()).open().await.unwrap();
    let (name, element) = (queue.add("x").await.unwrap(), normal.add(body("x")).await.unwrap());
    let files = [path.join(name.to_string()), fields.join(element.to_string()).join("body")];
    // The maximum size of a file on its file system.
    for file in &files {
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        let longest = (31..=62).rev().find(|bits| file.set_len(1 << bits).is_ok()).unwrap();
        assert!(longest > 40 || !IN_MEMORY, "the largest file has 2^{longest} bytes");
    }
    for _ in 0..2 {
        let errors =
            [queue.dequeue(&name).await.map(drop), normal.dequeue(&element).await.map(drop)];
        for (error, file) in errors.into_iter().zip(&files) {
            let Err(Error::TooLarge { path, limit }) = error else { panic!("{error:?}") };
            assert_eq!((&path, limit), (file, 1 << 30));
        }
    }
    let mut jobs = queue.locked();
    assert!(matches!(jobs.next().await.unwrap(), Err(Error::TooLarge { .. })));
    assert!(jobs.next().await.is_none());
    if IN_MEMORY {
        // With a higher `max_size`, there is not enough memory for it.
        let queue = QueueSimple::builder(&path).max_size(u64::MAX).open().await.unwrap();
        let error = queue.dequeue(&name).await.unwrap_err();
        assert_eq!(kind(&error), Some(ErrorKind::OutOfMemory), "{error:?}");
    }
    assert!(
        queue.lock(&name).await.unwrap() && normal.lock(&element).await.unwrap(),
        "failed reads release the lock"
    );
}

#[tokio::test]
async fn element_above_max_size_is_neither_added_nor_read() {
    let dir = tempdir().unwrap();
    let simple = dir.path().join("simple");
    let queue = QueueSimple::builder(&simple).max_size(3).open().await.unwrap();
    let schema = || "body:string,more:string".parse().unwrap();
    let normal = Queue::builder(dir.path().join("normal")).schema(schema());
    let normal = normal.max_size(3).open().await.unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "four").unwrap();
    for error in [
        queue.add("four").await.unwrap_err(),
        queue.add_many(["one", "four"]).await.unwrap_err(),
        queue.add_path(&file).await.unwrap_err(),
        normal.add(body("two").with("more", "four")).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::TooLarge { limit: 3, .. }), "{error:?}");
    }
    assert!(file.exists());
    assert_eq!((queue.count().await.unwrap(), normal.count().await.unwrap()), (0, 0));
    let name = queue.add("two").await.unwrap();
    assert_eq!(queue.peek(&name).await.unwrap().unwrap(), "two");
    let element = normal.add(body("two").with("more", "too")).await.unwrap();
    assert!(
        normal.get_element(&element).await.unwrap().is_some(),
        "max_size applies to each field"
    );
    let other = QueueSimple::open(&simple).await.unwrap();
    let name = other.add("four").await.unwrap();
    assert!(matches!(queue.peek(&name).await, Err(Error::TooLarge { limit: 3, .. })));
    assert!(matches!(queue.dequeue(&name).await, Err(Error::TooLarge { limit: 3, .. })));
    assert_eq!(other.dequeue(&name).await.unwrap().unwrap(), "four");
}

#[tokio::test]
async fn add_blocked_by_a_file_is_an_error_and_leaves_nothing() {
    let dir = tempdir().unwrap();
    // A file in the place of the queue, or of one of its parents.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("deep/queue")] {
        let error = QueueSimple::open(&path).await.unwrap_err();
        assert_eq!(kind(&error), Some(ErrorKind::NotADirectory), "{error:?}");
        let error = Queue::open(&path).await.unwrap_err();
        assert_eq!(kind(&error), Some(ErrorKind::NotADirectory), "{error:?}");
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    }
    // A file in the place of the directory for new elements.
    let queue = QueueSimple::builder(dir.path().join("queue"));
    let queue = queue.granularity(Duration::from_secs(1 << 31)).open().await.unwrap();
    let directory = if fs::read_dir(queue.path()).unwrap().next().is_none() {
        let added = queue.add("x").await.unwrap();
        queue.dequeue(&added).await.unwrap();
        queue.path().join(&added.to_string()[..8])
    } else {
        unreachable!("it is new")
    };
    fs::remove_dir(&directory).unwrap();
    fs::write(&directory, "in the way").unwrap();
    let moved = dir.path().join("moved");
    fs::write(&moved, "stays").unwrap();
    for error in [
        queue.add("x").await.unwrap_err(),
        queue.add_many(["x", "y"]).await.unwrap_err(),
        queue.add_path(&moved).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Foreign { path } if *path == directory), "{error:?}");
    }
    assert_eq!(fs::read(&directory).unwrap(), b"in the way");
    assert_eq!(fs::read(&moved).unwrap(), b"stays");
}

/// Removes all empty directories below `top` repeatedly, regardless of their age, and counts them.
fn remove_empty(top: PathBuf, stop: Arc<AtomicBool>, removed: Arc<AtomicU64>) -> JoinHandle<()> {
    thread::spawn(move || {
        while !stop.load(Relaxed) {
            let found: Vec<_> = fs::read_dir(&top).into_iter().flatten().flatten().collect();
            // The directory name is constant for a second, so the removal can hit any step of the writer.
            for _ in 0..100 {
                let removals = found.iter().filter(|found| fs::remove_dir(found.path()).is_ok());
                let hits = removals.count() as u64;
                removed.fetch_add(hits, Relaxed);
                if hits > 0 {
                    // Otherwise it could hit each of the 256 attempts of one call, on a machine that rarely runs the
                    // writer.
                    thread::sleep(Duration::from_micros(100));
                }
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn add_succeeds_while_its_directory_is_removed_repeatedly() {
    let dir = tempdir().unwrap();
    let simple = QueueSimple::builder(dir.path().join("simple"));
    let simple = simple.granularity(Duration::from_secs(3600)).open().await.unwrap();
    let normal = Queue::builder(dir.path().join("normal")).schema("body:string".parse().unwrap());
    let normal = normal.open().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let removed: [_; 3] = Default::default();
    let removers = [
        (simple.path().to_owned(), &removed[0]),
        (normal.path().to_owned(), &removed[1]),
        (normal.path().join("temporary"), &removed[2]),
    ]
    .map(|(top, removed)| remove_empty(top, stop.clone(), Arc::clone(removed)));
    // On a disk, the removers hit the writer far more often.
    let rounds = if IN_MEMORY { 1_000 } else { 100 };
    let is_enough = || removed[..2].iter().all(|removed| removed.load(Relaxed) > rounds / 20);
    let until = Instant::now() + 2 * patience();
    // On a busy machine, the removers may remove nothing for a while.
    for i in 0.. {
        if i >= rounds && is_enough() {
            break;
        }
        assert!(Instant::now() < until, "only {removed:?} directories were removed in {i} rounds");
        let text = i.to_string();
        let added = simple.add(&text).await.unwrap();
        assert_eq!(simple.dequeue(&added).await.unwrap().unwrap(), text);
        let added = normal.add(body(&text)).await.unwrap();
        assert_eq!(normal.dequeue(&added).await.unwrap(), Some(body(&text)));
    }
    stop.store(true, Relaxed);
    removers.into_iter().for_each(|remover| remover.join().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_elements_are_skipped_during_iteration() {
    let dir = tempdir().unwrap();
    let queue = simple(&dir).await;
    let stop = Arc::new(AtomicBool::new(false));
    let vandal = thread::spawn({
        let (stop, top) = (stop.clone(), queue.path().to_owned());
        move || {
            while !stop.load(Relaxed) {
                for directory in fs::read_dir(&top).unwrap().flatten() {
                    for file in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
                        let _ = fs::remove_file(file.path());
                    }
                }
            }
        }
    });
    for round in 0..100 {
        queue.add_many((0..20).map(|i| format!("{round} {i}"))).await.unwrap();
        for name in all(queue.names()).await {
            if queue.lock(&name).await.unwrap() {
                match queue.get(&name).await {
                    Ok(_) | Err(Error::NotLocked { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
                match queue.remove(&name).await {
                    Ok(()) | Err(Error::NotLocked { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        queue.count().await.unwrap();
        queue.purge(Purge::default()).await.unwrap();
    }
    stop.store(true, Relaxed);
    vandal.join().unwrap();
}

#[tokio::test]
async fn remove_succeeds_although_the_element_is_locked_again() {
    let dir = tempdir().unwrap();
    let queue = normal(&dir).await;
    for _ in 0..20 {
        let added = queue.add(body("x")).await.unwrap();
        assert!(queue.lock(&added).await.unwrap());
        let obsolete = queue.path().join("obsolete");
        let locker = thread::spawn(move || {
            // A lock that began before the element was moved creates its directory at the new place.
            for _ in 0..2_000 {
                for element in fs::read_dir(&obsolete).unwrap().flatten() {
                    let _ = fs::create_dir(element.path().join("locked"));
                }
            }
        });
        queue.remove(&added).await.unwrap();
        locker.join().unwrap();
        assert_eq!(tree(queue.path()), ["00000000/", "obsolete/", "temporary/"]);
    }
}

/// Runs the test `inside_mount_namespace` of this binary in a mount namespace, with a file system of a few pages at
/// `small` and a read-only one at `fixed`. If namespaces are not available, the test runs without them and uses other
/// obstacles.
#[test]
fn full_or_read_only_file_system_is_an_error_and_leaves_nothing() {
    let dir = tempdir().unwrap();
    for directory in ["small", "fixed", "few"] {
        fs::create_dir(dir.path().join(directory)).unwrap();
    }
    let mounts = r#"
        mount -t tmpfs -o size=64k none "$0/small" && mount -t tmpfs none "$0/fixed" &&
            mount -t tmpfs -o nr_inodes=50 none "$0/few" || exit 77
        exec "$@"
    "#;
    // A file size limit, in place of a full file system.
    let limits = r#"trap "" XFSZ && ulimit -f 200 && exec "$@""#;
    let test_args = [
        env::current_exe().unwrap().to_str().unwrap(),
        "--exact",
        &test_name(module_path!(), "inside_mount_namespace"),
        "--ignored",
        "--nocapture",
    ]
    .map(str::to_owned);
    let can_mount = Command::new("unshare")
        .args(["-rm", "sh", "-c", mounts])
        .arg(dir.path())
        .arg("true")
        .output();
    let mounted = can_mount.is_ok_and(|output| output.status.success());
    let mut command = if mounted {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", mounts]).env("FLEETING_DIRQ_MOUNTED", "1");
        command
    } else {
        skipped(
            "full disks in mount namespaces: limits and obstructing files are used in their place",
        );
        let mut command = Command::new("sh");
        command.args(["-c", limits]);
        command
    };
    let command = command.arg(dir.path()).args(test_args).env("FLEETING_DIRQ_DIR", dir.path());
    let output = command.output().expect("the test binary runs");
    let output_text =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
}

#[tokio::test]
#[ignore = "it is started by the test of full and read-only file systems, where those are"]
async fn inside_mount_namespace() {
    let dir = env::var("FLEETING_DIRQ_DIR").expect("another test starts this one");
    let (small, fixed) = (Path::new(&dir).join("small"), Path::new(&dir).join("fixed"));
    let mounted = env::var_os("FLEETING_DIRQ_MOUNTED").is_some();
    add_until_disk_is_full(&small, mounted).await;
    if mounted {
        add_until_no_inodes_are_left(&Path::new(&dir).join("few")).await;
    }
    use_read_only_file_system(&fixed, mounted).await;
}

/// Directories can no longer be created in the middle of a batch.
async fn add_until_no_inodes_are_left(few: &Path) {
    let builder = Queue::builder(few.join("queue")).schema("body:string".parse().unwrap());
    let queue = builder.max_elements(1).open().await.unwrap();
    let fillers = few.join("fillers");
    fs::create_dir(&fillers).unwrap();
    let filled = (0..).find(|i| fs::write(fillers.join(i.to_string()), "").is_err()).unwrap();
    // For two temporary elements of a directory and a file each, and for the directory of the first element.
    for i in 0..5 {
        fs::remove_file(fillers.join(i.to_string())).unwrap();
    }
    let error = queue.add_many(["a", "b"].map(body)).await.unwrap_err();
    let Error::Partial { names, source } = error else { panic!("{error:?}") };
    assert_eq!(kind(&source), Some(ErrorKind::StorageFull));
    assert_eq!(all(queue.names()).await, names);
    assert_eq!(queue.dequeue(&names[0]).await.unwrap(), Some(body("a")));
    assert_eq!(tree(queue.path()), ["00000000/", "obsolete/", "temporary/"]);
    for i in 5..filled {
        fs::remove_file(fillers.join(i.to_string())).unwrap();
    }
    assert_eq!(queue.add_many(["a", "b"].map(body)).await.unwrap().len(), 2);
    drain_without_an_inode(|| queue.locked(), &fillers).await;

    let queue = QueueSimple::open(few.join("simple")).await.unwrap();
    queue.add_many(["a", "b"]).await.unwrap();
    drain_without_an_inode(|| queue.locked(), &fillers).await;
}

/// A lock needs an inode. Each look yields one error for the whole queue, which names the remedy, and then ends.
async fn drain_without_an_inode<T: Send + 'static>(
    locked: impl Fn() -> Walk<Lock<T>>,
    fillers: &Path,
) {
    let filled = (0..).find(|i| fs::write(fillers.join(i.to_string()), "").is_err()).unwrap();
    for _ in 0..2 {
        let mut jobs = locked();
        let error = jobs.next().await.unwrap().err().expect("there is no inode for a lock");
        assert!(matches!(error, Error::NoSpaceForLock { .. }), "{error:?}");
        assert!(error.to_string().ends_with("free some outside of the queue"), "{error}");
        assert!(jobs.next().await.is_none());
    }
    fs::remove_file(fillers.join("0")).unwrap();
    let mut jobs = locked();
    let mut done = 0;
    while let Some(job) = jobs.next().await {
        job.unwrap().ack().await.unwrap();
        done += 1;
    }
    assert_eq!(done, 2);
    (1..filled).for_each(|i| fs::remove_file(fillers.join(i.to_string())).unwrap());
}

/// A file cannot be written completely.
async fn add_until_disk_is_full(small: &Path, mounted: bool) {
    let simple = QueueSimple::open(small.join("simple")).await.unwrap();
    let builder =
        Queue::builder(small.join("normal")).schema("body:string,more:string?".parse().unwrap());
    let normal = builder.open().await.unwrap();
    let kept = [simple.add("kept").await.unwrap(), normal.add(body("kept")).await.unwrap()];
    let before = (tree(simple.path()), tree(normal.path()));
    let full = if mounted { ErrorKind::StorageFull } else { ErrorKind::FileTooLarge };

    let big = "x".repeat(200_000);
    let half = "x".repeat(30_000);
    for error in [
        simple.add(&big).await.unwrap_err(),
        simple.add_many(["small", &half, &half, &big]).await.unwrap_err(),
        normal.add(body(&big)).await.unwrap_err(),
        normal.add(body("small").with("more", big.as_str())).await.unwrap_err(),
        normal.add_many([body("small"), body(&half), body(&half), body(&big)]).await.unwrap_err(),
    ] {
        assert_eq!(kind(&error), Some(full), "{error:?}");
        assert_eq!((tree(simple.path()), tree(normal.path())), before, "leftovers exist");
    }
    // Existing elements can still be removed.
    assert_eq!(simple.dequeue(&kept[0]).await.unwrap().unwrap(), "kept");
    assert_eq!(normal.dequeue(&kept[1]).await.unwrap(), Some(body("kept")));
    simple.add("more").await.unwrap();
    normal.add(body("more")).await.unwrap();
}

/// Nothing can be changed.
async fn use_read_only_file_system(fixed: &Path, mounted: bool) {
    let simple = QueueSimple::open(fixed.join("simple")).await.unwrap();
    let builder = Queue::builder(fixed.join("normal")).schema("body:string".parse().unwrap());
    let normal = builder.open().await.unwrap();
    let names = simple.add_many(["a", "b"]).await.unwrap();
    let elements = normal.add_many([body("a"), body("b")]).await.unwrap();
    assert!(simple.lock(&names[0]).await.unwrap() && normal.lock(&elements[0]).await.unwrap());
    if !mounted {
        // Root can write anywhere: the remaining errors are those of a file in the place of a directory.
        let file = fixed.join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(
            kind(&QueueSimple::open(file.join("x")).await.unwrap_err()),
            Some(ErrorKind::NotADirectory)
        );
        return;
    }
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(fixed).status().unwrap();
    assert!(remounted.success());
    let before = tree(fixed);
    for error in [
        simple.add("x").await.unwrap_err(),
        simple.lock(&names[1]).await.unwrap_err(),
        simple.unlock(&names[0]).await.unwrap_err(),
        simple.remove(&names[0]).await.unwrap_err(),
        simple.touch(&names[0]).await.unwrap_err(),
        normal.add(body("x")).await.unwrap_err(),
        normal.lock(&elements[1]).await.unwrap_err(),
        normal.unlock(&elements[0]).await.unwrap_err(),
        normal.remove(&elements[0]).await.unwrap_err(),
        normal.touch(&elements[0]).await.unwrap_err(),
        QueueSimple::open(fixed.join("new")).await.unwrap_err(),
    ] {
        assert_eq!(kind(&error), Some(ErrorKind::ReadOnlyFilesystem), "{error:?}");
        assert!(error.to_string().contains(fixed.to_str().unwrap()), "{error}");
    }
    // Reading is possible.
    assert_eq!(simple.get(&names[0]).await.unwrap(), "a");
    assert_eq!(normal.get(&elements[0]).await.unwrap(), body("a"));
    assert_eq!(simple.peek(&names[1]).await.unwrap().unwrap(), "b");
    assert_eq!((simple.count().await.unwrap(), normal.count().await.unwrap()), (2, 2));
    assert_eq!(tree(fixed), before);
}
