//! What all shards of a cache have learnt: of what was asked for like this before, and not for so long, what is it
//! worth to keep it.
//!
//! Each time that a key is asked for, a wait begins. It ends in the next hit, be it of an entry or of a ghost, or it is
//! lost from sight. From the waits of a class come the chances of a hit at each age (Kaplan and Meier, 1958), and from
//! these the worth of an entry: the most hits for each part of time that it can bring from now on, if one may give it up
//! at the best moment (Gittins' index, 1979). So what is recent leaves last where old means forgotten; in a loop what is
//! old stays, since its time is near; and what is scanned leaves first.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use super::access_word::{AGES, CLASSES, WIDTHS};

/// Waits of a class that count; the older count half.
const MAX_OBSERVATIONS: f32 = 4_096.0;

/// So many waits are needed until those of a class count more than those of all.
const PRIOR_WEIGHT: f32 = 8.0;

/// A power of two: what a mask lets through is in bounds.
const SLOTS: usize = 16;

/// How a wait ended: of which class, and at which age.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observation {
    Hit(u8, u8),
    Loss(u8, u8),
}

pub(super) struct HitModel {
    /// As bits of an `f32`: of what is not negative, these have the same order.
    worths: [[AtomicU32; SLOTS]; SLOTS],
    observations: Mutex<Observations>,
}

struct Observations {
    classes: [ClassCounts; CLASSES],
    /// The class whose worths are worked out next.
    next: usize,
}

/// How many waits of a class ended at which age.
#[derive(Clone, Copy, Default)]
struct ClassCounts {
    hits: [f32; AGES],
    losses: [f32; AGES],
    all: f32,
}

impl HitModel {
    pub(super) fn new() -> Self {
        let observations = Observations { classes: [ClassCounts::default(); CLASSES], next: 0 };
        const { assert!(AGES <= SLOTS && CLASSES <= SLOTS) };
        let worths = ClassCounts::default().worths(&ClassCounts::default()).map(f32::to_bits);
        let worth = |age: usize| AtomicU32::new(worths.get(age).copied().unwrap_or_default());
        Self {
            worths: std::array::from_fn(|_| std::array::from_fn(worth)),
            observations: Mutex::new(observations),
        }
    }

    /// What it is worth to keep an entry; of two, the greater is to be kept.
    #[inline]
    pub(super) fn worth(&self, class: u8, age: u8) -> u32 {
        self.worths[usize::from(class) % SLOTS][usize::from(age) % SLOTS].load(Relaxed)
    }

    /// Where another adds just now, nothing is added, and nobody waits.
    pub(super) fn add(&self, batch: &[Observation]) {
        let Ok(mut observations) = self.observations.try_lock() else { return };
        for observation in batch {
            let (Observation::Hit(class, _) | Observation::Loss(class, _)) = *observation;
            observations.classes[usize::from(class)].add(*observation);
        }
        // One at a time, so that each call takes a microsecond.
        let class = observations.next;
        observations.next = (class + 1) % CLASSES;
        let worths = observations.classes[class].worths(&observations.sum());
        for (slot, worth) in self.worths[class].iter().zip(worths) {
            slot.store(worth.to_bits(), Relaxed);
        }
    }
}

impl Observations {
    fn sum(&self) -> ClassCounts {
        let mut sum = ClassCounts::default();
        for class in &self.classes {
            for age in 0..AGES {
                sum.hits[age] += class.hits[age];
                sum.losses[age] += class.losses[age];
            }
        }
        sum
    }
}

impl ClassCounts {
    fn add(&mut self, observation: Observation) {
        match observation {
            Observation::Hit(_, age) => self.hits[usize::from(age)] += 1.0,
            Observation::Loss(_, age) => self.losses[usize::from(age)] += 1.0,
        }
        self.all += 1.0;
        if self.all >= MAX_OBSERVATIONS {
            self.all /= 2.0;
            self.hits.iter_mut().chain(&mut self.losses).for_each(|count| *count /= 2.0);
        }
    }

