//! Regression tests for faults that once caused damage.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use tracing::Level;

use super::{log::Log, *};
use crate::dirq::purge_options::PurgeReport;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the path exists").mode() & 0o777
}

/// With a quota, or over a network, a failed write may be reported only by `close`.
#[tokio::test]
async fn element_is_not_added_if_close_fails() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let fails = |what: &'static str| match what {
            "close" => Fault::Fail(Errno::DQUOT),
            _ => Fault::None,
        };
        for added in [
            with_plan(fails, || process.add("x").map(drop)),
            with_plan(fails, || process.add_many(&["x", "y"]).map(drop)),
        ] {
            let Err(Error::Io { source, .. }) = added else { panic!("{added:?}") };
            assert_eq!(source.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
        }
        assert_eq!(process.names(), []);
        assert!(!tree(process.path()).iter().any(|path| path.is_file()), "leftovers exist");
    }
}

#[tokio::test]
async fn partial_error_names_the_elements_that_were_not_synced() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        // A normal queue also syncs each element's directory, before it is added.
        let own = if config.normal { 1 } else { 0 };
        for (count, adds) in [(1, ["x"].as_slice()), (2, &["x", "y"])] {
            let mut syncs = 0;
            let fails = move |what: &'static str| {
                syncs += usize::from(what == "sync a directory");
                match what == "sync a directory" && syncs > own * count {
                    true => Fault::Fail(Errno::IO),
                    false => Fault::None,
                }
            };
            let added = with_plan(fails, || match adds {
                [one] => process.add(one).map(|name| vec![name]),
                many => process.add_many(many),
            });
            let Err(Error::Partial { names, source }) = added else { panic!("{added:?}") };
            assert!(matches!(*source, Error::Io { operation: "sync", .. }), "{source:?}");
            assert_eq!(process.names(), names);
            assert_eq!(names.len(), count);
            process.drain();
        }
    }
}

/// Returns how many directories were synced by `work`.
fn syncs(work: impl FnOnce()) -> usize {
    let count = Rc::new(RefCell::new(0));
    let plan = {
        let count = count.clone();
        move |what: &'static str| {
            *count.borrow_mut() += usize::from(what == "sync a directory");
            Fault::None
        }
    };
    with_plan(plan, work);
    *count.borrow()
}

#[tokio::test]
async fn parent_directories_are_synced_although_another_process_created_them() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = temp_dir();
        let path = temp_dir.path().join("deep/deeper/queue");
        let add = |process: &Process| {
            process.add("x").expect("no fault is injected");
        };
        // This process created all directories, without syncing them.
        let other = Process::start(&path, Config { sync: false, ..config });
        add(&other);
        let process = Process::start(&path, config);
        let (first, second) = (syncs(|| add(&process)), syncs(|| add(&process)));
        // The directory of elements and, in a normal queue, the element's own.
        assert_eq!(second, if config.normal { 2 } else { 1 });
        // In addition the queue, and at least the parents that were created with it.
        assert!(first >= second + 4, "{first} directories were synced");
        fs::remove_dir_all(&path).expect("the directory can be removed");
        add(&other);
        assert_eq!(syncs(|| add(&process)), first, "the directories are new ones");
    }
}

/// Disk file systems reuse the inode of a deleted directory.
#[tokio::test]
async fn recreated_directory_is_synced_again() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = tempfile::tempdir().expect("a directory can be created");
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let mut name = process.add("x").expect("no fault is injected");
        let again = syncs(|| name = process.add("x").expect("no fault is injected"));
        process.drain();
        let path = process.path().join(name.to_string());
        let directory = path.parent().expect("an element has a parent directory");
        fs::remove_dir(directory).expect("the directory is empty");
        // As by another process, at a later tick of the file system's clock.
        std::thread::sleep(Duration::from_millis(20));
        fs::create_dir(directory).expect("the directory does not exist");
        let after_recreation = syncs(|| name = process.add("x").expect("no fault is injected"));
        assert_eq!(
            after_recreation,
            again + 1,
            "the queue's own directory was not synced: {config:?}"
        );
    }
}

