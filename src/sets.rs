//! Sets whose members are ordered by score. In [`expiring`] sets the score is a time; in [`sorted`] sets it has any
//! ordered type.

mod expiring;
mod rank_tree;
mod score;
mod scores;
mod sorted;

pub use self::{
    expiring::{ExpiringSet, ExpiringSetBuilder, ExpiringSets},
    score::{NotANumber, Score},
    sorted::{InsertIf, SortedSet},
};
