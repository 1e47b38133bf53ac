//! Snapshots of ten million entries to a file and back, compared with writing and reading the same bytes.
//!
//! `cargo bench --bench snapshot --features serde` (about 3 minutes, 3 GB of memory, 1 GB of disk) writes
//! docs/snapshot.md. The file is in the directory given by `-- DIR`, else in that of temporary files.
//! `FLEETING_QUICK=1` makes the run short, and writes nothing. While a snapshot is written, another thread reads: its
//! delays show how long locks are held.

mod measure;

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{Read, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use fleeting::{Cache, Sweep};
use tokio::runtime::Runtime;

const ROUNDS: usize = 5;
const HOUR: Duration = Duration::from_secs(3_600);

type Sessions = Cache<u64, String>;

fn main() {
    let entries = if measure::is_quick() { 1_000_000 } else { 10_000_000 };
    let dir = env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let dir = dir.map_or_else(env::temp_dir, Into::into);
    let file = dir.join(format!("fleeting-{}.snapshot", std::process::id()));
    let runtime = Runtime::new().expect("a runtime");
    let cache = runtime.block_on(filled(entries));
    let mut page = format!(
        "# Snapshots\n\n\
         Made by `cargo bench --bench snapshot --features serde`: {entries} sessions (a number, and a text of some 45 \
         bytes) are written to a file and read back. The columns \"bytes only\" are for writing and reading the same \
         bytes without a cache. All written data is synced. Both take turns {ROUNDS} times; the table has the medians, \
         and the median of the ratios of each round.\n\n\
         | | MB | written in s | bytes only | ratio | processor time per entry | bytes only | read in s | bytes only \
         | concurrent reader, worst |\n|{}\n",
        " --- |".repeat(10)
    );
    let mut most = 0.0;
    for is_compressed in [false, true] {
        let mut rounds: [Vec<f64>; 7] = Default::default();
        let mut bytes = Vec::new();
        let mut late = Duration::ZERO;
        for _ in 0..ROUNDS {
            let write = || runtime.block_on(write(&cache, &file, entries, is_compressed));
            let ((written, processor), latest) = watched(&cache, entries, || timed(write));
            late = late.max(latest);
            bytes = fs::read(&file).expect("the file exists");
            let (read, _) = timed(|| runtime.block_on(read(&file, entries)));
            let (read_alone, _) = timed(|| read_bytes(&file));
            fs::remove_file(&file).expect("the file exists");
            let (alone, processor_alone) = timed(|| write_bytes(&bytes, &file));
            let ratio = written.as_secs_f64() / alone.as_secs_f64();
            let all = [written, alone, processor, processor_alone, read, read_alone];
            let all = all.iter().map(Duration::as_secs_f64).chain([ratio]);
            rounds.iter_mut().zip(all).for_each(|(column, value)| column.push(value));
        }
        let [written, alone, processor, processor_alone, read, read_alone, ratio] =
            rounds.map(measure::median);
        if !is_compressed {
            most = bytes.len() as f64 / 1e6 / written;
        }
        let each = |seconds: f64| format!("{:.0} ns", 1e9 * seconds / entries as f64);
        writeln!(
            page,
            "| {} | {} | {written:.2} | {alone:.2} | {ratio:.1} | {} | {} | {read:.2} | {read_alone:.2} | {} µs |",
            if is_compressed { "LZ4" } else { "plain" },
            bytes.len() / 1_000_000,
            each(processor),
            each(processor_alone),
            late.as_micros(),
        )
        .expect("writing to a String cannot fail");
    }
    writeln!(
        page,
        "\nThe processor time covers all threads: the caller's task and helpers on half of the processors (up to three) \
         copy and encode, another thread writes. Copies wait for memory, because values are scattered over the heap. A \
         plain snapshot waits for the disk if the disk writes less than {most:.0} MB/s."
    )
    .expect("writing to a String cannot fail");
    println!("{page}");
    if !measure::is_quick() {
        fs::write("docs/snapshot.md", page).expect("docs/snapshot.md can be written");
    }
    let _ = fs::remove_file(&file);
}

async fn filled(entries: u64) -> Sessions {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    for key in 0..entries {
        let value = format!("session of user {key}, entered through door {}", key % 100);
        cache.set_ex(key, value, HOUR + Duration::from_millis(key)).await;
    }
    cache
}

async fn write(cache: &Sessions, file: &Path, entries: u64, is_compressed: bool) {
    let mut file = tokio::fs::File::create(file).await.expect("a file");
    let written = match is_compressed {
        false => cache.snapshot(&mut file).await,
        true => cache.snapshot_compressed(&mut file).await,
    };
    assert_eq!(written.expect("the write succeeds"), entries);
    file.sync_all().await.expect("the sync succeeds");
}

async fn read(file: &Path, entries: u64) {
    let cache: Sessions = Cache::builder().sweep(Sweep::manual()).build();
    let file = tokio::fs::File::open(file).await.expect("the file exists");
    assert_eq!(cache.restore(file).await.expect("the snapshot is complete"), entries);
}

fn write_bytes(bytes: &[u8], file: &Path) {
    let mut file = fs::File::create(file).expect("a file");
    for piece in bytes.chunks(256 * 1_024) {
        file.write_all(piece).expect("the write succeeds");
    }
    file.sync_all().expect("the sync succeeds");
}

fn read_bytes(file: &Path) {
    let mut file = fs::File::open(file).expect("the file exists");
    let mut piece = vec![0; 256 * 1_024];
    while file.read(&mut piece).expect("the read succeeds") > 0 {}
}

/// Runs `work` while a thread reads. Returns the result of `work`, and the longest duration of a read.
fn watched<T>(cache: &Sessions, entries: u64, work: impl FnOnce() -> T) -> (T, Duration) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let reader = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let mut latest = Duration::ZERO;
            for key in (0..).step_by(7_919) {
                if stop.load(Relaxed) {
                    break;
                }
                let begin = Instant::now();
                let found = reader.block_on(cache.get(&(key % entries)));
                latest = latest.max(begin.elapsed());
                assert!(found.is_some());
                thread::sleep(Duration::from_micros(100));
            }
            latest
        });
        let took = work();
        stop.store(true, Relaxed);
        (took, reader.join().expect("the reader does not panic"))
    })
}

/// Returns the elapsed time and the processor time of `work`.
fn timed(work: impl FnOnce()) -> (Duration, Duration) {
    let (begin, processor) = (Instant::now(), measure::process_time());
    work();
    (begin.elapsed(), measure::process_time() - processor)
}
