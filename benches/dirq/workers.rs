//! Processor time of workers that watch a queue: per job, and while they wait for jobs.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use fleeting::dirq::QueueSimple;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::BODY;

/// Passes the number of workers and the path of the queue to a process.
const ARGUMENTS: &str = "FLEETING_DIRQ_WORKERS";

/// Processes, and workers of each.
const FLEETS: [(usize, usize); 4] = [(1, 2), (1, 64), (2, 8), (8, 8)];

/// Jobs per second.
const RATES: [u32; 3] = [0, 200, 2_000];

/// Duration of the adds at one rate.
const TIME: Duration = Duration::from_secs(5);

/// Jobs are added at the beginning of each tick.
const TICK: Duration = Duration::from_millis(10);

/// Returns a table of processor times.
pub(crate) fn table(runtime: &Runtime, folder: &Path) -> String {
    let path = folder.join("workers");
    let queue = runtime.block_on(QueueSimple::open(&path)).expect("a queue");
    let mut page = String::from(
        "### Processor time of workers\n\nEach worker awaits `watch`, with two seconds between its own scans, and acks \
         each job at once. Another process adds the jobs; its time is not counted. A job wakes one worker of each \
         process, so its cost depends on the number of processes, not on the number of their workers.\n\n\
         | workers | processes | without jobs, % of a processor | 200 jobs/s, µs per job | 2,000 jobs/s, µs per job |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for (processes, workers) in FLEETS {
        let fleet = Fleet::start(processes, workers, &path);
        write!(page, "| {} | {processes} |", processes * workers)
            .expect("writing to a String cannot fail");
        for rate in RATES {
            let (before, begun) = (fleet.processor_time(), Instant::now());
            let jobs = add(runtime, &queue, rate);
            let used = fleet.processor_time() - before;
            let value = match jobs {
                0 => used / begun.elapsed().as_secs_f64() * 100.0,
                jobs => used / f64::from(jobs) * 1e6,
            };
            write!(page, " {value:.1} |").expect("writing to a String cannot fail");
        }
        page.push('\n');
    }
    page + "\n"
}

/// Adds jobs at this rate, waits until they are done, and returns their number.
fn add(runtime: &Runtime, queue: &QueueSimple, rate: u32) -> u32 {
    let mut jobs = 0;
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        while jobs < due {
            runtime.block_on(queue.add(BODY)).expect("the element can be added");
            jobs += 1;
        }
        thread::sleep(TICK);
    }
    while runtime.block_on(queue.count()).expect("a count") > 0 {
        assert!(begun.elapsed() < 10 * TIME, "the workers do not finish");
        thread::sleep(TICK);
    }
    jobs
}

/// Works until this process is killed, if [`Fleet::start`] started it.
pub(crate) fn work_if_started_for_it() {
    let Ok(arguments) = env::var(ARGUMENTS) else { return };
    let (workers, path) = arguments.split_once(' ').expect("a number and a path");
    let workers: usize = workers.parse().expect("a number");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let queue = QueueSimple::open(path).await.expect("a queue");
        join_all((0..workers).map(|_| tokio::spawn(work(queue.clone())))).await;
    });
}

async fn work(queue: QueueSimple) {
    let mut jobs = queue.watch(Duration::from_secs(2));
    while let Some(job) = jobs.next().await {
        job.expect("a lock").ack().await.expect("the element is locked");
    }
}

struct Fleet(Vec<Child>);

impl Fleet {
    fn start(processes: usize, workers: usize, path: &Path) -> Self {
        let program = env::current_exe().expect("the path of this benchmark");
        let start = |_| {
            let arguments = format!("{workers} {}", path.display());
            Command::new(&program).env(ARGUMENTS, arguments).spawn().expect("a process")
        };
        let fleet = Self((0..processes).map(start).collect());
        // Until all of them watch the queue.
        thread::sleep(Duration::from_secs(2));
        fleet
    }

    /// Returns the processor time of all processes in seconds.
    fn processor_time(&self) -> f64 {
        let of = |child: &Child| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("Linux");
            // The name of the program, in parentheses, may contain spaces. The first word after it is the third field.
            let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
            let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<f64>);
            // 100 per second on all architectures of Linux that Rust's standard library supports well.
            ticks.map(|ticks| ticks.expect("a number")).sum::<f64>() / 100.0
        };
        self.0.iter().map(of).sum()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
