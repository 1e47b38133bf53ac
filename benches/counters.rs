//! What it costs a `get` that hits and misses are counted, and that they are told.
//!
//! `cargo bench --bench counters --features metrics` (about a minute, and two builds of it without the feature). Four
//! processes in turns, each of which reads for a second, on one thread, with keys that are asked for evenly:
//!
//! - of a build that does not count (`--cfg uncounted`), which is what the others are measured by;
//! - of one without the feature: it counts, and `Cache::stats` tells;
//! - with the feature, and no recorder;
//! - with the feature and a recorder, which the thread `fleeting-metrics` tells twice a second.
//!
//! Each is the best of 10 ms in a process, and the median of those of all rounds. Builds of the same code differ by a
//! percent or two, by where the linker puts it.

mod measure;

use std::{
    env,
    hint::black_box,
    time::{Duration, Instant},
};

use fleeting::Cache;
use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};

const ENTRIES: u64 = 10_000;
const SLICE: Duration = Duration::from_millis(10);

fn main() {
    let is_asked = |word: &str| env::args().any(|arg| arg == word);
    if is_asked("--alone") {
        #[cfg(feature = "metrics")]
        let _recorder = is_asked("--recorder").then(|| {
            let builder = metrics_exporter_prometheus::PrometheusBuilder::new();
            builder.install_recorder().expect("it is the only one")
        });
        println!("{}", alone());
    } else {
        #[cfg(feature = "metrics")]
        turns::take();
        #[cfg(not(feature = "metrics"))]
        eprintln!("cargo bench --bench counters --features metrics");
    }
}

/// Nanoseconds that a `get` takes at best.
fn alone() -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let cache: Cache<u64, u64> = Cache::builder().name("bench").build();
        let mut keys: Vec<u64> = (0..ENTRIES).collect();
        for key in &keys {
            cache.set_ex(*key, *key, Duration::from_secs(3_600)).await;
        }
        keys.shuffle(&mut SmallRng::seed_from_u64(19));
        let mut best = f64::MAX;
        let whole = if measure::is_quick() { SLICE } else { Duration::from_secs(1) };
        let begin = Instant::now();
        while begin.elapsed() < whole {
            let (slice, mut gets) = (Instant::now(), 0);
            while slice.elapsed() < SLICE {
                for key in &keys {
                    black_box(cache.get(black_box(key)).await);
                }
                gets += keys.len();
            }
            best = best.min(slice.elapsed().as_nanos() as f64 / gets as f64);
        }
        best
    })
}

#[cfg(feature = "metrics")]
mod turns {
    use std::{
        env,
        path::PathBuf,
        process::{Command, Stdio},
    };

    use super::measure::{is_quick, median};

    /// Runs all in turns, and prints the table.
    pub(super) fn take() {
        let counted = env::current_exe().expect("the path of this bench");
        let subjects = [
            ("does not count", built("target/uncounted", "--cfg lean --cfg uncounted"), &[][..]),
            ("counts, without the feature", built("target/lean", "--cfg lean"), &[]),
            ("with the feature", counted.clone(), &[]),
            ("with a recorder", counted, &["--recorder"]),
        ];
        let rounds = if is_quick() { 1 } else { 15 };
        let mut took = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            for ((_, path, args), took) in subjects.iter().zip(&mut took) {
                let output = Command::new(path).arg("--alone").args(*args).output();
                let output = output.expect("it was built");
                let said = String::from_utf8_lossy(&output.stdout);
                took.push(said.trim().parse::<f64>().expect("it says a number"));
            }
        }
        let base = median(took[0].clone());
        println!("| a build that | ns a `get` | |\n| --- | --- | --- |");
        for ((name, ..), took) in subjects.iter().zip(took) {
            let took = median(took);
            println!("| {name} | {took:.2} | {:+.1} % |", 100.0 * (took / base - 1.0));
        }
    }

    /// This bench without the feature. What `lean` leaves out are dependencies of other tests.
    fn built(target: &str, flags: &str) -> PathBuf {
        let output = Command::new(env!("CARGO"))
            .args(["bench", "--quiet", "--locked", "--package", "fleeting", "--bench", "counters"])
            .args(["--no-run", "--message-format", "json-render-diagnostics"])
            .args(["--target-dir", target])
            .env("RUSTFLAGS", flags)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo can be run");
        let messages = output.stdout.split(|&byte| byte == b'\n');
        messages
            .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["name"] == "counters")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .expect("the bench builds without the feature")
    }
}
