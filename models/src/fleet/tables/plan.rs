//! Plans: servers for a million requests per second, and the capacity table for users.

use super::{Input, Section, Table, percent};
use crate::fleet::{
    capacity::{BUSY, Keys, MOST_SERVERS, Plan},
    engine::{MS, SECOND},
    near,
    picture::short,
    reservations::Reserve,
};

pub(in crate::fleet) fn million(input: &Input) -> Section {
    let rate = input.choose(1e6, 2e5);
    let requests = input.choose(100_000.0, 4_000.0);
    let mut table = Table::new(&["requests", "100 processes", "1,000 processes"]);
    let keys = 1_000_000;
    let get = vec![(1.0, "get")];
    let check = vec![(1.0, "check Gcra, admitted")];
    let [short_lead, long_lead] = [input.choose(1_000, 10), input.choose(6_000, 20)]
        .map(|time| Some(Reserve { most: 1_000, time: time * MS }));
    let rows = [
        ("`check` of a million keys, equally frequent", &check, 0.0, Keys::Spread, None),
        ("`check`, Zipf with exponent 1", &check, 1.0, Keys::Spread, None),
        ("the same, `reserve(1_000)`, limits per 10 s", &check, 1.0, Keys::Spread, short_lead),
        ("the same, `reserve(1_000)`, limits per minute", &check, 1.0, Keys::Spread, long_lead),
        ("`get` of one cache, equally frequent keys", &get, 0.0, Keys::Caches(1), None),
        ("`get` of eight caches, equally frequent keys", &get, 0.0, Keys::Caches(8), None),
        ("`get` of eight caches, Zipf with exponent 1", &get, 1.0, Keys::Caches(8), None),
    ];
    for (name, mix, exponent, spread, reserve) in rows {
        let mut cells = vec![name.to_owned()];
        for processes in input.choose([100, 1_000], [10, 20]) {
            let margin = input.calibration.margin;
            let mix = mix.clone();
            let plan = Plan { processes, mix, keys, exponent, spread, reserve, margin };
            cells.push(match plan.servers(rate, requests, &input.costs) {
                Some(servers) => servers.to_string(),
                None => {
                    let (busy, _) = plan.run(rate, MOST_SERVERS, requests, &input.costs);
                    format!("more than {MOST_SERVERS} (busiest: {})", super::busy(busy))
                }
            });
        }
        table.row(&cells);
    }
    let near = million_near(input);
    let text = format!(
        "## A million requests per second\n\n\
         Servers, in powers of two up to 64, with which none is busier than 70 %. {}\n\n{}\
         A cache has 16 shards by default, so that one cache is on at most 16 nodes, and some of these have several \
         shards. The most frequent key of a Zipf distribution of a million keys has 7 % of the requests, and is on one \
         node: more nodes do not help. {near}\n\n\
         Reservations help limits: a process that checks a key more often than once in the time of a reservation, a tenth \
         of that of the limit, asks the server once or twice in that time. So the most frequent keys load no node more \
         than others, and the more requests a process makes, the more of its keys are busy. The price is fewer admissions, by at \
         most a tenth of the quota and what lies reserved. Quotas are far above the load here, and a draw \
         is assumed to cost as much as a check; a call that gives units back, too.\n\n",
        input.calibration.included(),
        table.text()
    );
    (text, None)
}

/// Describes the same reads with near caches and one server.
fn million_near(input: &Input) -> String {
    let processes = input.choose(1_000, 20);
    let settings = near::Settings {
        changes: 10.0,
        max_age: 60 * SECOND,
        keys: 1_000,
        warm_up: input.choose(5, 1) * SECOND,
        time: SECOND,
        ..near::Settings::new(processes)
    };
    let run = near::run(settings, &input.costs);
    let share = input.calibration.margin * run.load.busy as f64 / SECOND as f64;
    let server = match super::busy(share) {
        share if share.ends_with('%') => format!("{share} busy"),
        overloaded => overloaded,
    };
    format!(
        "Near caches do: with 1,000 reads per second of each of {processes} processes, 1,000 keys and 10 changes per \
         second, they answer {} of the reads after five seconds, and one server is {server}.",
        percent(run.hits as f64 / run.reads.max(1) as f64)
    )
}

pub(in crate::fleet) fn capacity(input: &Input) -> Section {
    let rates = input.choose(vec![1e3, 1e4, 5e4, 2e5, 1e6], vec![1e3, 1e4]);
    let mut table = Table::new(&[
        "requests per second",
        "processes",
        "sessions in a cache",
        "sessions in eight caches",
        "a limit per user",
        "with reservations",
        "both, in eight caches",
    ]);
    let sessions = vec![(0.8, "get"), (0.2, "set_ex")];
    let check = vec![(1.0, "check Gcra, admitted")];
    let reserve = Some(Reserve { most: 1_000, time: input.choose(1_000, 10) * MS });
    let plans = [
        (&sessions, Keys::Caches(1), None),
        (&sessions, Keys::Caches(8), None),
        (&check, Keys::Spread, None),
        (&check, Keys::Spread, reserve),
    ];
    for rate in rates {
        let processes = ((rate / 1e3) as usize).clamp(2, 1_000);
        let mut cells = vec![short(rate), processes.to_string()];
        let mut sum = 0;
        for (mix, spread, reserve) in plans {
            let (mix, margin) = (mix.clone(), input.calibration.margin);
            let (keys, exponent) = (100_000, 0.6);
            let plan = Plan { processes, mix, keys, exponent, spread, reserve, margin };
            let servers = plan.servers(rate, input.choose(60_000.0, 4_000.0), &input.costs);
            if spread != Keys::Caches(1) && reserve.is_none() {
                sum += servers.unwrap_or(MOST_SERVERS + 1);
            }
            cells.push(servers.map_or("more than 64".into(), |servers| servers.to_string()));
        }
        cells.push(if sum > MOST_SERVERS { "more than 64".into() } else { sum.to_string() });
        table.row(&cells);
    }
    let mut memory = Table::new(&["keys", "sessions", "sessions with events", "a limit per user"]);
    for keys in [1e5, 1e6, 1e7, 1e8] {
        let gigabytes = |name: &str| {
            let bytes = 2.0 * keys * input.costs.bytes(name);
            format!("{:.1} GB", bytes / 1e9)
        };
        memory.row(&[
            short(keys),
            gigabytes("value of a cache"),
            gigabytes("value of a cache with events"),
            gigabytes("key of a limiter, Gcra, 10 calls"),
        ]);
    }
    let text = format!(
        "## Capacity\n\n{}\
         Servers that are busy for at most {:.0} % of their time, in powers of two, for one request per \
         user call: four `get`s and one `set_ex`, or one `check` of a `Gcra` limit, or both on servers of their own. One process per \
         1,000 requests per second; 100,000 keys in use, by a Zipf distribution with exponent 0.6. Replicas are not \
         included: add one per server. \"With reservations\": `reserve(1_000)` and limits per 10 s. They help little here, \
         since no process checks a user often; [they help](#a-million-requests-per-second) if few keys have most of the \
         checks.\n\n{}\
         Memory of all servers together: twice the measured bytes, for fragmentation, buffers and the copy during a save. \
         Values of more than 23 bytes need their additional bytes, too.\n\n{}",
        input.calibration.warning(),
        100.0 * BUSY,
        table.text(),
        memory.text()
    );
    (text, None)
}
