//! Load average and page faults of this machine over the last two minutes, as reported by Linux.
//!
//! The example of the article "Time Expired Sets Using Redis", without Redis: samples are pushed to an `ExpiringSet`,
//! and samples older than two minutes expire. `cargo run --example server_stats -- 5` samples for 5 seconds.

use std::{error::Error, fs::read_to_string, time::Duration};

use fleeting::ExpiringSet;
use tokio::time::{Instant, interval};

#[derive(Clone, PartialEq, Eq, Hash)]
struct Sample {
    at: Instant,
    /// Load average over the last minute, in hundredths.
    load: u32,
    /// Page faults since the machine was started.
    faults: u64,
}

impl Sample {
    fn take() -> Result<Self, Box<dyn Error>> {
        let load = read_to_string("/proc/loadavg")?;
        let load: f64 = load.split(' ').next().ok_or("/proc/loadavg is empty")?.parse()?;
        let counts = read_to_string("/proc/vmstat")?;
        let faults = counts.lines().find_map(|line| line.strip_prefix("pgfault "));
        let faults = faults.ok_or("/proc/vmstat has no pgfault line")?.parse()?;
        Ok(Self { at: Instant::now(), load: (load * 100.0).round() as u32, faults })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(5), |seconds| seconds.parse())?;
    let samples = ExpiringSet::new(Duration::from_secs(120));
    let mut every_second = interval(Duration::from_secs(1));
    for _ in 0..=seconds {
        every_second.tick().await;
        samples.push(Sample::take()?).await;
    }

    let samples = samples.elements().await;
    let loads = samples.iter().map(|sample| f64::from(sample.load) / 100.0);
    let (mean, max) =
        (loads.clone().sum::<f64>() / samples.len() as f64, loads.fold(0.0, f64::max));
    println!("{} samples in the last two minutes", samples.len());
    println!("load: {mean:.2} on average, {max:.2} at most");
    if let [first, .., last] = &samples[..] {
        let faults = (last.faults - first.faults) as f64 / (last.at - first.at).as_secs_f64();
        println!("page faults: {faults:.0} per second");
    }
    Ok(())
}
