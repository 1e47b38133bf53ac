//! Hit model: learned estimate of the expected hits per class and age, shared by all shards of a cache.
//!
//! Each access to a key begins an interval. It ends with the next hit, of the entry or of its ghost, or it is censored
//! when the key is forgotten. From the intervals of a class follow the chances of a hit at each age (Kaplan and Meier,
//! 1958). From these follows the worth of an entry: the highest rate of hits per unit of time that it can bring from
//! now on if it may be evicted at the best moment (Gittins' index, 1979). So recent entries are evicted last in
//! workloads in which old entries are not read again. In a loop, old entries stay, because their next hit is near.
//! Scanned entries are evicted first.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use super::access_word::{AGES, CLASSES, WIDTHS};

/// Number of observations of a class at which all of its counts are halved: per entry of the cache, and at least. A
/// scan of as many keys as a large cache has entries must not displace all that was learnt before it.
const OBSERVATIONS_PER_ENTRY: usize = 2;
const MIN_OBSERVATIONS: usize = 4_096;

/// Greatest number of observations, so that a count of them in an `f32` is exact.
const MAX_OBSERVATIONS: usize = 1 << 22;

/// Class of keys without a known hit. Most of them may never occur again, so it shares no observations with the others.
const NEVER_HIT: usize = 0;

/// Weight of a prior, in observations. The initial chances are the prior of keys without a known hit, and of all
/// classes with hits together. These are the prior of each class with hits.
const PRIOR_WEIGHT: f32 = 8.0;

/// Size of a table dimension. A power of two, so that a masked index is in bounds.
const SLOTS: usize = 16;

/// The end of an interval: its class, and the age at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Observation {
    Hit(u8, u8),
    Loss(u8, u8),
}

/// Worths by class and age, and the observations that they are computed from.
pub(crate) struct HitModel {
    /// Worths by stored class (one more than the class) and age, as the bits of an `f32`, which have the same order as
    /// the (non-negative) numbers. Relaxed: each is used on its own.
    worths: [[AtomicU32; SLOTS]; SLOTS],
    observations: Mutex<Observations>,
}

struct Observations {
    classes: [ClassCounts; CLASSES],
    /// The class whose worths are recomputed next, if they are stale.
    next: usize,
    /// True for each class whose worths depend on observations that were added since they were computed.
    is_stale: [bool; CLASSES],
    /// Number of observations of a class at which all of its counts are halved.
    max: f32,
}

/// Numbers of intervals of a class that ended at each age.
#[derive(Clone, Copy, Default)]
struct ClassCounts {
    hits: [f32; AGES],
    losses: [f32; AGES],
    all: f32,
}

impl HitModel {
    pub(crate) fn new() -> Self {
        let classes = [ClassCounts::default(); CLASSES];
        let (is_stale, max) = ([false; CLASSES], MIN_OBSERVATIONS as f32);
        let observations = Observations { classes, next: 0, is_stale, max };
        const { assert!(AGES <= SLOTS && CLASSES < SLOTS) };
        let hit_model = Self { worths: Default::default(), observations: Mutex::new(observations) };
        hit_model.add_all(0, |_| ());
        hit_model
    }

    /// Returns the worth of keeping an entry. Of two entries, the one with the greater worth is to be kept.
    #[inline]
    pub(crate) fn worth(&self, stored_class: u8, age: u8) -> u32 {
        self.worths[usize::from(stored_class) % SLOTS][usize::from(age) % SLOTS].load(Relaxed)
    }

    /// Adds observations of a cache with about `entries` entries, unless another shard is adding at the moment: an
    /// eviction never waits here, since it holds a shard lock.
    pub(crate) fn add(&self, batch: &[Observation], entries: usize) {
        let Ok(mut observations) = self.observations.try_lock() else { return };
        observations.fit(entries);
        for observation in batch {
            observations.add(*observation);
        }
        // One class per call, so that a call takes about a microsecond.
        let class = observations.next;
        observations.next = (class + 1) % CLASSES;
        if mem::take(&mut observations.is_stale[class]) {
            self.set_worths(class, &observations);
        }
    }

    /// Adds all observations that `fill` passes on, and recomputes all worths. Returns `false` without calling it if
    /// another shard is adding at the moment.
    pub(crate) fn add_all(
        &self,
        entries: usize,
        fill: impl FnOnce(&mut dyn FnMut(Observation)),
    ) -> bool {
        let Ok(mut observations) = self.observations.try_lock() else { return false };
        observations.fit(entries);
        fill(&mut |observation| observations.add(observation));
        for class in 0..CLASSES {
            self.set_worths(class, &observations);
        }
        observations.is_stale = [false; CLASSES];
        true
    }

    fn set_worths(&self, class: usize, observations: &Observations) {
        for (slot, worth) in self.worths[class + 1].iter().zip(observations.worths(class)) {
            slot.store(worth.to_bits(), Relaxed);
        }
    }
}

impl Observations {
    /// Adapts to the number of entries of the cache.
    fn fit(&mut self, entries: usize) {
        let max = OBSERVATIONS_PER_ENTRY.saturating_mul(entries);
        self.max = max.clamp(MIN_OBSERVATIONS, MAX_OBSERVATIONS) as f32;
    }

    fn add(&mut self, observation: Observation) {
        let (Observation::Hit(class, _) | Observation::Loss(class, _)) = observation;
        self.classes[usize::from(class)].add(observation, self.max);
        match usize::from(class) {
            NEVER_HIT => self.is_stale[NEVER_HIT] = true,
            // All classes with hits have their sum as their prior.
            _ => self.is_stale[NEVER_HIT + 1..].fill(true),
        }
    }

