//! Normal queues: the promises of `Queue`, on real directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fleeting::dirq::{Element, Error, Name, Purge, Queue, QueueBuilder, Schema};
use tempfile::TempDir;

use super::tempdir;
use crate::directory::{age, all, kind, make_old, name, scratch, tree};

const HOUR: Duration = Duration::from_secs(3600);

fn schema() -> Schema {
    "body:string,data:binary?,header:table?".parse().unwrap()
}

fn builder(dir: &TempDir) -> QueueBuilder {
    Queue::builder(dir.path().join("queue")).schema(schema())
}

async fn queue() -> (TempDir, Queue) {
    let dir = tempdir().unwrap();
    let queue = builder(&dir).open().await.unwrap();
    (dir, queue)
}

fn body(text: &str) -> Element {
    Element::new().with("body", text)
}

fn path_of(queue: &Queue, name: &Name) -> PathBuf {
    queue.path().join(name.to_string())
}

#[tokio::test]
async fn normal_element_is_one_directory() {
    let (_dir, queue) = queue().await;
    assert_eq!(tree(queue.path()), ["obsolete/", "temporary/"]);
    let element = body("hello").with("data", b"\0\xff").with("header", [("b", "2\t"), ("a", "1")]);
    let name = queue.add(element.clone()).await.unwrap();

    let text = name.to_string();
    let file = |file: &str| format!("{text}/{file}");
    let mut files = [
        "00000000/",
        &file(""),
        &file("body"),
        &file("data"),
        &file("header"),
        "obsolete/",
        "temporary/",
    ]
    .map(str::to_owned)
    .to_vec();
    assert_eq!(tree(queue.path()), files);
    assert_eq!(fs::read(queue.path().join(file("header"))).unwrap(), b"a\t1\nb\t2\\t\n");

    assert_eq!(queue.peek(&name).await.unwrap(), Some(element.clone()));
    assert!(queue.lock(&name).await.unwrap());
    files.insert(5, file("locked/"));
    assert_eq!(tree(queue.path()), files);
    assert!(!queue.lock(&name).await.unwrap(), "the element is locked");
    assert_eq!(queue.get(&name).await.unwrap(), element);
    assert_eq!(queue.get_element(&name).await.unwrap(), None, "the element is locked");
    assert_eq!(queue.dequeue(&name).await.unwrap(), None, "the element is locked");
    assert_eq!((queue.count().await.unwrap(), all(queue.names()).await), (1, vec![name]));

    queue.unlock(&name).await.unwrap();
    assert_eq!(queue.get_element(&name).await.unwrap(), Some(element.clone()));
    assert_eq!(queue.dequeue(&name).await.unwrap(), Some(element));
    assert_eq!(tree(queue.path()), ["00000000/", "obsolete/", "temporary/"]);
    assert!(!queue.lock(&name).await.unwrap(), "the element was removed");
    assert_eq!(queue.peek(&name).await.unwrap(), None);
    assert_eq!(queue.dequeue(&name).await.unwrap(), None);
}

#[tokio::test]
async fn methods_that_need_the_lock_fail_with_not_locked() {
    let (_dir, queue) = queue().await;
    let added = queue.add(body("x")).await.unwrap();
    for name in [added, name("00000000/00000000000000"), name("00000007/00000000000000")] {
        let path = path_of(&queue, &name);
        for error in [
            queue.get(&name).await.unwrap_err(),
            queue.unlock(&name).await.unwrap_err(),
            queue.remove(&name).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::NotLocked { path: said } if *said == path),
                "{error:?}"
            );
        }
    }
    assert_eq!(queue.dequeue(&added).await.unwrap(), Some(body("x")));
    let error = queue.touch(&added).await.unwrap_err();
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotFound));
}

#[tokio::test]
async fn element_that_violates_the_schema_is_rejected_and_leaves_nothing() {
    let (dir, queue) = queue().await;
    let before = tree(queue.path());
    let error = queue.add(Element::new().with("header", [("a", "b")])).await.unwrap_err();
    assert!(matches!(&error, Error::MissingField { field } if field == "body"), "{error:?}");
    let error = queue.add(body("x").with("more", "y")).await.unwrap_err();
    assert!(matches!(&error, Error::UnexpectedField { field } if field == "more"), "{error:?}");
    let error = queue.add(Element::new().with("body", b"bytes")).await.unwrap_err();
    assert!(matches!(&error, Error::WrongType { field, .. } if field == "body"), "{error:?}");
    let error = queue.add_many([body("x"), Element::new()]).await.unwrap_err();
    assert!(matches!(&error, Error::MissingField { .. }), "{error:?}");
    assert_eq!(tree(queue.path()), before);

    let blind = Queue::open(dir.path().join("queue")).await.unwrap();
    assert!(
        matches!(blind.add(body("x")).await.unwrap_err(), Error::NoSchema { path } if path == queue.path())
    );
    assert_eq!(tree(queue.path()), before);
    let name = queue.add(body("x")).await.unwrap();
    assert!(matches!(blind.dequeue(&name).await.unwrap_err(), Error::NoSchema { .. }));
    assert!(matches!(blind.peek(&name).await.unwrap_err(), Error::NoSchema { .. }));
    assert!(blind.lock(&name).await.unwrap(), "the failed dequeue released the lock");
    blind.touch(&name).await.unwrap();
    blind.remove(&name).await.unwrap();
    assert_eq!(blind.count().await.unwrap(), 0);
}

