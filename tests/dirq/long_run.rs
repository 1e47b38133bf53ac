//! Processes of this library and of Python's package share a queue on a disk that is full or frozen from time to time,
//! and are killed at random moments. No element is lost, and none is delivered again after its ack.
//!
//! `FLEETING_DIRQ_SECONDS` sets the duration (10 by default); from a minute on, there are 64 workers in 8 processes.
//! `FLEETING_SEED` determines the kills and the faults. A disk of its own needs root, loop devices, mkfs.ext4 and
//! fsfreeze; without them, the run has only kills and purges.

mod log;
mod worker;

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use fleeting::dirq::{Lock, Purge};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tempfile::TempDir;

use self::{
    log::{Events, Log, Step},
    worker::{Arguments, MAX_LOCK, open},
};
use crate::{
    directory::{all, make_old, scratch, tree},
    disk::Disk,
    patience::patience,
};

/// Size of the disk in bytes.
const DISK: u64 = 64 << 20;

/// Number of the log of this process, which is not killed.
const LAST: u32 = 1_000_000;

#[test]
fn long_run_loses_no_element_and_repeats_none_after_its_ack() {
    let number = |name: &str, default: u64| {
        let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number"));
        env::var(name).map_or(default, parse)
    };
    let (seconds, seed) = (number("FLEETING_DIRQ_SECONDS", 10), number("FLEETING_SEED", 7));
    println!("FLEETING_SEED={seed}");
    let mut run = Run::start(seconds, seed);
    // On a busy machine, the processes may do hardly anything in this time.
    let is_enough = |run: &Run| Events::read(&run.arguments.logs).acked() > 200;
    while run.begun.elapsed() < Duration::from_secs(seconds)
        || !is_enough(&run) && run.begun.elapsed() < Duration::from_secs(seconds) + patience()
    {
        let pause = run.random.random_range(100..1_000);
        thread::sleep(Duration::from_millis(pause));
        run.disturb();
    }
    run.stop();
    run.drain();
    run.check();
}

/// Processes that share a queue.
struct Run {
    begun: Instant,
    random: StdRng,
    /// Thawed and unmounted at the end.
    disk: Option<Disk>,
    scratch: TempDir,
    arguments: Arguments,
    processes: Vec<Process>,
    cpu: Cpu,
    counts: Counts,
}

struct Process {
    child: Child,
    number: u32,
    is_python: bool,
}

/// CPU time in seconds: of killed processes of this library and of Python, and of all that waited for elements.
#[derive(Debug, Default)]
struct Cpu {
    ours: f64,
    python: f64,
    idle: f64,
}

/// Numbers of disturbances.
#[derive(Debug, Default)]
struct Counts {
    kills: u32,
    frozen: u32,
    full: u32,
    purges: u32,
}

impl Run {
    fn start(seconds: u64, seed: u64) -> Self {
        let (ours, python, workers) = if seconds < 60 { (3, 1, 4) } else { (8, 2, 8) };
        let (disk, scratch) = (Disk::mount(DISK), scratch());
        let logs = scratch.path().join("logs");
        fs::create_dir(&logs).unwrap();
        let directory = disk.as_ref().map_or(scratch.path().to_owned(), Disk::path);
        let queue = directory.join("queue");
        let arguments = Arguments { queue, logs, process: 0, seed, workers };
        let mut run = Self {
            begun: Instant::now(),
            random: StdRng::seed_from_u64(seed),
            disk,
            scratch,
            arguments,
            processes: Vec::new(),
            cpu: Cpu::default(),
            counts: Counts::default(),
        };
        (0..ours).for_each(|_| run.start_process(false));
        (0..python).for_each(|_| run.start_process(true));
        run
    }

    fn start_process(&mut self, is_python: bool) {
        self.arguments.process += 1;
        self.arguments.seed += 1;
        let child = match is_python {
            true => self.arguments.start_python(),
            false => self.arguments.start(),
        };
        self.processes.push(Process { child, number: self.arguments.process, is_python });
    }

    /// Kills a process, fills or freezes the disk, or purges the queue.
    fn disturb(&mut self) {
        let moment = Duration::from_millis(self.random.random_range(50..1_000));
        match self.random.random_range(0..8) {
            0 => self.freeze(moment),
            1 => self.fill(moment),
            2 => self.purge(),
            _ => {
                let one = self.random.random_range(0..self.processes.len());
                self.kill(one);
                let is_python = self.processes.remove(one).is_python;
                self.start_process(is_python);
            }
        }
    }

    /// Kills a process. The disk is not frozen, on which the process could not end.
    fn kill(&mut self, one: usize) {
        let Process { child, number, is_python } = &mut self.processes[one];
        let status = child.try_wait().expect("the process can be waited for");
        assert!(status.is_none(), "process {number} ended by itself: {status:?}");
        let before = cpu_of("self", true);
        child.kill().expect("the process can be killed");
        child.wait().expect("the process can be waited for");
        let used = cpu_of("self", true) - before;
        *(if *is_python { &mut self.cpu.python } else { &mut self.cpu.ours }) += used;
        self.counts.kills += 1;
    }

