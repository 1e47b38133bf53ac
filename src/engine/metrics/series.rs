//! Series of a kind of object: their names, descriptions and recorder handles.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};

/// One series of a kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    kind: SeriesKind,
    pub(super) name: &'static str,
    help: &'static str,
    /// A label in addition to the name of the object.
    label: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeriesKind {
    Counter,
    Gauge,
    Histogram,
}

/// Handle of a series in a recorder.
pub(super) enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

static METADATA: Metadata<'static> =
    Metadata::new("fleeting", Level::INFO, Some(env!("CARGO_PKG_NAME")));

/// A count, which only grows.
pub(crate) const fn counter(name: &'static str, help: &'static str) -> Series {
    Series { kind: SeriesKind::Counter, name, help, label: None }
}

/// A number that may grow and shrink.
pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Series {
    Series { kind: SeriesKind::Gauge, name, help, label: None }
}

/// Durations.
pub(crate) const fn histogram(name: &'static str, help: &'static str) -> Series {
    Series { kind: SeriesKind::Histogram, name, help, label: None }
}

impl Series {
    /// Adds a label, for one of several series with the same name.
    pub(crate) const fn of(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }

    /// Adds the same label to all series of a kind, which distinguishes it from another kind with the same names.
    #[cfg(feature = "redis")]
    pub(crate) const fn all_of<const N: usize>(
        mut series: [Series; N],
        label: &'static str,
        value: &'static str,
    ) -> [Series; N] {
        let mut at = 0;
        while at < N {
            series[at] = series[at].of(label, value);
            at += 1;
        }
        series
    }

    /// Returns the name and the value of the label; that of a series without a label is empty.
    pub(super) fn id(&self) -> (&'static str, &'static str) {
        (self.name, self.label.map_or("", |(_, value)| value))
    }

    /// Returns the key of the series for an object of this name.
    pub(super) fn key(&self, name: &str) -> Key {
        let mut labels = vec![Label::new("name", name.to_owned())];
        labels.extend(self.label.map(|(label, value)| Label::new(label, value)));
        Key::from_parts(self.name, labels)
    }

    /// Registers the series and its description with a recorder.
    pub(super) fn register(&self, key: &Key, recorder: &dyn Recorder) -> Handle {
        // The names follow Prometheus' conventions, which put the unit into the name.
        let unit = self.name.contains("_seconds").then_some(Unit::Seconds);
        let (name, help) = (self.name.into(), self.help.into());
        match self.kind {
            SeriesKind::Counter => {
                recorder.describe_counter(name, unit, help);
                Handle::Counter(recorder.register_counter(key, &METADATA))
            }
            SeriesKind::Gauge => {
                recorder.describe_gauge(name, unit, help);
                Handle::Gauge(recorder.register_gauge(key, &METADATA))
            }
            SeriesKind::Histogram => {
                recorder.describe_histogram(name, unit, help);
                Handle::Histogram(recorder.register_histogram(key, &METADATA))
            }
        }
    }
}