#[tokio::test]
async fn unreadable_element_is_an_error_and_is_unlocked() {
    let (_dir, queue) = queue().await;
    let name = queue.add(body("x").with("header", [("a", "b")])).await.unwrap();
    let file = |file: &str| path_of(&queue, &name).join(file);
    fs::write(file("extra"), "passed over").unwrap();
    assert_eq!(
        queue.get_element(&name).await.unwrap().unwrap(),
        body("x").with("header", [("a", "b")])
    );
    fs::write(file("header"), "no tab\n").unwrap();
    let error = queue.get_element(&name).await.unwrap_err();
    assert!(
        matches!(&error, Error::InvalidTable { field, line: 1, .. } if field == "header"),
        "{error:?}"
    );
    fs::remove_file(file("header")).unwrap();
    fs::write(file("body"), b"\xff").unwrap();
    let error = queue.dequeue(&name).await.unwrap_err();
    assert!(matches!(&error, Error::NotUtf8 { field, .. } if field == "body"), "{error:?}");
    fs::remove_file(file("body")).unwrap();
    let error = queue.dequeue(&name).await.unwrap_err();
    assert!(matches!(&error, Error::MissingFile { path } if *path == file("body")), "{error:?}");
    let error = queue.peek(&name).await.unwrap_err();
    assert!(matches!(&error, Error::MissingFile { .. }), "{error:?}");

    // A file whose name cannot be a field is not removed.
    fs::write(file("not-ours"), "").unwrap();
    assert!(queue.lock(&name).await.unwrap(), "each error released the lock");
    let error = queue.remove(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { path } if *path == file("not-ours")), "{error:?}");
    assert!(file("extra").exists() && file("locked").exists());
    fs::remove_file(file("not-ours")).unwrap();
    queue.remove(&name).await.unwrap();
    assert_eq!(tree(queue.path()), ["00000000/", "obsolete/", "temporary/"]);
}

#[tokio::test]
async fn element_that_contains_a_directory_is_not_removed() {
    let (_dir, queue) = queue().await;
    let name = queue.add(body("x")).await.unwrap();
    let file = |file: &str| path_of(&queue, &name).join(file);
    fs::create_dir(file("sub")).unwrap();
    fs::write(file("sub/data"), "of somebody").unwrap();
    let before = tree(queue.path());
    let error = queue.dequeue(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { path } if *path == file("sub")), "{error:?}");
    assert_eq!(tree(queue.path()), before, "the element is unlocked and in its place");
    assert!(queue.lock(&name).await.unwrap());
    let error = queue.remove(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Foreign { .. }), "{error:?}");
    assert!(file("locked").exists() && file("body").exists());
    // Leftovers of other processes' adds and removals.
    for side in ["temporary", "obsolete"] {
        let element = queue.path().join(side).join("00000000000001");
        fs::create_dir_all(element.join("sub")).unwrap();
        fs::write(element.join("body"), "whole").unwrap();
        make_old(&element, HOUR);
    }
    let before = tree(queue.path());
    let report = queue.purge(Purge::default()).await.unwrap();
    assert_eq!(report, Default::default());
    assert_eq!(tree(queue.path()), before);
}

