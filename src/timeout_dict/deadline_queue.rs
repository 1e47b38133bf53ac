//! What is due first: items in order, sorted no sooner than needed.
//!
//! 1. `near` is sorted, the first item last. All its items come before those of the piles.
//! 2. A pile is in no order. Its items are not before its key, and before that of the next pile.
//! 3. A pile is never empty, and has at most [`FULL`] items: a full one is halved. `near` has at most twice
//!    as many: then the later half becomes a pile.
//!
//! So each change costs O(log n) for the way to a pile, and a look at few items that are neighbours; a tree of
//! single items would go to a distant place for each.

use std::{cmp::Reverse, collections::BTreeMap};

use super::index::At;
use crate::engine::clock::Deadline;

/// Items of a pile.
const FULL: usize = 128;

pub(super) struct Piles {
    near: Vec<Item>,
    piles: BTreeMap<Order, Vec<Item>>,
}

#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) deadline: Deadline,
    /// Tells equal deadlines apart. No other item has it.
    pub(super) number: u64,
    pub(super) at: At,
}

/// When in the upper half, and which first of the same instant. As one number, it is compared at once.
type Order = u128;

impl Piles {
    pub(super) fn new() -> Self {
        Self { near: Vec::new(), piles: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, item: Item) {
        let order = item.order();
        let Some((_, pile)) = self.piles.range_mut(..=order).next_back() else {
            return self.insert_near(item);
        };
        if pile.len() < FULL {
            return pile.push(item);
        }
        pile.select_nth_unstable_by_key(FULL / 2, |item| item.order());
        let mut later = Vec::with_capacity(FULL);
        later.extend(pile.drain(FULL / 2..));
        let key = later[0].order();
        if order < key {
            pile.push(item);
        } else {
            later.push(item);
        }
        self.piles.insert(key, later);
    }

    /// Removes the item that `insert` was given with these.
    pub(super) fn remove(&mut self, deadline: Deadline, number: u64) {
        let order = order(deadline, number);
        let Some((&key, pile)) = self.piles.range_mut(..=order).next_back() else {
            if let Ok(at) = self.near.binary_search_by_key(&Reverse(order), |i| Reverse(i.order()))
            {
                self.near.remove(at);
            }
            return;
        };
        if let Some(at) = pile.iter().position(|item| item.number == number) {
            pile.swap_remove(at);
        }
        if pile.is_empty() {
            self.piles.remove(&key);
        } else if pile.len() < pile.capacity() / 4 {
            pile.shrink_to(2 * pile.len());
        }
    }

    /// The first item. Items come in runs: before the first of a run comes, `prepare` is called with each.
    pub(super) fn first(&mut self, prepare: impl FnMut(&Item)) -> Option<Item> {
        if self.near.is_empty() {
            let (_, mut pile) = self.piles.pop_first()?;
            pile.sort_unstable_by_key(|item| Reverse(item.order()));
            pile.iter().for_each(prepare);
            self.near = pile;
        }
        self.near.last().copied()
    }

    /// Removes what [`first`](Piles::first) returned.
    pub(super) fn remove_first(&mut self) {
        self.near.pop();
    }

    fn insert_near(&mut self, item: Item) {
        let order = item.order();
        let at = self.near.partition_point(|other| other.order() > order);
        self.near.insert(at, item);
        if self.near.len() > 2 * FULL {
            let pile: Vec<Item> = self.near.drain(..FULL).collect();
            self.piles.insert(pile[FULL - 1].order(), pile);
        }
    }
}

impl Item {
    #[inline]
    fn order(&self) -> Order {
        order(self.deadline, self.number)
    }
}

#[inline]
fn order(deadline: Deadline, number: u64) -> Order {
    (u128::from(deadline.order()) << 64) | u128::from(number)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::engine::clock::Clock;

    #[derive(Clone, Debug)]
    enum Op {
        /// So many, so many nanoseconds from one to the next.
        Insert(u64, usize, i64),
        Remove(prop::sample::Index),
        TakeFirst(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..5_000_u64, 1..200_usize, -20..20_i64).prop_map(|(at, n, step)| Op::Insert(at, n, step)),
            6 => any::<prop::sample::Index>().prop_map(Op::Remove),
            2 => (1..300_usize).prop_map(Op::TakeFirst),
        ]
    }

    impl Piles {
        /// Checks what the file's head promises; returns how many items there are.
        fn check(&self) -> usize {
            assert!(self.near.is_sorted_by(|a, b| a.order() > b.order()));
            assert!(self.near.len() <= 2 * FULL);
            let mut before = self.near.first().map(Item::order);
            let mut len = self.near.len();
            for (key, pile) in &self.piles {
                assert!(before.is_none_or(|before| before < *key));
                assert!((1..=FULL).contains(&pile.len()) && pile.capacity() <= FULL);
                assert!(pile.iter().all(|item| item.order() >= *key));
                before = pile.iter().map(Item::order).max();
                len += pile.len();
            }
            len
        }
    }

    proptest! {
        #[test]
        fn comes_in_order(ops in proptest::collection::vec(op(), 1..100)) {
            let now = Clock::new().now();
            let deadline = |at| now.after(Duration::from_nanos(at));
            let mut piles = Piles::new();
            let mut naive = BTreeSet::new();
            let mut number = 0;
            for op in ops {
                match op {
                    Op::Insert(at, count, step) => for i in 0..count as i64 {
                        let at = (at as i64 + i * step).unsigned_abs();
                        number += 1;
                        let item = At { slot: number as u32, hash: at as u32 };
                        piles.insert(Item { deadline: deadline(at), number, at: item });
                        naive.insert((at, number));
                    },
                    Op::Remove(which) if !naive.is_empty() => {
                        let (at, number) = **which.get(&naive.iter().collect::<Vec<_>>());
                        naive.remove(&(at, number));
                        piles.remove(deadline(at), number);
                    }
                    Op::Remove(_) => {}
                    Op::TakeFirst(count) => for _ in 0..count {
                        let first = piles.first(|_| ()).map(|item| (u64::from(item.at.hash), item.number));
                        prop_assert_eq!(first, naive.pop_first());
                        piles.remove_first();
                    },
                }
                prop_assert_eq!(piles.check(), naive.len());
            }
        }
    }
}
