//! What the calls to the kernel cost that one element of a simple queue takes, made one after another by one thread: the rest
//! is the library's.

use std::{fmt::Write as _, fs, path::Path, time::Instant};

use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fstat, linkat,
        openat, renameat_with, stat, statat, unlinkat, utimensat,
    },
    io::{read, write},
};

use crate::{BODY, COUNT, median};

const ADD: [&str; 4] = ["look at the queue", "create a file", "write and close", "rename"];

const TAKE: [&str; 8] = [
    "look at the queue, twice",
    "look for the lock",
    "touch",
    "link",
    "open, look, read, close",
    "look for the lock again",
    "unlink the element",
    "unlink the lock",
];

/// A table of them, in microseconds an element.
pub(crate) fn table(folder: &Path, rounds: usize) -> String {
    let (queue, path) = (folder.join("calls"), folder.join("calls/00000000"));
    fs::create_dir_all(&path).expect("a folder can be made");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, &path, flags, Mode::empty()).expect("it is there");
    let mut figures = [const { Vec::new() }; ADD.len() + TAKE.len()];
    for _ in 0..rounds {
        let mut round = [0.0; ADD.len() + TAKE.len()];
        for number in 0..COUNT {
            let draft = format!("{number:014x}.tmp");
            let mut watch = Watch::over(&mut round[..ADD.len()]);
            stat(&queue).expect("it is there");
            watch.lap();
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(&dir, &draft, flags, Mode::from_raw_mode(0o666)).expect("room");
            watch.lap();
            assert_eq!(write(&file, &BODY), Ok(BODY.len()));
            drop(file);
            watch.lap();
            renameat_with(&dir, &draft, &dir, format!("{number:014x}"), RenameFlags::NOREPLACE)
                .expect("the name is free");
            watch.lap();
        }
        for number in 0..COUNT {
            let (element, lock) = (format!("{number:014x}"), format!("{number:014x}.lck"));
            let mut watch = Watch::over(&mut round[ADD.len()..]);
            for _ in 0..2 {
                stat(&queue).expect("it is there");
            }
            watch.lap();
            let look = || statat(&dir, &lock, AtFlags::SYMLINK_NOFOLLOW);
            look().expect_err("it is not there");
            watch.lap();
            let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now(), last_modification: now() };
            utimensat(&dir, &element, &times, AtFlags::SYMLINK_NOFOLLOW).expect("it is ours");
            watch.lap();
            linkat(&dir, &element, &dir, &lock, AtFlags::empty()).expect("the name is free");
            watch.lap();
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&dir, &lock, flags, Mode::empty()).expect("it is there");
            fstat(&file).expect("it is open");
            assert_eq!(read(&file, &mut [0; BODY.len()]), Ok(BODY.len()));
            drop(file);
            watch.lap();
            look().expect("it is there");
            watch.lap();
            unlinkat(&dir, &element, AtFlags::empty()).expect("it is there");
            watch.lap();
            unlinkat(&dir, &lock, AtFlags::empty()).expect("it is there");
            watch.lap();
        }
        for (figure, seconds) in figures.iter_mut().zip(round) {
            figure.push(seconds * 1e6 / COUNT as f64);
        }
    }
    let figures = figures.map(median);
    let (add, take) = figures.split_at(ADD.len());
    let mut page = String::from(
        "### The calls to the kernel\n\nThose that an element of a simple queue takes, made one after another by one \
         thread. What the library takes beyond them is for names, memory, and the way to its thread and back.\n\n| | µs |\n| --- | --- |\n",
    );
    for (of, names, figures) in [("`add`", &ADD[..], add), ("`locked`, `ack`", &TAKE[..], take)] {
        for (name, figure) in names.iter().zip(figures) {
            writeln!(page, "| {name} | {figure:.1} |").expect("a string takes all");
        }
        let sum: f64 = figures.iter().sum();
        writeln!(page, "| **{of}** | **{sum:.1}** |").expect("a string takes all");
    }
    page + "\n"
}

/// Adds the time of each lap to the next of some figures.
struct Watch<'a> {
    laps: std::slice::IterMut<'a, f64>,
    since: Instant,
}

impl<'a> Watch<'a> {
    fn over(figures: &'a mut [f64]) -> Self {
        Self { laps: figures.iter_mut(), since: Instant::now() }
    }

    fn lap(&mut self) {
        let now = Instant::now();
        *self.laps.next().expect("there is a figure for each lap") +=
            (now - self.since).as_secs_f64();
        self.since = now;
    }
}