/// If one of several elements cannot be added, those before it are synced.
#[tokio::test]
async fn elements_added_before_an_error_are_synced() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), Config { sync: true, ..SIMPLE });
    let (mut renames, synced) = (0, Rc::new(RefCell::new(false)));
    let plan = {
        let synced = synced.clone();
        move |what: &'static str| {
            renames += usize::from(what == "rename to a free name");
            *synced.borrow_mut() |= what == "sync a directory";
            match what == "rename to a free name" && renames == 2 {
                true => Fault::Fail(Errno::IO),
                false => Fault::None,
            }
        }
    };
    let added = with_plan(plan, || process.add_many(&["x", "y"]));
    assert!(matches!(&added, Err(Error::Partial { names, .. }) if names.len() == 1), "{added:?}");
    assert!(*synced.borrow());
}

/// Perl and Python remove an element's lock last, and retry if the directory is not empty.
#[tokio::test]
async fn late_lock_is_left_to_the_process_that_removes_the_element() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), NORMAL);
    let name = process.add("x").expect("no fault is injected");
    let element = process.path().join(name.to_string());
    let moved = process.path().join("obsolete/00000000000001");
    let [begin_removal, finish_removal] = [
        Box::new({
            let moved = moved.clone();
            move || {
                fs::create_dir(element.join("locked")).expect("the element is not locked");
                fs::rename(&element, &moved).expect("the element can be moved");
                for file in ["body", "more"] {
                    fs::remove_file(moved.join(file)).expect("the file exists");
                }
                fs::remove_dir(moved.join("locked")).expect("the lock exists");
            }
        }) as Box<dyn FnOnce()>,
        Box::new({
            let moved = moved.clone();
            move || drop(fs::remove_dir(moved).expect_err("the element is locked again"))
        }),
    ];
    let mut remover = vec![("stat", finish_removal), ("mkdir", begin_removal)];
    let plan = move |what: &'static str| {
        // System calls before `mkdir` are irrelevant.
        if remover.last().is_some_and(|(call, _)| *call == what)
            && let Some((_, step)) = remover.pop()
        {
            step();
        }
        Fault::None
    };
    let locked = with_plan(plan, || process.lock(&name));
    assert!(!locked.expect("losing the race is not an error"));
    fs::remove_dir(moved.join("locked")).expect("the directory contains a lock");
    fs::remove_dir(&moved).expect("the directory is empty");
}

/// Other users may have write access to the parent directory, and replace the new directory by a link.
#[tokio::test]
async fn umask_does_not_change_the_mode_of_a_link_target() {
    let temp_dir = temp_dir();
    let (path, private) = (temp_dir.path().join("queue"), temp_dir.path().join("private"));
    fs::create_dir(&private).expect("the directory can be created");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700))
        .expect("this user owns the directory");
    let swap = {
        let (path, private) = (path.clone(), private.clone());
        move || {
            fs::remove_dir(&path).expect("the directory was just created");
            symlink(private, path).expect("a link can be created");
        }
    };
    let mut made = 0;
    let mut swap = Some(swap);
    let plan = move |what: &'static str| {
        made += usize::from(what == "mkdir");
        if made > 0
            && what != "mkdir"
            && let Some(swap) = swap.take()
        {
            swap();
        }
        Fault::None
    };
    let opened =
        with_plan(plan, || in_place(QueueSimple::builder(&path).umask(0).in_place().open()));
    assert_eq!(mode(&private), 0o700, "{opened:?}");
}

/// Only root can change the owner of a directory, and root may change the mode of any.
#[tokio::test]
async fn umask_does_not_change_the_mode_of_another_users_directory() {
    let temp_dir = temp_dir();
    let path = temp_dir.path().join("queue");
    let nobody = 65_534;
    if chown(temp_dir.path(), Some(nobody), None).is_err() {
        println!("skipped: needs root");
        return;
    }
    let mut made = 0;
    let swap = {
        let path = path.clone();
        move |what: &'static str| {
            made += usize::from(what == "mkdir");
            if made == 1 && what == "open" {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
                    .expect("this user owns the directory");
                chown(&path, Some(nobody), None).expect("the test runs as root");
                made += 1;
            }
            Fault::None
        }
    };
    with_plan(swap, || in_place(QueueSimple::builder(&path).umask(0).in_place().open()))
        .expect("the queue opens");
    assert_eq!(mode(&path), 0o700);
}