    fn freeze(&mut self, moment: Duration) {
        let Some(disk) = &self.disk else { return };
        let frozen = disk.freeze();
        thread::sleep(moment);
        assert!(frozen.is_frozen());
        self.counts.frozen += 1;
    }

    fn fill(&mut self, moment: Duration) {
        let Some(disk) = &self.disk else { return };
        let path = disk.path().join("filler");
        let mut filler = fs::File::create(&path).expect("the file can be created");
        // Larger blocks first, so that none is left.
        for len in [1 << 20, 1 << 12, 1] {
            while filler.write(&vec![0; len]).is_ok() {}
        }
        thread::sleep(moment);
        fs::remove_file(path).expect("the file exists");
        self.counts.full += 1;
    }

    /// Purges with the limits of the processes, at the same time as they do.
    fn purge(&mut self) {
        block_on(async {
            let purge = Purge::default().max_lock(MAX_LOCK).max_temp(MAX_LOCK);
            open(&self.arguments.queue).await.unwrap().purge(purge).await.unwrap();
        });
        self.counts.purges += 1;
    }

    /// Ends all adds, measures the processes while they wait, and kills them.
    fn stop(&mut self) {
        fs::write(self.arguments.logs.join("stop"), "").unwrap();
        // The remaining elements, also those of killed processes and those that wait for a backoff.
        thread::sleep(MAX_LOCK + Duration::from_secs(2));
        let cpu = |run: &Self| -> f64 {
            let ours = run.processes.iter().filter(|process| !process.is_python);
            ours.map(|process| cpu_of(&process.child.id().to_string(), false)).sum()
        };
        let (before, begun) = (cpu(self), Instant::now());
        thread::sleep(Duration::from_secs(3));
        self.cpu.idle = (cpu(self) - before) / begun.elapsed().as_secs_f64();
        (0..self.processes.len()).for_each(|one| self.kill(one));
    }

    /// Acks the elements that are left, dead letters included.
    fn drain(&self) {
        let queue = &self.arguments.queue;
        let log = Log::create(&self.arguments.logs.join(LAST.to_string()));
        make_all_old(queue);
        block_on(async {
            let queue = open(queue).await.unwrap();
            queue.purge(Purge::default()).await.unwrap();
            let deadline = Instant::now() + patience();
            while queue.count().await.unwrap() > 0 {
                assert!(Instant::now() < deadline, "elements stay in the queue");
                let mut left: Vec<Lock<_>> = queue.take_dead(usize::MAX).await.unwrap();
                left.extend(all(queue.locked()).await);
                for job in left {
                    let id = str::from_utf8(job.value()).unwrap().trim().to_owned();
                    log.note(Step::Delivered, &id);
                    job.ack().await.unwrap();
                    log.note(Step::Acked, &id);
                }
            }
        });
    }

    fn check(&self) {
        let events = Events::read(&self.arguments.logs);
        let summary = events.check(MAX_LOCK, |process| process != LAST);
        let Self { cpu, counts, begun, arguments, .. } = self;
        let jobs = summary.acked + summary.acked_by_killed;
        println!("{:?}, {counts:?}, {summary:?}", begun.elapsed());
        println!(
            "CPU: {:.2} ms per job ({:.1} s of this library, {:.1} s of Python), {:.1} % of a processor for {} workers \
             without jobs",
            (cpu.ours + cpu.python) * 1e3 / jobs as f64,
            cpu.ours,
            cpu.python,
            cpu.idle * 100.0,
            arguments.workers * self.processes.iter().filter(|one| !one.is_python).count(),
        );
        assert!(summary.acked > 100, "the processes did hardly anything");
        assert!(cpu.idle < 0.5, "workers that wait use {} processors", cpu.idle);
        let left = tree(&arguments.queue).into_iter().filter(|path| !path.ends_with('/'));
        let left: Vec<_> = left.filter(|path| !path.starts_with("retries/")).collect();
        assert!(left.is_empty(), "leftovers exist: {left:?}");
        assert!(self.scratch.path().exists());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for Process { child, .. } in &mut self.processes {
            // Both fail if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Makes all files stale for a purge. No process uses the queue.
fn make_all_old(queue: &Path) {
    for path in tree(queue).iter().rev().map(|path| queue.join(path)) {
        if !path.is_symlink() {
            make_old(&path, Duration::from_secs(1_000));
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be created")
        .block_on(work)
}

/// Returns the CPU time of a process, or of its children that ended, in seconds.
fn cpu_of(process: &str, of_children: bool) -> f64 {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    // The name of the program, in parentheses, may contain spaces. The first word after it is the third field.
    let (_, fields) = text.rsplit_once(") ").expect("the name is in parentheses");
    let fields: Vec<_> = fields.split(' ').collect();
    let first = if of_children { 13 } else { 11 };
    let ticks = |field: usize| fields[field].parse::<f64>().expect("the field is a number");
    // 100 ticks per second on all architectures of Linux that Rust's standard library supports well.
    (ticks(first) + ticks(first + 1)) / 100.0
}
