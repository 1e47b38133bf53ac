//! Line charts as SVG, in colours that follow the light or dark scheme of the reader.

/// Line of a chart: its name and its points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// A chart.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// True for each logarithmic axis.
    pub(super) log: (bool, bool),
    pub(super) lines: Vec<Line>,
}

/// Positions of the axes.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 310.0;

const COLORS: [&str; 6] = ["#148c5a", "#558cc8", "#d68f28", "#c44e52", "#8c64aa", "#828282"];

const STYLE: &str = "<style>svg{color:#1f2328;--page:#fff;font:12px sans-serif}text{fill:currentColor}\
    @media(prefers-color-scheme:dark){svg{color:#e6edf3;--page:#0d1117}}</style>";

impl Chart<'_> {
    /// Draws the chart.
    pub(super) fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.1);
        let x = Axis::new(points().map(|point| point.0), self.log.0, (LEFT, RIGHT));
        let y = Axis::new(points().map(|point| point.1), self.log.1, (BOTTOM, TOP));
        let mut svg = format!(
            "<svg width=\"760\" height=\"360\" viewBox=\"0 0 760 360\" xmlns=\"http://www.w3.org/2000/svg\">\n{STYLE}\n\
             <rect width=\"760\" height=\"360\" fill=\"var(--page)\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            self.title
        );
        for tick in x.ticks() {
            let at = x.at(tick);
            svg += &format!(
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\" stroke=\"currentColor\" \
                 stroke-opacity=\".15\"/>\n<text x=\"{at:.1}\" y=\"328\" text-anchor=\"middle\">{}</text>\n",
                short(tick)
            );
        }
        for tick in y.ticks() {
            let at = y.at(tick);
            svg += &format!(
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"currentColor\" \
                 stroke-opacity=\".15\"/>\n<text x=\"64\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                at + 4.0,
                short(tick)
            );
        }
        svg += &format!(
            "<text x=\"315\" y=\"350\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 175) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            self.x, self.y
        );
        for (i, (name, points)) in self.lines.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let line: Vec<String> =
                points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1))).collect();
            let legend = 56 + 20 * i;
            svg += &format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\n\
                 <line x1=\"572\" y1=\"{}\" x2=\"588\" y2=\"{}\" stroke=\"{color}\" stroke-width=\"3\"/>\n\
                 <text x=\"594\" y=\"{legend}\">{name}</text>\n",
                line.join(" "),
                legend - 4,
                legend - 4
            );
        }
        svg + "</svg>\n"
    }
}

/// Returns a URI that contains a picture.
pub(super) fn data_uri(svg: &str) -> String {
    let mut uri = String::from("data:image/svg+xml,");
    for byte in svg.bytes() {
        match byte {
            b'\n' => {}
            // Single quotes would need no encoding, but end some attributes.
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'='
            | b'.'
            | b','
            | b'-'
            | b'/'
            | b':'
            | b';' => uri.push(byte.into()),
            byte => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

/// Range of values, and of their positions.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    positions: (f64, f64),
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, is_log: bool, positions: (f64, f64)) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = match is_log {
            true => (10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil())),
            // From 0 to the next step above the maximum.
            false => (0.0, (high / step(high)).ceil() * step(high)),
        };
        Self { low, high, is_log, positions }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.positions.0 + share * (self.positions.1 - self.positions.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let powers = self.low.log10().round() as i32..=self.high.log10().round() as i32;
            return powers.map(|power| 10_f64.powi(power)).collect();
        }
        let step = step(self.high);
        (0..=(self.high / step).round() as usize).map(|i| i as f64 * step).collect()
    }
}

/// Returns a round number of which four to ten make `high`.
fn step(high: f64) -> f64 {
    let power = 10_f64.powf(high.max(1e-9).log10().floor());
    if high / power >= 5.0 {
        power
    } else if high / power >= 2.0 {
        power / 2.0
    } else {
        power / 5.0
    }
}

/// Formats a number with a unit prefix, such as `10 k`.
pub(super) fn short(number: f64) -> String {
    let rounded = |number: f64| match number {
        n if n >= 10.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    };
    match number {
        n if n >= 999_500.0 => format!("{} M", rounded(n / 1e6)),
        n if n >= 1e3 => format!("{} k", rounded(n / 1e3)),
        n => rounded(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_all_points_inside_of_its_axes() {
        let lines = vec![("a".to_owned(), vec![(1.0, 3.0), (1_000.0, 47.0)])];
        let svg = Chart { title: "t", x: "x", y: "y", log: (true, false), lines }.draw();
        assert!(svg.contains("points=\"70.0,"), "{svg}");
        assert!(svg.contains(" 560.0,"), "{svg}");
    }

    #[test]
    fn data_uri_contains_no_character_that_ends_it() {
        assert_eq!(
            data_uri("<svg x=\"1\">\n</svg>"),
            "data:image/svg+xml,%3Csvg%20x=%221%22%3E%3C/svg%3E"
        );
    }

    #[test]
    fn short_numbers_have_a_unit_prefix() {
        assert_eq!([1.0, 1_500.0, 120_000.0, 1e6].map(short), ["1", "1.5 k", "120 k", "1 M"]);
    }
}