#[tokio::test]
async fn file_has_its_final_mode_from_its_creation() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let path = temp_dir.path().join("queue");
        let seen = Rc::new(RefCell::new(Vec::new()));
        let plan = {
            let (seen, path) = (seen.clone(), path.clone());
            move |what: &'static str| {
                if what == "write" {
                    let files = tree(&path).into_iter().filter(|path| path.is_file());
                    seen.borrow_mut().extend(files.map(|file| mode(&file)));
                }
                Fault::None
            }
        };
        with_plan(plan, || match config.normal {
            true => {
                let schema = "body:string,more:binary?".parse().expect("the schema is valid");
                let queue =
                    in_place(Queue::builder(&path).schema(schema).umask(0o077).in_place().open());
                in_place(queue.expect("the queue opens").add(element("x"))).map(drop)
            }
            false => {
                let queue = in_place(QueueSimple::builder(&path).umask(0o077).in_place().open());
                in_place(queue.expect("the queue opens").add("x")).map(drop)
            }
        })
        .expect("the add succeeds");
        assert!(!seen.borrow().is_empty() && seen.borrow().iter().all(|mode| *mode == 0o600));
    }
}

#[tokio::test]
async fn purge_continues_after_an_item_without_permission() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        for body in ["a", "b", "c"] {
            let name = process.add(body).expect("no fault is injected");
            assert!(process.lock(&name).expect("no fault is injected"));
        }
        make_stale(process.path());
        let (mut removals, call) = (0, if config.normal { "rmdir" } else { "unlink" });
        let plan = move |what: &'static str| {
            removals += usize::from(what == call);
            match what == call && removals == 1 {
                true => Fault::Fail(Errno::ACCESS),
                false => Fault::None,
            }
        };
        let report = with_plan(plan, || process.purge()).expect("the purge continues");
        assert_eq!(report, PurgeReport { locks: 2, failed: 1, ..PurgeReport::default() });
    }
}

/// A failed attempt to lock must not renew the lock of a crashed process.
#[tokio::test]
async fn failed_lock_does_not_change_the_age_of_the_element() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let name = process.add("x").expect("no fault is injected");
        assert!(process.lock(&name).expect("no fault is injected"));
        make_stale(process.path());
        assert!(!process.lock(&name).expect("no fault is injected"));
        assert_eq!(process.purge().expect("no fault is injected").locks, 1);
    }
}

/// Linux may create a link to a file whose name was removed since the call found it, if the file has yet another name.
/// An element has one while Python adds it.
#[tokio::test]
async fn element_that_was_removed_during_the_link_of_its_lock_is_not_delivered() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), SIMPLE);
    let name = process.add("x").expect("no fault is injected");
    let element = process.path().join(name.to_string());
    let mut is_linked = false;
    let plan = {
        let element = element.clone();
        move |what: &'static str| {
            if mem::replace(&mut is_linked, what == "link") {
                fs::remove_file(&element).expect("the element exists");
            }
            Fault::None
        }
    };
    let Process::Simple(queue) = &process else { unreachable!() };
    let taken = with_plan(plan, || in_place(queue.locked().next()));
    assert!(taken.is_none(), "{taken:?}");
    assert!(!tree(process.path()).iter().any(|path| path.is_file()), "the lock stays");
}

/// The disk is full until a worker removes elements.
#[tokio::test]
async fn element_is_delivered_although_its_record_cannot_be_written() {
    for config in BOTH_KINDS.map(|config| Config { counted: true, ..config }) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        process.add("x").expect("no fault is injected");
        let full = |what: &'static str| match what {
            "symlink" => Fault::Fail(Errno::NOSPC),
            _ => Fault::None,
        };
        let (log, _capture) = Log::start(Level::WARN);
        either!(&process, queue => with_plan(full, || {
            let job = in_place(queue.locked().next()).expect("an element is available").expect("the element is readable");
            assert_eq!(job.attempts(), 1);
            // The failure cannot be recorded either, and the element is unlocked.
            let failed = in_place(job.retry_in(Duration::from_secs(3600)));
            assert!(matches!(failed, Err(Error::Io { operation: "write", .. })), "{failed:?}");
            let job = in_place(queue.locked().next()).expect("an element is available").expect("the element is readable");
            in_place(job.ack()).expect("the element is locked");
        }));
        assert_eq!(process.names(), []);
        let lines = log.lines("delivery could not be recorded, its failure will not count");
        assert_eq!(lines.len(), 1, "consecutive failures are logged once: {lines:?}");
    }
}

