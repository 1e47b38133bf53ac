//! Simple queues: the promises of `QueueSimple`, on real directories.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use fleeting::dirq::{Error, Name, Purge, QueueSimple};
use futures::future::join_all;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{IN_MEMORY, tempdir};
use crate::directory::{age, all, kind, make_old, name, run_alone, test_name, tree};

const HOUR: Duration = Duration::from_secs(3600);

async fn queue() -> (TempDir, QueueSimple) {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::open(dir.path().join("queue")).await.unwrap();
    (dir, queue)
}

fn lock_of(queue: &QueueSimple, name: &Name) -> std::path::PathBuf {
    queue.path().join(format!("{name}.lck"))
}

#[tokio::test]
async fn simple_element_is_one_file() {
    let (_dir, queue) = queue().await;
    let before = SystemTime::now();
    let name = queue.add("hello").await.unwrap();
    let after = SystemTime::now();

    let text = name.to_string();
    assert_eq!(tree(queue.path()), [format!("{}/", &text[..8]), text.clone()]);
    assert_eq!(fs::read(queue.path().join(&text)).unwrap(), b"hello");
    assert_eq!(fs::metadata(queue.path().join(&text)).unwrap().nlink(), 1);

    let seconds = u64::from_str_radix(&text[9..17], 16).unwrap();
    let micros = u64::from_str_radix(&text[17..22], 16).unwrap();
    assert!(micros < 1_000_000);
    let added = SystemTime::UNIX_EPOCH + Duration::from_micros(seconds * 1_000_000 + micros);
    assert!(
        added + Duration::from_micros(1) >= before && added <= after + Duration::from_millis(1)
    );
    let minute = u64::from_str_radix(&text[..8], 16).unwrap();
    assert!(minute % 60 == 0 && (minute..minute + 60).contains(&seconds));

    assert!(queue.lock(&name).await.unwrap());
    assert_eq!(
        tree(queue.path()),
        [format!("{}/", &text[..8]), text.clone(), format!("{text}.lck")]
    );
    assert_eq!(queue.get(&name).await.unwrap(), "hello");
    assert_eq!(queue.get_path(&name).await.unwrap(), lock_of(&queue, &name));
    assert!(!queue.lock(&name).await.unwrap(), "the element is locked");
    assert_eq!(queue.count().await.unwrap(), 1);
    assert_eq!(all(queue.names()).await, [name], "names include locked elements");

    queue.unlock(&name).await.unwrap();
    assert!(queue.lock(&name).await.unwrap());
    queue.remove(&name).await.unwrap();
    assert_eq!(tree(queue.path()), [format!("{}/", &text[..8])]);
    assert_eq!(queue.count().await.unwrap(), 0);
    assert!(!queue.lock(&name).await.unwrap(), "the element was removed");
}

#[tokio::test]
async fn body_is_read_unchanged() {
    let (_dir, queue) = queue().await;
    let big: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    for body in [&b""[..], b"\0\xff\n", &big] {
        let name = queue.add(body).await.unwrap();
        assert_eq!(queue.peek(&name).await.unwrap().unwrap(), body);
        assert_eq!(queue.dequeue(&name).await.unwrap().unwrap(), body);
        assert_eq!(queue.peek(&name).await.unwrap(), None);
        assert_eq!(queue.dequeue(&name).await.unwrap(), None);
    }
}

#[tokio::test]
async fn methods_that_need_the_lock_fail_with_not_locked() {
    let (_dir, queue) = queue().await;
    let added = queue.add("x").await.unwrap();
    let gone = name("00000000/00000000000000");
    let not_in_directory = format!("{}/00000000000000", &added.to_string()[..8]);
    for name in [added, gone, name(&not_in_directory)] {
        let path = queue.path().join(name.to_string());
        for error in [
            queue.get(&name).await.unwrap_err(),
            queue.get_path(&name).await.unwrap_err(),
            queue.unlock(&name).await.unwrap_err(),
            queue.remove(&name).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::NotLocked { path: said } if *said == path),
                "{error:?}"
            );
        }
    }
    assert_eq!(queue.peek(&added).await.unwrap().unwrap(), "x", "the failed calls had no effect");
    let error = queue.touch(&gone).await.unwrap_err();
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotFound));
    assert_eq!(queue.peek(&gone).await.unwrap(), None);
}

