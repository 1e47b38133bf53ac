//! Tables of `docs/scale.md`, one file per section.

pub(super) mod herd;
pub(super) mod limits;
pub(super) mod near;
pub(super) mod plan;
pub(super) mod server;

use super::{calibration::Calibration, costs::Costs, picture::Chart};

/// Input of all sections.
pub(super) struct Input {
    pub(super) costs: Costs,
    pub(super) calibration: Calibration,
    /// Shorter runs of smaller fleets, for tests.
    pub(super) quick: bool,
}

/// A section: its text, and a picture with its file name.
pub(super) type Section = (String, Option<(&'static str, String)>);

impl Input {
    /// Returns `full`, or `quick` for a shorter run.
    pub(super) fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the numbers of processes of a table.
    pub(super) fn fleets(&self) -> Vec<usize> {
        self.choose(vec![1, 10, 100, 1_000], vec![1, 10])
    }
}

/// A Markdown table.
pub(super) struct Table(String);

impl Table {
    pub(super) fn new(heads: &[&str]) -> Self {
        Self(format!("| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(heads.len())))
    }

    pub(super) fn row(&mut self, cells: &[String]) {
        self.0 += &format!("| {} |\n", cells.join(" | "));
    }

    pub(super) fn text(self) -> String {
        self.0 + "\n"
    }
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        share if share >= 10.0 || share == 0.0 => format!("{share:.0} %"),
        share => format!("{share:.1} %"),
    }
}

/// Formats the share of its time in which a server is busy.
fn busy(share: f64) -> String {
    if share > 0.99 { "overloaded".to_owned() } else { percent(share) }
}

/// Shows a picture of the page, whose link is defined at its end.
fn shown(name: &str, title: &str) -> String {
    format!("![{title}][{name}]\n\n")
}

fn picture(name: &'static str, chart: &Chart<'_>) -> Option<(&'static str, String)> {
    Some((name, chart.draw()))
}
