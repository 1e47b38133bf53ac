//! [`Window::Log`](super::Window::Log), the sliding-window log: the time of each admitted call. (Events for tracing are
//! in `denial_log.rs`.)

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::algorithm::{Algorithm, Back, Charge, LimitParams, Releases};
use crate::engine::clock::{Now, Tick};

/// Times of admitted calls. A call counts for `per` from its time on, so the window is `(now - per, now]`.
///
/// Each item holds the sum of the costs up to it, so a search takes steps in the logarithm of the number of items, and
/// not one for each: neither a peek after a long pause nor the denial of a large cost holds the lock for long.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    /// Length of the window.
    per: u64,
    /// In order of time, one item per distinct time. The first two are stored inline.
    calls: SmallVec<[Calls; 2]>,
    /// One more than the number of items at the front that have left the window. Never zero, which saves a word.
    start: NonZeroU32,
    /// Sum of the costs in the window, saturating: a debt may exceed every quota.
    used: u32,
}

/// Capacity below which memory is not given back.
const SMALL_CAPACITY: usize = 32;

/// Number of distinct times that a state keeps at least, if calls of other limits are noted in it.
const MIN_NOTED: usize = 2_048;

/// Calls of one time. Packed, since a quarter of it would be padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Calls {
    at: Tick,
    /// Sum of the costs of all items up to this one. It wraps, but no cost does, so the differences are exact.
    sum: u32,
}

impl Calls {
    /// Returns a copy: references to fields of a packed struct are not allowed.
    #[inline]
    fn at(&self) -> Tick {
        self.at
    }
}

impl Log {
    #[inline]
    fn expired_len(&self) -> usize {
        self.start.get() as usize - 1
    }

    #[inline]
    fn in_window(&self) -> &[Calls] {
        &self.calls[self.expired_len()..]
    }

    /// Returns the sum of the costs before an item; 0 before the first.
    #[inline]
    fn sum_before(&self, index: usize) -> u32 {
        index.checked_sub(1).map_or(0, |last| self.calls[last].sum)
    }

    /// Returns the number of items in the window that have left it by now.
    #[inline(always)]
    fn left_len(&self, per: u64, now: &impl Now) -> usize {
        gallop(self.in_window(), |calls| now.has_reached(calls.at().later(per)))
    }

    /// Returns the sum of the costs of the first items in the window. Wraps if `used` is saturated.
    #[inline]
    fn cost_of_first(&self, items: usize) -> u32 {
        let start = self.expired_len();
        self.sum_before(start + items).wrapping_sub(self.sum_before(start))
    }

    #[inline(always)]
    fn drop_expired(&mut self, now: &impl Now) {
        let left = self.left_len(self.per, now);
        if left == 0 {
            return;
        }
        let is_sum = self.used < u32::MAX;
        self.used = self.used.wrapping_sub(self.cost_of_first(left));
        self.start = self.start.saturating_add(left as u32);
        if !is_sum {
            self.recount();
        }
    }

    /// Makes room for an item by removing items that have left the window, if it pays.
    #[inline(always)]
    fn make_room(&mut self) {
        let (expired, len) = (self.expired_len(), self.calls.len());
        // At a full buffer, compacts only if at least half of the items have left the window, so that each is moved at
        // most once between two growths. Compacts early if nearly all have left: otherwise a burst would keep its
        // memory forever.
        let is_buffer_full = len == self.calls.capacity() && 2 * expired >= len;
        if is_buffer_full || expired > SMALL_CAPACITY && expired / 4 > len - expired {
            self.compact();
        }
    }

    /// Adds a call. Returns its time: that of the last item if a clock went back, so that times stay in order.
    #[inline(always)]
    fn push(&mut self, at: Tick, cost: u32) -> Tick {
        self.used = self.used.saturating_add(cost);
        match self.calls.last().copied() {
            Some(last) if last.at() >= at && self.calls.len() > self.expired_len() => {
                self.merge(cost);
                last.at()
            }
            last => {
                // From the sum of the last item, even if that has left the window.
                let sum = last.map_or(0, |last| last.sum).wrapping_add(cost);
                self.calls.push(Calls { at, sum });
                at
            }
        }
    }