#[tokio::test]
async fn get_element_locks_the_element_only_while_it_reads() {
    let (_dir, queue) = queue().await;
    let name = queue.add("x").await.unwrap();
    assert_eq!(queue.get_element(&name).await.unwrap().unwrap(), "x");
    assert!(queue.lock(&name).await.unwrap(), "the element is unlocked");
    assert_eq!(queue.get_element(&name).await.unwrap(), None, "the element is locked");
    queue.remove(&name).await.unwrap();
    assert_eq!(queue.get_element(&name).await.unwrap(), None, "the element was removed");
}

#[tokio::test]
async fn add_many_adds_all_bodies_in_order() {
    let (_dir, queue) = queue().await;
    let bodies: Vec<_> = (0..2_000).map(|i| format!("body {i}")).collect();
    let names = queue.add_many(&bodies).await.unwrap();
    assert!(names.is_sorted() && names.len() == bodies.len());
    assert_eq!(all(queue.names()).await, names);
    for (name, body) in names.iter().zip(&bodies) {
        assert_eq!(queue.peek(name).await.unwrap().unwrap(), body.as_bytes());
    }
    assert_eq!(queue.count().await.unwrap(), 2_000);
    assert_eq!(queue.add_many(Vec::<&str>::new()).await.unwrap(), []);
}

#[tokio::test]
async fn names_of_one_queue_increase() {
    let (_dir, queue) = queue().await;
    let other = queue.clone();
    let mut names = Vec::new();
    for i in 0..200 {
        names.push([&queue, &other][i % 2].add([i as u8]).await.unwrap());
    }
    assert!(names.is_sorted());
    assert_eq!(BTreeSet::from_iter(&names).len(), 200);
    assert_eq!(all(queue.names()).await, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_adds_with_colliding_names_all_succeed() {
    let (_dir, queue) = queue().await;
    // With the same last digit, so that names collide.
    let other = QueueSimple::builder(queue.path()).rnd_hex(7).open().await.unwrap();
    let queue = QueueSimple::builder(queue.path()).rnd_hex(7).open().await.unwrap();
    let tasks: Vec<_> = (0..400)
        .map(|i| {
            let queue = if i % 2 == 0 { queue.clone() } else { other.clone() };
            tokio::spawn(async move { queue.add(format!("{i}")).await.unwrap() })
        })
        .collect();
    let mut names = BTreeSet::new();
    for task in tasks {
        names.insert(task.await.unwrap());
    }
    assert_eq!(names.len(), 400);
    assert!(names.iter().all(|name| name.to_string().ends_with('7')));
    let found: BTreeSet<_> = all(queue.names()).await.into_iter().collect();
    assert_eq!(found, names);
}

#[tokio::test]
async fn add_path_moves_the_file_with_its_mode_and_times() {
    let (dir, queue) = queue().await;
    let path = dir.path().join("report");
    fs::write(&path, "from outside").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    make_old(&path, HOUR);
    let inode = fs::metadata(&path).unwrap().ino();

    let name = queue.add_path(&path).await.unwrap();
    assert!(!path.exists());
    let element = queue.path().join(name.to_string());
    let data = fs::metadata(&element).unwrap();
    assert_eq!((data.ino(), data.mode() & 0o777, data.nlink()), (inode, 0o640, 1));
    assert!(age(&element) >= HOUR);
    assert_eq!(queue.dequeue(&name).await.unwrap().unwrap(), "from outside");

    let error = queue.add_path(&path).await.unwrap_err();
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotFound));
    assert!(error.to_string().contains("report"), "{error}");
    let error = queue.add_path(dir.path()).await.unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn add_path_refuses_a_file_on_another_file_system() {
    let other = if IN_MEMORY { env!("CARGO_TARGET_TMPDIR") } else { "/dev/shm" };
    let other =
        tempfile::tempdir_in(other).expect("the target directory and /dev/shm are writable");
    let (_dir, queue) = queue().await;
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(other.path()), device(queue.path()), "the target directory is in memory");
    let path = other.path().join("file");
    fs::write(&path, "stays").unwrap();
    let error = queue.add_path(&path).await.unwrap_err();
    assert!(
        matches!(&error, Error::OtherFileSystem { from, queue: of } if *from == path && of == queue.path())
    );
    assert_eq!(fs::read(&path).unwrap(), b"stays");
    assert_eq!(queue.count().await.unwrap(), 0);
}

