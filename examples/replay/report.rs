//! Report about a log, as text and as JSON.

use std::fmt;

use jiff::SignedDuration;
use serde::Serialize;

/// Clients with more requests than this in a minute are reported.
pub(super) const LIMIT: u64 = 60;

/// Maximum number of malformed lines that are listed; the others are only counted.
const NAMED: usize = 20;

/// Upper bounds of the histogram's bars, in seconds.
const BARS: [u64; 6] = [1, 10, 30, 60, 600, 3_600];

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) lines: u64,
    pub(super) malformed: Malformed,
    /// Lines out of order that were sorted by their times.
    pub(super) late: u64,
    /// Lines that were too late for that.
    pub(super) back_in_time: u64,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) opened: u64,
    pub(super) expired: usize,
    pub(super) open: usize,
    /// From the first to the last request of a session.
    pub(super) seconds: Option<Spread>,
    /// Requests per session.
    pub(super) requests: Option<Spread>,
    pub(super) histogram: Vec<Bar>,
    pub(super) over_limit: Vec<OverLimit>,
}

#[derive(Default, Serialize)]
pub(super) struct Malformed {
    count: u64,
    first_lines: Vec<u64>,
}

/// Minimum, percentiles and maximum. Percentiles are nearest ranks, so each of them is a value that occurs.
#[derive(Serialize)]
pub(super) struct Spread {
    min: u64,
    median: u64,
    p90: u64,
    max: u64,
}

#[derive(Serialize)]
pub(super) struct Bar {
    /// `None` for the last bar, which has no upper bound.
    below_seconds: Option<u64>,
    sessions: usize,
}

#[derive(Serialize)]
pub(super) struct OverLimit {
    pub(super) client: String,
    pub(super) most_in_a_minute: u64,
}

impl Malformed {
    pub(super) fn add(&mut self, line: u64) {
        self.count += 1;
        if self.first_lines.len() < NAMED {
            self.first_lines.push(line);
        }
    }
}

impl Spread {
    pub(super) fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let rank = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Self { min, median: rank(50), p90: rank(90), max })
    }

    fn all(&self) -> [u64; 4] {
        [self.min, self.median, self.p90, self.max]
    }
}

pub(super) fn histogram(seconds: impl Iterator<Item = u64>) -> Vec<Bar> {
    let ends = BARS.into_iter().map(Some).chain([None]);
    let mut bars: Vec<_> = ends.map(|end| Bar { below_seconds: end, sessions: 0 }).collect();
    for seconds in seconds {
        bars[BARS.partition_point(|&end| end <= seconds)].sessions += 1;
    }
    bars
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, malformed, late, back_in_time, opened, expired, open, .. } = self;
        writeln!(f, "{lines:>7} lines")?;
        if let (Some(from), Some(to)) = (&self.from, &self.to) {
            writeln!(f, "{:>7} from {from} to {to}", "")?;
        }
        write!(f, "{:>7} malformed", malformed.count)?;
        for (index, line) in malformed.first_lines.iter().enumerate() {
            write!(f, "{}{line}", if index == 0 { ": line " } else { ", " })?;
        }
        let unnamed = malformed.count > NAMED as u64;
        writeln!(f, "{}", if unnamed { ", ..." } else { "" })?;
        writeln!(f, "{late:>7} out of order by up to a minute, sorted by time")?;
        writeln!(f, "{back_in_time:>7} later than that, processed with the current time")?;

        writeln!(f, "\nSessions (a session expires after 30 minutes without a request)")?;
        writeln!(f, "{opened:>7} opened\n{expired:>7} expired\n{open:>7} still open")?;
        if let (Some(seconds), Some(requests)) = (&self.seconds, &self.requests) {
            writeln!(f, "\n{:10} {:>10} {:>10} {:>10} {:>10}", "", "min", "median", "p90", "max")?;
            let [min, median, p90, max] = seconds.all().map(length);
            writeln!(f, "{:10} {min:>10} {median:>10} {p90:>10} {max:>10}", "length")?;
            let [min, median, p90, max] = requests.all();
            writeln!(f, "{:10} {min:>10} {median:>10} {p90:>10} {max:>10}\n", "requests")?;
        }
        let longest =
            self.histogram.iter().map(|bar| bar.sessions).max().unwrap_or_default().max(1);
        for Bar { below_seconds, sessions } in &self.histogram {
            let label = match below_seconds {
                Some(end) => format!("below {}", length(*end)),
                None => "longer".to_owned(),
            };
            let bar = "#".repeat((sessions * 40).div_ceil(longest));
            writeln!(f, "{}", format!("{label:10} {sessions:>10} {bar}").trim_end())?;
        }

        writeln!(f, "\nMore than {LIMIT} requests in a minute")?;
        for OverLimit { client, most_in_a_minute } in &self.over_limit {
            // Escaped: a client name in the log may contain terminal control sequences.
            writeln!(f, "{most_in_a_minute:>7} {}", client.escape_debug())?;
        }
        if self.over_limit.is_empty() {
            writeln!(f, "{:>7}", "none")?;
        }
        Ok(())
    }
}

fn length(seconds: u64) -> String {
    format!("{:#}", SignedDuration::from_secs(seconds as i64))
}
