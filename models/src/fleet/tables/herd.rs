//! Thundering herds: requests after a failover, and loads after a loss of all values.

use super::{Input, Section, Table, percent};
use crate::fleet::{
    engine::{MS, SECOND, Span},
    loads, near,
    picture::short,
    requests,
};

/// Begin of the failures.
const BEGIN: u64 = 2 * SECOND;

pub(in crate::fleet) fn failover(input: &Input) -> Section {
    let mut table = Table::new(&[
        "requests",
        "processes",
        "down for",
        "commands in 10 ms before",
        "most afterwards",
        "failed requests",
        "no slow request after",
    ]);
    for processes in input.fleets() {
        for ms in [500, 3_000] {
            let down = (BEGIN, BEGIN + ms * MS);
            plain(input, &mut table, processes, down);
            if processes > 1 {
                near_caches(input, &mut table, processes, down);
            }
        }
    }
    let text = format!(
        "## Herds\n\n\
         After a failover, requests that waited and those of near caches, whose answers are not used any more, reach the \
         new master at once. All processes together make 50,000 reads per second of 10,000 keys. A slow request takes \
         longer than 10 ms; the last column counts from the promotion of a replica that has all data.\n\n{}\
         Waiting calls try again after 2 ms to 50 ms, so they arrive spread over 50 ms. After 0.95 s without a \
         connection, calls fail at once, and each process only tests the server every 0.4 s. So a long outage ends \
         up to 0.4 s later for some processes. Requests that would fail immediately are the failed ones of the long \
         outage.\n\n",
        table.text()
    );
    (text, None)
}

fn plain(input: &Input, table: &mut Table, processes: usize, down: Span) {
    let rate = input.choose(50_000.0, 5_000.0);
    let settings = requests::Settings {
        processes,
        rate,
        keys: 10_000,
        exponent: 1.0,
        placement: vec![0],
        reserve: None,
        mix: vec![(1.0, "get")],
        down: Some(down),
        tick: 0,
        round_trip: MS / 2,
        time: 6 * SECOND,
        seed: crate::fleet::SEED,
    };
    let run = requests::run(settings, &input.costs);
    table.row(&[
        "`get`".to_owned(),
        processes.to_string(),
        format!("{} ms", (down.1 - down.0) / MS),
        short(rate / 100.0),
        short(run.peak as f64),
        percent(run.failed as f64 / run.made.max(1) as f64),
        format!("{} ms", run.slow_until / MS),
    ]);
}

fn near_caches(input: &Input, table: &mut Table, processes: usize, down: Span) {
    let settings = near::Settings {
        reads: input.choose(50_000.0, 5_000.0) / processes as f64,
        changes: 10.0,
        max_age: 60 * SECOND,
        warm_up: BEGIN - SECOND,
        time: 7 * SECOND,
        down: Some(down),
        ..near::Settings::new(processes)
    };
    let before = near::Settings { down: None, time: SECOND, ..settings.clone() };
    let before = near::run(before, &input.costs).asked as f64 / 100.0;
    let run = near::run(settings, &input.costs);
    table.row(&[
        "`get` with near caches".to_owned(),
        processes.to_string(),
        format!("{} ms", (down.1 - down.0) / MS),
        short(before),
        short(run.peak as f64),
        percent(run.failed as f64 / (run.reads + run.failed).max(1) as f64),
        format!("{} ms", run.slow_until / MS),
    ]);
}

pub(in crate::fleet) fn loads(input: &Input) -> Section {
    let mut table = Table::new(&[
        "processes",
        "leases",
        "loads per lost value",
        "most loads at once",
        "requests for leases",
        "99 % of the calls take, with the outage, at most",
    ]);
    for processes in input.fleets() {
        for leases in [true, false] {
            let settings = loads::Settings {
                calls: 20_000.0 / processes as f64,
                keys: input.choose(5_000, 500),
                ttl: 600 * SECOND,
                leases,
                down: Some((BEGIN, BEGIN + 500 * MS)),
                warm_up: BEGIN - MS,
                time: 4 * SECOND,
                ..loads::Settings::new(processes)
            };
            let mut run = loads::run(settings, &input.costs);
            table.row(&[
                processes.to_string(),
                if leases { "yes" } else { "no" }.to_owned(),
                format!("{:.2}", run.loads as f64 / run.renewed.max(1) as f64),
                run.most_loads.to_string(),
                short(run.lookups as f64),
                format!("{:.0} ms", run.times.quantile_ms(0.99)),
            ]);
        }
    }
    let text = format!(
        "### Loads of lost values\n\n\
         A server restarts without its data. All processes together make 20,000 calls of `get_or_set_with` per second for \
         5,000 keys; a load takes 50 ms. The server is down for 0.5 s. Without leases, each process would load \
         the values that it misses until one of them has written each.\n\n{}",
        table.text()
    );
    (text, None)
}