#[tokio::test]
async fn lock_and_touch_reset_the_age_of_the_element() {
    let (_dir, queue) = queue().await;
    let name = queue.add("x").await.unwrap();
    let path = queue.path().join(name.to_string());
    make_old(&path, HOUR);
    assert!(queue.lock(&name).await.unwrap());
    assert!(age(&path) < HOUR / 2);
    make_old(&path, HOUR);
    queue.touch(&name).await.unwrap();
    assert!(age(&path) < HOUR / 2 && age(&lock_of(&queue, &name)) < HOUR / 2);
}

#[tokio::test]
async fn granularity_determines_the_directories() {
    let (_dir, queue) = queue().await;
    for seconds in [0, 1, 3600] {
        let granularity = Duration::from_secs(seconds);
        let queue =
            QueueSimple::builder(queue.path()).granularity(granularity).open().await.unwrap();
        let name = queue.add("x").await.unwrap().to_string();
        let directory = u64::from_str_radix(&name[..8], 16).unwrap();
        let second = u64::from_str_radix(&name[9..17], 16).unwrap();
        assert_eq!(directory % seconds.max(1), 0);
        assert!(second - directory <= seconds.max(1), "{name} of {seconds}");
    }
}

/// As for a disk that is not mounted.
#[tokio::test]
async fn opening_a_path_through_a_dangling_link_is_an_error() {
    let dir = tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(dir.path().join("nowhere"), &link).unwrap();
    let error = QueueSimple::open(link.join("queue")).await.unwrap_err();
    assert_eq!(kind(&error), Some(ErrorKind::NotFound), "{error:?}");
    fs::create_dir(dir.path().join("nowhere")).unwrap();
    QueueSimple::open(link.join("queue")).await.unwrap().add("x").await.unwrap();
}

#[tokio::test]
async fn invalid_builder_options_are_rejected() {
    let dir = tempdir().unwrap();
    let builder = || QueueSimple::builder(dir.path());
    for (option, builder) in [
        ("rnd_hex", builder().rnd_hex(16)),
        ("umask", builder().umask(0o1000)),
        ("granularity", builder().granularity(Duration::from_millis(1500))),
        ("granularity", builder().granularity(Duration::MAX)),
    ] {
        let error = builder.open().await.unwrap_err();
        assert!(
            matches!(&error, Error::InvalidOption { option: said, .. } if *said == option),
            "{error:?}"
        );
    }
    for digit in 0..16 {
        let queue = builder().rnd_hex(digit).open().await.unwrap();
        let name = queue.add("x").await.unwrap().to_string();
        assert!(name.ends_with(&format!("{digit:x}")));
    }
}

#[tokio::test]
async fn umask_applies_to_created_files_and_directories() {
    let dir = tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    for umask in [0, 0o027, 0o077] {
        let top = dir.path().join(format!("{umask:o}/deep/queue"));
        let queue = QueueSimple::builder(&top).umask(umask).open().await.unwrap();
        let name = queue.add("x").await.unwrap().to_string();
        for directory in [top.parent().unwrap(), &top, &top.join(&name[..8])] {
            assert_eq!(mode(directory), 0o777 & !umask, "{}", directory.display());
        }
        assert_eq!(mode(&top.join(&name)), 0o666 & !umask);
    }
}

