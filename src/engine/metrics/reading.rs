//! Values read from all objects of one kind and name, with access to single series.

use std::sync::Arc;

use super::{
    histogram::Histogram,
    series::Series,
    source::Source,
    values::{MetricValue, MetricValues},
};

/// Values read from all objects of one kind and name. Dropping it may drop the last handle of one of them.
pub(crate) struct Reading {
    pub(crate) name: String,
    pub(super) series: &'static [Series],
    pub(super) values: MetricValues,
    /// The objects that still exist.
    pub(crate) sources: Vec<Arc<dyn Source>>,
}

impl Reading {
    /// Returns the name and the label of the first series, which identify the kind.
    pub(crate) fn kind(&self) -> (&'static str, &'static str) {
        self.series[0].id()
    }

    /// Returns the count of a series with this label, or of one without labels if it is empty; `None` if the kind has
    /// no such series.
    pub(crate) fn count(&self, series: &str, label: &str) -> Option<u64> {
        self.of(series).find_map(|(series, value)| match value {
            MetricValue::Count(count) if series.id().1 == label => Some(*count),
            _ => None,
        })
    }

    /// Returns the level of a series, as [`count`](Self::count) does.
    pub(crate) fn level(&self, series: &str, label: &str) -> Option<f64> {
        self.of(series).find_map(|(series, value)| match value {
            MetricValue::Level(level) if series.id().1 == label => Some(*level),
            _ => None,
        })
    }

    pub(crate) fn histogram(&self, series: &str) -> Option<&Histogram> {
        self.of(series).find_map(|(_, value)| match value {
            MetricValue::Histogram(histogram) => Some(histogram),
            _ => None,
        })
    }

    fn of(&self, series: &str) -> impl Iterator<Item = (&Series, &MetricValue)> {
        self.series.iter().zip(self.values.all()).filter(move |(one, _)| one.name == series)
    }
}