    /// Merges the oldest calls if there are many more than the quota: only calls of other limits are so many, and the
    /// newest `quota` units decide. So the memory is bounded by the quota, and no unit is forgotten: if later calls are
    /// refunded, merged ones may count for longer.
    fn merge_oldest(&mut self, quota: u32) {
        let max = MIN_NOTED.max(quota as usize);
        let len = self.in_window().len();
        // The sum of merged calls must not wrap either.
        if len <= max.saturating_mul(2) || self.used == u32::MAX {
            return;
        }
        self.compact();
        let merged = len - max;
        // Sums are those up to an item, so the last of the merged items has the sum of all.
        self.calls.drain(..merged - 1);
    }

    /// Adds a cost to that of the last item.
    #[cold]
    fn merge(&mut self, cost: u32) {
        let last = self.calls.len() - 1;
        let before = self.sum_before(last);
        // Saturates: a cost above every quota leaves as a whole, so its exact size makes no difference.
        let sum = self.calls[last].sum.wrapping_sub(before).saturating_add(cost);
        self.calls[last].sum = before.wrapping_add(sum);
    }

    #[cold]
    fn compact(&mut self) {
        let expired = self.expired_len();
        let (remaining, base) = (self.in_window().len(), self.sum_before(expired));
        let enough = SMALL_CAPACITY.max(2 * remaining);
        if self.calls.capacity() / 4 > enough {
            let mut calls = SmallVec::with_capacity(enough);
            calls.extend_from_slice(self.in_window());
            self.calls = calls;
        } else {
            self.calls.drain(..expired);
        }
        // Sums begin with the first item.
        for calls in &mut self.calls {
            calls.sum = calls.sum.wrapping_sub(base);
        }
        self.start = NonZeroU32::MIN;
    }

    #[cold]
    fn recount(&mut self) {
        let sum = self.calls_with_costs().map(|(_, cost)| u64::from(cost)).sum::<u64>();
        self.used = u32::try_from(sum).unwrap_or(u32::MAX);
    }

    /// Returns the items one by one, with the times from which they are outside a window.
    fn releases(&self, per: u64) -> impl Iterator<Item = (Tick, u32)> {
        self.calls_with_costs().map(move |(at, cost)| (at.later(per), cost))
    }

    /// Returns the times of the calls in the window, with their costs.
    fn calls_with_costs(&self) -> impl Iterator<Item = (Tick, u32)> {
        let mut before = self.sum_before(self.expired_len());
        self.in_window().iter().map(move |calls| {
            let cost = calls.sum.wrapping_sub(before);
            before = calls.sum;
            (calls.at(), cost)
        })
    }

    /// Implements `ready` for a saturated sum, whose differences may have wrapped: by a walk.
    #[cold]
    fn ready_in_debt(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        let used = self.calls_with_costs().map(|(_, cost)| u64::from(cost)).sum();
        self.releases(params.per).ready(used, params, now, cost)
    }

    /// Implements `used` for a saturated sum.
    #[cold]
    fn used_in_debt(&self, per: u64, now: &impl Now) -> u32 {
        let in_use = self.releases(per).filter(|(leaves_at, _)| !now.has_reached(*leaves_at));
        let used = in_use.map(|(_, cost)| u64::from(cost)).sum::<u64>();
        u32::try_from(used).unwrap_or(u32::MAX)
    }
}

/// Returns the log of the shortest window that contains the given one, or of the longest.
fn best_known<'a>(known: impl Iterator<Item = &'a Log>, params: &LimitParams) -> Option<&'a Log> {
    known.min_by_key(|log| (log.per < params.per, log.per.abs_diff(params.per)))
}

/// Returns the number of items at the front for which `is_in_front` is true, as `partition_point` does, in steps in the
/// logarithm of that number: it is mostly 0 or 1.
#[inline]
fn gallop(items: &[Calls], is_in_front: impl Fn(&Calls) -> bool) -> usize {
    let mut end = 1;
    while items.get(end - 1).is_some_and(&is_in_front) {
        end *= 2;
    }
    // The first `end / 2` are in front, and the item at `end - 1`, if any, is not.
    let start = end / 2;
    match items.get(start..end.min(items.len())) {
        Some(unknown) if end > 1 => start + unknown.partition_point(is_in_front),
        _ => start,
    }
}