#[tokio::test]
async fn synced_queue_behaves_like_any_other() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path().join("a/b")).sync(true).open().await.unwrap();
    let name = queue.add("x").await.unwrap();
    let names = queue.add_many(["y", "z"]).await.unwrap();
    assert_eq!(all(queue.names()).await, [name, names[0], names[1]]);
    let path = dir.path().join("file");
    fs::write(&path, "moved").unwrap();
    let name = queue.add_path(&path).await.unwrap();
    assert_eq!(queue.dequeue(&name).await.unwrap().unwrap(), "moved");
}

/// The items come from an iterator that is not `Send`.
#[tokio::test]
async fn add_many_future_is_send() {
    let (_dir, queue) = queue().await;
    let added = tokio::spawn(async move {
        let own = std::rc::Rc::new(7);
        queue.add_many((0..3).map(move |i| (i + *own).to_string())).await.unwrap().len()
    });
    assert_eq!(added.await.unwrap(), 3);
}

#[tokio::test]
async fn synced_add_many_adds_all_in_order_or_none() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path().join("queue")).sync(true).max_size(5);
    let queue = queue.open().await.unwrap();
    for count in [0, 1, 2, 63, 64, 65, 130] {
        let bodies: Vec<_> = (0..count).map(|i| i.to_string()).collect();
        let names = queue.add_many(&bodies).await.unwrap();
        assert_eq!(all(queue.names()).await, names);
        for (name, body) in names.iter().zip(&bodies) {
            assert_eq!(queue.dequeue(name).await.unwrap().unwrap(), body);
        }
        for bad in (0..count).step_by(9) {
            let mut bodies = bodies.clone();
            bodies[bad] = "too large".to_owned();
            let added = queue.add_many(bodies).await;
            assert!(matches!(added, Err(Error::TooLarge { limit: 5, .. })), "{added:?}");
            let left = tree(queue.path()).into_iter().find(|path| !path.ends_with('/'));
            assert_eq!(left, None);
        }
    }
}

#[tokio::test]
async fn grouped_synced_adds_have_separate_results() {
    let dir = tempdir().unwrap();
    let queue = QueueSimple::builder(dir.path().join("queue")).sync(true).max_size(3);
    let queue = queue.max_elements(150).open().await.unwrap();
    let bodies: Vec<_> =
        (0..200).map(|i| if i % 7 == 3 { "long".into() } else { i.to_string() }).collect();
    let added = join_all(bodies.iter().map(|body| queue.add(body))).await;
    let mut full = 0;
    for (body, added) in bodies.iter().zip(added) {
        match added {
            Ok(name) => assert_eq!(queue.dequeue(&name).await.unwrap().unwrap(), body),
            Err(Error::TooLarge { limit: 3, .. }) => assert_eq!(body, "long"),
            Err(Error::Full { max_elements: 150, .. }) => full += 1,
            Err(error) => panic!("{body}: {error:?}"),
        }
    }
    assert!(full > 0, "172 bodies are short enough and only 150 fit");
    assert_eq!(queue.count().await.unwrap(), 0);
}

