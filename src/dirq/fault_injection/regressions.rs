//! Single faults that once did harm.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use super::*;
use crate::dirq::purge_options::PurgeReport;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o777
}

/// With a quota, or over a network, only the close of a file may tell that it was not written.
#[tokio::test]
async fn an_element_whose_close_fails_is_not_added() {
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
        assert!(!tree(process.path()).iter().any(|path| path.is_file()), "nothing is left behind");
    }
}

#[tokio::test]
async fn what_is_added_and_not_synced_is_named() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        // In a normal queue, that of the element's own directory comes before it is added.
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

/// How many directories were synced while `work` was done.
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
async fn the_way_to_an_element_is_synced_whoever_made_it() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = temp_dir();
        let path = temp_dir.path().join("deep/deeper/queue");
        let add = |process: &Process| {
            process.add("x").expect("nothing fails");
        };
        // Who made all this does not care.
        let other = Process::start(&path, Config { sync: false, ..config });
        add(&other);
        let process = Process::start(&path, config);
        let (first, second) = (syncs(|| add(&process)), syncs(|| add(&process)));
        // The element's directory and, in a normal queue, the element.
        assert_eq!(second, if config.normal { 2 } else { 1 });
        // The queue, and at least those above it that were made with it.
        assert!(first >= second + 4, "{first} directories were synced");
        fs::remove_dir_all(&path).expect("it can be removed");
        add(&other);
        assert_eq!(syncs(|| add(&process)), first, "it is another one");
    }
}

/// File systems of disks give the number of what is gone to what is made next.
#[tokio::test]
async fn the_name_of_a_directory_is_synced_again_where_it_is_made_anew() {
    for config in BOTH_KINDS.map(|config| Config { sync: true, ..config }) {
        let temp_dir = tempfile::tempdir().expect("a directory can be made");
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let mut name = process.add("x").expect("nothing fails");
        let again = syncs(|| name = process.add("x").expect("nothing fails"));
        process.drain();
        let path = process.path().join(name.to_string());
        let directory = path.parent().expect("an element is in one");
        fs::remove_dir(directory).expect("it is empty");
        // As another process does, with the clock's next tick.
        std::thread::sleep(Duration::from_millis(20));
        fs::create_dir(directory).expect("nobody has made it");
        let anew = syncs(|| name = process.add("x").expect("nothing fails"));
        assert_eq!(anew, again + 1, "the queue's own directory was not synced: {config:?}");
    }
}

/// Of several elements, those that were added before one that could not be.
#[tokio::test]
async fn a_part_of_the_elements_is_synced_too() {
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

/// As Perl's and Python's remove an element: they take its lock last, and look for one anew where it is full.
#[tokio::test]
async fn a_lock_that_comes_too_late_is_left_to_the_remover() {
    let temp_dir = temp_dir();
    let process = Process::start(&temp_dir.path().join("queue"), NORMAL);
    let name = process.add("x").expect("nothing fails");
    let element = process.path().join(name.to_string());
    let moved = process.path().join("obsolete/00000000000001");
    let [begin_removal, finish_removal] = [
        Box::new({
            let moved = moved.clone();
            move || {
                fs::create_dir(element.join("locked")).expect("nobody has it locked");
                fs::rename(&element, &moved).expect("it can be moved");
                for file in ["body", "more"] {
                    fs::remove_file(moved.join(file)).expect("it is there");
                }
                fs::remove_dir(moved.join("locked")).expect("it is there");
            }
        }) as Box<dyn FnOnce()>,
        Box::new({
            let moved = moved.clone();
            move || drop(fs::remove_dir(moved).expect_err("it is locked once more"))
        }),
    ];
    let mut remover = vec![("stat", finish_removal), ("mkdir", begin_removal)];
    let plan = move |what: &'static str| {
        // What comes before the lock is made is not its business.
        if remover.last().is_some_and(|(call, _)| *call == what)
            && let Some((_, step)) = remover.pop()
        {
            step();
        }
        Fault::None
    };
    let locked = with_plan(plan, || process.lock(&name));
    assert!(!locked.expect("to be late is no error"));
    fs::remove_dir(moved.join("locked")).expect("what makes it full is a lock");
    fs::remove_dir(&moved).expect("it is empty");
}

