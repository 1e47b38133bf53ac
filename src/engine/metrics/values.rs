//! What was read of a thing, in the order of its series.

use super::{histogram::Spread, series::Handle};

/// What was read of a thing, in the order of its series.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(Vec<Figure>);

#[derive(Clone, Debug)]
pub(super) enum Figure {
    Count(u64),
    Level(f64),
    Spread(Spread),
}

impl Figures {
    pub(crate) fn count(&mut self, count: u64) {
        self.0.push(Figure::Count(count));
    }

    pub(crate) fn level(&mut self, level: f64) {
        self.0.push(Figure::Level(level));
    }

    pub(crate) fn spread(&mut self, spread: Spread) {
        self.0.push(Figure::Spread(spread));
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn all(&self) -> &[Figure] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes what was read now for what was read before. What is made of several counts may seem to go back, and does
    /// not.
    pub(super) fn renew(&mut self, mut now: Figures) {
        for (now, before) in now.0.iter_mut().zip(&self.0) {
            if let (Figure::Count(now), Figure::Count(before)) = (now, before) {
                *now = (*now).max(*before);
            }
        }
        *self = now;
    }

    /// Adds what another thing of the same kind and name has.
    pub(super) fn add(&mut self, other: &Figures) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            match (sum, more) {
                (Figure::Count(sum), Figure::Count(more)) => *sum = sum.saturating_add(*more),
                (Figure::Level(sum), Figure::Level(more)) => *sum += more,
                (Figure::Spread(sum), Figure::Spread(more)) => sum.add(more),
                _ => unreachable!("things of one kind read the same series"),
            }
        }
    }

    /// What stays of a thing that has ended.
    pub(super) fn end(&mut self) {
        for figure in &mut self.0 {
            if let Figure::Level(level) = figure {
                *level = 0.0;
            }
        }
    }

    /// Tells what is more than it was when it was `told`, and all of it where that is nothing.
    ///
    /// By the calls that every recorder has: some know nothing of `absolute` and `record_many`.
    pub(super) fn tell(&self, told: &Figures, handles: &[Handle]) {
        for (index, (figure, handle)) in self.0.iter().zip(handles).enumerate() {
            match (figure, handle, told.0.get(index)) {
                (Figure::Count(count), Handle::Counter(counter), told) => {
                    let before = if let Some(Figure::Count(before)) = told { *before } else { 0 };
                    // Also nothing, at first: so that there is a series.
                    if *count > before || told.is_none() {
                        counter.increment(count.saturating_sub(before));
                    }
                }
                (Figure::Level(level), Handle::Gauge(gauge), _) => gauge.set(*level),
                (Figure::Spread(spread), Handle::Spread(histogram), told) => {
                    let nothing = Spread::new();
                    let before =
                        if let Some(Figure::Spread(told)) = told { told } else { &nothing };
                    for (seconds, more) in spread.since(before) {
                        (0..more).for_each(|_| histogram.record(seconds));
                    }
                }
                _ => unreachable!("what is read is as the series say"),
            }
        }
    }
}
