//! Costs of the calls, and the end of one server.

use super::{Input, Section, Table, picture, shown};
use crate::fleet::{
    capacity::{Keys, Plan},
    costs::{CONNECTIONS, Costs},
    picture::{Chart, short},
};

/// Requests of services, by name.
pub(super) fn mixes() -> Vec<(&'static str, Vec<(f64, &'static str)>)> {
    vec![
        ("`get`", vec![(1.0, "get")]),
        ("sessions: four `get`, one `set_ex`", vec![(0.8, "get"), (0.2, "set_ex")]),
        ("the same with events", vec![(0.8, "get"), (0.2, "set_ex with events")]),
        ("`check`, `Gcra`", vec![(1.0, "check Gcra, admitted")]),
        ("`check`, `Log`", vec![(1.0, "check Log, admitted")]),
    ]
}

pub(in crate::fleet) fn costs(input: &Input) -> Section {
    let costs = &input.costs;
    let mut memory = Table::new(&["stored on the server", "bytes each", "GB per 10 million"]);
    for (name, bytes) in &costs.bytes {
        memory.row(&[name.clone(), format!("{bytes:.0}"), format!("{:.1}", bytes / 100.0)]);
    }
    let mut idle =
        Table::new(&["idle handle", "commands executed per second", "of 1,000 processes"]);
    for (name, rate) in &costs.idle {
        idle.row(&[name.clone(), format!("{rate:.1}"), short(rate * 1e3)]);
    }
    let turns = costs.turns;
    let connections: Vec<String> = CONNECTIONS
        .iter()
        .zip(turns.connection_us)
        .map(|(n, us)| format!("{us:.1} µs with {n}"))
        .collect();
    let text = format!(
        "## Costs of one call\n\n\
         Measured on Redis {}. Values have 23 bytes and keys 21. Processor times are those of the \
         server's main thread, without its turns.\n\n{}\
         In a turn of the server's event loop, each connection with commands costs {} connections in use. The turn \
         itself costs {:.1} µs. After a pause of two milliseconds, the first call costs more, as in the table. A \
         notified connection costs {:.2} µs per turn with changes, and {:.3} µs for each changed key. A new connection of the client costs {:.0} µs.\n\n{}{}",
        costs.server,
        calls(costs),
        connections.join(", "),
        turns.turn_us,
        turns.push_us,
        turns.pushed_key_us,
        turns.connect_us,
        memory.text(),
        idle.text(),
    );
    (text, None)
}

/// Returns the table of the calls.
fn calls(costs: &Costs) -> String {
    let mut calls = Table::new(&[
        "call",
        "commands sent",
        "commands executed",
        "server µs",
        "more µs after a pause",
        "bytes received",
        "bytes sent",
    ]);
    for (name, call) in &costs.calls {
        // Not calls of users.
        if name == "lookup_lease" || name == "publish" {
            continue;
        }
        let name = format!("`{name}`").replace(", ", "`, ");
        let name = if name.matches('`').count() % 2 == 1 {
            name.trim_end_matches('`').into()
        } else {
            name
        };
        let bytes = [call.bytes_in, call.bytes_out].map(|bytes| format!("{:.0}", bytes.max(0.0)));
        let [bytes_in, bytes_out] = bytes;
        let counts = [call.sent, call.executed].map(|count| match count {
            count if (count - count.round()).abs() < 0.05 => format!("{count:.0}"),
            count => format!("{count:.1}"),
        });
        let [sent, executed] = counts;
        calls.row(&[
            name,
            sent,
            executed,
            format!("{:.1}", call.us),
            format!("{:.0}", call.cold_us),
            bytes_in,
            bytes_out,
        ]);
    }
    calls.text()
}

pub(in crate::fleet) fn one_server(input: &Input) -> Section {
    let fleets = input.fleets();
    let heads: Vec<String> = fleets.iter().map(|n| format!("with {n}")).collect();
    let heads: Vec<&str> =
        ["requests, by processes"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heads);
    let mut lines = Vec::new();
    for (name, mix) in mixes() {
        let mut cells = vec![name.to_owned()];
        let mut line = Vec::new();
        for &processes in &fleets {
            let mix = mix.clone();
            let plan = Plan {
                processes,
                mix,
                keys: 1_000,
                exponent: 0.0,
                spread: Keys::Spread,
                reserve: None,
                margin: input.calibration.margin,
            };
            let (rate, p99) = plan.most(input.choose(40_000.0, 4_000.0), &input.costs);
            cells.push(format!("{} ({p99:.1} ms)", short(rate)));
            line.push((processes as f64, rate));
        }
        table.row(&cells);
        lines.push((name.replace('`', ""), line));
    }
    let chart = Chart {
        title: "Requests per second of one server that is 70 % busy",
        x: "processes",
        y: "requests per second",
        log: (true, true),
        lines,
    };
    let text = format!(
        "## The end of one server\n\n\
         Requests per second with which one server is busy for 70 % of its time, and in brackets the 99th percentile \
         of the times of the requests, of which the network takes 0.5 ms. {}\n\n{}\
         The more processes share the load, the fewer commands the server reads at once from a connection. So \
         the same load costs more.\n\n{}",
        input.calibration.included(),
        table.text(),
        shown("scale-server.svg", chart.title)
    );
    (text, picture("scale-server.svg", &chart))
}
