//! What a kind of thing tells: names, what they mean, and how they are told to a recorder.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};

/// What a kind of thing tells, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    kind: Kind,
    pub(super) name: &'static str,
    help: &'static str,
    /// Beside the name of the thing.
    label: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Where a recorder takes the figures of a series.
pub(super) enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

static METADATA: Metadata<'static> =
    Metadata::new("fleeting", Level::INFO, Some(env!("CARGO_PKG_NAME")));

/// What only grows.
pub(crate) const fn counter(name: &'static str, help: &'static str) -> Series {
    Series { kind: Kind::Counter, name, help, label: None }
}

/// What comes and goes.
pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Series {
    Series { kind: Kind::Gauge, name, help, label: None }
}

/// How long something took.
pub(crate) const fn histogram(name: &'static str, help: &'static str) -> Series {
    Series { kind: Kind::Histogram, name, help, label: None }
}

impl Series {
    /// One of several of the same name.
    pub(crate) const fn of(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn has_label(&self, value: &str) -> bool {
        self.label.is_some_and(|(_, label)| label == value)
    }

    /// As it is told of a thing of this name.
    pub(super) fn key(&self, name: &str) -> Key {
        let mut labels = vec![Label::new("name", name.to_owned())];
        labels.extend(self.label.map(|(label, value)| Label::new(label, value)));
        Key::from_parts(self.name, labels)
    }

    /// Makes the series known to a recorder, with what it means.
    pub(super) fn introduce(&self, key: &Key, recorder: &dyn Recorder) -> Handle {
        let unit = self.name.contains("_seconds").then_some(Unit::Seconds);
        let (name, help) = (self.name.into(), self.help.into());
        match self.kind {
            Kind::Counter => {
                recorder.describe_counter(name, unit, help);
                Handle::Counter(recorder.register_counter(key, &METADATA))
            }
            Kind::Gauge => {
                recorder.describe_gauge(name, unit, help);
                Handle::Gauge(recorder.register_gauge(key, &METADATA))
            }
            Kind::Histogram => {
                recorder.describe_histogram(name, unit, help);
                Handle::Histogram(recorder.register_histogram(key, &METADATA))
            }
        }
    }
}
