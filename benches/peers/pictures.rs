//! Pictures of docs/, drawn as SVG.

use plotters::{coord::combinators::LogScalable, prelude::*};

use crate::{growth::Lines, mass_expiration::MassExpiration};

const COLORS: [RGBColor; 6] = [
    RGBColor(130, 130, 130),
    RGBColor(214, 143, 40),
    RGBColor(196, 78, 82),
    RGBColor(85, 140, 200),
    RGBColor(140, 100, 170),
    RGBColor(20, 140, 90),
];
const FONT: &str = "sans-serif";

/// Style of the SVG: colours that follow the light or dark scheme of the reader.
const STYLE: &str = "<style>svg{color:#1f2328;--page:#fff}\
    @media(prefers-color-scheme:dark){svg{color:#e6edf3;--page:#0d1117}}</style>";

/// Draws a panel for each kind of call and a line for each candidate, with logarithmic axes.
pub(crate) fn growth(path: &str, panels: &[Lines]) {
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, (1_200, 420)).into_drawing_area();
    root.fill(&WHITE).expect("drawn in memory");
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        let all = panel.samples.iter().flatten().copied();
        let (low, high) = all.fold((f64::MAX, 1.0), |(l, h), y| (l.min(y), f64::max(h, y)));
        let sizes = panel.sizes[0]..panel.sizes[panel.sizes.len() - 1];
        let mut chart = ChartBuilder::on(area)
            .caption(panel.title, (FONT, 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(sizes.log_scale(), (low * 0.7..high * 1.5).log_scale())
            .expect("drawn in memory");
        chart
            .configure_mesh()
            .x_desc("entries")
            .y_desc("nanoseconds")
            .axis_desc_style((FONT, 12))
            .x_labels(panel.sizes.len())
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .label_style((FONT, 12))
            .light_line_style(TRANSPARENT)
            .draw()
            .expect("drawn");
        for (i, (name, samples)) in panel.names.iter().zip(&panel.samples).enumerate() {
            let color = COLORS[if panel.names.len() < COLORS.len() { [1, 5][i] } else { i }];
            let line: Vec<(f64, f64)> =
                panel.sizes.iter().copied().zip(samples.iter().copied()).collect();
            let width = if *name == "fleeting" { 4 } else { 2 };
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(width)))
                .expect("drawn in memory")
                .label(*name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(width))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font((FONT, 12))
            .background_style(WHITE.mix(0.8))
            .draw()
            .expect("drawn in memory");
    }
    root.present().expect("drawn in memory");
    drop(root);
    write(path, &picture);
}

/// Draws bars on logarithmic axes: the time until all entries are removed, and the reader's p99.9 and worst in that
/// time.
pub(crate) fn mass_expiration(path: &str, results: &[MassExpiration]) {
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, (1_200, 320)).into_drawing_area();
    root.fill(&WHITE).expect("drawn in memory");
    type Panel = (&'static str, &'static str, fn(&MassExpiration) -> f64);
    let panels: [Panel; 3] = [
        ("all removed", "milliseconds", |result| result.removed_ms),
        ("reader's p99.9", "microseconds", |result| result.p999_us),
        ("reader's worst", "microseconds", |result| result.worst_us),
    ];
    for (area, (title, unit, value)) in root.split_evenly((1, 3)).iter().zip(panels) {
        let highest = results.iter().map(value).fold(1.0, f64::max);
        let count = results.len();
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 16))
            .margin(12)
            .x_label_area_size(40)
            .build_cartesian_2d((0.1..highest * 20.0).log_scale(), 0.0..count as f64)
            .expect("drawn in memory");
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(6)
            .x_desc(unit)
            .axis_desc_style((FONT, 12))
            .x_label_formatter(&short)
            .label_style((FONT, 12))
            .light_line_style(TRANSPARENT)
            .draw()
            .expect("drawn");
        for (i, result) in results.iter().enumerate() {
            let y = (count - 1 - i) as f64;
            let color = if result.name.starts_with("fleeting") { COLORS[5] } else { COLORS[0] };
            let bar = [(0.1_f64.as_f64(), y + 0.55), (value(result), y + 0.15)];
            let label = match result.is_stopped {
                true => format!("{}: stopped", result.name),
                false => format!("{}: {:.1}", result.name, value(result)),
            };
            chart.draw_series([Rectangle::new(bar, color.filled())]).expect("drawn in memory");
            chart
                .draw_series([Text::new(label, (0.12, y + 0.92), (FONT, 13))])
                .expect("drawn in memory");
        }
    }
    root.present().expect("drawn in memory");
    drop(root);
    write(path, &picture);
}

/// Writes the picture, with black and white replaced by the colours of [`STYLE`].
fn write(path: &str, picture: &str) {
    let (head, drawing) = picture.split_once('\n').expect("an SVG has more than a line");
    let drawing = drawing.replace("#000000", "currentColor").replace("#FFFFFF", "var(--page)");
    std::fs::write(path, format!("{head}\n{STYLE}\n{drawing}"))
        .expect("the picture can be written");
}

/// Formats a number with a unit prefix, such as `10 k`.
fn short(number: &f64) -> String {
    match *number {
        n if n >= 1e6 => format!("{} M", n / 1e6),
        n if n >= 1e3 => format!("{} k", n / 1e3),
        n => format!("{n}"),
    }
}
