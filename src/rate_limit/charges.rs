//! Charges of a permit: what a refund has to take back, and where.

use smallvec::SmallVec;

use super::algorithm::{Charge, Noted};

/// Charges of one call, to all its limits. Most limiters have one limit, for which it does not allocate.
#[derive(Debug)]
pub(crate) enum Charges {
    /// The call cost nothing, or had no limits.
    None,
    One(Charge),
    Many(Box<ManyCharges>),
}

#[derive(Debug, Default)]
pub(crate) struct ManyCharges {
    /// Charge of each limit of the call; one, if only other limits make the charges many.
    each: SmallVec<[Charge; 1]>,
    /// Charges to other limits by which the key is checked, too.
    noted: Vec<Noted>,
}

impl Charges {
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the charges in the order of the limits.
    pub(super) fn each(&self) -> &[Charge] {
        match self {
            Self::None => &[],
            Self::One(charge) => std::slice::from_ref(charge),
            Self::Many(many) => &many.each,
        }
    }

    /// Returns the charges to other limits at a position.
    pub(super) fn noted(&self, position: usize) -> impl Iterator<Item = &Noted> + Clone {
        let noted = match self {
            Self::Many(many) => &*many.noted,
            _ => &[],
        };
        noted.iter().filter(move |noted| noted.position == position)
    }
}

impl ManyCharges {
    pub(super) fn push(&mut self, charge: Charge) {
        self.each.push(charge);
    }

    /// Returns the position of the limit that is charged next.
    pub(super) fn next_position(&self) -> usize {
        self.each.len()
    }

    pub(super) fn note(&mut self, noted: Noted) {
        self.noted.push(noted);
    }
}

impl From<ManyCharges> for Charges {
    fn from(many: ManyCharges) -> Self {
        match (&*many.each, &*many.noted) {
            ([], _) => Self::None,
            ([charge], []) => Self::One(*charge),
            _ => Self::Many(Box::new(many)),
        }
    }
}
