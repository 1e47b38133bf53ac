//! Sets in an order: members by score, where the score is a time ([`expiring`]) or anything ([`sorted`]).

mod expiring;
mod rank_tree;
mod scores;
mod sorted;

pub use self::{
    expiring::{ExpiringSet, ExpiringSetBuilder, ExpiringSets},
    sorted::SortedSet,
};