/// Others may write to the queue's directory, and put a link in the place of what was made there.
#[tokio::test]
async fn the_mode_of_what_took_a_directorys_place_is_let_be() {
    let temp_dir = temp_dir();
    let (path, private) = (temp_dir.path().join("queue"), temp_dir.path().join("private"));
    fs::create_dir(&private).expect("it can be made");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let swap = {
        let (path, private) = (path.clone(), private.clone());
        move || {
            fs::remove_dir(&path).expect("it was just made");
            symlink(private, path).expect("a link can be made");
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
    let opened = with_plan(plan, || in_place(QueueSimple::builder(&path).umask(0).open()));
    assert_eq!(mode(&private), 0o700, "{opened:?}");
}

/// Only root may give a directory to somebody, and is who may change the mode of any.
#[tokio::test]
async fn the_mode_of_somebody_elses_directory_is_let_be() {
    let temp_dir = temp_dir();
    let path = temp_dir.path().join("queue");
    let nobody = 65_534;
    if chown(temp_dir.path(), Some(nobody), None).is_err() {
        println!("we are not root: it is not tried");
        return;
    }
    let mut made = 0;
    let swap = {
        let path = path.clone();
        move |what: &'static str| {
            made += usize::from(what == "mkdir");
            if made == 1 && what == "open" {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
                chown(&path, Some(nobody), None).expect("we are root");
                made += 1;
            }
            Fault::None
        }
    };
    with_plan(swap, || in_place(QueueSimple::builder(&path).umask(0).open())).expect("it is there");
    assert_eq!(mode(&path), 0o700);
}

#[tokio::test]
async fn a_file_is_never_open_to_more_than_in_the_end() {
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
                let schema = "body:string,more:binary?".parse().expect("it is a schema");
                let queue = in_place(Queue::builder(&path).schema(schema).umask(0o077).open());
                in_place(queue.expect("it opens").add(element("x"))).map(drop)
            }
            false => {
                let queue = in_place(QueueSimple::builder(&path).umask(0o077).open());
                in_place(queue.expect("it opens").add("x")).map(drop)
            }
        })
        .expect("it can be added");
        assert!(!seen.borrow().is_empty() && seen.borrow().iter().all(|mode| *mode == 0o600));
    }
}

#[tokio::test]
async fn a_purge_goes_on_past_what_it_may_not_touch() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        for body in ["a", "b", "c"] {
            let name = process.add(body).expect("nothing fails");
            assert!(process.lock(&name).expect("nothing fails"));
        }
        make_stale(process.path());
        let (mut taken, call) = (0, if config.normal { "rmdir" } else { "unlink" });
        let plan = move |what: &'static str| {
            taken += usize::from(what == call);
            match what == call && taken == 1 {
                true => Fault::Fail(Errno::ACCESS),
                false => Fault::None,
            }
        };
        let report = with_plan(plan, || process.purge()).expect("the rest can be purged");
        assert_eq!(report, PurgeReport { locks: 2, failed: 1, ..PurgeReport::default() });
    }
}

/// A try in vain must not keep the lock of a dead process young.
#[tokio::test]
async fn who_can_not_lock_an_element_leaves_its_age() {
    for config in BOTH_KINDS {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        let name = process.add("x").expect("nothing fails");
        assert!(process.lock(&name).expect("nothing fails"));
        make_stale(process.path());
        assert!(!process.lock(&name).expect("nothing fails"));
        assert_eq!(process.purge().expect("nothing fails").locks, 1);
    }
}

/// The disk is full until somebody takes what it is full of.
#[tokio::test]
async fn what_can_not_be_counted_is_given_out_all_the_same() {
    for config in BOTH_KINDS.map(|config| Config { counted: true, ..config }) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        process.add("x").expect("nothing fails");
        let full = |what: &'static str| match what {
            "symlink" => Fault::Fail(Errno::NOSPC),
            _ => Fault::None,
        };
        either!(&process, queue => with_plan(full, || {
            let job = in_place(queue.locked().next()).expect("it is there").expect("it can be read");
            assert_eq!(job.attempts(), 1);
            // That it failed is not to be remembered either, and it is unlocked.
            let failed = in_place(job.retry_in(Duration::from_secs(3600)));
            assert!(matches!(failed, Err(Error::Io { operation: "write", .. })), "{failed:?}");
            let job = in_place(queue.locked().next()).expect("it is there").expect("it can be read");
            in_place(job.ack()).expect("it is locked");
        }));
        assert_eq!(process.names(), []);
    }
}

/// Who asks is a thread of the runtime, and must not wait for a disk with another.
#[test]
fn who_counts_a_directory_holds_up_nobody_who_asks() {
    use std::sync::mpsc::channel;

    let temp_dir = temp_dir();
    let path = temp_dir.path().join("queue");
    let Process::Normal(queue) = Process::start(&path, NORMAL) else { unreachable!() };
    let ((counts, is_counting), (resume, resumed)) = (channel(), channel::<()>());
    let slow = move |what: &'static str| {
        if what == "list" {
            let _ = counts.send(());
            let _ = resumed.recv();
        }
        Fault::None
    };
    let adder = {
        let queue = queue.clone();
        std::thread::spawn(move || with_plan(slow, || in_place(queue.add(element("x"))).map(drop)))
    };
    is_counting.recv().expect("it counts");
    let (asked, answer) = channel();
    let asker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            assert!(queue.add(element("y")).now_or_never().is_none(), "another thread waits");
            let _ = asked.send(());
        });
    });
    let answered = answer.recv_timeout(Duration::from_secs(5));
    drop(resume);
    adder.join().expect("it does not panic").expect("nothing fails");
    asker.join().expect("it does not panic");
    answered.expect("it waits for who counts");
}