/// Work that is done must not be done again because the process has too many open files for a moment.
#[tokio::test]
async fn ack_is_tried_again_after_an_error_that_passes() {
    for config in Config::all().filter(|config| config.cached && !config.sync) {
        for passes in [true, false] {
            let temp_dir = temp_dir();
            let process = Process::start(&temp_dir.path().join("queue"), config);
            process.add("x").expect("no fault is injected");
            either!(&process, queue => {
                let job = in_place(queue.locked().next()).expect("an element is available");
                let job = job.expect("the element is readable");
                let failures = RefCell::new(0);
                let busy = move |what: &'static str| {
                    let is_removal = ["unlink", "open", "rename"].contains(&what);
                    *failures.borrow_mut() += u32::from(is_removal);
                    match is_removal && (*failures.borrow() < 4 || !passes) {
                        true => Fault::Fail(Errno::MFILE),
                        false => config.default_fault(what),
                    }
                };
                let acked = with_plan(busy, || in_place(job.ack()));
                assert_eq!(acked.is_ok(), passes, "{config:?}: {acked:?}");
            });
            if passes {
                assert_eq!(process.names(), [], "{config:?}");
            }
        }
    }
}

/// A drop box: a directory that may be written and not read. Its names cannot be synced alone.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn synced_add_to_a_drop_box_syncs_the_file_system() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        for can_sync in [true, false] {
            let temp_dir = temp_dir();
            let process = Process::start(&temp_dir.path().join("queue"), config);
            // Counts the elements of a normal queue, which needs to read them.
            process.add("first").expect("no fault is injected");
            let synced = Rc::new(RefCell::new(0));
            let count = synced.clone();
            let drop_box = move |what: &'static str| match what {
                "open for reading" => Fault::Fail(Errno::ACCESS),
                "create a file without a name" if !can_sync => Fault::Fail(Errno::NOTSUP),
                "sync the file system" => {
                    *count.borrow_mut() += 1;
                    Fault::None
                }
                _ => Fault::None,
            };
            let added = with_plan(drop_box, || process.add("second"));
            match can_sync {
                true => drop(added.expect("the file system was synced")),
                // The directory of a normal element is synced before the element is published.
                false if config.normal => assert!(matches!(added, Err(Error::Io { .. }))),
                false => assert!(matches!(added, Err(Error::Partial { .. })), "{added:?}"),
            }
            assert_eq!(*synced.borrow() > 0, can_sync);
            let is_added = can_sync || !config.normal;
            assert_eq!(process.names().len(), 1 + usize::from(is_added));
        }
    }
}

/// On the lower layer of an overlay, a directory cannot be renamed. Its work must not be done again forever.
#[tokio::test]
async fn element_that_cannot_be_moved_is_removed_in_its_place() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), NORMAL);
    let name = process.add("x").expect("no fault is injected");
    let lower_layer = |what: &'static str| match what {
        "rename" => Fault::Fail(Errno::XDEV),
        _ => Fault::None,
    };
    with_plan(lower_layer, || {
        assert_eq!(process.dequeue(&name).expect("the element is removed").as_deref(), Some("x"));
    });
    assert_eq!(process.names(), []);
    assert!(!process.path().join(name.to_string()).exists());
}

/// The caller is a thread of the runtime and must not wait for a lock that is held during disk access.
#[test]
fn count_of_a_directory_does_not_block_other_callers() {
    use std::sync::mpsc::channel;

    let temp_dir = temp_dir();
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be created")
    };
    let schema = "body:string,more:binary?".parse().expect("the schema is valid");
    let opening = Queue::builder(temp_dir.path()).schema(schema).open();
    let queue = runtime().block_on(opening).expect("the queue can be opened");
    let ((counts, is_counting), (resume, resumed)) = (channel(), channel::<()>());
    let slow = move |what: &'static str| {
        if what == "list" {
            let _ = counts.send(());
            let _ = resumed.recv();
        }
        Fault::None
    };
    let adder = {
        let schema = queue.schema().expect("the queue has a schema");
        let files = schema.encode(element("x")).expect("the element matches the schema");
        // Not as a call of the queue, which is made on another thread, without the plan.
        let queue = queue.protocol.clone();
        std::thread::spawn(move || with_plan(slow, || queue.add(&files).map(drop)))
    };
    is_counting.recv().expect("the count has begun");
    let (asked, answer) = channel();
    let asker = std::thread::spawn(move || {
        runtime().block_on(async {
            assert!(
                queue.add(element("y")).now_or_never().is_none(),
                "the add waits on another thread"
            );
            let _ = asked.send(());
        });
    });
    let answered = answer.recv_timeout(Duration::from_secs(120));
    drop(resume);
    adder.join().expect("the thread does not panic").expect("no fault is injected");
    asker.join().expect("the thread does not panic");
    answered.expect("the caller was blocked by the count");
}