    /// Returns the worths of a class by age.
    fn worths(&self, class: usize) -> [f32; AGES] {
        let counts = &self.classes[class];
        let mut prior = initial_chances();
        if class != NEVER_HIT {
            prior = self.sum_after_hits().estimates(&prior);
        }
        worths(&counts.estimates(&prior))
    }

    /// Returns the sum of all classes with hits.
    fn sum_after_hits(&self) -> ClassCounts {
        let mut sum = ClassCounts::default();
        for class in &self.classes[NEVER_HIT + 1..] {
            for age in 0..AGES {
                sum.hits[age] += class.hits[age];
                sum.losses[age] += class.losses[age];
            }
        }
        sum
    }
}

impl ClassCounts {
    fn add(&mut self, observation: Observation, max: f32) {
        match observation {
            Observation::Hit(_, age) => self.hits[usize::from(age)] += 1.0,
            Observation::Loss(_, age) => self.losses[usize::from(age)] += 1.0,
        }
        self.all += 1.0;
        if self.all >= max {
            self.all /= 2.0;
            self.hits.iter_mut().chain(&mut self.losses).for_each(|count| *count /= 2.0);
        }
    }

    /// Returns, for each age, the chance that an interval that has lasted until then ends with a hit there: estimated
    /// from these counts, with `prior` counting as [`PRIOR_WEIGHT`] observations.
    fn estimates(&self, prior: &[f32; AGES]) -> [f32; AGES] {
        let mut older = 0.0;
        let mut estimates = [0.0; AGES];
        for age in (0..AGES).rev() {
            let (hits, losses) = (self.hits[age], self.losses[age]);
            // A loss within this age is taken to be in the middle of it.
            let at_risk = older + hits + losses / 2.0;
            estimates[age] = (hits + PRIOR_WEIGHT * prior[age]) / (at_risk + PRIOR_WEIGHT);
            older += hits + losses;
        }
        estimates
    }
}

/// Returns, for each age, the highest rate of hits over all times of eviction.
fn worths(chances: &[f32; AGES]) -> [f32; AGES] {
    std::array::from_fn(|age| {
        let (mut survivors, mut hits, mut time, mut best) = (1.0, 0.0, 0.0, 0.0_f32);
        for (chance, width) in chances[age..].iter().zip(&WIDTHS[age..]) {
            hits += survivors * chance;
            // A hit within this age is taken to be in the middle of it.
            time += survivors * f32::from(*width) * (1.0 - chance / 2.0);
            survivors *= 1.0 - chance;
            best = best.max(hits / time);
        }
        best
    })
}

/// Returns the chances that are assumed before anything was observed: they fall with age, so that at first the oldest
/// entries are evicted.
fn initial_chances() -> [f32; AGES] {
    let mut passed = 1.0;
    WIDTHS.map(|width| {
        let width = f32::from(width);
        passed += width;
        width / passed
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Returns the model after these observations were made often enough.
    fn trained(batch: &[Observation]) -> HitModel {
        let hit_model = HitModel::new();
        for _ in 0..100 {
            hit_model.add(batch, 0);
        }
        hit_model
    }

    #[test]
    fn untrained_model_evicts_the_oldest_first() {
        let hit_model = HitModel::new();
        for class in 0..CLASSES as u8 {
            let worths: Vec<u32> =
                (0..AGES as u8).map(|age| hit_model.worth(class + 1, age)).collect();
            assert!(worths.is_sorted_by(|younger, older| younger > older), "{worths:?}");
        }
    }

    #[test]
    fn loop_evicts_the_youngest_first() {
        let hit_model = trained(&[Observation::Hit(3, 8), Observation::Loss(3, 0)]);
        let worths: Vec<u32> = (0..9).map(|age| hit_model.worth(4, age)).collect();
        assert!(worths.is_sorted_by(|younger, older| younger < older), "{worths:?}");
        assert!(hit_model.worth(4, 9) < hit_model.worth(4, 0), "the loop is shorter than this age");
    }

    #[test]
    fn worth_rises_with_the_number_of_hits_and_falls_with_their_gap() {
        let rare = [
            Observation::Hit(1, 8),
            Observation::Loss(1, 8),
            Observation::Hit(2, 8),
            Observation::Hit(4, 2),
        ];
        let hit_model = trained(&rare);
        assert!(hit_model.worth(2, 0) < hit_model.worth(3, 0));
        assert!(hit_model.worth(3, 0) < hit_model.worth(5, 0));
    }

    #[test]
    fn recent_observations_outweigh_old_ones() {
        let hit_model = trained(&[Observation::Hit(1, 1); 100]);
        let before = hit_model.worth(2, 0);
        for _ in 0..1_000 {
            hit_model.add(&[Observation::Loss(1, 1); 32], 0);
        }
        assert!(f32::from_bits(hit_model.worth(2, 0)) < f32::from_bits(before) / 5.0);
    }

    #[test]
    fn worth_is_always_a_positive_number() {
        let hit_model = trained(&[Observation::Hit(0, 0), Observation::Hit(0, AGES as u8 - 1)]);
        for class in 0..CLASSES as u8 {
            for age in 0..AGES as u8 {
                let worth = f32::from_bits(hit_model.worth(class + 1, age));
                assert!(worth > 0.0 && worth < 4.0, "{worth}");
            }
        }
    }
}