#[tokio::test]
async fn full_directory_is_followed_by_the_next() {
    let dir = tempdir().unwrap();
    let queue = builder(&dir).max_elements(10).open().await.unwrap();
    let one = queue.add(body("x")).await.unwrap();
    let many = queue.add_many((1..25).map(|i| body(&i.to_string()))).await.unwrap();
    let names: Vec<_> = [one].into_iter().chain(many).collect();
    assert!(names.is_sorted());
    assert_eq!(all(queue.names()).await, names);
    let directories: Vec<_> = names.iter().map(|name| name.to_string()[..8].to_owned()).collect();
    for (i, directory) in directories.iter().enumerate() {
        assert_eq!(*directory, format!("{:08x}", i / 10));
    }
    // Free capacity is used in the last directory, and not in earlier ones.
    for name in [&names[0], &names[24]] {
        assert!(queue.dequeue(name).await.unwrap().is_some());
    }
    for i in 0..7 {
        let name = queue.add(body("y")).await.unwrap().to_string();
        assert_eq!(&name[..8], if i < 6 { "00000002" } else { "00000003" }, "{i}");
    }
    // Another process has created a later directory, which is used too.
    fs::create_dir(queue.path().join("00000008")).unwrap();
    fs::create_dir(queue.path().join("00000004")).unwrap();
    assert_eq!(&queue.add(body("y")).await.unwrap().to_string()[..8], "00000008");
    // The directory is removed during the test.
    fs::remove_dir_all(queue.path().join("00000008")).unwrap();
    assert_eq!(&queue.add(body("y")).await.unwrap().to_string()[..8], "00000004");
    let zero = builder(&dir).max_elements(0).open().await.unwrap_err();
    assert!(matches!(zero, Error::InvalidOption { option: "max_elements", .. }), "{zero:?}");
}

#[tokio::test]
async fn writer_uses_the_next_directory_that_another_created() {
    let (_dir, queue) = queue().await;
    let next = || async { queue.add(body("x")).await.unwrap().to_string()[..8].to_owned() };
    assert_eq!(next().await, "00000000");
    // The directory was counted when it had more elements.
    fs::create_dir(queue.path().join("00000001")).unwrap();
    assert_eq!(next().await, "00000001");
    assert_eq!(next().await, "00000001");
    fs::remove_dir_all(queue.path().join("00000001")).unwrap();
    assert_eq!(next().await, "00000000");
}

