//! Ten million entries to a file and back, beside the same bytes written and read alone.
//!
//! `cargo bench --bench snapshot --features serde` (about 2 minutes, 3 GB of memory, 1 GB of disk; `-- FOLDER` says where,
//! else the folder of temporary files) writes docs/snapshot.md. `FLEETING_QUICK=1` makes it short, and writes nothing.
//! While a snapshot is written, a thread reads: how late it was says how long locks were held.

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

const ROUNDS: usize = 3;
const HOUR: Duration = Duration::from_secs(3_600);

type Sessions = Cache<u64, String>;

fn main() {
    let entries = if measure::is_quick() { 1_000_000 } else { 10_000_000 };
    let folder = env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let folder = folder.map_or_else(env::temp_dir, Into::into);
    let file = folder.join(format!("fleeting-{}.snapshot", std::process::id()));
    let runtime = Runtime::new().expect("a runtime");
    let cache = runtime.block_on(filled(entries));
    let mut page = format!(
        "# Snapshots\n\n\
         Made by `cargo bench --bench snapshot --features serde`: {entries} sessions (a number, and a text of some 45 \
         bytes) to a file and back, beside the same bytes written and read alone. All that is written is synced. In \
         turns, {ROUNDS} times; the best of each.\n\n\
         | | MB | written in s | alone | ratio | processor time for an entry | alone | read in s | alone | a reader \
         meanwhile, at worst |\n|{}\n",
        " --- |".repeat(10)
    );
    let mut most = 0.0;
    for is_compressed in [false, true] {
        let mut best = [Duration::MAX; 6];
        let mut bytes = Vec::new();
        let mut late = Duration::ZERO;
        for _ in 0..ROUNDS {
            let write = || runtime.block_on(write(&cache, &file, entries, is_compressed));
            let ((written, processor), latest) = watched(&cache, entries, || timed(write));
            late = late.max(latest);
            bytes = fs::read(&file).expect("it was written");
            let (read, _) = timed(|| runtime.block_on(read(&file, entries)));
            let (read_alone, _) = timed(|| read_bytes(&file));
            fs::remove_file(&file).expect("it is there");
            let (alone, processor_alone) = timed(|| write_bytes(&bytes, &file));
            let all = [written, alone, processor, processor_alone, read, read_alone];
            for (best, now) in best.iter_mut().zip(all) {
                *best = now.min(*best);
            }
        }
        let [written, alone, processor, processor_alone, read, read_alone] =
            best.map(|best| best.as_secs_f64());
        if !is_compressed {
            most = bytes.len() as f64 / 1e6 / written;
        }
        let each = |seconds: f64| format!("{:.0} ns", 1e9 * seconds / entries as f64);
        writeln!(
            page,
            "| {} | {} | {written:.2} | {alone:.2} | {:.1} | {} | {} | {read:.2} | {read_alone:.2} | {} µs |",
            if is_compressed { "LZ4" } else { "plain" },
            bytes.len() / 1_000_000,
            written / alone,
            each(processor),
            each(processor_alone),
            late.as_micros(),
        )
        .expect("a string takes all");
    }
    writeln!(
        page,
        "\nThe processor time is of both threads: the one that copies and encodes, and the one that writes. One alone \
         copies, so that the service has the other processors; a third of its time it waits for memory, as each value \
         lies where it was made. Where a disk takes less than {most:.0} MB a second, a plain snapshot waits for the disk."
    )
    .expect("a string takes all");
    println!("{page}");
    if !measure::is_quick() {
        fs::write("docs/snapshot.md", page).expect("docs/snapshot.md can be written");
    }
    let _ = fs::remove_file(&file);
}

async fn filled(entries: u64) -> Sessions {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    for key in 0..entries {
        let value = format!("session of user {key}, who came by the door {}", key % 100);
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
    assert_eq!(written.expect("it is written"), entries);
    file.sync_all().await.expect("it is on the disk");
}

async fn read(file: &Path, entries: u64) {
    let cache: Sessions = Cache::builder().sweep(Sweep::manual()).build();
    let file = tokio::fs::File::open(file).await.expect("it was written");
    assert_eq!(cache.restore(file).await.expect("it is whole"), entries);
}

fn write_bytes(bytes: &[u8], file: &Path) {
    let mut file = fs::File::create(file).expect("a file");
    for piece in bytes.chunks(256 * 1_024) {
        file.write_all(piece).expect("it is written");
    }
    file.sync_all().expect("it is on the disk");
}

fn read_bytes(file: &Path) {
    let mut file = fs::File::open(file).expect("it was written");
    let mut piece = vec![0; 256 * 1_024];
    while file.read(&mut piece).expect("it can be read") > 0 {}
}

/// Also how long a reader waited at most.
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
        (took, reader.join().expect("it only reads"))
    })
}

/// How long it took, and how much processor time.
fn timed(work: impl FnOnce()) -> (Duration, Duration) {
    let (begin, processor) = (Instant::now(), measure::process_time());
    work();
    (begin.elapsed(), measure::process_time() - processor)
}
