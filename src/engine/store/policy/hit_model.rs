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
const REMEMBERED: f32 = 4_096.0;

/// So many waits are needed until those of a class count more than those of all.
const DOUBT: f32 = 8.0;

/// A power of two: what a mask lets through is in bounds.
const PLACES: usize = 16;

/// How a wait ended: of which class, and at which age.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observation {
    Hit(u8, u8),
    Loss(u8, u8),
}

pub(super) struct HitModel {
    /// As bits of an `f32`: of what is not negative, these have the same order.
    worths: [[AtomicU32; PLACES]; PLACES],
    waits: Mutex<Waits>,
}

struct Waits {
    classes: [Class; CLASSES],
    /// The class whose worths are worked out next.
    next: usize,
}

/// How many waits of a class ended at which age.
#[derive(Clone, Copy, Default)]
struct Class {
    hits: [f32; AGES],
    losses: [f32; AGES],
    all: f32,
}

impl HitModel {
    pub(super) fn new() -> Self {
        let waits = Waits { classes: [Class::default(); CLASSES], next: 0 };
        const { assert!(AGES <= PLACES && CLASSES <= PLACES) };
        let worths = Class::default().worths(&Class::default()).map(f32::to_bits);
        let worth = |age: usize| AtomicU32::new(worths.get(age).copied().unwrap_or_default());
        Self {
            worths: std::array::from_fn(|_| std::array::from_fn(worth)),
            waits: Mutex::new(waits),
        }
    }

    /// What it is worth to keep an entry; of two, the greater is to be kept.
    #[inline]
    pub(super) fn worth(&self, class: u8, age: u8) -> u32 {
        self.worths[usize::from(class) % PLACES][usize::from(age) % PLACES].load(Relaxed)
    }

    /// Where another adds just now, nothing is added, and nobody waits.
    pub(super) fn add(&self, endings: &[Observation]) {
        let Ok(mut waits) = self.waits.try_lock() else { return };
        for ending in endings {
            let (Observation::Hit(class, _) | Observation::Loss(class, _)) = *ending;
            waits.classes[usize::from(class)].add(*ending);
        }
        // One at a time, so that each call takes a microsecond.
        let class = waits.next;
        waits.next = (class + 1) % CLASSES;
        let worths = waits.classes[class].worths(&waits.sum());
        for (place, worth) in self.worths[class].iter().zip(worths) {
            place.store(worth.to_bits(), Relaxed);
        }
    }
}

impl Waits {
    fn sum(&self) -> Class {
        let mut sum = Class::default();
        for class in &self.classes {
            for age in 0..AGES {
                sum.hits[age] += class.hits[age];
                sum.losses[age] += class.losses[age];
            }
        }
        sum
    }
}

impl Class {
    fn add(&mut self, ending: Observation) {
        match ending {
            Observation::Hit(_, age) => self.hits[usize::from(age)] += 1.0,
            Observation::Loss(_, age) => self.losses[usize::from(age)] += 1.0,
        }
        self.all += 1.0;
        if self.all >= REMEMBERED {
            self.all /= 2.0;
            self.hits.iter_mut().chain(&mut self.losses).for_each(|waits| *waits /= 2.0);
        }
    }

    /// For each age, the most hits for each part of time, over all moments to give up.
    fn worths(&self, all: &Self) -> [f32; AGES] {
        let chances = self.chances(all);
        std::array::from_fn(|age| {
            let (mut waits, mut hits, mut time, mut best) = (1.0, 0.0, 0.0, 0.0_f32);
            for (chance, width) in chances[age..].iter().zip(&WIDTHS[age..]) {
                hits += waits * chance;
                // Who is hit within this age is so in the midst of it.
                time += waits * f32::from(*width) * (1.0 - chance / 2.0);
                waits *= 1.0 - chance;
                best = best.max(hits / time);
            }
            best
        })
    }

    /// For each age, the chance that a wait that lasts until then ends in a hit there.
    fn chances(&self, all: &Self) -> [f32; AGES] {
        let guesses = guesses();
        let mut chances = all.shares(&guesses);
        if self.all > 0.0 {
            chances = self.shares(&chances);
        }
        chances
    }

    /// The same, where a few waits count as much as what is thought without any.
    fn shares(&self, thought: &[f32; AGES]) -> [f32; AGES] {
        let mut longer = 0.0;
        let mut shares = [0.0; AGES];
        for age in (0..AGES).rev() {
            let (hits, losses) = (self.hits[age], self.losses[age]);
            // Who is lost from sight within this age is so in the midst of it.
            let waiting = longer + hits + losses / 2.0;
            shares[age] = (hits + DOUBT * thought[age]) / (waiting + DOUBT);
            longer += hits + losses;
        }
        shares
    }
}

/// What is thought before anything is known: the longer ago, the less likely. So at first the oldest leave.
fn guesses() -> [f32; AGES] {
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
    fn learnt(endings: &[Observation]) -> HitModel {
        let hit_model = HitModel::new();
        for _ in 0..100 {
            hit_model.add(endings);
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
        let hit_model = learnt(&[Observation::Hit(3, 8), Observation::Loss(3, 0)]);
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
        let hit_model = learnt(&rare);
        assert!(hit_model.worth(1, 0) < hit_model.worth(2, 0));
        assert!(hit_model.worth(2, 0) < hit_model.worth(4, 0));
    }

    #[test]
    fn what_was_is_outweighed_by_what_is() {
        let hit_model = learnt(&[Observation::Hit(1, 1); 100]);
        let before = hit_model.worth(1, 0);
        for _ in 0..1_000 {
            hit_model.add(&[Observation::Loss(1, 1); 32]);
        }
        assert!(f32::from_bits(hit_model.worth(1, 0)) < f32::from_bits(before) / 5.0);
    }

    #[test]
    fn worths_are_numbers() {
        let hit_model = learnt(&[Observation::Hit(0, 0), Observation::Hit(0, AGES as u8 - 1)]);
        for class in 0..CLASSES as u8 {
            for age in 0..AGES as u8 {
                let worth = f32::from_bits(hit_model.worth(class, age));
                assert!(worth > 0.0 && worth < 4.0, "{worth}");
            }
        }
    }
}
