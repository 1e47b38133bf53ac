//! Priority queue of timers by deadline, which sorts as late as possible.
//!
//! 1. `front` is sorted, with the first timer last. All its timers precede those in the buckets.
//! 2. A bucket is unordered. Its timers are not before its key, and are before the key of the next bucket.
//! 3. A bucket is never empty and has at most [`BUCKET_CAPACITY`] timers; a full one is halved before an insertion.
//!    `front` has at most twice as many; beyond that, its later half becomes a bucket.
//!
//! So each change costs O(log n) to find a bucket, and a scan of a few adjacent timers. A tree of single timers would
//! access a distant place in memory for each of them.

use std::{cmp::Reverse, collections::BTreeMap};

#[cfg(feature = "metrics")]
use crate::engine::clock::Tick;
use crate::engine::{clock::Deadline, slot_index::Slot};

/// Maximum number of timers in a bucket. A removal scans its bucket, so larger ones would cost more; smaller ones would
/// make the tree of buckets larger.
const BUCKET_CAPACITY: usize = 128;

pub(super) struct DeadlineQueue {
    /// In descending order, because a vector pops from its end.
    front: Vec<Timer>,
    buckets: BTreeMap<Order, Vec<Timer>>,
}

#[derive(Clone, Copy)]
pub(super) struct Timer {
    pub(super) deadline: Deadline,
    /// Orders timers with equal deadlines. Unique among all timers.
    pub(super) sequence: u64,
    pub(super) slot: Slot,
}

