//! What is due first: timers in order, sorted no sooner than needed.
//!
//! 1. `front` is sorted, the first timer last. All its timers come before those of the buckets.
//! 2. A bucket is in no order. Its timers are not before its key, and before that of the next bucket.
//! 3. A bucket is never empty, and has at most [`FULL`] timers: a full one is halved. `front` has at most twice
//!    as many: then the later half becomes a bucket.
//!
//! So each change costs O(log n) for the way to a bucket, and a look at few timers that are neighbours; a tree of
//! single timers would go to a distant place for each.

use std::{cmp::Reverse, collections::BTreeMap};

use super::key_index::Location;
use crate::engine::clock::Deadline;

/// Timers of a bucket.
const FULL: usize = 128;

pub(super) struct DeadlineQueue {
    /// The first one last, as that is the end from which a vector pops.
    front: Vec<Timer>,
    buckets: BTreeMap<Order, Vec<Timer>>,
}

#[derive(Clone, Copy)]
pub(super) struct Timer {
    pub(super) deadline: Deadline,
    /// Tells equal deadlines apart. No other timer has it.
    pub(super) sequence: u64,
    pub(super) location: Location,
}

/// When in the upper half, and which first of the same instant. As one number, it is compared at once.
type Order = u128;

impl DeadlineQueue {
    pub(super) fn new() -> Self {
        Self { front: Vec::new(), buckets: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, timer: Timer) {
        let order = timer.order();
        let Some((_, bucket)) = self.buckets.range_mut(..=order).next_back() else {
            return self.insert_front(timer);
        };
        if bucket.len() < FULL {
            return bucket.push(timer);
        }
        // Halved, not sorted: whether anybody will ever want this order is still open.
        bucket.select_nth_unstable_by_key(FULL / 2, |timer| timer.order());
        let mut later = Vec::with_capacity(FULL);
        later.extend(bucket.drain(FULL / 2..));
        let key = later[0].order();
        if order < key {
            bucket.push(timer);
        } else {
            later.push(timer);
        }
        self.buckets.insert(key, later);
    }

    /// Removes the timer that `insert` was given with these.
    pub(super) fn remove(&mut self, deadline: Deadline, sequence: u64) {
        let order = order(deadline, sequence);
        let Some((&key, bucket)) = self.buckets.range_mut(..=order).next_back() else {
            if let Ok(at) = self.front.binary_search_by_key(&Reverse(order), |i| Reverse(i.order()))
            {
                self.front.remove(at);
            }
            return;
        };
        if let Some(at) = bucket.iter().position(|timer| timer.sequence == sequence) {
            bucket.swap_remove(at);
        }
        if bucket.is_empty() {
            self.buckets.remove(&key);
        } else if bucket.len() < bucket.capacity() / 4 {
            // Half of it is left free: the next to come must not make it grow again.
            bucket.shrink_to(2 * bucket.len());
        }
    }

    /// The first timer. Timers come in runs: before the first of a run comes, `prepare` is called with each.
    pub(super) fn first(&mut self, prepare: impl FnMut(&Timer)) -> Option<Timer> {
        if self.front.is_empty() {
            let (_, mut bucket) = self.buckets.pop_first()?;
            bucket.sort_unstable_by_key(|timer| Reverse(timer.order()));
            bucket.iter().for_each(prepare);
            self.front = bucket;
        }
        self.front.last().copied()
    }

    /// Removes what [`first`](DeadlineQueue::first) returned.
    pub(super) fn remove_first(&mut self) {
        self.front.pop();
    }

    fn insert_front(&mut self, timer: Timer) {
        let order = timer.order();
        let at = self.front.partition_point(|other| other.order() > order);
        self.front.insert(at, timer);
        if self.front.len() > 2 * FULL {
            let bucket: Vec<Timer> = self.front.drain(..FULL).collect();
            self.buckets.insert(bucket[FULL - 1].order(), bucket);
        }
    }
}

impl Timer {
    #[inline]
    fn order(&self) -> Order {
        order(self.deadline, self.sequence)
    }
}

#[inline]
fn order(deadline: Deadline, sequence: u64) -> Order {
    (u128::from(deadline.order()) << 64) | u128::from(sequence)
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

    impl DeadlineQueue {
        /// Checks what the file's head promises; returns how many timers there are.
        fn check(&self) -> usize {
            assert!(self.front.is_sorted_by(|a, b| a.order() > b.order()));
            assert!(self.front.len() <= 2 * FULL);
            let mut before = self.front.first().map(Timer::order);
            let mut len = self.front.len();
            for (key, bucket) in &self.buckets {
                assert!(before.is_none_or(|before| before < *key));
                assert!((1..=FULL).contains(&bucket.len()) && bucket.capacity() <= FULL);
                assert!(bucket.iter().all(|timer| timer.order() >= *key));
                before = bucket.iter().map(Timer::order).max();
                len += bucket.len();
            }
            len
        }
    }

    proptest! {
        #[test]
        fn comes_in_order(ops in proptest::collection::vec(op(), 1..100)) {
            let now = Clock::new().now();
            let deadline = |at| now.after(Duration::from_nanos(at));
            let mut queue = DeadlineQueue::new();
            let mut naive = BTreeSet::new();
            let mut sequence = 0;
            for op in ops {
                match op {
                    Op::Insert(at, count, step) => for i in 0..count as i64 {
                        let at = (at as i64 + i * step).unsigned_abs();
                        sequence += 1;
                        let location = Location { slot: sequence as u32, hash: at as u32 };
                        queue.insert(Timer { deadline: deadline(at), sequence, location });
                        naive.insert((at, sequence));
                    },
                    Op::Remove(which) if !naive.is_empty() => {
                        let (at, sequence) = **which.get(&naive.iter().collect::<Vec<_>>());
                        naive.remove(&(at, sequence));
                        queue.remove(deadline(at), sequence);
                    }
                    Op::Remove(_) => {}
                    Op::TakeFirst(count) => for _ in 0..count {
                        let first = queue.first(|_| ()).map(|timer| (u64::from(timer.location.hash), timer.sequence));
                        prop_assert_eq!(first, naive.pop_first());
                        queue.remove_first();
                    },
                }
                prop_assert_eq!(queue.check(), naive.len());
            }
        }
    }
}