#[tokio::test]
async fn purge_removes_only_stale_leftovers() {
    let (_dir, queue) = queue().await;
    let names = queue.add_many(["old lock", "young lock", "free"]).await.unwrap();
    let directory = &names[0].to_string()[..8];
    for name in &names[..2] {
        assert!(queue.lock(name).await.unwrap());
    }
    let file = |name: &str| queue.path().join(directory).join(name);
    make_old(&lock_of(&queue, &names[0]), Duration::from_secs(601));
    make_old(&lock_of(&queue, &names[1]), Duration::from_secs(300));
    make_old(&queue.path().join(names[2].to_string()), HOUR);
    // A lock without its element, temporary files of both ages, and files outside the format.
    for (name, age) in [
        ("00000000000001.lck", 601),
        ("00000000000002.tmp", 301),
        ("00000000000003.tmp", 150),
        ("notes.tmp", 9999),
        ("notes.lck", 9999),
        ("0000000000000A.lck", 9999),
        ("00000000000004", 9999),
    ] {
        fs::write(file(name), "").unwrap();
        make_old(&file(name), Duration::from_secs(age));
    }
    // Empty directories, one that is not empty, the last one, and a file with such a name.
    for name in ["00000001", "00000002", "00000003", "ffffffff", "0000000g", "temporary"] {
        fs::create_dir(queue.path().join(name)).unwrap();
    }
    fs::write(queue.path().join("00000003/keep"), "").unwrap();
    let mut left = tree(queue.path());

    let off = Purge::default().max_temp(Duration::ZERO).max_lock(Duration::ZERO);
    let report = queue.purge(off).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (0, 0, 2));
    left.retain(|path| path != "00000001/" && path != "00000002/");
    assert_eq!(tree(queue.path()), left);

    let report = queue.purge(Purge::default()).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (1, 2, 0));
    let gone = [
        format!("{}.lck", names[0]),
        format!("{directory}/00000000000001.lck"),
        format!("{directory}/00000000000002.tmp"),
    ];
    left.retain(|path| !gone.contains(path));
    assert_eq!(tree(queue.path()), left);
    assert!(queue.lock(&names[0]).await.unwrap(), "the element can be locked again");
    assert!(!queue.lock(&names[1]).await.unwrap());

    let short =
        Purge::default().max_temp(Duration::from_secs(140)).max_lock(Duration::from_secs(290));
    let report = queue.purge(short).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (1, 1, 0));
}

#[tokio::test]
async fn queue_that_is_moved_away_is_created_again() {
    let (dir, queue) = queue().await;
    queue.add("old").await.unwrap();
    fs::rename(queue.path(), dir.path().join("archive")).unwrap();
    assert_eq!(queue.count().await.unwrap(), 0);
    assert_eq!(all(queue.names()).await, []);
    queue.purge(Purge::default()).await.unwrap();
    queue.add("new").await.unwrap();
    assert_eq!(queue.count().await.unwrap(), 1);
    let archive = QueueSimple::open(dir.path().join("archive")).await.unwrap();
    assert_eq!(archive.count().await.unwrap(), 1);
}

