//! Limits: checks sent, and calls admitted above the quota.

use super::{Input, Section, Table};
use crate::fleet::{
    engine::{MS, SECOND},
    limits::{self, OnError, Settings},
    picture::short,
    windows::{Limit, Window},
};

const WINDOWS: [(&str, Window); 3] =
    [("`Log`", Window::Log), ("`Buckets(10)`", Window::Buckets(10)), ("`Gcra`", Window::Gcra)];

pub(in crate::fleet) fn accuracy(input: &Input) -> Section {
    let mut table = Table::new(&[
        "window",
        "processes",
        "admitted per second, of a quota of 1,000",
        "most in any second, relative to the quota",
        "checks sent per second",
        "without the denial cache",
    ]);
    let seconds = input.choose(10, 2);
    for (name, window) in WINDOWS {
        for processes in input.fleets() {
            let settings = Settings {
                window,
                checks: 4_000.0 / processes as f64,
                warm_up: SECOND,
                time: seconds * SECOND,
                ..Settings::new(processes)
            };
            let cached = limits::run(settings.clone(), &input.costs);
            let sent =
                limits::run(Settings { caches_denials: false, ..settings }, &input.costs).sent;
            table.row(&[
                name.to_owned(),
                processes.to_string(),
                format!("{:.0}", cached.admitted as f64 / seconds as f64),
                format!("{:.2}", cached.over_quota),
                short(cached.sent as f64 / seconds as f64),
                short(sent as f64 / seconds as f64),
            ]);
        }
    }
    let text = format!(
        "## Limits\n\n\
         Ten keys with a quota of 100 calls per second each, and 4,000 checks per second of all processes: four times the \
         quota. Admitted calls are counted at the time of the decision.\n\n{}\
         `Log` and `Buckets` never admit more than the quota in any second. Under a constant excess, `Buckets(10)` admit a \
         tenth less, since a bucket counts until all of it is as old as the window. `Gcra` admits up to twice its quota in \
         one second: the quota at once after an idle time, and then the units that leak. A denial holds until the next \
         call would pass: with `Log` and `Buckets`, often for most of the window, and with `Gcra` for one step. So the \
         denial cache saves most of the denials of the former, and few of the latter. With many processes, \
         each must be denied once before it has a denial to repeat.\n\n",
        table.text()
    );
    (text, None)
}

pub(in crate::fleet) fn failover(input: &Input) -> Section {
    let mut table = Table::new(&[
        "policy",
        "processes",
        "lag of the replica",
        "most in any window, relative to the quota",
    ]);
    // When a fifth of the quota is spent, so that processes have no cached denials.
    let down = (10 * SECOND + 100 * MS, 12 * SECOND + 100 * MS);
    let policies =
        [("`Local`", OnError::Local), ("`Allow`", OnError::Allow), ("`Deny`", OnError::Deny)];
    for (name, on_error) in policies {
        for processes in input.choose(vec![2, 10, 100], vec![2]) {
            for lag in [MS, SECOND] {
                let settings = Settings {
                    on_error,
                    lag,
                    keys: 1,
                    checks: 2_000.0 / processes as f64,
                    limit: Limit { quota: 1_000, per: 10_000_000 },
                    down: Some(down),
                    warm_up: 10 * SECOND,
                    time: 20 * SECOND,
                    ..Settings::new(processes)
                };
                let run = limits::run(settings, &input.costs);
                table.row(&[
                    name.to_owned(),
                    processes.to_string(),
                    format!("{} ms", lag / MS),
                    format!("{:.2}", run.over_quota),
                ]);
            }
        }
    }
    let text = format!(
        "### Failover\n\n\
         One key with a quota of 1,000 calls per 10 s (`Log`), and 2,000 checks per second: twenty times the quota. The \
         server crashes a tenth of a second after a window has begun, and a replica is promoted after 2 s.\n\n{}\
         With `Local`, each process admits up to one further quota while the server is down: two processes \
         admit up to three quotas, and many as much as with `Allow`. If the quota is spent before the crash, processes \
         repeat their cached denials under all policies. The lag of the replica costs at most the charges of that \
         time.\n\n",
        table.text()
    );
    (text, None)
}