/// Opens a queue on a disk, where elements are prefetched, and adds elements.
async fn prefetched_queue(elements: usize) -> (TempDir, QueueSimple, Vec<Name>) {
    let temp_dir =
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory can be created");
    let queue = QueueSimple::builder(temp_dir.path().join("queue")).in_place().open().await;
    let queue = queue.expect("the queue can be opened");
    let bodies = (0..elements).map(|i| i.to_string());
    let names = queue.add_many(bodies).await.expect("elements are added");
    (temp_dir, queue, names)
}

/// As on a disk that hangs during a batch, until a purge has removed the locks and another worker has taken one of the
/// elements.
#[tokio::test(start_paused = true)]
async fn elements_whose_locks_were_lost_during_their_batch_are_not_delivered() {
    for hang in [3, 3600].map(Duration::from_secs) {
        let (_dir, queue, names) = prefetched_queue(8).await;
        let mut jobs = queue.locked();
        // Batches of one, two and four elements, of which the last one is slow.
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(jobs.next().await.expect("more are left").expect("it can be locked"));
        }
        let mut links = 0;
        let (purged, other) = (names.clone(), queue.clone());
        let hangs = move |what: &'static str| {
            links += usize::from(what == "link");
            if links == 2 && what == "link" {
                let _ = tokio::time::advance(hang).now_or_never();
                let path = other.path().join(purged[3].to_string());
                fs::remove_file(path.with_extension("lck")).expect("it is locked");
                assert_eq!(in_place(other.lock(&purged[3])).ok(), Some(true));
                // The clock of the disk is not paused.
                let locked_at = SystemTime::now() + hang;
                let touched = File::open(path).and_then(|file| file.set_modified(locked_at));
                touched.expect("the element exists");
            }
            Fault::None
        };
        let next = with_plan(hangs, || in_place(jobs.next()));
        let next = next.expect("more are left").expect("it can be locked");
        assert_eq!(next.name(), &names[4], "another worker has the third");
        drop(jobs);
        assert_eq!(in_place(queue.lock(&names[3])).ok(), Some(false), "its lock was not released");
        assert_eq!(in_place(queue.lock(&names[5])).ok(), Some(true), "others were released");
    }
}

/// The runtime was suspended, or did not run, for longer than the `max_lock` of another process.
#[tokio::test(start_paused = true)]
async fn lost_locks_of_a_dropped_stream_are_not_released() {
    let (_dir, queue, names) = prefetched_queue(8).await;
    let mut jobs = queue.locked();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(in_place(jobs.next()).expect("more are left"));
    }
    assert_eq!(in_place(queue.lock(&names[4])).ok(), Some(false), "it is prefetched");
    let path = queue.path().join(names[4].to_string());
    fs::remove_file(path.with_extension("lck")).expect("it is locked");
    assert_eq!(in_place(queue.lock(&names[4])).ok(), Some(true));
    let later = SystemTime::now() + Duration::from_secs(2);
    File::open(path).and_then(|file| file.set_modified(later)).expect("the element exists");
    drop(jobs);
    assert_eq!(in_place(queue.lock(&names[4])).ok(), Some(false), "its lock was not released");
    assert_eq!(in_place(queue.lock(&names[5])).ok(), Some(true), "others were released");
}

#[tokio::test(start_paused = true)]
async fn elements_are_delivered_by_a_disk_that_needs_longer_than_their_locks_are_fresh() {
    let (_dir, queue, names) = prefetched_queue(3).await;
    let mut jobs = queue.locked();
    let slow = |what: &'static str| {
        if what == "link" {
            let _ = tokio::time::advance(Duration::from_secs(15)).now_or_never();
        }
        Fault::None
    };
    for name in &names {
        let next = with_plan(slow, || in_place(jobs.next()));
        assert_eq!(next.expect("more are left").expect("it can be locked").name(), name);
    }
}