/// Deadline in the upper 64 bits and sequence number in the lower ones, so that one comparison orders two timers.
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
        if bucket.len() < BUCKET_CAPACITY {
            return bucket.push(timer);
        }
        // Partitioned but not sorted, as most of its timers may be removed before their order matters.
        bucket.select_nth_unstable_by_key(BUCKET_CAPACITY / 2, |timer| timer.order());
        let mut later = Vec::with_capacity(BUCKET_CAPACITY);
        later.extend(bucket.drain(BUCKET_CAPACITY / 2..));
        // After the partition, the first timer of the later half is its earliest.
        let key = later[0].order();
        if order < key {
            bucket.push(timer);
        } else {
            later.push(timer);
        }
        self.buckets.insert(key, later);
    }

    /// Removes the timer that was inserted with this deadline and sequence number.
    pub(super) fn remove(&mut self, deadline: Deadline, sequence: u64) {
        let order = order(deadline, sequence);
        let Some((&key, bucket)) = self.buckets.range_mut(..=order).next_back() else {
            // `front` is in descending order, so that its first timer is removed at the end.
            if let Ok(at) = self.front.binary_search_by_key(&Reverse(order), |i| Reverse(i.order()))
            {
                self.front.remove(at);
            }
            return;
        };
        // Not ordered, so it is searched; sequence numbers are unique.
        if let Some(at) = bucket.iter().position(|timer| timer.sequence == sequence) {
            bucket.swap_remove(at);
        }
        if bucket.is_empty() {
            self.buckets.remove(&key);
        } else if bucket.len() < bucket.capacity() / 4 {
            // Leaves half of the capacity free, so that the next insertion does not grow it again.
            bucket.shrink_to(2 * bucket.len());
        }
    }

    /// Returns the first timer. A bucket becomes the new `front` as a whole; `prepare` is then called with each of its
    /// timers.
    pub(super) fn first(&mut self, prepare: impl FnMut(&Timer)) -> Option<Timer> {
        if self.front.is_empty() {
            let (_, mut bucket) = self.buckets.pop_first()?;
            bucket.sort_unstable_by_key(|timer| Reverse(timer.order()));
            bucket.iter().for_each(prepare);
            self.front = bucket;
        }
        self.front.last().copied()
    }

    /// Removes the timer that [`first`](DeadlineQueue::first) returned.
    pub(super) fn remove_first(&mut self) {
        self.front.pop();
    }

    /// Returns all timers in order. Each bucket is sorted when it is reached.
    pub(super) fn iter(&self) -> impl Iterator<Item = Timer> {
        let later = self.buckets.values().flat_map(|bucket| {
            let mut sorted = bucket.clone();
            sorted.sort_unstable_by_key(Timer::order);
            sorted
        });
        self.front.iter().rev().copied().chain(later)
    }

    /// Returns the number of timers.
    #[cfg(feature = "metrics")]
    pub(super) fn len(&self) -> usize {
        self.front.len() + self.buckets.values().map(Vec::len).sum::<usize>()
    }

    /// Returns the number of timers whose deadline has passed. Scans one bucket, and takes the others by their length.
    #[cfg(feature = "metrics")]
    pub(super) fn count_until(&self, now: Tick) -> usize {
        let is_due = |timer: &&Timer| timer.deadline.is_expired(now);
        let front = self.front.iter().rev().take_while(is_due).count();
        let mut due = self.buckets.range(..=order(now.into(), u64::MAX)).map(|(_, bucket)| bucket);
        // Only the last bucket may have later timers.
        let last = due.next_back().map_or(0, |bucket| bucket.iter().filter(is_due).count());
        front + due.map(Vec::len).sum::<usize>() + last
    }

    fn insert_front(&mut self, timer: Timer) {
        let order = timer.order();
        let at = self.front.partition_point(|other| other.order() > order);
        self.front.insert(at, timer);
        if self.front.len() > 2 * BUCKET_CAPACITY {
            // The latest timers come first in `front`; the last one of them is the earliest, and so the key of the
            // bucket.
            let bucket: Vec<Timer> = self.front.drain(..BUCKET_CAPACITY).collect();
            self.buckets.insert(bucket[BUCKET_CAPACITY - 1].order(), bucket);
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::engine::clock::Clock;

    #[derive(Clone, Debug)]
    enum Op {
        /// First deadline, number of timers, and nanoseconds between two of them.
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
        /// Checks the invariants of the module docs, and returns the number of timers.
        fn check(&self) -> usize {
            assert!(self.front.is_sorted_by(|a, b| a.order() > b.order()));
            assert!(self.front.len() <= 2 * BUCKET_CAPACITY);
            let mut before = self.front.first().map(Timer::order);
            let mut len = self.front.len();
            for (key, bucket) in &self.buckets {
                assert!(before.is_none_or(|before| before < *key));
                assert!(
                    (1..=BUCKET_CAPACITY).contains(&bucket.len())
                        && bucket.capacity() <= BUCKET_CAPACITY
                );
                assert!(bucket.iter().all(|timer| timer.order() >= *key));
                before = bucket.iter().map(Timer::order).max();
                len += bucket.len();
            }
            len
        }
    }

    proptest! {
        #[test]
        fn deadline_queue_agrees_with_a_sorted_set(ops in proptest::collection::vec(op(), 1..100)) {
            let now = Clock::new().now();
            let deadline = |at| now.after(Duration::from_nanos(at));
            let mut queue = DeadlineQueue::new();
            let mut model = BTreeSet::new();
            let mut sequence = 0;
            for op in ops {
                match op {
                    Op::Insert(at, count, step) => for i in 0..count as i64 {
                        let at = (at as i64 + i * step).unsigned_abs();
                        sequence += 1;
                        let slot = Slot { number: sequence as u32, hash: at as u32 };
                        queue.insert(Timer { deadline: deadline(at), sequence, slot });
                        model.insert((at, sequence));
                    },
                    Op::Remove(which) if !model.is_empty() => {
                        let (at, sequence) = **which.get(&model.iter().collect::<Vec<_>>());
                        model.remove(&(at, sequence));
                        queue.remove(deadline(at), sequence);
                    }
                    Op::Remove(_) => {}
                    Op::TakeFirst(count) => for _ in 0..count {
                        let first = queue.first(|_| ()).map(|timer| (u64::from(timer.slot.hash), timer.sequence));
                        prop_assert_eq!(first, model.pop_first());
                        queue.remove_first();
                    },
                }
                prop_assert_eq!(queue.check(), model.len());
                let in_order = queue.iter().map(|timer| timer.sequence);
                prop_assert!(in_order.eq(model.iter().map(|(_, sequence)| *sequence)));
                #[cfg(feature = "metrics")]
                {
                    prop_assert_eq!(queue.len(), model.len());
                    let due = model.iter().filter(|(at, _)| *at <= 2_500).count();
                    prop_assert_eq!(queue.count_until(now.later(2_500)), due);
                }
            }
        }
    }
}