#[tokio::test(flavor = "multi_thread")]
async fn default_max_elements_fill_a_directory() {
    let dir = scratch();
    let queue = builder(&dir).open().await.unwrap();
    let other = Queue::builder(queue.path()).schema(schema()).open().await.unwrap();
    let mut tasks = Vec::new();
    for i in 0..34 {
        let queue = if i % 2 == 0 { queue.clone() } else { other.clone() };
        let elements: Vec<_> = (0..500).map(|j| body(&format!("{}", i * 500 + j))).collect();
        tasks.push(tokio::spawn(async move { queue.add_many(elements).await.unwrap() }));
    }
    let mut names = BTreeSet::new();
    for task in tasks {
        names.extend(task.await.unwrap());
    }
    assert_eq!((names.len(), queue.count().await.unwrap()), (17_000, 17_000));
    assert!(all(queue.names()).await.into_iter().eq(names.iter().copied()));
    let mut counts = BTreeMap::<String, u32>::new();
    for name in &names {
        *counts.entry(name.to_string()[..8].to_owned()).or_default() += 1;
    }
    // Two writers with separate counts may each exceed the limit by an eighth.
    assert!((16_000..=18_000).contains(&counts["00000000"]), "{counts:?}");
    let report = queue.purge(Purge::default()).await.unwrap();
    assert_eq!(report, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_adds_with_colliding_names_all_succeed() {
    let dir = tempdir().unwrap();
    let queue = builder(&dir).rnd_hex(7).max_elements(50).open().await.unwrap();
    let other = builder(&dir).rnd_hex(7).max_elements(50).open().await.unwrap();
    let tasks: Vec<_> = (0..300)
        .map(|i| {
            let queue = if i % 2 == 0 { queue.clone() } else { other.clone() };
            tokio::spawn(async move { queue.add(body(&format!("{i}"))).await.unwrap() })
        })
        .collect();
    let mut names = BTreeSet::new();
    for task in tasks {
        names.insert(task.await.unwrap());
    }
    assert_eq!(names.len(), 300);
    assert!(names.iter().all(|name| name.to_string().ends_with('7')));
    let mut bodies = BTreeSet::new();
    for name in all(queue.names()).await {
        assert!(names.remove(&name));
        let element = queue.dequeue(&name).await.unwrap().unwrap();
        bodies.insert(element.string("body").unwrap().to_owned());
    }
    assert_eq!((bodies.len(), names.len()), (300, 0));
}

#[tokio::test]
async fn umask_applies_to_created_files_and_directories() {
    let dir = tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    for umask in [0, 0o027] {
        let top = dir.path().join(format!("{umask:o}/queue"));
        let queue = Queue::builder(&top).schema(schema()).umask(umask).open().await.unwrap();
        let name = queue.add(body("x")).await.unwrap();
        queue.lock(&name).await.unwrap();
        let element = path_of(&queue, &name);
        for directory in
            [&top, &top.join("temporary"), &top.join("obsolete"), &top.join("00000000")]
        {
            assert_eq!(mode(directory), 0o777 & !umask, "{}", directory.display());
        }
        assert_eq!(mode(&element), 0o777 & !umask);
        assert_eq!(mode(&element.join("locked")), 0o777 & !umask);
        assert_eq!(mode(&element.join("body")), 0o666 & !umask);
    }
}

#[tokio::test]
async fn synced_queue_behaves_like_any_other() {
    let dir = tempdir().unwrap();
    let queue = builder(&dir).sync(true).open().await.unwrap();
    let name = queue.add(body("x")).await.unwrap();
    let names = queue.add_many([body("y"), body("z")]).await.unwrap();
    assert_eq!(all(queue.names()).await, [name, names[0], names[1]]);
    assert_eq!(queue.dequeue(&name).await.unwrap(), Some(body("x")));
}

#[tokio::test]
async fn lock_and_touch_reset_the_age_of_the_element() {
    let (_dir, queue) = queue().await;
    let name = queue.add(body("x")).await.unwrap();
    let path = path_of(&queue, &name);
    make_old(&path, HOUR);
    assert!(queue.lock(&name).await.unwrap());
    assert!(age(&path) < HOUR / 2);
    make_old(&path, HOUR);
    queue.touch(&name).await.unwrap();
    assert!(age(&path) < HOUR / 2);
}

#[tokio::test]
async fn purge_removes_only_stale_leftovers() {
    let (_dir, queue) = queue().await;
    let names = queue.add_many(["old lock", "young lock", "free"].map(body)).await.unwrap();
    for name in &names[..2] {
        assert!(queue.lock(name).await.unwrap());
    }
    make_old(&path_of(&queue, &names[0]), Duration::from_secs(601));
    make_old(&path_of(&queue, &names[1]), Duration::from_secs(300));
    make_old(&path_of(&queue, &names[2]), HOUR);
    let at = |path: &str| queue.path().join(path);
    for (path, age) in [
        ("temporary/00000000000001", 301),
        ("temporary/00000000000002", 150),
        ("temporary/notes", 9999),
        ("obsolete/00000000000003", 301),
        ("obsolete/00000000000004", 150),
        ("obsolete/0000000000000A", 9999),
    ] {
        fs::create_dir(at(path)).unwrap();
        fs::write(at(path).join("body"), "half").unwrap();
        fs::create_dir(at(path).join("locked")).unwrap();
        make_old(&at(path), Duration::from_secs(age));
    }
    // Recent and empty, as between two steps of a writer. Python's purge removes it.
    fs::create_dir(at("temporary/00000000000005")).unwrap();
    // Empty directories, and the last one.
    for directory in ["00000001", "00000002"] {
        fs::create_dir(at(directory)).unwrap();
    }
    let mut left = tree(queue.path());

    let off = Purge::default().max_temp(Duration::ZERO).max_lock(Duration::ZERO);
    let report = queue.purge(off).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (0, 0, 1));
    left.retain(|path| path != "00000001/");
    assert_eq!(tree(queue.path()), left);

    let report = queue.purge(Purge::default()).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (2, 1, 0));
    let lock = format!("{}/locked/", names[0]);
    let gone = |path: &String| {
        path.starts_with("temporary/00000000000001")
            || path.starts_with("obsolete/00000000000003")
            || *path == lock
    };
    left.retain(|path| !gone(path));
    assert_eq!(tree(queue.path()), left);
    assert!(queue.lock(&names[0]).await.unwrap(), "the element can be locked again");
    assert!(!queue.lock(&names[1]).await.unwrap());
    assert_eq!(queue.count().await.unwrap(), 3, "the count excludes leftovers");

    let short =
        Purge::default().max_temp(Duration::from_secs(140)).max_lock(Duration::from_secs(290));
    let report = queue.purge(short).await.unwrap();
    assert_eq!((report.temporary, report.locks, report.directories), (2, 1, 0));
}

#[tokio::test]
async fn deleted_directories_are_created_again() {
    let (_dir, queue) = queue().await;
    let name = queue.add(body("x")).await.unwrap();
    for directory in ["temporary", "obsolete"] {
        fs::remove_dir(queue.path().join(directory)).unwrap();
    }
    assert_eq!(queue.purge(Purge::default()).await.unwrap(), Default::default());
    assert_eq!(queue.dequeue(&name).await.unwrap(), Some(body("x")));
    queue.add(body("y")).await.unwrap();
    fs::remove_dir_all(queue.path()).unwrap();
    queue.add(body("z")).await.unwrap();
    assert_eq!(queue.count().await.unwrap(), 1);
}
