//! Recorder of the `metrics` facade that renders the page `/metrics`. It supports what this service needs, and compiles
//! quickly. Use `metrics-exporter-prometheus` for summaries, or for a separate port.

use std::{
    collections::BTreeMap,
    fmt::{Arguments, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SetRecorderError,
    SharedString, Unit,
};

/// Upper bounds of the histogram buckets, in seconds.
const BARS: [f64; 10] = [0.000_1, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0, 60.0];

/// All metrics by name.
#[derive(Clone, Default)]
pub(super) struct Page(Arc<Mutex<BTreeMap<String, Family>>>);

#[derive(Default)]
struct Family {
    help: String,
    kind: &'static str,
    /// Series by their labels, in the form of the page.
    series: BTreeMap<String, Series>,
}

/// Value of a counter, of a gauge (as the bits of an `f64`), or of a histogram.
#[derive(Clone, Default)]
struct Series {
    number: Arc<AtomicU64>,
    bars: Arc<Bars>,
}

#[derive(Default)]
struct Bars(Mutex<Recorded>);

#[derive(Default)]
struct Recorded {
    bars: [u64; BARS.len()],
    count: u64,
    sum: f64,
}

impl Page {
    /// Installs a recorder for the metrics of all libraries of this process.
    pub(super) fn install() -> Result<Self, SetRecorderError<Self>> {
        let page = Self::default();
        metrics::set_global_recorder(page.clone())?;
        Ok(page)
    }

    /// Renders all metrics in Prometheus' text format, version 0.0.4.
    pub(super) fn render(&self) -> String {
        let mut page = String::new();
        for (name, Family { help, kind, series }) in &*self.families() {
            if series.is_empty() {
                continue;
            }
            put(&mut page, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
            for (labels, Series { number, bars }) in series {
                let number = number.load(Relaxed);
                match *kind {
                    "counter" => put(&mut page, format_args!("{name}{{{labels}}} {number}")),
                    "gauge" => {
                        let number = f64::from_bits(number);
                        put(&mut page, format_args!("{name}{{{labels}}} {number}"));
                    }
                    _ => bars.render(name, labels, &mut page),
                }
            }
        }
        page
    }

    fn describe(&self, name: &KeyName, help: &str) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        self.families().entry(name.as_str().to_owned()).or_default().help = help;
    }

    fn series(&self, key: &Key, kind: &'static str) -> Series {
        let labels = key.labels().map(|label| {
            let value = label.value().replace('\\', r"\\").replace('"', r#"\""#);
            format!("{}=\"{}\"", label.key(), value.replace('\n', r"\n"))
        });
        let labels = labels.collect::<Vec<_>>().join(",");
        let mut families = self.families();
        let family = families.entry(key.name().to_owned()).or_default();
        family.kind = kind;
        family.series.entry(labels).or_default().clone()
    }

    fn families(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Page {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key, "counter").number)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key, "gauge").number)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key, "histogram").bars)
    }
}

impl HistogramFn for Bars {
    fn record(&self, seconds: f64) {
        let mut recorded = self.recorded();
        if let Some(bar) = BARS.iter().position(|end| seconds <= *end) {
            recorded.bars[bar] += 1;
        }
        recorded.count += 1;
        recorded.sum += seconds;
    }
}

impl Bars {
    fn render(&self, name: &str, labels: &str, page: &mut String) {
        let Recorded { bars, count, sum } = &*self.recorded();
        let comma = if labels.is_empty() { "" } else { "," };
        let mut so_far = 0;
        for (end, bar) in BARS.iter().zip(bars) {
            // The format requires cumulative buckets.
            so_far += bar;
            put(page, format_args!("{name}_bucket{{{labels}{comma}le=\"{end}\"}} {so_far}"));
        }
        put(page, format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"));
        put(page, format_args!("{name}_sum{{{labels}}} {sum}"));
        put(page, format_args!("{name}_count{{{labels}}} {count}"));
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put(page: &mut String, line: Arguments<'_>) {
    writeln!(page, "{line}").expect("writing to a String cannot fail");
}
