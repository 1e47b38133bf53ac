//! Costs of counting hits and misses in a `get`, and of exporting the counters.
//!
//! `cargo bench --bench counters --features metrics` (about a minute, plus two builds without the feature). Four
//! processes take turns. Each reads uniformly distributed keys for a second on one thread:
//!
//! - a build that does not count (`--cfg uncounted`): the baseline;
//! - a build without the feature: it counts, for `Cache::stats`;
//! - with the feature, without a recorder;
//! - with the feature and a recorder, to which the thread `fleeting-metrics` exports twice per second.
//!
//! Each result is the median over all rounds of the best 10 ms of a process. Builds of the same code differ by a
//! percent or two, depending on the code's address.

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
    let has_arg = |word: &str| env::args().any(|arg| arg == word);
    if has_arg("--alone") {
        #[cfg(feature = "metrics")]
        let _recorder = has_arg("--recorder").then(|| {
            let builder = metrics_exporter_prometheus::PrometheusBuilder::new();
            builder.install_recorder().expect("no other recorder is installed")
        });
        println!("{}", alone());
    } else {
        #[cfg(feature = "metrics")]
        turns::take();
        #[cfg(not(feature = "metrics"))]
        eprintln!("cargo bench --bench counters --features metrics");
    }
}

/// Returns the nanoseconds per `get` in the best slice of time.
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

    /// Runs all candidates in turns, and prints the table.
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
                let output = output.expect("the benchmark was built");
                let stdout = String::from_utf8_lossy(&output.stdout);
                took.push(stdout.trim().parse::<f64>().expect("stdout is a number"));
            }
        }
        let base = median(took[0].clone());
        println!("| build | ns per `get` | |\n| --- | --- | --- |");
        for ((name, ..), took) in subjects.iter().zip(took) {
            let took = median(took);
            println!("| {name} | {took:.2} | {:+.1} % |", 100.0 * (took / base - 1.0));
        }
    }

    /// Builds this benchmark without the feature. `--cfg lean` omits dependencies that only other tests need.
    fn built(target: &str, flags: &str) -> PathBuf {
        let output = Command::new(env!("CARGO"))
            .args(["bench", "--quiet", "--locked", "--package", "fleeting", "--bench", "counters"])
            .args(["--no-run", "--message-format", "json-render-diagnostics"])
            .args(["--target-dir", target])
            .env("RUSTFLAGS", flags)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        let messages = output.stdout.split(|&byte| byte == b'\n');
        messages
            .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["name"] == "counters")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .expect("the bench builds without the feature")
    }
}
