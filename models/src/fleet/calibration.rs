//! Differences between real and simulated servers, in the table that `fleet calibrate` writes.

/// Summary of the rows that compare how busy a server is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calibration {
    /// Number of rows.
    pub(super) rows: usize,
    /// Number of rows whose difference is above a fifth.
    pub(super) off: usize,
    /// Factor by which a real server was busier than a simulated one, at most.
    pub(super) margin: f64,
}

impl Calibration {
    /// Reads the table.
    ///
    /// # Panics
    ///
    /// Panics if it has no row of a busy server.
    pub(super) fn read(table: &str) -> Self {
        let rows = table.lines().filter(|line| line.contains("server busy, %"));
        let ratios = rows.map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let [measured, simulated] =
                [3, 4].map(|at| cells[at].parse::<f64>().expect("shares are numbers"));
            measured / simulated
        });
        let ratios: Vec<f64> = ratios.collect();
        assert!(!ratios.is_empty(), "the table has no row of a busy server");
        let off = ratios.iter().filter(|ratio| (1.0 / **ratio - 1.0).abs() > 0.2).count();
        Self { rows: ratios.len(), off, margin: ratios.into_iter().fold(1.0, f64::max) }
    }
}

impl Calibration {
    /// Warns readers of plans.
    pub(super) fn warning(&self) -> String {
        let Self { rows, off, margin } = self;
        let differ = match off {
            0 => format!("none of {rows} comparisons differs by more than 20 %"),
            off => format!("{off} of {rows} comparisons differ by more than 20 %"),
        };
        format!(
            "**A real server may be busier than a simulated one.** In the [calibration](#calibration), it was up to \
             {margin:.2} times as busy; {differ}. The tables of this section, of the end of one server and of a million \
             requests per second include this factor: their servers are busy for {:.0} % of their time in the simulation, \
             and for 70 % with the factor. All other tables are as simulated.\n\n",
            70.0 / margin
        )
    }

    /// Describes a table that includes the margin.
    pub(super) fn included(&self) -> String {
        format!("The factor {:.2} of the calibration is included.", self.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margin_is_the_largest_ratio_of_a_busy_server() {
        let table = "| near: hits, % | 1 | 80.0 | 20.0 | -75 % |\n\
            | near: server busy, % | 1 | 3.0 | 2.0 | -33 % |\n\
            | near: server busy, % | 2 | 4.0 | 5.0 | +25 % |\n\
            | near: server busy, % | 4 | 5.0 | 5.5 | +10 % |";
        assert_eq!(Calibration::read(table), Calibration { rows: 3, off: 2, margin: 1.5 });
        let less_busy = table.lines().last().expect("it has lines");
        assert_eq!(Calibration::read(less_busy).margin, 1.0, "a plan has no margin below 1");
    }
}