impl Algorithm for Log {
    #[inline]
    fn new(params: &LimitParams) -> Self {
        Self { per: params.per, calls: SmallVec::new(), start: NonZeroU32::MIN, used: 0 }
    }

    fn derive<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> Self {
        let mut log = Self::new(params);
        if let Some(known) = best_known(known, params) {
            // With the last item before the window, for the sum up to it.
            let first = known.expired_len() + known.left_len(params.per, now);
            let before = first.saturating_sub(1);
            log.calls = SmallVec::from_slice(&known.calls[before..]);
            log.start = log.start.saturating_add((first - before) as u32);
            log.used = log
                .calls
                .last()
                .map_or(0, |last| last.sum.wrapping_sub(log.sum_before(first - before)));
            // Costs of a saturated sum do not wrap, but their sum does.
            if known.used == u32::MAX {
                log.recount();
            }
        }
        log
    }

    // Neither needs a copy: a log answers for any window that it contains.
    fn ready_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
    ) -> Option<Tick> {
        best_known(known, params)?.ready(params, now, cost)
    }

    fn used_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> u32 {
        best_known(known, params).map_or(0, |log| log.used(params, now))
    }

    #[inline(always)]
    fn is_for(&self, params: &LimitParams) -> bool {
        self.per == params.per
    }

    fn params(&self) -> LimitParams {
        let quota = u32::try_from(self.calls.len().max(MIN_NOTED)).unwrap_or(u32::MAX);
        LimitParams { quota, per: self.per, step: self.per, fraction: 0, buckets: 1 }
    }

    #[inline(always)]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        let headroom = params.quota - cost;
        if self.used <= headroom {
            return None;
        }
        if self.used == u32::MAX {
            return self.ready_in_debt(params, now, cost);
        }
        // As many units have to leave as are in the way.
        let (excess, base) = (self.used - headroom, self.sum_before(self.expired_len()));
        let must_leave = gallop(self.in_window(), |calls| calls.sum.wrapping_sub(base) < excess);
        let leaves_at = self.in_window().get(must_leave)?.at().later(params.per);
        (!now.has_reached(leaves_at)).then_some(leaves_at)
    }

    #[inline(always)]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        let at = now.tick();
        self.drop_expired(now);
        self.make_room();
        // `refund` finds the item by this time.
        let mark = self.push(at, cost);
        (Charge { mark, amount: u64::from(cost) }, params.quota.saturating_sub(self.used))
    }

    fn note(
        &mut self,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
        _: &Self,
    ) -> Option<(Charge, u128)> {
        self.charge(params, now, cost);
        self.merge_oldest(params.quota);
        // A refund finds it by its time.
        None
    }

    fn refund(&mut self, charge: Charge, back: Back, _: &impl Now) -> bool {
        // Times are in order and distinct. A charge that is not found has left the window or was reset.
        let Ok(index) = self.in_window().binary_search_by_key(&charge.mark, Calls::at) else {
            return false;
        };
        let index = self.expired_len() + index;
        let cost = self.calls[index].sum.wrapping_sub(self.sum_before(index));
        let back = cost.min(back.units);
        for calls in &mut self.calls[index..] {
            calls.sum = calls.sum.wrapping_sub(back);
        }
        // An item without units would delay `idle_from`, and so the removal of the key.
        if back == cost {
            self.calls.remove(index);
        }
        match self.used {
            u32::MAX => self.recount(),
            _ => self.used -= back,
        }
        false
    }

    fn refund_unrecorded(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool {
        self.refund(charge, back, now)
    }

    fn used(&self, params: &LimitParams, now: &impl Now) -> u32 {
        match self.used {
            u32::MAX => self.used_in_debt(params.per, now),
            used => used - self.cost_of_first(self.left_len(params.per, now)),
        }
    }

    #[inline]
    fn idle_from(&self) -> Option<Tick> {
        self.in_window().last().map(|last| last.at().later(self.per))
    }
}
