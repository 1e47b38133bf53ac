//! Values of the series of an object, in their order.

use super::{histogram::Histogram, series::Handle};

/// Values of the series of an object, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricValues(Vec<MetricValue>);

#[derive(Clone, Debug)]
pub(super) enum MetricValue {
    Count(u64),
    Level(f64),
    Histogram(Histogram),
}

impl MetricValues {
    pub(crate) fn count(&mut self, count: u64) {
        self.0.push(MetricValue::Count(count));
    }

    pub(crate) fn level(&mut self, level: f64) {
        self.0.push(MetricValue::Level(level));
    }

    pub(crate) fn histogram(&mut self, histogram: Histogram) {
        self.0.push(MetricValue::Histogram(histogram));
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn all(&self) -> &[MetricValue] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces the values by newer ones. A count never decreases: a sum of several counters that are read one by one
    /// may seem to.
    pub(super) fn replace_by(&mut self, mut now: MetricValues) {
        for (now, before) in now.0.iter_mut().zip(&self.0) {
            if let (MetricValue::Count(now), MetricValue::Count(before)) = (now, before) {
                *now = (*now).max(*before);
            }
        }
        *self = now;
    }

    /// Adds the values of another object of the same kind and name.
    pub(super) fn add(&mut self, other: &MetricValues) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            match (sum, more) {
                (MetricValue::Count(sum), MetricValue::Count(more)) => {
                    *sum = sum.saturating_add(*more)
                }
                (MetricValue::Level(sum), MetricValue::Level(more)) => *sum += more,
                (MetricValue::Histogram(sum), MetricValue::Histogram(more)) => sum.add(more),
                _ => unreachable!("objects of one kind have the same series"),
            }
        }
    }

    /// Resets what does not outlive the object: its levels.
    pub(super) fn end(&mut self) {
        for value in &mut self.0 {
            if let MetricValue::Level(level) = value {
                *level = 0.0;
            }
        }
    }

    /// Gives a recorder the increase since the values `exported`, or everything if that is empty.
    ///
    /// Uses only the calls that every recorder implements: some ignore `absolute` and `record_many`.
    pub(super) fn export(&self, exported: &MetricValues, handles: &[Handle]) {
        for (index, (value, handle)) in self.0.iter().zip(handles).enumerate() {
            match (value, handle, exported.0.get(index)) {
                (MetricValue::Count(count), Handle::Counter(counter), exported) => {
                    let before =
                        if let Some(MetricValue::Count(before)) = exported { *before } else { 0 };
                    // Also zero, the first time, so that the series exists.
                    if *count > before || exported.is_none() {
                        counter.increment(count.saturating_sub(before));
                    }
                }
                (MetricValue::Level(level), Handle::Gauge(gauge), _) => gauge.set(*level),
                (MetricValue::Histogram(histogram), Handle::Histogram(handle), exported) => {
                    let nothing = Histogram::new();
                    let before = if let Some(MetricValue::Histogram(exported)) = exported {
                        exported
                    } else {
                        &nothing
                    };
                    for (seconds, more) in histogram.since(before) {
                        (0..more).for_each(|_| handle.record(seconds));
                    }
                }
                _ => unreachable!("values have the kinds of their series"),
            }
        }
    }
}