#[tokio::test]
async fn names_are_listed_directory_by_directory() {
    let (_dir, queue) = queue().await;
    for file in [
        "00000002/00000000000001",
        "00000001/ffffffffffffff",
        "00000001/0000000000000a",
        "00000001/0000000000000a.lck",
        "00000001/0000000000000b.tmp",
        "00000001/0000000000000A",
        "00000001/000000000000000",
        "0000000A/00000000000001",
        "000000011/00000000000001",
        "obsolete/00000000000001",
    ] {
        let path = queue.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let expected =
        ["00000001/0000000000000a", "00000001/ffffffffffffff", "00000002/00000000000001"].map(name);
    let mut names = queue.names();
    assert_eq!(names.next().await.unwrap().unwrap(), expected[0]);
    // The names in the current directory are already listed, the names in the next are not.
    fs::remove_file(queue.path().join("00000001/ffffffffffffff")).unwrap();
    fs::write(queue.path().join("00000002/00000000000000"), "").unwrap();
    assert_eq!(names.next().await.unwrap().unwrap(), expected[1]);
    assert_eq!(names.next().await.unwrap().unwrap(), name("00000002/00000000000000"));
    assert_eq!(names.next().await.unwrap().unwrap(), expected[2]);
    assert!(names.next().await.is_none());
    // A removed directory is skipped.
    let mut names = queue.names();
    assert_eq!(names.next().await.unwrap().unwrap(), expected[0]);
    fs::remove_dir_all(queue.path().join("00000002")).unwrap();
    assert!(names.next().await.is_none());
    assert_eq!(queue.count().await.unwrap(), 1);
}

#[test]
fn name_accepts_only_lowercase_hexadecimal_digits() {
    let good = "5f3c1a80/5f3c1aa1d3e4f7";
    assert_eq!(name(good).to_string(), good);
    assert_eq!(format!("{:?}", name(good)), format!("Name({good})"));
    assert_eq!(format!("{:>25}|", name(good)), format!("  {good}|"));
    assert_eq!(serde_json::to_string(&name(good)).unwrap(), format!("{good:?}"));
    assert_eq!(serde_json::from_str::<Name>(&format!("{good:?}")).unwrap(), name(good));
    assert_eq!(Name::try_from(good).unwrap(), name(good));
    for bad in [
        "",
        "/",
        "null",
        "5f3c1a80",
        "5f3c1a80/",
        "5F3c1a80/5f3c1aa1d3e4f7",
        "5f3c1a80/5f3c1aa1d3e4f7 ",
        " 5f3c1a80/5f3c1aa1d3e4f7",
        "5f3c1a80/5f3c1aa1d3e4f7\n",
        "5f3c1a80/5f3c1aa1d3e4f",
        "5f3c1a80/5f3c1aa1d3e4f70",
        "5f3c1a8/05f3c1aa1d3e4f7",
        "5f3c1a80/5f3c1aa1d3e4f7.lck",
        "5f3c1a80//5f3c1aa1d3e4f",
        "../../../../../../../..",
        "+f3c1a80/5f3c1aa1d3e4f7",
        "5f3c1a80\0/5f3c1aa1d3e4f7",
    ] {
        let error = bad.parse::<Name>().unwrap_err();
        assert!(matches!(&error, Error::InvalidName { name } if name == bad), "{error:?}");
        assert!(serde_json::from_value::<Name>(bad.into()).is_err());
    }
    assert!(name("00000001/ffffffffffffff") < name("00000002/00000000000000"));
}

/// Long elements are written in parts.
#[tokio::test]
async fn long_element_is_added_as_a_whole_or_not_at_all() {
    for sync in [false, true] {
        let dir = tempdir().unwrap();
        let queue = QueueSimple::builder(dir.path()).max_size(5 << 20).umask(0o077).sync(sync);
        let queue = queue.open().await.unwrap();
        let body: Vec<_> = (0..(5_usize << 20)).map(|i| (i / 4_096) as u8).collect();
        let name = queue.add(&body).await.unwrap();
        assert!(queue.peek(&name).await.unwrap().unwrap() == body[..]);
        assert!(matches!(queue.add([&body[..], b"x"].concat()).await, Err(Error::TooLarge { .. })));
        let path = dir.path().join(name.to_string());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A future that is dropped leaves no element that is not complete.
        for wait in 0..5 {
            let add = queue.add(&body);
            let _ = timeout(Duration::from_millis(wait), add).await;
        }
        for name in all(queue.names()).await {
            assert_eq!(queue.peek(&name).await.unwrap().unwrap().len(), body.len());
        }
    }
}

/// Runs the test `many_long_adds` of this binary in a process that may open few files.
#[test]
fn long_adds_that_wait_for_a_thread_keep_no_file_open() {
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -n 100 && exec "$@""#, "sh"]);
    run_alone(limited, &test_name(module_path!(), "many_long_adds"));
}

#[tokio::test]
#[ignore = "it is started by the test of long adds"]
async fn many_long_adds() {
    let (dir, _) = queue().await;
    for sync in [false, true] {
        let queue = QueueSimple::builder(dir.path().join("queue")).sync(sync);
        let queue = queue.open().await.unwrap();
        let long = vec![b'x'; (2 << 20) + 1];
        let added = join_all((0..120).map(|_| queue.add(&long))).await;
        for name in added {
            let data = queue.dequeue(&name.unwrap()).await.unwrap().unwrap();
            assert!(data == long, "{} bytes", data.len());
        }
    }
}
