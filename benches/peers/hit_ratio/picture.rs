//! Picture of the hit ratios: a panel for each trace and a line for each candidate.

use plotters::prelude::*;

use crate::{Cell, NAMES, SIZES};

const FONT: &str = "sans-serif";
const COLORS: [RGBColor; NAMES.len()] = [
    RGBColor(20, 140, 90),
    RGBColor(214, 143, 40),
    RGBColor(230, 190, 120),
    RGBColor(196, 78, 82),
    RGBColor(150, 110, 80),
    RGBColor(85, 140, 200),
    RGBColor(140, 100, 170),
    RGBColor(130, 130, 130),
];

/// Style of the SVG: colours that follow the light or dark scheme of the reader.
const STYLE: &str = "<style>svg{color:#1f2328;--page:#fff}\
    @media(prefers-color-scheme:dark){svg{color:#e6edf3;--page:#0d1117}}</style>";

pub(crate) fn draw(path: &str, cells: &[Cell]) {
    let mut picture = String::new();
    let traces: Vec<&[Cell]> = cells.chunk_by(|a, b| a.trace == b.trace).collect();
    let rows = traces.len().div_ceil(4);
    let last = (SIZES.len() - 1) as f64;
    let size = (1_200, 240 * rows as u32);
    let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
    root.fill(&WHITE).expect("drawn in memory");
    for (i, (area, trace)) in root.split_evenly((rows, 4)).iter().zip(&traces).enumerate() {
        let highest = trace.iter().flat_map(|cell| cell.hits).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(trace[0].trace, (FONT, 15))
            .margin(8)
            .margin_right(18)
            .x_label_area_size(22)
            .y_label_area_size(34)
            .build_cartesian_2d(0.0..last, 0.0..highest * 1.05)
            .expect("drawn in memory");
        chart
            .configure_mesh()
            .x_labels(SIZES.len())
            .x_label_formatter(&|nth: &f64| format!("{} %", SIZES[nth.round() as usize]))
            .y_label_formatter(&|percent: &f64| format!("{percent:.0}"))
            .y_labels(5)
            .label_style((FONT, 11))
            .light_line_style(TRANSPARENT)
            .draw()
            .expect("drawn in memory");
        for (nth, name) in NAMES.iter().enumerate() {
            let color = COLORS[nth];
            let width = if nth == 0 { 3 } else { 1 };
            let line = (0..).zip(*trace).map(|(at, cell)| (f64::from(at), cell.hits[nth]));
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(width)))
                .expect("drawn in memory")
                .label(*name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], color.stroke_width(width))
                });
        }
        if i == 0 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .label_font((FONT, 10))
                .background_style(WHITE.mix(0.8))
                .draw()
                .expect("drawn in memory");
        }
    }
    root.present().expect("drawn in memory");
    drop(root);
    let (head, drawing) = picture.split_once('\n').expect("an SVG has more than a line");
    let drawing = drawing.replace("#000000", "currentColor").replace("#FFFFFF", "var(--page)");
    std::fs::write(path, format!("{head}\n{STYLE}\n{drawing}"))
        .expect("the picture can be written");
}
