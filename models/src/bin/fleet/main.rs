//! Commands of the simulated fleet: `measure`, `calibrate` and `page`.

mod calibrate;
mod child;
mod measure;
mod methods;
#[path = "../../../../tests/common/patience.rs"]
mod patience;
mod probe;
#[path = "../../../../tests/common/redis.rs"]
mod servers;
mod simulate;

use std::env;

use fleeting_models::fleet::page;

const USAGE: &str = "usage: fleet COMMAND
  measure              measures the costs of a real redis-server, and writes models/costs.txt
  calibrate [SECONDS]  compares the simulation with 1, 2, 4 and 8 processes on a real redis-server, and writes
                       models/calibration.md; each of 12 runs takes SECONDS, 10 by default
  page [quick]         simulates, and writes docs/scale.md and its pictures; `quick` only prints a shorter run";

/// Directory of the package.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["measure"] => measure::run(),
        ["calibrate"] => calibrate::run(10),
        ["calibrate", seconds] => calibrate::run(seconds.parse().expect("a number of seconds")),
        ["child", ..] => child::run(&args[1..]),
        ["page"] => write_page(),
        ["page", "quick"] => println!("{}", page::make(true, &calibration()).text),
        _ => println!("{USAGE}"),
    }
}

fn write_page() {
    let page = page::make(false, &calibration());
    let docs = format!("{HERE}/../docs");
    std::fs::write(format!("{docs}/scale.md"), &page.text).expect("docs is writable");
    std::fs::write(format!("{docs}/scale-pictures.md"), page.definitions())
        .expect("docs is writable");
    for (name, picture) in page.pictures {
        std::fs::write(format!("{docs}/{name}"), picture).expect("docs is writable");
    }
}

fn calibration() -> String {
    let table = std::fs::read_to_string(format!("{HERE}/calibration.md"));
    table.expect("`calibrate` has written its table")
}
