//! Costs of the system calls for one element of a simple queue, made one after another by one thread. The difference to
//! the measured methods is the cost of the library.

use std::{fmt::Write as _, fs, path::Path, time::Instant};

use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fstat, linkat,
        openat, renameat_with, stat, statat, unlinkat, utimensat,
    },
    io::{read, write},
};

use crate::{BODY, COUNT, median};

const ADD: [&str; 4] = ["check the queue", "create a file", "write and close", "rename"];

const TAKE: [&str; 8] = [
    "check the queue, twice",
    "check for the lock",
    "touch",
    "link",
    "open, stat, read, close",
    "check for the lock again",
    "unlink the element",
    "unlink the lock",
];

/// Returns a table of the system calls, in microseconds per element.
pub(crate) fn table(dir_path: &Path, rounds: usize) -> String {
    let (queue, path) = (dir_path.join("calls"), dir_path.join("calls/00000000"));
    fs::create_dir_all(&path).expect("the directory can be created");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, &path, flags, Mode::empty()).expect("the directory exists");
    let mut samples = [const { Vec::new() }; ADD.len() + TAKE.len()];
    for _ in 0..rounds {
        let mut round = [0.0; ADD.len() + TAKE.len()];
        for number in 0..COUNT {
            let draft = format!("{number:014x}.tmp");
            let mut watch = Watch::over(&mut round[..ADD.len()]);
            stat(&queue).expect("the queue exists");
            watch.lap();
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(&dir, &draft, flags, Mode::from_raw_mode(0o666))
                .expect("the file can be created");
            watch.lap();
            assert_eq!(write(&file, &BODY), Ok(BODY.len()));
            drop(file);
            watch.lap();
            renameat_with(&dir, &draft, &dir, format!("{number:014x}"), RenameFlags::NOREPLACE)
                .expect("the name is unused");
            watch.lap();
        }
        for number in 0..COUNT {
            let (element, lock) = (format!("{number:014x}"), format!("{number:014x}.lck"));
            let mut watch = Watch::over(&mut round[ADD.len()..]);
            for _ in 0..2 {
                stat(&queue).expect("the queue exists");
            }
            watch.lap();
            let stat_lock = || statat(&dir, &lock, AtFlags::SYMLINK_NOFOLLOW);
            stat_lock().expect_err("there is no lock yet");
            watch.lap();
            let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now(), last_modification: now() };
            utimensat(&dir, &element, &times, AtFlags::SYMLINK_NOFOLLOW).expect("the file exists");
            watch.lap();
            linkat(&dir, &element, &dir, &lock, AtFlags::empty()).expect("the name is unused");
            watch.lap();
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&dir, &element, flags, Mode::empty()).expect("the file exists");
            fstat(&file).expect("the file exists");
            assert_eq!(read(&file, &mut [0; BODY.len()]), Ok(BODY.len()));
            drop(file);
            watch.lap();
            stat_lock().expect("the file exists");
            watch.lap();
            unlinkat(&dir, &element, AtFlags::empty()).expect("the file exists");
            watch.lap();
            unlinkat(&dir, &lock, AtFlags::empty()).expect("the file exists");
            watch.lap();
        }
        for (value, seconds) in samples.iter_mut().zip(round) {
            value.push(seconds * 1e6 / COUNT as f64);
        }
    }
    let samples = samples.map(median);
    let (add, take) = samples.split_at(ADD.len());
    let mut page = String::from(
        "### System calls\n\nThe system calls for one element of a simple queue, made one after another by one \
         thread. The additional time of the library is spent on names, memory, and the transfer to its thread and \
         back.\n\n\
         | | µs |\n| --- | --- |\n",
    );
    for (of, names, samples) in [("`add`", &ADD[..], add), ("`locked`, `ack`", &TAKE[..], take)] {
        for (name, value) in names.iter().zip(samples) {
            writeln!(page, "| {name} | {value:.1} |").expect("writing to a String cannot fail");
        }
        let sum: f64 = samples.iter().sum();
        writeln!(page, "| **{of}** | **{sum:.1}** |").expect("writing to a String cannot fail");
    }
    page + "\n"
}

/// Stopwatch that adds the time of each lap to the next element of a slice.
struct Watch<'a> {
    laps: std::slice::IterMut<'a, f64>,
    since: Instant,
}

impl<'a> Watch<'a> {
    fn over(samples: &'a mut [f64]) -> Self {
        Self { laps: samples.iter_mut(), since: Instant::now() }
    }

    fn lap(&mut self) {
        let now = Instant::now();
        *self.laps.next().expect("an element for each lap") += (now - self.since).as_secs_f64();
        self.since = now;
    }
}