/// A lock without an owner would stay until a purge.
#[tokio::test]
async fn directory_whose_mode_cannot_be_set_is_removed() {
    for failing in ["open", "stat", "chmod"] {
        let temp_dir = temp_dir();
        let schema = "body:string".parse().expect("the schema is valid");
        let queue = Queue::builder(temp_dir.path()).schema(schema).umask(0).in_place();
        let queue = in_place(queue.open()).expect("no fault is injected");
        let add = || in_place(queue.add(Element::new().with("body", "x")));
        let name = add().expect("no fault is injected");
        for is_lock in [true, false] {
            let failed = Rc::new(RefCell::new(false));
            let plan = {
                let (failed, mut made) = (failed.clone(), false);
                move |what: &'static str| {
                    made |= what == "mkdir";
                    let fails = made && what == failing && !failed.replace(made);
                    if fails { Fault::Fail(Errno::PERM) } else { Fault::None }
                }
            };
            let is_error = with_plan(plan, || match is_lock {
                true => in_place(queue.lock(&name)).is_err(),
                false => add().is_err(),
            });
            // The mode is set only if the umask of the process differs.
            assert!(is_error || !*failed.borrow() && failing == "chmod", "{failing} has succeeded");
            if is_lock && is_error {
                let locked = in_place(queue.lock(&name)).expect("no fault is injected");
                assert!(locked, "{failing}: the element stays locked");
            }
            let temporary = temp_dir.path().join("temporary");
            let left = fs::read_dir(temporary).expect("the directory exists").count();
            assert_eq!(left, 0, "{failing}: a directory is left");
        }
    }
}

#[tokio::test]
async fn peek_returns_a_whole_element_or_none_while_another_process_removes_it() {
    for remove_at in 1.. {
        let temp_dir = temp_dir();
        let path = temp_dir.path().join("queue");
        let (process, other) = (Process::start(&path, NORMAL), Process::start(&path, NORMAL));
        let name = process.add("x").expect("no fault is injected");
        let calls = Rc::new(RefCell::new(0));
        let plan = {
            let calls = calls.clone();
            move |_: &'static str| {
                *calls.borrow_mut() += 1;
                if *calls.borrow() == remove_at {
                    other.dequeue(&name).expect("no fault is injected");
                }
                Fault::None
            }
        };
        let Process::Normal(queue) = &process else { unreachable!("the queue is normal") };
        let peeked = with_plan(plan, || in_place(queue.peek(&name)));
        let peeked = peeked.expect("losing the race is not an error");
        assert!(peeked.as_ref().is_none_or(|found| *found == element("x")), "{peeked:?}");
        if *calls.borrow() < remove_at {
            assert!(remove_at > 3, "{remove_at}");
            break;
        }
    }
}

/// Outside of memory and local disks, directories are opened by each call.
#[tokio::test]
async fn lock_is_released_if_the_process_is_short_of_file_descriptors_for_a_moment() {
    for config in BOTH_KINDS.map(|config| Config { cached: false, ..config }) {
        for end in ["unlock", "release", "retry_in", "fail", "drop"] {
            let temp_dir = temp_dir();
            let process = Process::start(&temp_dir.path().join("queue"), config);
            let name = process.add("x").expect("no fault is injected");
            either!(&process, queue => {
                let job = in_place(queue.locked().next()).expect("the element is due");
                let job = job.expect("no fault is injected");
                let mut failures = 3;
                let plan = move |what: &'static str| match what == "open" && failures > 0 {
                    true => {
                        failures -= 1;
                        Fault::Fail(Errno::MFILE)
                    }
                    false => Fault::None,
                };
                let ended = with_plan(plan, || match end {
                    "unlock" => in_place(job.unlock()),
                    "release" => in_place(job.release()),
                    "retry_in" => in_place(job.retry_in(Duration::ZERO)),
                    "fail" => in_place(job.fail("why")),
                    _ => {
                        drop(job);
                        Ok(())
                    }
                });
                // The lock is released even if the outcome could not be recorded.
                let is_recorded = !["retry_in", "fail"].contains(&end);
                assert_eq!(ended.is_ok(), is_recorded, "{config:?}, {end}: {ended:?}");
            });
            assert!(process.lock(&name).expect("no fault is injected"), "{config:?}, {end}");
        }
    }
}

