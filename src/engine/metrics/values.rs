//! What was read of a thing, in the order of its series.

use super::{histogram::Histogram, series::Handle};

/// What was read of a thing, in the order of its series.
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

    /// Takes what was read now for what was read before. What is made of several counts may seem to go back, and does
    /// not.
    pub(super) fn renew(&mut self, mut now: MetricValues) {
        for (now, before) in now.0.iter_mut().zip(&self.0) {
            if let (MetricValue::Count(now), MetricValue::Count(before)) = (now, before) {
                *now = (*now).max(*before);
            }
        }
        *self = now;
    }

    /// Adds what another thing of the same kind and name has.
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
                _ => unreachable!("things of one kind read the same series"),
            }
        }
    }

    /// What stays of a thing that has ended.
    pub(super) fn end(&mut self) {
        for figure in &mut self.0 {
            if let MetricValue::Level(level) = figure {
                *level = 0.0;
            }
        }
    }

    /// Tells what is more than it was when it was `given`, and all of it where that is nothing.
    ///
    /// By the calls that every recorder has: some know nothing of `absolute` and `record_many`.
    pub(super) fn tell(&self, given: &MetricValues, handles: &[Handle]) {
        for (index, (figure, handle)) in self.0.iter().zip(handles).enumerate() {
            match (figure, handle, given.0.get(index)) {
                (MetricValue::Count(count), Handle::Counter(counter), given) => {
                    let before =
                        if let Some(MetricValue::Count(before)) = given { *before } else { 0 };
                    // Also nothing, at first: so that there is a series.
                    if *count > before || given.is_none() {
                        counter.increment(count.saturating_sub(before));
                    }
                }
                (MetricValue::Level(level), Handle::Gauge(gauge), _) => gauge.set(*level),
                (MetricValue::Histogram(histogram), Handle::Histogram(handle), given) => {
                    let nothing = Histogram::new();
                    let before = if let Some(MetricValue::Histogram(given)) = given {
                        given
                    } else {
                        &nothing
                    };
                    for (seconds, more) in histogram.since(before) {
                        (0..more).for_each(|_| handle.record(seconds));
                    }
                }
                _ => unreachable!("what is read is as the series say"),
            }
        }
    }
}
