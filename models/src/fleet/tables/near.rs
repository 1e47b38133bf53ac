//! Near caches: hits, outdated answers, failures, and a day.

use super::{Input, Section, Table, busy, percent, picture, shown};
use crate::fleet::{
    engine::{MS, SECOND},
    near::{self, Outcome, Settings},
    picture::{Chart, short},
};

pub(in crate::fleet) fn hits(input: &Input) -> Section {
    let mut table = Table::new(&[
        "processes",
        "changes per second",
        "`near_max_age`",
        "hits",
        "requests to the server per second",
        "server busy",
        "without near caches",
        "outdated answers",
        "oldest, 99 %",
        "oldest",
    ]);
    for processes in input.fleets() {
        for (changes, max_age) in [(1.0, 1), (100.0, 1), (100.0, 60), (1_000.0, 60)] {
            let time = input.choose(2, 1) * SECOND;
            let settings = Settings {
                reads: 200.0,
                keys: 1_000,
                changes,
                max_age: max_age * SECOND,
                warm_up: input.choose(10, 1) * SECOND,
                time,
                ..Settings::new(processes)
            };
            let mut run = near::run(settings.clone(), &input.costs);
            let without = Settings { max_age: 0, warm_up: SECOND / 10, ..settings };
            let without = near::run(without, &input.costs);
            let share = |run: &Outcome| run.load.busy as f64 / time as f64;
            table.row(&[
                processes.to_string(),
                changes.to_string(),
                format!("{max_age} s"),
                percent(run.hits as f64 / run.reads.max(1) as f64),
                short(run.asked as f64 * 1e9 / time as f64),
                busy(share(&run)),
                busy(share(&without)),
                format!("{:.4} %", 100.0 * run.stale.len() as f64 / run.hits.max(1) as f64),
                format!("{:.1} ms", run.stale.quantile_ms(0.99)),
                format!("{:.1} ms", run.stale.quantile_ms(1.0)),
            ]);
        }
    }
    let text = format!(
        "## Near caches\n\n\
         Each process makes 200 reads per second of 1,000 keys, by a Zipf distribution with exponent 1. Changes have \
         the same distribution, so that the keys that are read most also change most. An outdated answer is one that \
         the process returns after the server has executed a change; its age is the time since that change.\n\n{}\
         The hits of a process do not depend on the number of processes, but the server sends each change to all of them: \
         the product of processes and changes per second is its load. If keys change about as often as each process reads \
         them, near caches cost more than they save.\n\n",
        table.text()
    );
    (text, None)
}

pub(in crate::fleet) fn failures(input: &Input) -> Section {
    let processes = input.choose(100, 10);
    let base = Settings {
        changes: 100.0,
        affected: processes / 10,
        warm_up: 2 * SECOND,
        time: 8 * SECOND,
        reads: input.choose(1_000.0, 200.0),
        ..Settings::new(processes)
    };
    let cut = |ms: u64| Some((4 * SECOND, 4 * SECOND + ms * MS));
    let minute = 60 * SECOND;
    let rows = [
        ("none", base.clone()),
        (
            "a tenth of the processes has round trips of 20 ms",
            Settings { slow: Some(20 * MS), ..base.clone() },
        ),
        ("a tenth is cut off for 0.5 s", Settings { cut: cut(500), ..base.clone() }),
        ("a tenth is cut off for 5 s", Settings { cut: cut(5_000), ..base.clone() }),
        (
            "the same, with `near_max_age` of a minute",
            Settings { cut: cut(5_000), max_age: minute, ..base.clone() },
        ),
        ("failover of 2 s", Settings { down: cut(2_000), ..base }),
    ];
    let mut table = Table::new(&["failure", "hits", "failed reads", "outdated answers", "oldest"]);
    for (name, settings) in rows {
        let mut run = near::run(settings, &input.costs);
        table.row(&[
            name.to_owned(),
            percent(run.hits as f64 / run.reads.max(1) as f64),
            percent(run.failed as f64 / (run.reads + run.failed).max(1) as f64),
            format!("{:.3} %", 100.0 * run.stale.len() as f64 / run.hits.max(1) as f64),
            format!("{:.0} ms", run.stale.quantile_ms(1.0)),
        ]);
    }
    let text = format!(
        "### Failures\n\n\
         {processes} processes that make 1,000 reads per second of 10,000 keys each, and 100 changes per second, during 8 s \
         with one failure.\n\n{}\
         An answer is outdated for at most `near_max_age`. A silent connection is detected within 1.5 s, which bounds \
         the age even with a longer `near_max_age`.\n\n",
        table.text()
    );
    (text, None)
}

pub(in crate::fleet) fn day(input: &Input) -> Section {
    let processes = input.choose(50, 5);
    let mut lines = [("hits, %", vec![]), ("requests to server, %", vec![])];
    let mut table = Table::new(&[
        "hour",
        "reads per second of a process",
        "hits",
        "requests to the server per second",
    ]);
    for hour in (0..24).step_by(input.choose(1, 6)) {
        // From a tenth of the maximum at four o'clock to the maximum at sixteen o'clock.
        let angle = std::f64::consts::TAU * (hour as f64 - 4.0) / 24.0;
        let reads = 1_000.0 * (0.55 - 0.45 * angle.cos());
        let settings = Settings {
            reads,
            changes: 50.0,
            max_age: 60 * SECOND,
            warm_up: input.choose(10, 1) * SECOND,
            time: 2 * SECOND,
            ..Settings::new(processes)
        };
        let run = near::run(settings, &input.costs);
        let hits = run.hits as f64 / run.reads.max(1) as f64;
        lines[0].1.push((hour as f64, 100.0 * hits));
        lines[1].1.push((hour as f64, 100.0 * run.asked as f64 / run.reads.max(1) as f64));
        if hour % 4 == 0 {
            let asked = short(run.asked as f64 / 2.0);
            table.row(&[hour.to_string(), format!("{reads:.0}"), percent(hits), asked]);
        }
    }
    let lines = lines.map(|(name, points)| (name.to_owned(), points)).to_vec();
    let (x, y) = ("hour", "% of the reads");
    let chart = Chart { title: "Near caches over a day", x, y, log: (false, false), lines };
    let text = format!(
        "### A day\n\n\
         {processes} processes whose load changes over the day, and 50 changes per second at all hours. At night, a key \
         changes more often between two reads, so that a smaller share of the reads is answered in the process. The \
         caches have been in use for only ten seconds in each simulated hour; later, they answer more.\n\n{}{}",
        table.text(),
        shown("scale-day.svg", chart.title)
    );
    (text, picture("scale-day.svg", &chart))
}