/// Another purge may be removing the same lock.
#[tokio::test]
async fn purge_that_cannot_exclude_others_for_lack_of_files_keeps_the_lock() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let name = process.add("x").expect("no fault is injected");
        assert!(process.lock(&name).expect("no fault is injected"));
        make_stale(process.path());
        // The purge lists the directory before it removes a lock.
        let no_files = |what: &'static str| match what {
            "lock" => Fault::Fail(Errno::MFILE),
            _ => Fault::None,
        };
        let report = with_plan(no_files, || process.purge()).expect("no fault is injected");
        assert_eq!((report.locks, report.failed), (0, 0), "{config:?}");
        // Without advisory locks, as over NFS without a lock daemon, purges would otherwise do nothing.
        let no_locks = |what: &'static str| match what {
            "lock" => Fault::Fail(Errno::NOLCK),
            _ => Fault::None,
        };
        let report = with_plan(no_locks, || process.purge()).expect("no fault is injected");
        assert_eq!(report.locks, 1, "{config:?}");
    }
}

/// Opens a queue whose only elements are two dead letters.
fn queue_with_dead_letters(path: &Path) -> (QueueSimple, Vec<Name>) {
    let queue = in_place(QueueSimple::builder(path).max_attempts(1).in_place().open());
    let queue = queue.expect("no fault is injected");
    let names = in_place(queue.add_many(["a", "b"])).expect("no fault is injected");
    let mut jobs = queue.locked();
    while let Some(job) = in_place(jobs.next()) {
        in_place(job.expect("it can be locked").fail("a reason")).expect("no fault is injected");
    }
    (queue, names)
}

#[tokio::test]
async fn owner_of_an_element_keeps_it_while_an_earlier_revive_ends() {
    let temp_dir = temp_dir();
    let (queue, names) = queue_with_dead_letters(&temp_dir.path().join("queue"));
    let owned = Rc::new(RefCell::new(None));
    let plan = {
        let (other, name, owned) = (queue.clone(), names[0], owned.clone());
        move |what: &'static str| {
            if what == "unlink" && owned.borrow().is_none() {
                let revived = in_place(other.revive(&name, Duration::ZERO));
                assert!(revived.expect("no fault is injected"));
                *owned.borrow_mut() = in_place(other.locked().next());
            }
            Fault::None
        }
    };
    let revived = with_plan(plan, || in_place(queue.revive(&names[0], Duration::from_secs(3600))));
    assert!(revived.expect("no fault is injected"));
    let job = owned.take().expect("it was due").expect("it can be locked");
    assert_eq!(job.name(), &names[0]);
    in_place(job.ack()).expect("the owner has its lock");
}

#[tokio::test]
async fn purge_keeps_the_records_of_a_queue_that_is_moved_away_concurrently() {
    for call_number in 1.. {
        let temp_dir = temp_dir();
        let path = temp_dir.path().join("queue");
        let moved = temp_dir.path().join("moved");
        let (queue, names) = queue_with_dead_letters(&path);
        let mut calls = 0;
        let plan = {
            let (path, moved) = (path.clone(), moved.clone());
            move |_: &'static str| {
                calls += 1;
                if calls == call_number {
                    fs::rename(&path, &moved).expect("the queue exists");
                    fs::create_dir(&path).expect("the queue was moved");
                }
                Fault::None
            }
        };
        let _ = with_plan(plan, || in_place(queue.purge(Purge::default())));
        if !moved.exists() {
            break;
        }
        let moved =
            in_place(QueueSimple::builder(&moved).in_place().open()).expect("no fault is injected");
        let dead = in_place(moved.dead()).expect("no fault is injected");
        let dead: Vec<_> = dead.into_iter().map(|dead| dead.name).collect();
        assert_eq!(dead, names, "moved before the {call_number}. call");
    }
}

/// The umask may make a file read-only for its own process.
#[tokio::test]
async fn long_element_is_added_although_its_file_cannot_be_opened_again() {
    let temp_dir = temp_dir();
    let queue = in_place(QueueSimple::builder(temp_dir.path().join("queue")).in_place().open())
        .expect("no fault");
    let long = vec![b'x'; 3 << 20];
    let plan = |what: &'static str| match what {
        "open to append" => Fault::Fail(Errno::ACCESS),
        _ => Fault::None,
    };
    let name = with_plan(plan, || in_place(queue.add(&long))).expect("it is written at once");
    assert!(in_place(queue.peek(&name)).expect("no fault").is_some_and(|data| data == long));
    assert_eq!(tree(queue.path()).len(), 2, "the directory and the element");
}