    /// For each age, the most hits for each part of time, over all moments to give up.
    fn worths(&self, all: &Self) -> [f32; AGES] {
        let chances = self.chances(all);
        std::array::from_fn(|age| {
            let (mut survivors, mut hits, mut time, mut best) = (1.0, 0.0, 0.0, 0.0_f32);
            for (chance, width) in chances[age..].iter().zip(&WIDTHS[age..]) {
                hits += survivors * chance;
                // Who is hit within this age is so in the midst of it.
                time += survivors * f32::from(*width) * (1.0 - chance / 2.0);
                survivors *= 1.0 - chance;
                best = best.max(hits / time);
            }
            best
        })
    }

    /// For each age, the chance that a wait that lasts until then ends in a hit there.
    fn chances(&self, all: &Self) -> [f32; AGES] {
        let initial_chances = initial_chances();
        let mut chances = all.estimates(&initial_chances);
        if self.all > 0.0 {
            chances = self.estimates(&chances);
        }
        chances
    }

    /// The same, where a few waits count as much as what is thought without any.
    fn estimates(&self, prior: &[f32; AGES]) -> [f32; AGES] {
        let mut older = 0.0;
        let mut estimates = [0.0; AGES];
        for age in (0..AGES).rev() {
            let (hits, losses) = (self.hits[age], self.losses[age]);
            // Who is lost from sight within this age is so in the midst of it.
            let at_risk = older + hits + losses / 2.0;
            estimates[age] = (hits + PRIOR_WEIGHT * prior[age]) / (at_risk + PRIOR_WEIGHT);
            older += hits + losses;
        }
        estimates
    }
}

/// What is thought before anything is known: the longer ago, the less likely. So at first the oldest leave.
fn initial_chances() -> [f32; AGES] {
    let mut passed = 0.0;
    WIDTHS.map(|width| {
        let width = f32::from(width);
        passed += width;
        0.15 * width / passed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is worth how much once a class has ended like this often enough.
    fn trained(batch: &[Observation]) -> HitModel {
        let hit_model = HitModel::new();
        for _ in 0..100 {
            hit_model.add(batch);
        }
        hit_model
    }

    #[test]
    fn at_first_the_oldest_leave() {
        let hit_model = HitModel::new();
        for class in 0..CLASSES as u8 {
            let worths: Vec<u32> = (0..AGES as u8).map(|age| hit_model.worth(class, age)).collect();
            assert!(worths.is_sorted_by(|younger, older| younger > older), "{worths:?}");
        }
    }

    #[test]
    fn in_a_loop_the_youngest_leave() {
        let hit_model = trained(&[Observation::Hit(3, 8), Observation::Loss(3, 0)]);
        let worths: Vec<u32> = (0..9).map(|age| hit_model.worth(3, age)).collect();
        assert!(worths.is_sorted_by(|younger, older| younger < older), "{worths:?}");
        assert!(hit_model.worth(3, 9) < hit_model.worth(3, 0), "it is over");
    }

    #[test]
    fn who_is_hit_more_often_and_sooner_is_worth_more() {
        let rare = [
            Observation::Hit(1, 8),
            Observation::Loss(1, 8),
            Observation::Hit(2, 8),
            Observation::Hit(4, 2),
        ];
        let hit_model = trained(&rare);
        assert!(hit_model.worth(1, 0) < hit_model.worth(2, 0));
        assert!(hit_model.worth(2, 0) < hit_model.worth(4, 0));
    }

    #[test]
    fn what_was_is_outweighed_by_what_is() {
        let hit_model = trained(&[Observation::Hit(1, 1); 100]);
        let before = hit_model.worth(1, 0);
        for _ in 0..1_000 {
            hit_model.add(&[Observation::Loss(1, 1); 32]);
        }
        assert!(f32::from_bits(hit_model.worth(1, 0)) < f32::from_bits(before) / 5.0);
    }

    #[test]
    fn worths_are_numbers() {
        let hit_model = trained(&[Observation::Hit(0, 0), Observation::Hit(0, AGES as u8 - 1)]);
        for class in 0..CLASSES as u8 {
            for age in 0..AGES as u8 {
                let worth = f32::from_bits(hit_model.worth(class, age));
                assert!(worth > 0.0 && worth < 4.0, "{worth}");
            }
        }
    }
}
